//! Tokenizers from GGUF metadata: what the tokenizers crate makes of the synthesised
//! `tokenizer.json`, against walks of llama.cpp's algorithms by hand.

mod common;

use common::{Gguf, tiny, with_embedding};
use serde_json::Value;
use tokenizers::Tokenizer;
use trelliq_format::{FormatError, ModelSource};

fn open(gguf: Gguf) -> Result<ModelSource, FormatError> {
    ModelSource::from_gguf_bytes(&with_embedding(gguf, 4).build())
}

fn json(source: &ModelSource, name: &str) -> Value {
    serde_json::from_slice(&source.sidecar_files()[name]).unwrap()
}

fn tokenizer(gguf: Gguf) -> Tokenizer {
    Tokenizer::from_bytes(&open(gguf).unwrap().sidecar_files()["tokenizer.json"]).unwrap()
}

fn tokens(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
    tokenizer.encode(text, true).unwrap().get_tokens().to_vec()
}

const BYTE_TOKENS: [&str; 19] = [
    "<|end|>",
    "<|user|>",
    "<tool>",
    "a",
    "b",
    "z",
    "1",
    "2",
    "3",
    "4",
    "\u{120}",
    "\u{10A}",
    "'",
    "s",
    "ab",
    "\u{120}ab",
    "12",
    "zz",
    "123",
];
const BYTE_MERGES: [&str; 4] = ["a b", "\u{120} ab", "1 2", "12 3"];

fn byte_level(pre: &str) -> Gguf {
    let mut types = [1; BYTE_TOKENS.len()];
    types[..3].copy_from_slice(&[3, 3, 4]);
    tiny("qwen2")
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", pre)
        .texts("tokenizer.ggml.tokens", &BYTE_TOKENS)
        .i32s("tokenizer.ggml.token_type", &types)
        .texts("tokenizer.ggml.merges", &BYTE_MERGES)
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 0)
}

#[test]
fn a_pre_tokenizer_decides_what_may_merge() {
    let cut = |pre: &str, text: &str| tokens(&tokenizer(byte_level(pre)), text);
    // GPT-2: a space may lead a number, and no merge joins the two.
    assert_eq!(cut("gpt-2", "ab ab 12"), ["ab", "Ġab", "Ġ", "12"]);
    // SmolLM and Qwen2: every digit alone. Qwen2's space stands alone before a digit.
    assert_eq!(cut("smollm", "ab ab 12"), ["ab", "Ġab", "Ġ", "1", "2"]);
    assert_eq!(cut("qwen2", "ab ab 12"), ["ab", "Ġab", "Ġ", "1", "2"]);
    assert_eq!(cut("tekken", "ab 12")[1..], ["ab", "Ġ", "1", "2"]);
    // Llama 3: up to three digits; llama.cpp's default: exactly three.
    assert_eq!(cut("llama-bpe", "1234")[1..], ["123", "4"]);
    assert_eq!(cut("default", "1234 12"), ["123", "4", "Ġ", "12"]);
    assert_eq!(cut("gpt-2", "1234"), ["123", "4"]);
    // Llama 3 takes a piece that is a token whole, though no merge makes it.
    assert_eq!(cut("llama-bpe", "zz")[1..], ["zz"]);
    assert_eq!(cut("smollm", "zz"), ["z", "z"]);
    // Only Qwen's and Llama's rules let a letter follow a sign: "'ab" is one piece to them.
    assert_eq!(cut("gpt-2", "'ab's"), ["'", "ab", "'", "s"]);
}

#[test]
fn text_begins_with_a_token_where_the_rule_or_the_file_says_so() {
    assert_eq!(tokens(&tokenizer(byte_level("llama-bpe")), "a"), ["<|user|>", "a"]);
    assert_eq!(tokens(&tokenizer(byte_level("smollm")), "a"), ["a"]);
    let told = byte_level("smollm").flag("tokenizer.ggml.add_bos_token", true);
    assert_eq!(tokens(&tokenizer(told), "a"), ["<|user|>", "a"]);
    let told = byte_level("llama-bpe")
        .flag("tokenizer.ggml.add_bos_token", false)
        .flag("tokenizer.ggml.add_eos_token", true);
    assert_eq!(tokens(&tokenizer(told), "a"), ["a", "<|end|>"]);
}

