//! The formats of a file, and what is wrong with its text.

use serde::de::DeserializeOwned;
use serde_path_to_error::Path;
use tower_ratelimit::Error;

use super::{error_place::line_of, text_file::Place};

#[derive(Clone, Copy)]
pub(super) enum Format {
    Toml,
    Json,
    #[cfg(feature = "yaml")]
    Yaml,
}

/// Why a text cannot be read. A line is such as ", line 7", or empty if it is unknown.
pub(super) enum Problem {
    /// The text is not in the format.
    Syntax { line: String, message: String },
    /// The entry at `path` is wrong.
    Entry { line: String, path: Path, message: String },
}

impl Format {
    /// The format that the name of `file` ends with.
    pub(super) fn of(file: &Place) -> Result<Self, Error> {
        match &*file.extension() {
            "json" => Ok(Self::Json),
            #[cfg(feature = "yaml")]
            "yaml" | "yml" => Ok(Self::Yaml),
            #[cfg(not(feature = "yaml"))]
            "yaml" | "yml" => Err(file.invalid(
                ": a file in YAML needs the feature `yaml` of tower-ratelimit-extra; or write it in TOML or JSON",
            )),
            _ => Ok(Self::Toml),
        }
    }

    pub(super) const fn name(self) -> &'static str {
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

    pub(super) fn read<T: DeserializeOwned>(self, text: &str) -> Result<T, Problem> {
        match self {
            Self::Toml => toml(text),
            Self::Json => json(text),
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
    // The errors of the scanner and of the entries are of one type, so the text is read twice.
    let line = |error: &serde_norway::Error| {
        error.location().map_or(String::new(), |place| format!(", line {}", place.line()))
    };
    if let Err(error) = serde_norway::from_str::<serde::de::IgnoredAny>(text) {
        return Err(Problem::Syntax { line: line(&error), message: without_line(error.to_string()) });
    }
    serde_path_to_error::deserialize(serde_norway::Deserializer::from_str(text)).map_err(|error| {
        let (path, inner) = (error.path().clone(), error.inner());
        let message = without_line(inner.to_string());
        // It begins with a part of the path.
        let own = path.to_string();
        let message = match message.split_once(": ") {
            Some((place, rest)) if own.starts_with(place) => rest.to_owned(),
            _ => message,
        };
        Problem::Entry { line: line(inner), path, message }
    })
}

/// A message without the line and the column at its end.
fn without_line(mut message: String) -> String {
    if let Some(place) = message.rfind(" at line ") {
        message.truncate(place);
    }
    message
}
