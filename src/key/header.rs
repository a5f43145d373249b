//! Keys of headers that identify a client.

use std::fmt;

use http::{HeaderName, HeaderValue, header::AUTHORIZATION, request::Parts};

use super::{Key, KeyExtractor, extractor::only};
use crate::base::{Answer, Error, ErrorKind, valid};

/// The value of a request header, such as an API key, without the whitespace around it.
///
/// # When to use it
///
/// A client can send any value, and a new value has a new limit. Use this extractor only if the service, or something in
/// front of it, rejects values that it does not know. If that comes after the limit, add a rule on addresses.
///
/// * For the forwarding headers of proxies, use [`ClientIp`](crate::ClientIp): clients can send these headers too.
/// * For `authorization`, use [`Bearer`](crate::key::Bearer): servers treat `Bearer t1`, `bearer t1` and
///   `Bearer  t1` as one token, and this extractor as three keys.
///
/// # Errors
///
/// * [`MissingIdentity`](ErrorKind::MissingIdentity): the request does not have the header.
///   [`or`](KeyExtractor::or) continues with the next extractor; otherwise the request is rejected with 400.
/// * [`InvalidIdentity`](ErrorKind::InvalidIdentity): the header is sent more than once, or its value is empty, not
///   UTF-8, or longer than 8 KiB. The request is rejected with 400.
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{Header, Key, KeyExtractor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let key = Header::new("x-api-key");
/// let (parts, ()) = Request::get("/").header("X-Api-Key", "k1").body(())?.into_parts();
/// assert_eq!(key.extract(&parts).await?, Key::new("k1"));
///
/// let (parts, ()) = Request::get("/").body(())?.into_parts();
/// let error = key.extract(&parts).await.unwrap_err();
/// assert_eq!(error.to_string(), "the request lacks the header `x-api-key`");
///
/// // For a name from a configuration file.
/// assert!(Header::try_new("x api key").is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub struct Header(HeaderName);

impl Header {
    /// The header `name`, in upper or lower case.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name. [`try_new`](Self::try_new) returns an error instead, and a
    /// [`HeaderName`] can be converted with [`From`].
    #[track_caller]
    pub fn new(name: &str) -> Self {
        valid(Self::try_new(name))
    }

    /// [`new`](Self::new) for a name that is not known to be valid, such as one from a configuration file.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig): `name` is not a valid header name.
    pub fn try_new(name: &str) -> Result<Self, Error> {
        header_name(name).map(Self)
    }

    fn key(&self, request: &Parts) -> Result<Key, Error> {
        match single(request, &self.0)? {
            Some(value) => value_key(value.trim_ascii()).map_err(|problem| invalid(HEADER, &self.0, problem)),
            None => Err(missing(HEADER, &self.0)),
        }
    }
}

impl From<HeaderName> for Header {
    fn from(name: HeaderName) -> Self {
        Self(name)
    }
}

impl KeyExtractor for Header {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        self.key(request).into()
    }

    fn keys_of(&self, named: &Key) -> Answer<Vec<Key>> {
        let is_possible = |value: &[u8]| value.trim_ascii() == value && value_key(value).is_ok();
        only(named, is_possible, "the value of a header, without whitespace around it")
    }
}

