//! Why the command ends.

use std::{fmt, process::ExitCode};

use tower_ratelimit::{Error, ErrorKind};

#[derive(Debug)]
pub(crate) enum Failure {
    /// The options or the configuration are invalid.
    Usage(String),
    /// An address or a server cannot be used.
    Service(String),
}

impl Failure {
    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Service(_) => ExitCode::from(1),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidConfig => Self::Usage(error.to_string()),
            _ => Self::Service(error.to_string()),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) | Self::Service(message) => f.write_str(message),
        }
    }
}
