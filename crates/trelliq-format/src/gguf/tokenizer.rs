//! `tokenizer.json` and the files beside it from a GGUF file's metadata.
//!
//! candle's `TokenizerFromGguf` knows byte-level BPE only and takes every rule that it does not know
//! for GPT-2's, which gives other tokens than the model was trained on.

use super::header::GgufValue;
use super::metadata::Metadata;
use super::pre_tokenizer;
use super::sentencepiece::{self, Piece};
use crate::FormatError;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashSet};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
/// What SentencePiece writes for a space.
const SPACE: &str = "\u{2581}";

/// `llama_token_type` of llama.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenType {
    fn from_value(value: GgufValue) -> Option<Self> {
        let code = match value {
            GgufValue::Signed(code) => code,
            GgufValue::Unsigned(code) => i64::try_from(code).ok()?,
            _ => return None,
        };
        Some(match code {
            // 0 is "undefined", which llama.cpp treats as an ordinary token.
            0 | 1 => TokenType::Normal,
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => return None,
        })
    }
}

/// The metadata's tokens and which of them mean what.
struct Vocabulary<'a> {
    metadata: Metadata<'a>,
    tokens: Vec<&'a str>,
    types: Vec<TokenType>,
}

/// The parts of `tokenizer.json` that its kinds differ in.
struct Pipeline<'a> {
    model: Bpe<'a>,
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    add_bos: bool,
}

/// `tokenizer.json`. Its large parts are borrowed: as JSON values they would take ten times the
/// memory of the file.
#[derive(Serialize)]
struct TokenizerJson<'a> {
    version: &'static str,
    truncation: Value,
    padding: Value,
    added_tokens: Vec<Value>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Bpe<'a>,
}

#[derive(Serialize)]
struct Bpe<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    dropout: Value,
    unk_token: Option<&'a str>,
    continuing_subword_prefix: Value,
    end_of_word_suffix: Value,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    #[serde(serialize_with = "by_token")]
    vocab: &'a [&'a str],
    merges: Vec<(&'a str, &'a str)>,
}

/// Tokens to their ids.
fn by_token<S: Serializer>(tokens: &[&str], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(tokens.iter().enumerate().map(|(id, token)| (token, id)))
}

