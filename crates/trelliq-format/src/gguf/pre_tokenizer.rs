//! How a byte-level BPE tokenizer cuts text before merging: `tokenizer.ggml.pre`.
//!
//! A GGUF file names the rule, and llama.cpp's `llama-vocab.cpp` defines what the name means. The
//! expressions here are those of the models' own `tokenizer.json`; where a name stands for no one
//! model (`default`) they are llama.cpp's.

use serde_json::{Value, json};

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEFAULT: [&str; 4] = [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"];

/// A rule's parts of `tokenizer.json`, and what it implies where the metadata does not say.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PreTokenizer {
    pub normalizer: Value,
    pub pre_tokenizer: Value,
    /// A whole piece that is a token is one, whatever its merges.
    pub ignore_merges: bool,
    /// Whether text starts with the token for its beginning.
    pub add_bos: bool,
}

/// The rule of a name; `None` for a name that is not known.
pub(crate) fn by_name(name: &str) -> Option<PreTokenizer> {
    let plain = |parts: Vec<Value>| PreTokenizer {
        normalizer: Value::Null,
        pre_tokenizer: json!({ "type": "Sequence", "pretokenizers": parts }),
        ignore_merges: false,
        add_bos: false,
    };
    let split = |pattern| vec![isolate(pattern), bytes(false)];
    Some(match name {
        "default" => {
            let splits = DEFAULT.into_iter().map(isolate);
            plain(splits.chain([bytes(false)]).collect())
        }
        "gpt-2" | "gpt2" | "mpt" | "olmo" => plain(vec![bytes(true)]),
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" => {
            let digits = json!({ "type": "Digits", "individual_digits": true });
            plain(vec![digits, bytes(true)])
        }
        "llama3" | "llama-v3" | "llama-bpe" => {
            PreTokenizer { ignore_merges: true, add_bos: true, ..plain(split(LLAMA3)) }
        }
        "smaug-bpe" => plain(split(LLAMA3)),
        "tekken" => PreTokenizer { ignore_merges: true, add_bos: true, ..plain(split(TEKKEN)) },
        "qwen2" => PreTokenizer { normalizer: json!({ "type": "NFC" }), ..plain(split(QWEN2)) },
        "deepseek-r1-qwen" => plain(split(QWEN2)),
        _ => return None,
    })
}

fn isolate(pattern: &str) -> Value {
    json!({
        "type": "Split",
        "pattern": { "Regex": pattern },
        "behavior": "Isolated",
        "invert": false,
    })
}

/// Bytes to printable characters; `use_regex` splits by GPT-2's expression first.
fn bytes(use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": true,
        "use_regex": use_regex,
    })
}
