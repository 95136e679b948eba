//! JSON of a call, as far as it must be understood while it is being written.

/// Blanks, and what may stand between calls: `[{…}, {…}]`, `{…}; {…}`.
pub const BETWEEN: [char; 7] = [' ', '\n', '\r', '\t', ',', ';', ']'];

/// How a text may begin that is to be a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Head {
    /// More text is needed.
    Incomplete,
    /// `{"name": "…", "arguments": ` or the same with `parameters`, `len` bytes long, and an object
    /// follows; or the call ends after the name, without arguments.
    Call { name: String, len: usize, arguments: bool },
    /// Anything else.
    Other,
}

/// Reads the beginning of a call of one of `names`.
pub fn head(text: &str, names: &[String]) -> Head {
    match Cursor::new(text).head(names) {
        Ok(head) => head,
        Err(Stop::End) => Head::Incomplete,
        Err(Stop::Other) => Head::Other,
    }
}

/// Why reading stops.
enum Stop {
    End,
    Other,
}

struct Cursor<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, rest: text.trim_start_matches(BETWEEN) }
    }

    fn head(&mut self, names: &[String]) -> Result<Head, Stop> {
        if self.rest.starts_with('[') {
            self.expect("[")?;
        }
        self.expect("{")?;
        self.expect("\"name\"")?;
        self.expect(":")?;
        let name = self.name(names)?;
        if self.expect("}").is_ok() {
            return Ok(self.call(name, false));
        }
        self.expect(",")?;
        match self.expect("\"arguments\"") {
            Err(Stop::Other) => self.expect("\"parameters\"")?,
            result => result?,
        }
        self.expect(":")?;
        self.skip_blanks();
        match self.rest.chars().next() {
            None => Err(Stop::End),
            Some('{') => Ok(self.call(name, true)),
            Some(_) => Err(Stop::Other),
        }
    }

    fn call(&self, name: String, arguments: bool) -> Head {
        Head::Call { name, len: self.text.len() - self.rest.len(), arguments }
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Takes a text behind blanks.
    fn expect(&mut self, expected: &str) -> Result<(), Stop> {
        let rest = self.rest.trim_start();
        match rest.strip_prefix(expected) {
            Some(behind) => {
                self.rest = behind;
                Ok(())
            }
            None if expected.starts_with(rest) => Err(Stop::End),
            None => Err(Stop::Other),
        }
    }

    /// Takes a string that is a known name. Names that JSON would escape are none.
    fn name(&mut self, names: &[String]) -> Result<String, Stop> {
        self.expect("\"")?;
        let (name, behind) = self.rest.split_once('"').ok_or_else(|| {
            let possible = names.iter().any(|name| name.starts_with(self.rest));
            if possible { Stop::End } else { Stop::Other }
        })?;
        if !names.iter().any(|known| known == name) {
            return Err(Stop::Other);
        }
        self.rest = behind;
        Ok(name.to_owned())
    }
}

/// Finds the end of a JSON object that comes in pieces.
#[derive(Debug, Clone, Copy, Default)]
pub struct ObjectEnd {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl ObjectEnd {
    /// From within `depth` brackets.
    pub fn within(depth: usize) -> Self {
        Self { depth, ..Self::default() }
    }

    /// Bytes of the piece that belong to the object, and whether it ends there: with its bracket, or
    /// before what cannot be JSON, as a mark that follows an object that was never closed.
    pub fn scan(&mut self, piece: &str) -> (usize, bool) {
        for (at, byte) in piece.bytes().enumerate() {
            if self.in_string {
                let ends = byte == b'"' && !self.escaped;
                self.escaped = byte == b'\\' && !self.escaped;
                self.in_string = !ends;
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                b'<' => return (at, true),
                _ => continue,
            }
            if self.depth == 0 && !self.in_string {
                return (at + 1, true);
            }
        }
        (piece.len(), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let names = ["add".to_owned(), "weather".to_owned()];
        let call = |len, arguments| Head::Call { name: "add".into(), len, arguments };
        let cases = [
            (r#"{"name": "add", "arguments": {"a"#, call(29, true)),
            ("\n[ {\"name\":\"add\",\"parameters\":{", call(30, true)),
            (r#", {"name": "add"}]"#, call(17, false)),
            (r#"{"name": "add", "arguments": "#, Head::Incomplete),
            (r#"{"name": "we"#, Head::Incomplete),
            (r#"{"na"#, Head::Incomplete),
            ("", Head::Incomplete),
            (r#"{"name": "x"#, Head::Other),
            (r#"{"name": "addition""#, Head::Other),
            (r#"{"arguments": {}, "name": "add"}"#, Head::Other),
            (r#"{"name": "add", "arguments": "{}"}"#, Head::Other),
            ("nonsense", Head::Other),
        ];
        for (text, expected) in cases {
            assert_eq!(head(text, &names), expected, "{text}");
        }
    }

    #[test]
    fn ends_of_objects() {
        for (text, expected) in [
            (r#"{"a": "}\"}", "b": [{}]} x"#, (24, true)),
            (r#"{"a": {"b": 1}"#, (14, false)),
            (r#"{"a": 1</tool_call>"#, (7, true)),
            (r#"{"a": "<"#, (8, false)),
        ] {
            assert_eq!(ObjectEnd::default().scan(text), expected, "{text}");
        }
        assert_eq!(ObjectEnd::within(1).scan(r#", "id": 1}; {"#), (10, true));
    }
}
