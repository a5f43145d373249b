//! Errors that name the entry that is wrong.

use std::{
    fmt::{self, Display},
    ops::Range,
};

use serde_path_to_error::{Path, Segment};

/// The entry at a path, such as "entry `algorithm.segments`: ". Empty at the top.
pub(super) struct Entry<'a>(pub(super) Vec<&'a Segment>);

impl<'a> Entry<'a> {
    pub(super) fn of(path: &'a Path) -> Self {
        Self(path.iter().collect())
    }
}

impl Display for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().filter_map(|segment| match segment {
            Segment::Map { key } => Some(key.as_str()),
            _ => None,
        });
        let path = names.collect::<Vec<_>>().join(".");
        if path.is_empty() { Ok(()) } else { write!(f, "entry `{path}`: ") }
    }
}

/// The message without the name of the policy, which is given already.
pub(super) fn without_name<'a>(message: &'a str, name: &str) -> &'a str {
    let rest = message.strip_prefix("policy `").and_then(|rest| rest.strip_prefix(name));
    rest.and_then(|rest| rest.strip_prefix("`: ")).unwrap_or(message)
}

/// Names in backticks, for a sentence.
pub(super) fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The line of `span` in `text`, such as ", line 7". Empty if there is no span.
pub(super) fn line_of(text: &str, span: Option<Range<usize>>) -> String {
    span.map_or(String::new(), |span| {
        let before = text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n');
        format!(", line {}", before.count() + 1)
    })
}