#[test]
fn added_tokens_are_found_first_and_special_ones_are_not_shown() {
    let tokenizer = tokenizer(byte_level("smollm"));
    let encoding = tokenizer.encode("<|user|>ab<tool>\n<|end|>", true).unwrap();
    assert_eq!(encoding.get_ids(), [1, 14, 2, 11, 0]);
    assert_eq!(tokenizer.decode(encoding.get_ids(), true).unwrap(), "ab<tool>\n");
    assert_eq!(tokenizer.decode(encoding.get_ids(), false).unwrap(), "<|user|>ab<tool>\n<|end|>");
}

#[test]
fn the_files_beside_it_hold_template_and_ids() {
    let source = open(
        byte_level("smollm")
            .text("tokenizer.chat_template", "{{ messages }}")
            .u32("tokenizer.ggml.padding_token_id", 0)
            .u32("tokenizer.ggml.eot_token_id", 2),
    )
    .unwrap();
    let config = json(&source, "tokenizer_config.json");
    assert_eq!(config["chat_template"], "{{ messages }}");
    assert_eq!(
        (&config["bos_token"], &config["eos_token"]),
        (&"<|user|>".into(), &"<|end|>".into())
    );
    assert_eq!(
        (&config["pad_token"], &config["add_bos_token"]),
        (&"<|end|>".into(), &false.into())
    );
    let generation = json(&source, "generation_config.json");
    assert_eq!(generation["eos_token_id"], serde_json::json!([0, 2]));
    assert_eq!(generation["bos_token_id"], 1);
}

const PIECES: [(&str, f32, i32); 19] = [
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("</s>", 0.0, 3),
    ("<0xC3>", 0.0, 6),
    ("<0xBC>", 0.0, 6),
    ("▁", -10.0, 1),
    ("a", -11.0, 1),
    ("b", -12.0, 1),
    ("c", -13.0, 1),
    ("ab", -1.0, 1),
    ("bc", -0.5, 1),
    ("abc", -3.0, 1),
    ("▁a", -2.0, 1),
    ("▁abc", -3.0, 1),
    ("bb", -1.0, 1),
    ("é", -14.0, 1),
    ("éa", -1.0, 1),
    ("ééa", -7.0, 1),
    ("  ", -1000.0, 4),
];

fn sentencepiece() -> Gguf {
    tiny("llama")
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &PIECES.map(|(text, ..)| text))
        .f32s("tokenizer.ggml.scores", &PIECES.map(|(_, score, _)| score))
        .i32s("tokenizer.ggml.token_type", &PIECES.map(|(.., kind)| kind))
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .u32("tokenizer.ggml.unknown_token_id", 0)
}

#[test]
fn scores_become_the_merges_that_transformers_makes_of_them() {
    let source = open(sentencepiece()).unwrap();
    // generate_merges of transformers 5.24, on the same pieces and scores.
    let expected = [
        ["b", "c"],
        ["a", "b"],
        ["b", "b"],
        ["é", "a"],
        ["▁", "a"],
        ["▁a", "bc"],
        ["ab", "c"],
        ["▁", "abc"],
        ["a", "bc"],
        ["é", "éa"],
    ];
    assert_eq!(json(&source, "tokenizer.json")["model"]["merges"], serde_json::json!(expected));
}

#[test]
fn the_best_score_merges_first() {
    let tokenizer = tokenizer(sentencepiece());
    // ▁ a b c: bc (-0.5), then ▁a (-2) before abc (-3), then ▁abc.
    assert_eq!(tokens(&tokenizer, "abc"), ["<s>", "▁abc"]);
    // bb (-1, leftmost of the two), then ab (-1); ▁a (-2) comes too late.
    assert_eq!(tokens(&tokenizer, "bb ab"), ["<s>", "▁", "bb", "▁", "ab"]);
    assert_eq!(tokens(&tokenizer, "éac")[1..], ["▁", "éa", "c"]);
    // Bytes where no piece fits, the unknown token where there is no byte either.
    assert_eq!(tokens(&tokenizer, "ü")[1..], ["▁", "<0xC3>", "<0xBC>"]);
    assert_eq!(tokens(&tokenizer, "q")[1..], ["▁", "<unk>"]);
    for text in ["abc", "bb ab", "ü a", "a</s>b"] {
        let ids = tokenizer.encode(text, true).unwrap();
        let shown = tokenizer.decode(ids.get_ids(), true).unwrap();
        assert_eq!(shown.replace(' ', ""), text.replace(' ', "").replace("</s>", ""), "{text}");
    }
    let ids = tokenizer.encode("bb ab", true).unwrap();
    assert_eq!(tokenizer.decode(ids.get_ids(), true).unwrap(), "bb ab");
}

