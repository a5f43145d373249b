//! The formats of a file, and what is wrong with its text.

use serde::de::DeserializeOwned;
use serde_path_to_error::Path;
use tower_ratelimit::Error;

#[cfg(feature = "yaml")]
use super::yaml::{Invalid, Node};
use super::{
    depth::{TOO_DEEP, too_deep_in_json, too_deep_in_toml},
    error_place::{Entry, line_of},
    text_file::Place,
};

#[derive(Clone, Copy)]
pub(crate) enum Format {
    Toml,
    Json,
    #[cfg(feature = "yaml")]
    Yaml,
}

/// Why a text cannot be read. A line is such as ", line 7", or empty if it is unknown.
pub(crate) enum Problem {
    /// The text is not in the format.
    Syntax { line: String, message: String },
    /// It has too many levels.
    Depth { line: String },
    /// The entry at `path` is wrong.
    Entry { line: String, path: Path, message: String },
}

impl Problem {
    /// The error of `file`.
    pub(crate) fn of(&self, file: &Place, format: Format) -> Error {
        match self {
            Self::Syntax { line, message } => {
                file.invalid(format_args!("{line}: no valid {}: {message}", format.name()))
            }
            Self::Depth { line } => file.invalid(format_args!("{line}: {TOO_DEEP}")),
            Self::Entry { line, path, message } => {
                file.invalid(format_args!("{line}: {}{message}", Entry::of(path)))
            }
        }
    }
}

impl Format {
    /// The format that the name of `file` ends with.
    pub(crate) fn of(file: &Place) -> Result<Self, Error> {
        match &*file.extension() {
            "json" => Ok(Self::Json),
            #[cfg(feature = "yaml")]
            "yaml" | "yml" => Ok(Self::Yaml),
            #[cfg(not(feature = "yaml"))]
            "yaml" | "yml" => Err(file.invalid(
                ": a file in YAML needs the feature `yaml` of tower-ratelimit-operate; or write it in TOML or JSON",
            )),
            _ => Ok(Self::Toml),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Toml => "TOML",
            Self::Json => "JSON",
            #[cfg(feature = "yaml")]
            Self::Yaml => "YAML",
        }
    }

    /// How a policy is written.
    pub(super) const fn policy(self) -> &'static str {
        match self {
            Self::Toml => "a table `[[policies]]`",
            Self::Json => "an object in the array `policies`",
            #[cfg(feature = "yaml")]
            Self::Yaml => "an item in the list `policies`",
        }
    }

    /// Reads `text`. A text that is too deep is rejected before a parser reads it.
    pub(crate) fn read<T: DeserializeOwned>(self, text: &str) -> Result<T, Problem> {
        let check = |too_deep: Option<usize>| match too_deep {
            Some(at) => Err(Problem::Depth { line: line_of(text, Some(at..at)) }),
            None => Ok(()),
        };
        match self {
            Self::Toml => check(too_deep_in_toml(text)).and_then(|()| toml(text)),
            Self::Json => check(too_deep_in_json(text)).and_then(|()| json(text)),
            #[cfg(feature = "yaml")]
            Self::Yaml => yaml(text),
        }
    }
}

fn toml<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    let message = |error: &toml::de::Error| error.message().trim_end().to_owned();
    let tables = toml::Deserializer::parse(text).map_err(|error| {
        let line = line_of(text, Some(error.span().unwrap_or_default()));
        Problem::Syntax { line, message: message(&error) }
    })?;
    serde_path_to_error::deserialize(tables).map_err(|error| {
        let (path, inner) = (error.path().clone(), error.inner());
        Problem::Entry { line: line_of(text, inner.span()), path, message: message(inner) }
    })
}

fn json<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    let syntax = |error: &serde_json::Error| Problem::Syntax {
        line: format!(", line {}", error.line().max(1)),
        message: without_line(error.to_string()),
    };
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let (path, inner) = (error.path().clone(), error.inner());
        if !inner.is_data() {
            return syntax(inner);
        }
        Problem::Entry {
            line: format!(", line {}", inner.line()),
            path,
            message: without_line(inner.to_string()),
        }
    })?;
    reader.end().map_err(|error| syntax(&error))?;
    Ok(read)
}

#[cfg(feature = "yaml")]
fn yaml<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    let document = Node::read(text).map_err(|Invalid { line, message }| {
        let line = format!(", line {line}");
        if message == TOO_DEEP { Problem::Depth { line } } else { Problem::Syntax { line, message } }
    })?;
    serde_path_to_error::deserialize(document.value()).map_err(|error| {
        let path = error.path().clone();
        let line = format!(", line {}", document.line_of(&path));
        Problem::Entry { line, path, message: error.inner().to_string() }
    })
}

/// A message without the line and the column at its end.
fn without_line(mut message: String) -> String {
    if let Some(place) = message.rfind(" at line ") {
        message.truncate(place);
    }
    message
}