/// `tokenizer.json`, `tokenizer_config.json` and `generation_config.json`; none where the file has
/// no tokenizer.
pub(crate) fn synthesise(metadata: Metadata) -> Result<BTreeMap<String, Vec<u8>>, FormatError> {
    let mut files = BTreeMap::new();
    let Some(kind) = metadata.text(MODEL)? else { return Ok(files) };
    let vocabulary = Vocabulary::read(metadata)?;
    let pipeline = match kind {
        "gpt2" => vocabulary.byte_level()?,
        "llama" => vocabulary.sentencepiece()?,
        other => {
            let reason = format!("`{other}` is neither gpt2 nor llama");
            return Err(metadata.error(MODEL, reason));
        }
    };
    let add_bos = metadata.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(pipeline.add_bos);
    let add_eos = metadata.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
    let tokenizer = TokenizerJson {
        version: "1.0",
        truncation: Value::Null,
        padding: Value::Null,
        added_tokens: vocabulary.added_tokens(),
        normalizer: pipeline.normalizer,
        pre_tokenizer: pipeline.pre_tokenizer,
        post_processor: vocabulary.template(add_bos, add_eos)?,
        decoder: pipeline.decoder,
        model: pipeline.model,
    };
    let json = FormatError::json(metadata.file);
    files.insert("tokenizer.json".to_owned(), serde_json::to_vec(&tokenizer).map_err(json)?);
    let mut add = |name: &str, value: Value| {
        files.insert(name.to_owned(), format!("{value:#}\n").into_bytes());
    };
    add("tokenizer_config.json", vocabulary.config(add_bos, add_eos)?);
    add("generation_config.json", vocabulary.generation_config()?);
    Ok(files)
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: Metadata<'a>) -> Result<Self, FormatError> {
        let text = |value| match value {
            GgufValue::Text(text) => Some(text),
            _ => None,
        };
        let tokens = metadata.items(TOKENS, "a string", text)?;
        let tokens = metadata.required(TOKENS, tokens)?;
        let types = metadata.items(TYPES, "a token type", TokenType::from_value)?;
        let types = types.unwrap_or_else(|| vec![TokenType::Normal; tokens.len()]);
        if types.len() != tokens.len() {
            let reason = format!("{} types for {} tokens", types.len(), tokens.len());
            return Err(metadata.error(TYPES, reason));
        }
        let mut seen = HashSet::new();
        if let Some(token) = tokens.iter().find(|token| !seen.insert(**token)) {
            return Err(metadata.error(TOKENS, format!("the token {token:?} comes twice")));
        }
        Ok(Self { metadata, tokens, types })
    }

    fn byte_level(&self) -> Result<Pipeline<'_>, FormatError> {
        let name = self.metadata.text(PRE)?.unwrap_or("default");
        let Some(pre) = pre_tokenizer::by_name(name) else {
            return Err(self.metadata.error(PRE, format!("pre-tokenizer `{name}` is not known")));
        };
        let pair = |value| match value {
            GgufValue::Text(merge) => merge.split_once(' '),
            _ => None,
        };
        let merges = self.metadata.items(MERGES, "two tokens with a space between", pair)?;
        let merges = self.metadata.required(MERGES, merges)?;
        self.check_merges(&merges)?;
        let bytes = json!({
            "type": "ByteLevel",
            "add_prefix_space": true,
            "trim_offsets": true,
            "use_regex": true,
        });
        Ok(Pipeline {
            model: self.model(merges, None, pre.ignore_merges),
            normalizer: pre.normalizer,
            pre_tokenizer: pre.pre_tokenizer,
            decoder: bytes,
            add_bos: pre.add_bos,
        })
    }

    /// A merge of tokens that do not exist would make the whole tokenizer unusable.
    fn check_merges(&self, merges: &[(&str, &str)]) -> Result<(), FormatError> {
        let known: HashSet<&str> = self.tokens.iter().copied().collect();
        let mut joined = String::new();
        for (left, right) in merges {
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            if [left, right, &joined.as_str()].iter().any(|part| !known.contains(**part)) {
                let reason = format!("{left:?} and {right:?} or their union are not tokens");
                return Err(self.metadata.error(MERGES, reason));
            }
        }
        Ok(())
    }

    fn sentencepiece(&self) -> Result<Pipeline<'_>, FormatError> {
        let score = |value| match value {
            GgufValue::Float(score) if score.is_finite() => Some(score as f32),
            _ => None,
        };
        let scores = self.metadata.items(SCORES, "a finite number", score)?;
        let scores = self.metadata.required(SCORES, scores)?;
        if scores.len() != self.tokens.len() {
            let reason = format!("{} scores for {} tokens", scores.len(), self.tokens.len());
            return Err(self.metadata.error(SCORES, reason));
        }
        let piece = |((&token, &kind), &score): ((&&'a str, &TokenType), &f32)| {
            let text = matches!(kind, TokenType::Normal | TokenType::UserDefined);
            text.then_some((token, score))
        };
        let typed = self.tokens.iter().zip(&self.types);
        let pieces: Vec<Option<Piece>> = typed.zip(&scores).map(piece).collect();
        let prefix = self.metadata.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        let replace = |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
        let mut normalizers = vec![replace(" ", SPACE)];
        let mut decoders =
            vec![replace(SPACE, " "), json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
        if prefix {
            normalizers.insert(0, json!({ "type": "Prepend", "prepend": SPACE }));
            decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
        }
        let unknown = self.unknown()?;
        Ok(Pipeline {
            model: self.model(sentencepiece::merges(&pieces), unknown, false),
            normalizer: json!({ "type": "Sequence", "normalizers": normalizers }),
            pre_tokenizer: Value::Null,
            decoder: json!({ "type": "Sequence", "decoders": decoders }),
            add_bos: true,
        })
    }

    /// The BPE model; with an unknown token its bytes are tried first.
    fn model<'b>(
        &'b self,
        merges: Vec<(&'b str, &'b str)>,
        unknown: Option<&'b str>,
        ignore_merges: bool,
    ) -> Bpe<'b> {
        Bpe {
            kind: "BPE",
            dropout: Value::Null,
            unk_token: unknown,
            continuing_subword_prefix: Value::Null,
            end_of_word_suffix: Value::Null,
            fuse_unk: unknown.is_some(),
            byte_fallback: unknown.is_some(),
            ignore_merges,
            vocab: &self.tokens,
            merges,
        }
    }

    /// Tokens that are found in text before anything else, as they are.
    fn added_tokens(&self) -> Vec<Value> {
        let numbered = self.tokens.iter().zip(&self.types).enumerate();
        let added = numbered.filter_map(|(id, (token, kind))| {
            let special = match kind {
                TokenType::Control | TokenType::Unknown => true,
                TokenType::UserDefined => false,
                TokenType::Normal | TokenType::Unused | TokenType::Byte => return None,
            };
            Some(json!({
                "id": id,
                "content": token,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": special,
            }))
        });
        added.collect()
    }

    /// Puts the tokens for the text's beginning and end around it.
    fn template(&self, add_bos: bool, add_eos: bool) -> Result<Value, FormatError> {
        let bos = if add_bos { Some(self.require("bos")?) } else { None };
        let eos = if add_eos { Some(self.require("eos")?) } else { None };
        if bos.is_none() && eos.is_none() {
            return Ok(Value::Null);
        }
        let side = |sequence: &str, type_id: u32| {
            let special = |(_, token): (usize, &str)| json!({ "SpecialToken": { "id": token, "type_id": type_id } });
            let text = json!({ "Sequence": { "id": sequence, "type_id": type_id } });
            let parts = bos.map(special).into_iter().chain([text]).chain(eos.map(special));
            parts.collect::<Vec<Value>>()
        };
        let pair = [side("A", 0), side("B", 1)].concat();
        let special = |(id, token): (usize, &str)| {
            (token.to_owned(), json!({ "id": token, "ids": [id], "tokens": [token] }))
        };
        let specials: Map<String, Value> = bos.into_iter().chain(eos).map(special).collect();
        Ok(json!({
            "type": "TemplateProcessing",
            "single": side("A", 0),
            "pair": pair,
            "special_tokens": specials,
        }))
    }

    fn config(&self, add_bos: bool, add_eos: bool) -> Result<Value, FormatError> {
        let mut config = Map::new();
        config.insert("tokenizer_class".to_owned(), "PreTrainedTokenizerFast".into());
        config.insert("add_bos_token".to_owned(), add_bos.into());
        config.insert("add_eos_token".to_owned(), add_eos.into());
        config.insert("clean_up_tokenization_spaces".to_owned(), false.into());
        for (key, name) in [
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("pad_token", "padding"),
            ("unk_token", "unknown"),
        ] {
            if let Some((_, token)) = self.special(name)? {
                config.insert(key.to_owned(), token.into());
            }
        }
        if let Some(template) = self.metadata.text("tokenizer.chat_template")? {
            config.insert("chat_template".to_owned(), template.into());
        }
        Ok(Value::Object(config))
    }

    /// Generation ends with the end of the text or of a turn.
    fn generation_config(&self) -> Result<Value, FormatError> {
        let mut ends = Vec::new();
        for name in ["eos", "eot"] {
            ends.extend(self.special(name)?.map(|(id, _)| id).filter(|id| !ends.contains(id)));
        }
        let mut config = Map::new();
        if let Some((id, _)) = self.special("bos")? {
            config.insert("bos_token_id".to_owned(), id.into());
        }
        if !ends.is_empty() {
            config.insert("eos_token_id".to_owned(), ends.into());
        }
        if let Some((id, _)) = self.special("padding")? {
            config.insert("pad_token_id".to_owned(), id.into());
        }
        Ok(Value::Object(config))
    }

    /// A token that the metadata names by its id.
    fn special(&self, name: &str) -> Result<Option<(usize, &'a str)>, FormatError> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = self.metadata.size(&key)? else { return Ok(None) };
        match self.tokens.get(id) {
            Some(token) => Ok(Some((id, token))),
            None => {
                let reason = format!("there is no token {id}: there are {}", self.tokens.len());
                Err(self.metadata.error(&key, reason))
            }
        }
    }

    fn require(&self, name: &str) -> Result<(usize, &'a str), FormatError> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        self.metadata.required(&key, self.special(name)?)
    }

    fn unknown(&self) -> Result<Option<&'a str>, FormatError> {
        if let Some((_, token)) = self.special("unknown")? {
            return Ok(Some(token));
        }
        let by_type = self.types.iter().position(|&kind| kind == TokenType::Unknown);
        Ok(by_type.map(|id| self.tokens[id]))
    }
}
