//! Keys of headers that identify a client.

use std::fmt;

use http::{
    HeaderName, HeaderValue,
    header::{AUTHORIZATION, COOKIE, HOST},
    request::Parts,
};

use super::{
    Key, KeyExtractor, KeyKind, Repeat,
    extractor::{impossible, only},
    host::{hosts, normalized},
    repeat::Differ,
};
use crate::base::{Answer, Error, ErrorKind, valid};

/// The value of a request header, such as an API key, without the whitespace around it.
///
/// # When to use it
///
/// A client can send any value, and a new value has a new limit. Use this extractor only if the service, or
/// something in front of it, rejects values that it does not know. If that comes after the limit, add a rule
/// on addresses.
///
/// * For the forwarding headers of proxies, use [`ClientIp`](crate::ClientIp): clients can send these headers
///   too.
/// * For `authorization`, use [`Bearer`](crate::key::Bearer): servers treat `Bearer t1`, `bearer t1` and
///   `Bearer  t1` as one token, and this extractor as three keys.
///
/// # HTTP/2
///
/// The version of HTTP does not change a key. Two headers are read accordingly:
///
/// * `host` is the host that the request names: in HTTP/2 the pseudo-header `:authority`; in HTTP/1.1 the
///   header, and the host of a target that is a URL (`GET http://shop.example/ HTTP/1.1`). `shop.example`,
///   `Shop.Example`, `shop.example.` and `shop.example:8080` are one key: the host in lower case, without a
///   port and a dot at its end. The port is not part of the key because clients can write any. If
///   `:authority` or the URL differs from the header, they are repeated values, of which the header is the
///   last: services read one or the other.
/// * `cookie` may be sent as several headers, which are joined with `; `. For a single cookie, use
///   [`Cookie`](crate::key::Cookie).
///
/// HTTP/2 has no headers of a connection: `connection`, `keep-alive`, `transfer-encoding` and `upgrade` are
/// missing there.
///
/// # Repeated headers
///
/// Equal values are one value. A request with different values is rejected; [`on_repeat`](Self::on_repeat)
/// uses one of them instead.
///
/// # Errors
///
/// * [`MissingIdentity`](ErrorKind::MissingIdentity): the request does not have the header.
///   [`or`](KeyExtractor::or) continues with the next extractor; otherwise the request is rejected with 400.
/// * [`InvalidIdentity`](ErrorKind::InvalidIdentity): the header is sent with different values, or its value
///   is empty, not UTF-8, or longer than 8 KiB. The request is rejected with 400.
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
pub struct Header {
    name: HeaderName,
    repeat: Repeat,
    place: Place,
}

/// Where a request has the values of a header.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In the header.
    Header,
    /// In its target or in the header.
    Host,
    /// In one or several headers, which are one value.
    Cookie,
}

impl Header {
    /// The header `name`, in upper or lower case.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name. [`try_new`](Self::try_new) gives an error instead, and a
    /// [`HeaderName`] can be converted with [`From`].
    #[track_caller]
    pub fn new(name: &str) -> Self {
        valid(Self::try_new(name))
    }

    /// The fallible form of [`new`](Self::new), for a name read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) where [`new`](Self::new) panics.
    pub fn try_new(name: &str) -> Result<Self, Error> {
        header_name(name).map(Self::from)
    }

    /// Sets what happens to a request that has this header with different values. Defaults to
    /// [`Repeat::Reject`].
    pub const fn on_repeat(mut self, repeat: Repeat) -> Self {
        self.repeat = repeat;
        self
    }

    #[inline]
    fn key(&self, request: &Parts) -> Result<Key, Error> {
        if matches!(self.place, Place::Header) && !has_repeated(request) {
            // Few requests repeat a header, so the others skip the search for repeated values.
            return self.key_of(request.headers.get(&self.name).map(|value| value.as_bytes().trim_ascii()));
        }
        self.key_of_several(request)
    }

    /// The key of a value that may be in several places.
    #[inline(never)]
    fn key_of_several(&self, request: &Parts) -> Result<Key, Error> {
        match self.place {
            Place::Header => self.key_of(value(request, &self.name, self.repeat)?),
            Place::Host => {
                let host = self.repeat.choose(hosts(request)).map_err(|Differ| differs(&self.name))?;
                self.key_of(host.as_deref())
            }
            Place::Cookie => {
                let lines = request.headers.get_all(&self.name).iter().map(HeaderValue::as_bytes);
                let lines: Vec<_> = lines.map(<[u8]>::trim_ascii).collect();
                self.key_of((!lines.is_empty()).then(|| lines.join(b"; ".as_slice())).as_deref())
            }
        }
    }

    #[inline]
    fn key_of(&self, value: Option<&[u8]>) -> Result<Key, Error> {
        match value {
            Some(value) => value_key(value).map_err(|problem| invalid(HEADER, &self.name, problem)),
            None => Err(missing(HEADER, &self.name)),
        }
    }
}

impl From<HeaderName> for Header {
    fn from(name: HeaderName) -> Self {
        let place = match name {
            HOST => Place::Host,
            COOKIE => Place::Cookie,
            _ => Place::Header,
        };
        Self { name, repeat: Repeat::Reject, place }
    }
}

