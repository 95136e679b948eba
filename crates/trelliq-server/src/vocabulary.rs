//! Tokens as bytes.

use std::collections::HashMap;
use tokenizers::DecoderWrapper;
use trelliq_model::Tokenizer;

/// The bytes that every token stands for.
#[derive(Debug)]
pub struct Vocabulary {
    bytes: Vec<Box<[u8]>>,
    special: Vec<bool>,
}

/// How a tokenizer writes bytes as characters.
#[derive(Debug, Default, Clone, Copy)]
struct Spelling {
    /// GPT-2's: every byte is a printable character.
    byte_level: bool,
    /// What stands for a space, where bytes are spelled `<0x0A>`.
    space: Option<char>,
}

impl Vocabulary {
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let inner = tokenizer.hugging_face();
        let mut spelling = Spelling::default();
        if let Some(decoder) = inner.get_decoder() {
            spelling.read(decoder);
        }
        let characters = byte_level_characters();
        let added = inner.get_added_tokens_decoder();
        let count = tokenizer.vocab_size();
        let mut this = Self { bytes: vec![Box::default(); count], special: vec![false; count] };
        for token in 0..count as u32 {
            let Some(text) = inner.id_to_token(token) else {
                this.special[token as usize] = true;
                continue;
            };
            let added = added.get(&token);
            // Added tokens are written out; those in angle brackets are marks, not text.
            let mark = text.starts_with('<') && text.ends_with('>');
            this.special[token as usize] = added.is_some_and(|token| token.special || mark);
            this.bytes[token as usize] = match added {
                Some(_) => text.as_bytes().into(),
                None => spelling.bytes(&text, &characters).into(),
            };
        }
        this
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes of a token; of one that is not text, its name. Empty for one that does not exist.
    pub fn bytes(&self, token: u32) -> &[u8] {
        self.bytes.get(token as usize).map_or(&[], |bytes| bytes)
    }

    /// Whether a token is no text.
    pub fn is_special(&self, token: u32) -> bool {
        self.special.get(token as usize).copied().unwrap_or(true)
    }
}

impl Spelling {
    fn read(&mut self, decoder: &DecoderWrapper) {
        match decoder {
            DecoderWrapper::ByteLevel(_) => self.byte_level = true,
            DecoderWrapper::Metaspace(_) | DecoderWrapper::ByteFallback(_) => {
                self.space = Some('\u{2581}');
            }
            DecoderWrapper::Sequence(sequence) => {
                sequence.get_decoders().iter().for_each(|decoder| self.read(decoder));
            }
            _ => {}
        }
    }

    fn bytes(self, text: &str, characters: &HashMap<char, u8>) -> Vec<u8> {
        if self.byte_level {
            let bytes: Option<Vec<u8>> =
                text.chars().map(|c| characters.get(&c).copied()).collect();
            return bytes.unwrap_or_else(|| text.as_bytes().to_vec());
        }
        let hex = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        if let Some(byte) = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            return vec![byte];
        }
        match self.space {
            Some(space) => text.replace(space, " ").into_bytes(),
            None => text.as_bytes().to_vec(),
        }
    }
}

/// GPT-2's alphabet: printable characters of Latin-1 stand for themselves, the other bytes for the
/// characters from U+0100 on, in order.
fn byte_level_characters() -> HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100u32;
    let mut characters = HashMap::new();
    for byte in 0..=255u8 {
        let character = if printable(byte) {
            char::from(byte)
        } else {
            next += 1;
            char::from_u32(next - 1).unwrap_or_default()
        };
        characters.insert(character, byte);
    }
    characters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_of_byte_level_tokenizers() {
        // Values from the published encoder of GPT-2: space is U+0120, newline U+010A, 0xAD U+0143.
        let characters = byte_level_characters();
        for (character, byte) in
            [('\u{120}', 0x20), ('\u{10a}', 0x0a), ('\u{143}', 0xad), ('é', 0xe9)]
        {
            assert_eq!(characters.get(&character), Some(&byte));
        }
        assert_eq!(characters.len(), 256);
    }

    #[test]
    fn spellings() {
        let characters = byte_level_characters();
        let byte_level = Spelling { byte_level: true, space: None };
        assert_eq!(byte_level.bytes("\u{120}Ã©", &characters), " é".as_bytes());
        let fallback = Spelling { byte_level: false, space: Some('\u{2581}') };
        assert_eq!(fallback.bytes("<0xE2>", &characters), [0xe2]);
        assert_eq!(fallback.bytes("\u{2581}a<", &characters), b" a<");
    }
}
