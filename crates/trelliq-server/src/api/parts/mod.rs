//! What the pieces of an answer are: thoughts, text, calls of tools.

mod calls;
mod head;
mod reasoning;

use super::tools::Tool;
use calls::CallFinder;
use reasoning::{Piece, ReasoningFinder};

/// What a piece of an answer turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Thoughts before the answer.
    Reasoning(String),
    Text(String),
    /// A call of the tool of this name begins; its arguments follow.
    Call(String),
    /// More of the JSON text of the last call's arguments.
    Arguments(String),
}

/// Where thoughts that a model writes before its answer go; the names are llama.cpp's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// They stay in the text.
    None,
    /// `<think>…</think>` at the beginning goes into `reasoning_content`.
    #[default]
    DeepSeek,
}

/// Takes an answer apart that comes in pieces. What may be a mark is held back.
#[derive(Debug)]
pub struct PartReader {
    reasoning: ReasoningFinder,
    calls: CallFinder,
}

impl PartReader {
    /// `thinking`: the prompt ended with the mark that thoughts begin with. Without tools nothing is
    /// a call.
    pub fn new(format: ReasoningFormat, thinking: bool, tools: &[Tool]) -> Self {
        let reasoning = match format {
            ReasoningFormat::None => ReasoningFinder::off(),
            ReasoningFormat::DeepSeek => ReasoningFinder::new(thinking),
        };
        Self { reasoning, calls: CallFinder::new(tools) }
    }

    pub fn push(&mut self, text: &str) -> Vec<Part> {
        let pieces = self.reasoning.push(text);
        self.parts(pieces)
    }

    /// What was held back, when nothing follows.
    pub fn finish(mut self) -> Vec<Part> {
        let rest = self.reasoning.finish();
        let mut parts = self.parts(rest.into_iter().collect());
        parts.extend(self.calls.finish());
        parts
    }

    fn parts(&mut self, pieces: Vec<Piece>) -> Vec<Part> {
        let mut parts = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Thought(text) => parts.push(Part::Reasoning(text)),
                Piece::Answer(text) => parts.extend(self.calls.push(&text)),
            }
        }
        parts
    }
}

/// Whether a prompt ends where thoughts begin.
pub fn begins_thinking(prompt: &str) -> bool {
    prompt.trim_end().ends_with(reasoning::OPEN)
}

#[cfg(test)]
pub(super) mod testing {
    /// An answer cut into pieces that end at the given places, moved to the beginnings of characters.
    pub fn cut<'a>(answer: &'a str, cuts: &[usize]) -> Vec<&'a str> {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (answer.len() + 1)).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut start = 0;
        for cut in cuts.into_iter().chain([answer.len()]) {
            let cut = (0..=cut).rev().find(|cut| answer.is_char_boundary(*cut)).unwrap_or(0);
            if cut > start {
                pieces.push(&answer[start..cut]);
                start = cut;
            }
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_call_behind_thoughts() {
        let tool = Tool { name: "add".into(), description: None, parameters: json!({}) };
        let mut reader = PartReader::new(ReasoningFormat::DeepSeek, false, &[tool]);
        let mut parts =
            reader.push("<think>\nI add.\n</think>\n\n<tool_call>\n{\"name\": \"add\",");
        parts.extend(reader.push(" \"arguments\": {\"a\": 1}}\n</tool_call>"));
        parts.extend(reader.finish());
        let expected = [
            Part::Reasoning("I add.".into()),
            Part::Call("add".into()),
            Part::Arguments("{\"a\": 1}".into()),
        ];
        assert_eq!(parts, expected);
    }

    #[test]
    fn marks_stay_where_they_are_not_to_be_found() {
        let mut reader = PartReader::new(ReasoningFormat::None, true, &[]);
        let text = "<think>a</think>b<tool_call>";
        assert_eq!(reader.push(text), [Part::Text(text.into())]);
        assert_eq!(reader.finish(), []);
    }

    #[test]
    fn prompts_that_begin_thoughts() {
        assert!(begins_thinking("<|im_start|>assistant\n<think>\n"));
        assert!(!begins_thinking("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    }
}