/// The token of `Authorization: Bearer <token>` (RFC 6750).
///
/// The scheme is case-insensitive, and any number of spaces and tabs may surround it and the token:
/// `Bearer t1`, `bearer t1` and `BEARER  t1` are one key.
///
/// The token is not verified. Use this extractor only if the service, or something in front of it, verifies it. If that
/// comes after the limit, add a rule on addresses: each invented token has a new limit.
///
/// # Errors
///
/// * [`MissingIdentity`](ErrorKind::MissingIdentity): the request has no `Authorization` header, or one with another
///   scheme. [`or`](KeyExtractor::or) continues with the next extractor.
/// * [`InvalidIdentity`](ErrorKind::InvalidIdentity): the header is sent more than once or is empty; or the token is
///   empty, is not UTF-8, contains a space or a tab, or is longer than 8 KiB.
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{key::Bearer, ErrorKind, Key, KeyExtractor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let key = Bearer::new();
/// for written in ["Bearer t0k3n", "bearer t0k3n", "BEARER   t0k3n"] {
///     let (parts, ()) = Request::get("/").header("authorization", written).body(())?.into_parts();
///     assert_eq!(key.extract(&parts).await?, Key::new("t0k3n"));
/// }
///
/// let (parts, ()) = Request::get("/").header("authorization", "Basic YTpi").body(())?.into_parts();
/// assert_eq!(key.extract(&parts).await.unwrap_err().kind(), ErrorKind::MissingIdentity);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub struct Bearer(());

impl Bearer {
    /// The bearer token of a request.
    pub const fn new() -> Self {
        Self(())
    }
}

impl KeyExtractor for Bearer {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        bearer_key(request).into()
    }

    fn keys_of(&self, named: &Key) -> Answer<Vec<Key>> {
        let is_possible = |token: &[u8]| !token.iter().any(is_blank) && value_key(token).is_ok();
        only(named, is_possible, "a bearer token without whitespace")
    }
}

fn bearer_key(request: &Parts) -> Result<Key, Error> {
    let invalid = |problem| invalid(HEADER, &AUTHORIZATION, problem);
    let Some(value) = single(request, &AUTHORIZATION)? else {
        return Err(missing(HEADER, &AUTHORIZATION));
    };
    let value = value.trim_ascii();
    if value.is_empty() {
        return Err(invalid("is empty"));
    }
    let (scheme, token) = value.split_at(value.iter().position(is_blank).unwrap_or(value.len()));
    if !scheme.eq_ignore_ascii_case(b"bearer") {
        let message = "the header `authorization` has another scheme than `Bearer`";
        return Err(Error::new(ErrorKind::MissingIdentity, message));
    }
    let token = token.trim_ascii();
    if token.is_empty() {
        return Err(invalid("has no token"));
    }
    if token.iter().any(is_blank) {
        return Err(invalid("has a token with a space in it"));
    }
    value_key(token).map_err(invalid)
}

const fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// The longest value in bytes.
pub(super) const MAX_VALUE: usize = 8 * 1024;

/// The value of the header `name`, with the whitespace around it: HTTP/1 drops it and HTTP/2 keeps it. An error if the
/// header is sent more than once.
#[inline]
pub(super) fn single<'a>(request: &'a Parts, name: &HeaderName) -> Result<Option<&'a [u8]>, Error> {
    let headers = &request.headers;
    // Most requests have no header twice.
    if headers.len() > headers.keys_len() && headers.get_all(name).iter().nth(1).is_some() {
        return Err(invalid(HEADER, name, "is sent more than once"));
    }
    Ok(headers.get(name).map(HeaderValue::as_bytes))
}

/// The key of the identity `value`, or what is wrong with it.
#[inline]
fn value_key(value: &[u8]) -> Result<Key, &'static str> {
    match Key::plain(of_valid_length(value)?) {
        Some(key) => Ok(key),
        None if str::from_utf8(value).is_err() => Err("is not UTF-8"),
        None => Ok(Key::new(value)),
    }
}

/// `value`, if it is neither empty nor too long.
#[inline]
pub(super) fn of_valid_length(value: &[u8]) -> Result<&[u8], &'static str> {
    match value.len() {
        0 => Err("is empty"),
        1..=MAX_VALUE => Ok(value),
        _ => Err("is longer than 8192 bytes"),
    }
}

const HEADER: &str = "header";

/// The error of a request without the field `name`, which is a header or a cookie.
pub(super) fn missing(field: &str, name: &impl fmt::Display) -> Error {
    Error::new(ErrorKind::MissingIdentity, format!("the request lacks the {field} `{name}`"))
}

pub(super) fn invalid(field: &str, name: &impl fmt::Display, problem: &str) -> Error {
    Error::new(ErrorKind::InvalidIdentity, format!("the {field} `{name}` {problem}"))
}

/// The header `name`. An error if it is not a valid name.
pub(super) fn header_name(name: &str) -> Result<HeaderName, Error> {
    HeaderName::try_from(name).map_err(|cause| {
        Error::new(ErrorKind::InvalidConfig, format!("{name:?} is not a header name")).with_source(cause)
    })
}
