//! Thoughts between `<think>` and `</think>` at the beginning of an answer, as Qwen3 and DeepSeek-R1
//! write them.

pub const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// A piece of thoughts or of the answer behind them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Thought(String),
    Answer(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Only blanks, or a part of [`OPEN`], so far.
    Start,
    /// Behind [`OPEN`], only blanks so far: they are left out.
    Opened,
    Thinking,
    /// Behind [`CLOSE`], only blanks so far: they are left out.
    Closed,
    Answer,
}

/// Separates thoughts from an answer that comes in pieces.
#[derive(Debug)]
pub struct ReasoningFinder {
    state: State,
    /// The prompt has opened the thoughts already; a model may do so again.
    opened: bool,
    held: String,
}

impl ReasoningFinder {
    pub fn new(opened: bool) -> Self {
        Self { state: State::Start, opened, held: String::new() }
    }

    /// Finds nothing.
    pub fn off() -> Self {
        Self { state: State::Answer, opened: false, held: String::new() }
    }

    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.advance(&mut pieces) {}
        pieces
    }

    /// What was held back, when nothing follows.
    pub fn finish(&mut self) -> Option<Piece> {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Start if self.opened => thought(held.trim()),
            State::Start | State::Answer => answer(held),
            State::Thinking => thought(held.trim_end()),
            State::Opened | State::Closed => None,
        }
    }

    /// One step; false when more text is needed.
    fn advance(&mut self, pieces: &mut Vec<Piece>) -> bool {
        match self.state {
            State::Start => self.start(),
            State::Opened => self.skip_blanks(State::Thinking),
            State::Thinking => self.think(pieces),
            State::Closed => self.skip_blanks(State::Answer),
            State::Answer => {
                pieces.extend(answer(std::mem::take(&mut self.held)));
                false
            }
        }
    }

    fn start(&mut self) -> bool {
        let rest = self.held.trim_start();
        if let Some(behind) = rest.strip_prefix(OPEN) {
            self.held = behind.to_owned();
            self.state = State::Opened;
            return true;
        }
        if OPEN.starts_with(rest) {
            return false;
        }
        self.state = if self.opened { State::Opened } else { State::Answer };
        true
    }

    fn skip_blanks(&mut self, next: State) -> bool {
        self.held = self.held.trim_start().to_owned();
        if self.held.is_empty() {
            return false;
        }
        self.state = next;
        true
    }

    fn think(&mut self, pieces: &mut Vec<Piece>) -> bool {
        if let Some(at) = self.held.find(CLOSE) {
            let behind = self.held.split_off(at + CLOSE.len());
            self.held.truncate(at);
            pieces.extend(thought(self.held.trim_end()));
            self.held = behind;
            self.state = State::Closed;
            return true;
        }
        // A part of the mark, and blanks, which are left out if the mark follows.
        let mark = (1..CLOSE.len()).rev().find(|&len| self.held.ends_with(&CLOSE[..len]));
        let before = self.held[..self.held.len() - mark.unwrap_or(0)].trim_end().len();
        let rest = self.held.split_off(before);
        pieces.extend(thought(&std::mem::replace(&mut self.held, rest)));
        false
    }
}

fn thought(text: &str) -> Option<Piece> {
    (!text.is_empty()).then(|| Piece::Thought(text.to_owned()))
}

fn answer(text: String) -> Option<Piece> {
    (!text.is_empty()).then_some(Piece::Answer(text))
}

#[cfg(test)]
mod tests {
    use super::super::testing::cut;
    use super::*;
    use proptest::prelude::*;

    /// Thoughts and answer of a text that comes in pieces.
    fn split(text: &str, opened: bool, cuts: &[usize]) -> (String, String) {
        let mut finder = ReasoningFinder::new(opened);
        let mut pieces: Vec<Piece> =
            cut(text, cuts).into_iter().flat_map(|piece| finder.push(piece)).collect();
        pieces.extend(finder.finish());
        let (mut thoughts, mut answer) = (String::new(), String::new());
        for piece in pieces {
            match piece {
                Piece::Thought(text) => {
                    assert!(answer.is_empty(), "thoughts come first");
                    thoughts.push_str(&text);
                }
                Piece::Answer(text) => answer.push_str(&text),
            }
        }
        (thoughts, answer)
    }

    /// An answer, whether the prompt opened the thoughts, and what is what.
    const EXAMPLES: [(&str, bool, &str, &str); 9] = [
        ("plain <think>later</think>", false, "", "plain <think>later</think>"),
        ("<think>\nA  b\n\nc.\n</think>\n\nSo: é", false, "A  b\n\nc.", "So: é"),
        ("  <think>a</think>", false, "a", ""),
        ("<think>\n\n</think>\n\nNo thoughts.", false, "", "No thoughts."),
        ("opened by the prompt\n</think>\nyes", true, "opened by the prompt", "yes"),
        ("<think>opened twice</think>yes", true, "opened twice", "yes"),
        ("<think>cut off </thi", false, "cut off </thi", ""),
        ("<thi", false, "", "<thi"),
        ("<thinking> is another mark", false, "", "<thinking> is another mark"),
    ];

    #[test]
    fn thoughts_and_answers() {
        for (text, opened, thoughts, answer) in EXAMPLES {
            assert_eq!(split(text, opened, &[]), (thoughts.into(), answer.into()), "{text}");
        }
    }

    #[test]
    fn thoughts_are_not_held_back_longer_than_they_may_end() {
        let mut finder = ReasoningFinder::new(false);
        assert_eq!(finder.push("<think>\nLet me "), [Piece::Thought("Let me".into())]);
        assert_eq!(finder.push("see </th"), [Piece::Thought(" see".into())]);
        assert_eq!(finder.push("e>"), [Piece::Thought(" </the>".into())]);
    }

    proptest! {
        /// How an answer is cut into pieces changes nothing.
        #[test]
        fn pieces(index in 0usize..9, cuts in prop::collection::vec(0usize..60, 0..8)) {
            let (text, opened, thoughts, answer) = EXAMPLES[index];
            prop_assert_eq!(split(text, opened, &cuts), (thoughts.into(), answer.into()));
        }
    }
}
