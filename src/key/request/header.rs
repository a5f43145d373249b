use http::{HeaderName, request::Parts};

use super::value;
use crate::{
    base::{Answer, Error, ErrorKind, valid},
    key::{Key, KeyExtractor, extractor::only},
};

/// The value of a request header, such as an API key, without the whitespace around it.
///
/// # When to use it
///
/// A client can send any value, and a new value has a new limit. Use this extractor if something in front of the limit
/// checks the header, or if a client gains nothing by changing it.
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
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub struct Header(HeaderName);

impl Header {
    /// The header `name`, in any case.
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
        match HeaderName::try_from(name) {
            Ok(name) => Ok(Self(name)),
            Err(cause) => {
                let message = format!("{name:?} is not a header name");
                Err(Error::new(ErrorKind::InvalidConfig, message).with_source(cause))
            }
        }
    }

    fn key(&self, request: &Parts) -> Result<Key, Error> {
        match value::single(request, &self.0)? {
            Some(value) => value::key(value).map_err(|problem| value::invalid(&self.0, problem)),
            None => Err(value::missing(&self.0)),
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

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        let is_possible = |value: &[u8]| value.trim_ascii() == value && value::key(value).is_ok();
        only(named, is_possible, "the value of a header, without whitespace around it")
    }
}
