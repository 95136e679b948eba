use super::*;
use serde_json::json;

/// A byte-level tokenizer whose tokens are single bytes, in the order of their values, and then
/// the special token `<end>`.
fn bytes() -> Tokenizer {
    let mut next = 256;
    let mut vocab = serde_json::Map::new();
    for byte in 0..=255u32 {
        // GPT-2's printable stand-ins for bytes.
        let printable = matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let stand_in = if printable {
            byte
        } else {
            next += 1;
            next - 1
        };
        vocab.insert(char::from_u32(stand_in).unwrap().to_string(), byte.into());
    }
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true});
    build(json!({
        "added_tokens": [added(256, "<end>")], "pre_tokenizer": level, "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }))
}

/// A tokenizer in the manner of SentencePiece: `▁` for a space, bytes as `<0xNN>`, and a decoder
/// that takes the first space away.
fn pieces() -> Tokenizer {
    let mut vocab = json!({"<unk>": 0, "▁": 1, "▁to": 2, "be": 3, "▁be": 4});
    for byte in 0..=255u32 {
        vocab[format!("<0x{byte:02X}>")] = (5 + byte).into();
    }
    build(json!({
        "added_tokens": [added(261, "<end>")],
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": true,
            "unk_token": "<unk>"},
    }))
}

fn added(id: u32, content: &str) -> Value {
    json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false})
}

fn build(parts: Value) -> Tokenizer {
    let mut whole = json!({"version": "1.0", "truncation": null, "padding": null,
        "normalizer": null, "pre_tokenizer": null, "post_processor": null});
    for (key, value) in parts.as_object().unwrap() {
        whole[key] = value.clone();
    }
    Tokenizer::from_bytes(whole.to_string().as_bytes()).unwrap()
}

fn stream(tokenizer: &Tokenizer, tokens: &[u32]) -> (Vec<String>, String) {
    let mut stream = tokenizer.stream();
    let shown = tokens.iter().map(|token| stream.push(*token).unwrap()).collect();
    (shown, stream.finish().unwrap())
}

#[test]
fn an_emoji_over_four_tokens_comes_whole() {
    let tokenizer = bytes();
    let tokens = tokenizer.encode("a🦉é", false).unwrap();
    assert_eq!(tokens, "a🦉é".bytes().map(u32::from).collect::<Vec<_>>());
    let (shown, rest) = stream(&tokenizer, &tokens);
    assert_eq!(shown, ["a", "", "", "", "🦉", "", "é"]);
    assert_eq!(rest, "");
}

#[test]
fn an_incomplete_character_at_the_end_is_replaced() {
    let (shown, rest) = stream(&bytes(), &[b'a'.into(), 0xf0, 0x9f]);
    assert_eq!((shown.concat().as_str(), rest.as_str()), ("a", "\u{fffd}"));
}

#[test]
fn spaces_between_pieces_are_kept_and_the_first_is_not_shown() {
    let tokenizer = pieces();
    let emoji = "🦉".bytes().map(|byte| 5 + u32::from(byte));
    let tokens: Vec<u32> = [2, 4, 1].into_iter().chain(emoji).chain([3, 4]).collect();
    let (shown, rest) = stream(&tokenizer, &tokens);
    assert_eq!(shown, ["to", " be", " ", "", "", "", "🦉", "be", " be"]);
    assert_eq!(rest, "");
    assert_eq!(shown.concat(), tokenizer.decode(&tokens, true).unwrap());
}

#[test]
fn special_tokens_are_recognised_in_text_and_not_shown() {
    let tokenizer = bytes();
    assert_eq!(tokenizer.encode("a<end>b", false).unwrap(), [97, 256, 98]);
    assert_eq!(stream(&tokenizer, &[97, 256, 98]).0, ["a", "", "b"]);
    assert_eq!(tokenizer.decode(&[97, 256], false).unwrap(), "a<end>");
    assert_eq!(tokenizer.vocab_size(), 257);
}

#[test]
fn a_stored_truncation_is_not_applied() {
    let mut json: Value = serde_json::from_str(&bytes().inner.to_string(false).unwrap()).unwrap();
    json["truncation"] = json!({"direction": "Right", "max_length": 2, "stride": 0,
        "strategy": "LongestFirst"});
    let tokenizer = Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap();
    assert_eq!(tokenizer.encode("abcd", false).unwrap().len(), 4);
}

fn with_files(config: Value, generation: Value, model: Value) -> Result<Tokenizer, TokenizerError> {
    let tokenizer = bytes().inner.to_string(false).unwrap();
    let files = [
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", config.to_string()),
        ("generation_config.json", generation.to_string()),
    ];
    let files = files.map(|(name, text)| (name.to_owned(), text.into_bytes())).into();
    Tokenizer::from_files(&files, &model)
}

#[test]
fn end_tokens_come_from_every_file() {
    let eos = |config, generation, model| {
        with_files(config, generation, model).unwrap().eos_tokens().collect::<Vec<_>>()
    };
    let named = json!({"eos_token": {"content": "<end>"}});
    assert_eq!(
        eos(named, json!({"eos_token_id": [3, 1]}), json!({"eos_token_id": 2})),
        [1, 2, 3, 256]
    );
    assert_eq!(eos(json!({}), json!({}), json!({"text_config": {"eos_token_id": [7]}})), [7]);
    assert_eq!(eos(json!({"eos_token": "<end>"}), json!({}), json!({"eos_token_id": -1})), [256]);
    assert_eq!(eos(json!({"eos_token": "unknown"}), json!({}), json!({})), [0; 0]);
}

#[test]
fn the_start_token() {
    let bos = |config, model| with_files(config, json!({}), model).unwrap().bos_token();
    assert_eq!(bos(json!({"bos_token": "<end>"}), json!({"bos_token_id": 1})), Some(256));
    assert_eq!(bos(json!({}), json!({"bos_token_id": 1})), Some(1));
    assert_eq!(bos(json!({}), json!({})), None);
}

#[test]
fn errors_name_the_file() {
    assert!(matches!(Tokenizer::from_bytes(b"{"), Err(TokenizerError::Invalid(_))));
    let missing = Tokenizer::from_files(&BTreeMap::new(), &Value::Null);
    assert!(matches!(missing, Err(TokenizerError::Missing)));
    let odd = with_files(json!({}), json!({"eos_token_id": ["x"]}), json!({})).unwrap_err();
    assert!(odd.to_string().starts_with("generation_config.json: `eos_token_id` is"), "{odd}");
}
