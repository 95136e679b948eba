//! Log probabilities as the API says them.

use crate::engine::{Likely, TokenLogprobs};
use crate::vocabulary::Vocabulary;
use serde_json::{Map, Value, json};

/// What JSON has instead of minus infinity: OpenAI's own floor.
const FLOOR: f32 = -9999.0;

fn text(vocabulary: &Vocabulary, token: u32) -> String {
    String::from_utf8_lossy(vocabulary.bytes(token)).into_owned()
}

fn token_json(vocabulary: &Vocabulary, likely: Likely) -> Value {
    json!({
        "token": text(vocabulary, likely.token),
        "logprob": likely.logprob.max(FLOOR),
        "bytes": vocabulary.bytes(likely.token),
    })
}

/// The `content` of a chat choice's `logprobs`.
pub fn chat(vocabulary: &Vocabulary, tokens: &[TokenLogprobs]) -> Value {
    let content = tokens.iter().map(|token| {
        let mut json = token_json(vocabulary, token.chosen);
        let top = token.top.iter().map(|likely| token_json(vocabulary, *likely)).collect();
        json["top_logprobs"] = Value::Array(top);
        json
    });
    Value::Array(content.collect())
}

/// The `logprobs` of a text completion; `offset`: characters of the text before these tokens.
pub fn completion(vocabulary: &Vocabulary, tokens: &[TokenLogprobs], offset: usize) -> Value {
    let mut at = offset;
    let (mut texts, mut values, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for token in tokens {
        let word = text(vocabulary, token.chosen.token);
        offsets.push(at);
        at += word.chars().count();
        texts.push(word);
        values.push(token.chosen.logprob.max(FLOOR));
        let top: Map<String, Value> = token
            .top
            .iter()
            .map(|likely| (text(vocabulary, likely.token), json!(likely.logprob.max(FLOOR))))
            .collect();
        tops.push(Value::Object(top));
    }
    json!({ "tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets })
}
