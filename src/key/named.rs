//! Identities that the configuration names, for [`KeyExtractor::any_of`](crate::KeyExtractor::any_of).

use super::Key;
use crate::base::{Error, ErrorKind};

/// The key of the identity `named`, if a request can have it.
pub(super) fn only(
    named: &Key,
    is_possible: impl FnOnce(&[u8]) -> bool,
    expected: &'static str,
) -> Result<Vec<Key>, Error> {
    match named.raw() {
        Some(identity) if is_possible(&identity) => Ok(vec![Key::new(identity)]),
        _ => Err(impossible(expected)),
    }
}

/// The error for an identity that no request has. It does not show the identity, which may be a secret.
pub(super) fn impossible(expected: &'static str) -> Error {
    Error::new(ErrorKind::InvalidIdentity, format!("no request has this identity: it must be {expected}"))
}
