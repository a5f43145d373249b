//! Values of headers that identify a client.

use http::{HeaderName, request::Parts};

use crate::{
    base::{Error, ErrorKind},
    key::Key,
};

/// The longest value in bytes.
pub(super) const MAX_VALUE: usize = 8 * 1024;

/// The value of the header `name` without the whitespace around it. An error if the header is sent more than once.
#[inline]
pub(super) fn single<'a>(request: &'a Parts, name: &HeaderName) -> Result<Option<&'a [u8]>, Error> {
    let mut values = request.headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(invalid(name, "is sent more than once"));
    }
    // HTTP/1 drops the whitespace and HTTP/2 keeps it. Both must give one identity.
    Ok(Some(value.as_bytes().trim_ascii()))
}

/// The key of the identity `value`, or what is wrong with it.
#[inline]
pub(super) fn key(value: &[u8]) -> Result<Key, &'static str> {
    if value.is_empty() {
        return Err("is empty");
    }
    if value.len() > MAX_VALUE {
        return Err("is longer than 8192 bytes");
    }
    match Key::plain(value) {
        Some(key) => Ok(key),
        None if str::from_utf8(value).is_err() => Err("is not UTF-8"),
        None => Ok(Key::new(value)),
    }
}

pub(super) fn missing(name: &HeaderName) -> Error {
    Error::new(ErrorKind::MissingIdentity, format!("the request lacks the header `{name}`"))
}

pub(super) fn invalid(name: &HeaderName, problem: &str) -> Error {
    Error::new(ErrorKind::InvalidIdentity, format!("the header `{name}` {problem}"))
}
