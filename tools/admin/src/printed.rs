//! What a command prints.

use serde::Serialize;

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
