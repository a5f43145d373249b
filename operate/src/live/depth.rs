//! How deep a text in JSON or TOML is, found before a parser reads it.

/// The most levels of lists and tables in each other. Policies and prices have five.
pub(crate) const MAX_DEPTH: usize = 64;

/// Why a text is not read.
pub(crate) const TOO_DEEP: &str = "more than 64 lists and tables are in each other";

/// The first byte of `text`, in JSON, that is deeper than [`MAX_DEPTH`].
pub(crate) fn too_deep_in_json(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    Bytes::of(text)
        .find(|(_, byte)| {
            match byte {
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth > MAX_DEPTH
        })
        .map(|(at, _)| at)
}

/// The first byte of `text`, in TOML, that is deeper than [`MAX_DEPTH`]. Each part of a dotted key is a level.
pub(super) fn too_deep_in_toml(text: &str) -> Option<usize> {
    let mut place = TomlPlace::default();
    Bytes { comments: true, ..Bytes::of(text) }
        .find(|(_, byte)| {
            place.read(*byte);
            place.depth() > MAX_DEPTH
        })
        .map(|(at, _)| at)
}

/// Where a reader of TOML is.
#[derive(Default)]
struct TomlPlace {
    /// The levels of the header above.
    header: usize,
    /// Whether this line is a header.
    in_header: bool,
    /// Whether something stands before in this line.
    in_line: bool,
    /// The open lists and tables: the levels of each, which include the parts of its key, and whether it is a table.
    open: Vec<(usize, bool)>,
    /// The dots of the latest key.
    dots: usize,
    /// Whether a value comes next, and not a key.
    in_value: bool,
}

impl TomlPlace {
    fn depth(&self) -> usize {
        self.header + self.open.iter().map(|(levels, _)| levels).sum::<usize>() + self.dots
    }

    /// An entry ends.
    fn next_entry(&mut self) {
        self.dots = 0;
        self.in_value = self.open.last().is_some_and(|(_, is_table)| !is_table);
    }

    fn read(&mut self, byte: u8) {
        match byte {
            b'\n' => {
                self.in_header = false;
                if self.open.is_empty() {
                    self.in_line = false;
                    self.next_entry();
                }
                return;
            }
            b' ' | b'\t' | b'\r' => return,
            b'[' | b'.' if self.in_header => self.header += 1,
            _ if self.in_header => {}
            b'[' if !self.in_line && self.open.is_empty() => (self.in_header, self.header) = (true, 1),
            b'.' if !self.in_value => self.dots += 1,
            b'=' => self.in_value = true,
            b'[' | b'{' => {
                self.open.push((self.dots + 1, byte == b'{'));
                self.next_entry();
            }
            b']' | b'}' => {
                self.open.pop();
                self.dots = 0;
                self.in_value = true;
            }
            b',' => self.next_entry(),
            _ => {}
        }
        self.in_line = true;
    }
}

/// The bytes of a text that are in no string and, if it has them, in no comment. Of a string, its last quote is left.
struct Bytes<'a> {
    text: &'a [u8],
    at: usize,
    /// Whether `#` begins a comment, and strings may be in single quotes or have several lines.
    comments: bool,
}

impl<'a> Bytes<'a> {
    fn of(text: &'a str) -> Self {
        Self { text: text.as_bytes(), at: 0, comments: false }
    }

    fn is_at(&self, text: &[u8]) -> bool {
        self.text.get(self.at..).is_some_and(|rest| rest.starts_with(text))
    }

    /// Goes to the last byte of the string that begins here.
    fn skip_string(&mut self, quote: u8) {
        let long = [quote; 3];
        let is_long = self.comments && self.is_at(&long);
        self.at += if is_long { 3 } else { 1 };
        while let Some(byte) = self.text.get(self.at) {
            match byte {
                b'\\' if quote == b'"' => self.at += 1,
                byte if *byte != quote => {}
                _ if !is_long => return,
                _ if self.is_at(&long) => {
                    // Up to two quotes are part of the text.
                    while self.text.get(self.at + 1) == Some(&quote) {
                        self.at += 1;
                    }
                    return;
                }
                _ => {}
            }
            self.at += 1;
        }
    }
}

impl Iterator for Bytes<'_> {
    type Item = (usize, u8);

    fn next(&mut self) -> Option<Self::Item> {
        let first = *self.text.get(self.at)?;
        match first {
            b'"' => self.skip_string(first),
            b'\'' if self.comments => self.skip_string(first),
            b'#' if self.comments => {
                let rest = self.text.get(self.at..).unwrap_or_default();
                self.at += rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            }
            _ => {}
        }
        let byte = *self.text.get(self.at)?;
        self.at += 1;
        Some((self.at - 1, byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `text` is too deep with one level more in front of it than it may have, and not without.
    #[test]
    fn levels_are_counted_and_brackets_in_strings_and_comments_are_not() {
        let json = |depth: usize, text: &str| too_deep_in_json(&("[".repeat(depth) + text)).is_some();
        let toml =
            |depth: usize, text: &str| too_deep_in_toml(&text.replace("..", &"a.".repeat(depth))).is_some();
        let (in_json, in_toml): (&dyn Fn(usize, &str) -> bool, &dyn Fn(usize, &str) -> bool) = (&json, &toml);
        let rows = [
            // The levels that the text has in addition.
            (in_json, 0, "1"),
            (in_json, 2, r#"{"a": [1]}"#),
            (in_json, 1, r#"[],{},[],{},"[[[[[","\"[[[[","\\",{"{[{[": 1}"#),
            (in_toml, 0, "..a = 1"),
            (in_toml, 0, "..a = 1.5\nb.c = 2.5\n"),
            (in_toml, 1, "[..a]"),
            (in_toml, 2, "[[..a]]"),
            (in_toml, 3, "[[..a]]\nb.c = 1"),
            (in_toml, 3, "[a]\n..b = [{}, {}]\n"),
            (in_toml, 3, "[a.b]\n[a]\n..b = { c.d = 1 }\n"),
            (in_toml, 4, "[ a . b ]\n.. c = [\n# ]]] [[[\n { 'x[[[' = 1 }, ']', \"]\\\"]\",\n ]\n"),
            (in_toml, 2, "[a]\n..b = [\n'''\n[[[ ' '' ''''', \"\"\"\\\"\"\" [[[\n\"\"\"\"\"]"),
        ];
        for (too_deep, levels, text) in rows {
            assert!(!too_deep(MAX_DEPTH - levels, text), "{text}");
            assert!(too_deep(MAX_DEPTH - levels + 1, text), "{text}");
        }
        assert_eq!(too_deep_in_json(&"[".repeat(100)), Some(MAX_DEPTH));
        for unfinished in ["\"", "'", "\"\\", "\"\"\"", "'''a''", "#", "[[", "a.", "]]}}", ""] {
            assert_eq!((too_deep_in_json(unfinished), too_deep_in_toml(unfinished)), (None, None));
        }
    }
}