#[test]
fn gemma_has_no_space_before_the_text() {
    let tokenizer = tokenizer(sentencepiece().flag("tokenizer.ggml.add_space_prefix", false));
    assert_eq!(tokens(&tokenizer, "abc"), ["<s>", "abc"]);
    // A run of spaces is one token, found in the text as it is.
    let encoding = tokenizer.encode("a  b", true).unwrap();
    assert_eq!(encoding.get_ids(), [1, 6, 18, 7]);
    assert_eq!(tokenizer.decode(encoding.get_ids(), true).unwrap(), "a  b");
    let encoding = tokenizer.encode(" a", false).unwrap();
    assert_eq!(encoding.get_tokens(), ["▁a"]);
    assert_eq!(tokenizer.decode(encoding.get_ids(), true).unwrap(), " a");
}

#[test]
fn a_model_without_a_tokenizer_has_no_files_for_one() {
    assert!(open(tiny("llama")).unwrap().sidecar_files().is_empty());
}

#[test]
fn what_is_not_known_or_does_not_fit_is_refused_by_name() {
    let refused = |gguf: Gguf, key: &str, what: &str| {
        let error = open(gguf).expect_err(what).to_string();
        assert!(error.contains(key) && error.contains(what), "{key}, {what}: {error}");
    };
    let prefixed = |name: &str| format!("tokenizer.ggml.{name}");
    refused(byte_level("jais-9"), &prefixed("pre"), "`jais-9`");
    refused(byte_level("gpt-2").text("tokenizer.ggml.model", "bert"), &prefixed("model"), "`bert`");
    let short = byte_level("gpt-2").i32s("tokenizer.ggml.token_type", &[1, 1]);
    refused(short, &prefixed("token_type"), "2 types for 19 tokens");
    let odd = byte_level("gpt-2").i32s("tokenizer.ggml.token_type", &[9; 19]);
    refused(odd, &prefixed("token_type"), "not a token type");
    let twice = byte_level("gpt-2").texts("tokenizer.ggml.tokens", &["a", "b", "a"]);
    refused(twice.i32s("tokenizer.ggml.token_type", &[1; 3]), &prefixed("tokens"), "comes twice");
    let merge = byte_level("gpt-2").texts("tokenizer.ggml.merges", &["a z"]);
    refused(merge, &prefixed("merges"), "not tokens");
    let merge = byte_level("gpt-2").texts("tokenizer.ggml.merges", &["az"]);
    refused(merge, &prefixed("merges"), "a space between");
    let beyond = byte_level("gpt-2").u32("tokenizer.ggml.eos_token_id", 19);
    refused(beyond, &prefixed("eos_token_id"), "no token 19");
    let scores = sentencepiece().f32s("tokenizer.ggml.scores", &[1.0]);
    refused(scores, &prefixed("scores"), "1 scores for 19 tokens");
    let scores = sentencepiece().f32s("tokenizer.ggml.scores", &[f32::NAN; 19]);
    refused(scores, &prefixed("scores"), "finite");
    let numbers = byte_level("gpt-2").i32s("tokenizer.ggml.tokens", &[1]);
    refused(numbers, &prefixed("tokens"), "not a string");
    let mut bare = byte_level("llama-bpe");
    bare.metadata.retain(|(key, ..)| !key.ends_with("bos_token_id"));
    assert!(matches!(open(bare), Err(FormatError::MissingMetadata { .. })));
    let mut bare = byte_level("gpt-2");
    bare.metadata.retain(|(key, ..)| !key.ends_with("merges"));
    assert!(matches!(open(bare), Err(FormatError::MissingMetadata { .. })));
}

#[test]
fn a_token_of_a_million_characters_takes_no_time() {
    let long = "a".repeat(1_000_000);
    let gguf = tiny("llama")
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &["<s>", "a", &long])
        .f32s("tokenizer.ggml.scores", &[0.0; 3])
        .i32s("tokenizer.ggml.token_type", &[3, 1, 1])
        .u32("tokenizer.ggml.bos_token_id", 0);
    let begun = std::time::Instant::now();
    open(gguf).unwrap();
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}
