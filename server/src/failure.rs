//! Why the command ends.

use std::{fmt::Display, io};

use tower_ratelimit::{Error, ErrorKind};

/// A message, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl Failure {
    /// The options or the configuration are invalid.
    pub(crate) fn usage(message: impl Display) -> Self {
        Self { code: 2, message: message.to_string() }
    }

    /// An address or a server cannot be used.
    pub(crate) fn service(message: impl Display) -> Self {
        Self { code: 1, message: message.to_string() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        if error.kind() == ErrorKind::InvalidConfig { Self::usage(error) } else { Self::service(error) }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::service(error)
    }
}
