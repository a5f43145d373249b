//! What a command prints.

use std::fmt::Write as _;

use serde::Serialize;
use tower_ratelimit::key::is_hidden;

/// The result of a command.
#[derive(Default)]
pub(crate) struct Printed {
    pub(crate) text: String,
    /// What also goes to stderr.
    pub(crate) complaints: String,
    /// Whether the exit code is 1: an instance has not answered, or cannot decide.
    pub(crate) is_failed: bool,
}

impl Printed {
    /// The same, after `warning` on stderr.
    pub(crate) fn with_warning(self, warning: &str) -> Self {
        Self { complaints: warning.to_owned() + &self.complaints, ..self }
    }

    /// The same, which has also failed if `is_failed`.
    pub(crate) fn failed_if(self, is_failed: bool) -> Self {
        Self { is_failed: self.is_failed || is_failed, ..self }
    }
}

impl From<String> for Printed {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

/// `value` as JSON.
pub(crate) fn text(value: &impl Serialize) -> String {
    // Strings and numbers, which cannot fail.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// `text` as a terminal can show it: everything that this command prints. Redis, and the routers at the URLs, may send
/// any characters. What a terminal would obey, or not show, is escaped as in JSON, so JSON keeps its meaning.
pub(crate) fn legible(text: &str) -> String {
    escaped(text, |character| character != '\n' && is_hidden(character))
}

/// `text` on one line, such as a cell of a table.
pub(crate) fn one_line(text: &str) -> String {
    escaped(text, is_hidden)
}

/// Adds a line, whose text may have several. The others are indented, so they do not look like lines of this command.
pub(crate) fn push_line(to: &mut String, line: &str) {
    to.push_str(&line.trim_end().replace('\n', "\n    "));
    to.push('\n');
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' if is_escaped('\n') => shown.push_str("\\n"),
            _ if is_escaped(character) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    // Writing to a String cannot fail.
                    let _ = write!(shown, "\\u{unit:04x}");
                }
            }
            _ => shown.push(character),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_or_hides_is_escaped() {
        let rows = [
            ("plain \u{e9}\u{4e2d}\u{1f600}", "plain \u{e9}\u{4e2d}\u{1f600}"),
            ("\u{1b}[2J", "\\u001b[2J"),
            ("\u{9b}2J\u{7f}\t", "\\u009b2J\\u007f\\u0009"),
            ("a\r\nb", "a\\u000d\nb"),
            ("\u{202e}live\u{2066}\u{200b}", "\\u202elive\\u2066\\u200b"),
            ("\u{e0041}", "\\udb40\\udc41"),
        ];
        for (text, expected) in rows {
            assert_eq!(legible(text), expected, "{text:?}");
            // In JSON, it means the same.
            let json = serde_json::to_string(&text.replace('\n', " ")).unwrap_or_default();
            let read: String = serde_json::from_str(&legible(&json)).unwrap_or_default();
            assert_eq!(read, text.replace('\n', " "));
        }
        assert_eq!(one_line("a\nb"), "a\\nb");
        let mut lines = String::new();
        push_line(&mut lines, "one\nTWO  denied");
        assert_eq!(lines, "one\n    TWO  denied\n");
    }
}