impl KeyExtractor for Header {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        self.key(request).into()
    }

    fn kind(&self) -> KeyKind {
        KeyKind::named(format!("the header `{}`", self.name))
    }

    fn keys_of(&self, named: &Key) -> Answer<Vec<Key>> {
        if matches!(self.place, Place::Host) {
            let host = named.raw().and_then(|host| value_key(&normalized(&host)).ok());
            return host.map(|key| vec![key]).ok_or_else(|| impossible("a host")).into();
        }
        let is_possible = |value: &[u8]| value.trim_ascii() == value && value_key(value).is_ok();
        only(named, is_possible, "the value of a header, without whitespace around it")
    }
}

/// The token of `Authorization: Bearer <token>` (RFC 6750).
///
/// The scheme is case-insensitive, and any number of spaces and tabs may surround it and the token:
/// `Bearer t1`, `bearer t1` and `BEARER  t1` are one key.
///
/// The token is not verified. Use this extractor only if the service, or something in front of it, verifies
/// it. If that comes after the limit, add a rule on addresses: each invented token has a new limit.
///
/// # Errors
///
/// * [`MissingIdentity`](ErrorKind::MissingIdentity): the request has no `Authorization` header, or one with
///   another scheme. [`or`](KeyExtractor::or) continues with the next extractor.
/// * [`InvalidIdentity`](ErrorKind::InvalidIdentity): the header is sent with different values or is empty;
///   or the token is empty, is not UTF-8, contains a space or a tab, or is longer than 8 KiB. Equal values
///   are one value, and [`on_repeat`](Self::on_repeat) uses one of different values.
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
pub struct Bearer {
    repeat: Repeat,
}

impl Bearer {
    /// The bearer token of a request.
    pub const fn new() -> Self {
        Self { repeat: Repeat::Reject }
    }

    /// Sets what happens to a request with different values of `Authorization`. Defaults to
    /// [`Repeat::Reject`].
    pub const fn on_repeat(mut self, repeat: Repeat) -> Self {
        self.repeat = repeat;
        self
    }
}

impl KeyExtractor for Bearer {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        bearer_key(request, self.repeat).into()
    }

    fn kind(&self) -> KeyKind {
        KeyKind::named("the bearer token")
    }

    fn keys_of(&self, named: &Key) -> Answer<Vec<Key>> {
        let is_possible = |token: &[u8]| !token.iter().any(is_blank) && value_key(token).is_ok();
        only(named, is_possible, "a bearer token without whitespace")
    }
}

fn bearer_key(request: &Parts, repeat: Repeat) -> Result<Key, Error> {
    let invalid = |problem| invalid(HEADER, &AUTHORIZATION, problem);
    let Some(value) = value(request, &AUTHORIZATION, repeat)? else {
        return Err(missing(HEADER, &AUTHORIZATION));
    };
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

/// The value of the header `name`, with the whitespace around it: HTTP/1 drops it and HTTP/2 keeps it. An
/// error if the header is sent more than once, even with equal values: a proxy that writes the client's
/// address writes one header.
pub(super) fn single<'a>(request: &'a Parts, name: &HeaderName) -> Result<Option<&'a [u8]>, Error> {
    if has_repeated(request) && request.headers.get_all(name).iter().nth(1).is_some() {
        return Err(invalid(HEADER, name, "is sent more than once"));
    }
    Ok(request.headers.get(name).map(HeaderValue::as_bytes))
}

/// The value of the header `name`, without the whitespace around it. `repeat` chooses one of several.
fn value<'a>(request: &'a Parts, name: &HeaderName, repeat: Repeat) -> Result<Option<&'a [u8]>, Error> {
    if has_repeated(request) {
        let values = request.headers.get_all(name).iter();
        let values = values.map(|value| value.as_bytes().trim_ascii());
        return repeat.choose(values).map_err(|Differ| differs(name));
    }
    Ok(request.headers.get(name).map(|value| value.as_bytes().trim_ascii()))
}

/// Whether the request has some header more than once, as few have.
#[inline]
fn has_repeated(request: &Parts) -> bool {
    request.headers.len() > request.headers.keys_len()
}

fn differs(name: &HeaderName) -> Error {
    invalid(HEADER, name, DIFFERS)
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

/// What is wrong with a field whose values [differ](Differ).
pub(super) const DIFFERS: &str = "is sent more than once, with different values";

/// The error of a request without the field `name`, which is a header or a cookie.
pub(super) fn missing(field: &str, name: &impl fmt::Display) -> Error {
    Error::new(ErrorKind::MissingIdentity, format!("the request lacks the {field} `{name}`"))
}

pub(super) fn invalid(field: &str, name: &impl fmt::Display, problem: &str) -> Error {
    Error::new(ErrorKind::InvalidIdentity, format!("the {field} `{name}` {problem}"))
}

/// The header `name`. An error if it is not a valid name.
pub(super) fn header_name(name: &str) -> Result<HeaderName, Error> {
    HeaderName::try_from(name).map_err(|cause| invalid!("{name:?} is not a header name").with_source(cause))
}
