use http::{HeaderName, request::Parts};

use super::{Key, KeyExtractor, matcher::only};
use crate::{
    answer::Answer,
    error::{Error, ErrorKind},
};

/// The value of a request header, such as an API key, without the spaces around it.
///
/// A client can send what it likes in a header, so this limits those whose header something in front
/// has checked, or those who have nothing to gain from a new identity. For a proxy's forwarding headers
/// it is the wrong tool: anybody can send those. For `authorization` use [`Bearer`](crate::key::Bearer): a server takes
/// `Bearer t1`, `bearer t1` and `Bearer  t1` for one token, and by this extractor they are three keys.
///
/// Refused with 400: a missing header (unless [`or`](KeyExtractor::or) has another extractor), one
/// that stands more than once, an empty one, one that is not UTF-8, and one longer than 8 KiB.
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
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Header(HeaderName);

pub(super) const MAX_VALUE: usize = 8 * 1024;

impl Header {
    /// The header `name`, whatever its case.
    ///
    /// # Panics
    ///
    /// If `name` is no header name. [`From<HeaderName>`] takes one that was checked before.
    #[must_use]
    pub fn new(name: &str) -> Self {
        match HeaderName::try_from(name) {
            Ok(name) => Self(name),
            Err(_) => panic!("{name:?} is not a header name"),
        }
    }

    fn key(&self, request: &Parts) -> Result<Key, Error> {
        let Some(value) = only_value(request, &self.0)? else {
            return Err(Error::new(
                ErrorKind::MissingIdentity,
                format!("the request lacks the header `{}`", self.0),
            ));
        };
        identity(value).map_err(|problem| self.invalid(problem))
    }

    fn invalid(&self, problem: &str) -> Error {
        invalid(&self.0, problem)
    }
}

/// The value of the header `name`, without the spaces around it.
pub(super) fn only_value<'a>(request: &'a Parts, name: &HeaderName) -> Result<Option<&'a [u8]>, Error> {
    let mut values = request.headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(invalid(name, "must stand once"));
    }
    // HTTP/1 drops the spaces around a value, HTTP/2 keeps them; they must not make another identity.
    Ok(Some(value.as_bytes().trim_ascii()))
}

/// The key of the identity `value`, or what is wrong with it.
pub(super) fn identity(value: &[u8]) -> Result<Key, &'static str> {
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

pub(super) fn invalid(name: &HeaderName, problem: &str) -> Error {
    Error::new(ErrorKind::InvalidIdentity, format!("the header `{name}` {problem}"))
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

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        only(named, |value| value.trim_ascii() == value && identity(value).is_ok(), "the value of a header")
    }
}
