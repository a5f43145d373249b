//! Why a command failed.

use std::{fmt, process::ExitCode};

use tower_ratelimit::{Error, ErrorKind};

/// A command that was not carried out.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The options, the policies, the URL or the key are invalid.
    Usage(String),
    /// Redis did not do it.
    Redis(String),
}

impl Failure {
    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Redis(_) => ExitCode::from(1),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidConfig | ErrorKind::InvalidIdentity => Self::Usage(error.to_string()),
            kind if kind.may_have_charged() => Self::Redis(format!("{error}; the change may have been made")),
            _ => Self::Redis(error.to_string()),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::Redis(message) => f.write_str(message),
        }
    }
}

/// `text` without the user and the password of any URL in it. A URL in the wrong place is quoted by an error.
pub(crate) fn without_passwords(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        shown.push_str(before);
        shown.push_str("://");
        let end = after.find(|c: char| c.is_whitespace() || c == '\'').unwrap_or(after.len());
        rest = match after[..end].rfind('@') {
            Some(at) => {
                shown.push_str("..");
                &after[at..]
            }
            None => after,
        };
    }
    shown + rest
}
