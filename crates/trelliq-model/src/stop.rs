//! Stop strings in text that comes in pieces.

/// Finds the first of several stop strings, across the boundaries of pieces. Text that might be
/// the beginning of one is held back.
#[derive(Debug, Clone)]
pub struct StopFinder {
    stops: Vec<String>,
    held: String,
}

/// What a piece of text brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// Text before any stop string.
    pub text: String,
    /// The stop string that was found; nothing follows it.
    pub stop: Option<String>,
}

impl StopFinder {
    /// Empty strings are left out.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, held: String::new() }
    }

    /// Adds a piece and returns the text that no stop string can begin in.
    pub fn push(&mut self, piece: &str) -> Released {
        self.held.push_str(piece);
        if let Some((at, stop)) = self.first_stop() {
            let stop = Some(stop.to_owned());
            self.held.truncate(at);
            return Released { text: std::mem::take(&mut self.held), stop };
        }
        let rest = self.held.split_off(self.held.len() - self.possible_start());
        Released { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// What was held back, when no text follows.
    pub fn finish(self) -> String {
        self.held
    }

    /// The stop string that begins earliest, the longest of several.
    fn first_stop(&self) -> Option<(usize, &str)> {
        let found = self.stops.iter().filter_map(|stop| Some((self.held.find(stop)?, &**stop)));
        found.min_by_key(|(at, stop)| (*at, usize::MAX - stop.len()))
    }

    /// Bytes at the end of the text that some stop string begins with.
    fn possible_start(&self) -> usize {
        let longest = |stop: &String| {
            let lengths = (1..stop.len().min(self.held.len() + 1)).rev();
            let mut lengths = lengths.filter(|&len| stop.is_char_boundary(len));
            lengths.find(|&len| self.held.ends_with(&stop[..len])).unwrap_or(0)
        };
        self.stops.iter().map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Option<String>, String) {
        let stops: Vec<String> = stops.iter().map(ToString::to_string).collect();
        let mut finder = StopFinder::new(&stops);
        let mut texts = Vec::new();
        for piece in pieces {
            let released = finder.push(piece);
            texts.push(released.text);
            if released.stop.is_some() {
                return (texts, released.stop, finder.finish());
            }
        }
        (texts, None, finder.finish())
    }

    #[test]
    fn a_stop_string_over_three_pieces_is_found_and_never_shown() {
        let (texts, stop, rest) = run(&["END."], &["one E", "N", "D. two"]);
        assert_eq!(texts, ["one ", "", ""]);
        assert_eq!((stop.as_deref(), rest.as_str()), (Some("END."), ""));
    }

    #[test]
    fn a_false_start_is_shown_as_soon_as_it_cannot_be_one() {
        let (texts, stop, rest) = run(&["END."], &["an EN", "tity E"]);
        assert_eq!(texts, ["an ", "ENtity "]);
        assert_eq!((stop, rest.as_str()), (None, "E"));
    }

    #[test]
    fn the_earliest_stop_wins_then_the_longest() {
        assert_eq!(run(&["b", "ab", "abc"], &["xabcd"]).1.as_deref(), Some("abc"));
        assert_eq!(run(&["d", "bc"], &["abcd"]).0, ["a"]);
    }

    #[test]
    fn a_stop_that_overlaps_itself_is_found() {
        let (texts, stop, _) = run(&["aab"], &["aa", "ab"]);
        assert_eq!(texts, ["", "a"]);
        assert_eq!(stop.as_deref(), Some("aab"));
    }

    #[test]
    fn characters_of_several_bytes_and_empty_stops() {
        let (texts, stop, _) = run(&["", "né!"], &["voilà n", "é", "!"]);
        assert_eq!((texts.concat(), stop.as_deref()), ("voilà ".to_owned(), Some("né!")));
    }
}
