use std::sync::Arc;

use http::request::Parts;

use super::{Key, Or};
use crate::{Error, ErrorKind};

/// Finds out who is asking.
///
/// Implemented by [`PeerIp`](crate::PeerIp), [`Header`](crate::Header),
/// [`Constant`](crate::Constant), tuples of extractors (all of them together), and closures over the
/// request's head that return something a [`Key`] can be made of, see [`IntoKey`].
///
/// An extractor sees the head of the request and never its body, so it is object safe: a
/// `Box<dyn KeyExtractor>` chosen at run time is an extractor too.
///
/// # Example
///
/// ```
/// use http::{Request, request::Parts};
/// use tower_ratelimit::{ErrorKind, Key, KeyExtractor};
///
/// let tenant = |parts: &Parts| parts.uri.path().split('/').nth(1).map(String::from);
///
/// let (parts, ()) = Request::get("/acme/orders").body(())?.into_parts();
/// assert_eq!(tenant.extract(&parts)?, Key::new("acme"));
///
/// let (parts, ()) = Request::options("*").body(())?.into_parts();
/// assert_eq!(tenant.extract(&parts).unwrap_err().kind(), ErrorKind::MissingIdentity);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say who is asking",
    note = "closures must write their argument's type: `|parts: &http::request::Parts| ...`",
    note = "and return a `Key`, a `String`, or an `Option` or a `Result` of one"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// The key of the request with the head `request`.
    ///
    /// # Errors
    ///
    /// * [`MissingIdentity`](ErrorKind::MissingIdentity): the client owed one and gave none (400);
    ///   [`or`](Self::or) goes on with the next extractor.
    /// * [`InvalidIdentity`](ErrorKind::InvalidIdentity): the client gave one that cannot be used (400).
    /// * [`MissingSetup`](ErrorKind::MissingSetup), or any other kind: the server is at fault (500).
    fn extract(&self, request: &Parts) -> Result<Key, Error>;

    /// This extractor, or `other` where the request lacks what this one looks for.
    ///
    /// Only a *missing* identity goes on to `other`: one that cannot be used, and a mistake in the
    /// server's set-up, stay errors. The two never give the same key, so a client cannot spend the
    /// quota of an address by sending that address as its API key.
    fn or<K: KeyExtractor>(self, other: K) -> Or<Self, K>
    where
        Self: Sized,
    {
        Or::new(self, other)
    }
}

/// What a closure may return for a [`Key`]: a key, text, a number, or an `Option` or `Result` of one.
///
/// `None` is a [`MissingIdentity`](ErrorKind::MissingIdentity).
pub trait IntoKey {
    /// The key, or why there is none.
    ///
    /// # Errors
    ///
    /// Those of [`KeyExtractor::extract`].
    fn into_key(self) -> Result<Key, Error>;
}

macro_rules! into_key {
    ($($identity:ty),+) => { $(
        impl IntoKey for $identity {
            fn into_key(self) -> Result<Key, Error> {
                Ok(Key::from(self))
            }
        }
    )+ };
}

into_key!(Key, &'static str, String, Vec<u8>, i64, u32, u64, std::net::IpAddr);

impl<T: IntoKey> IntoKey for Option<T> {
    fn into_key(self) -> Result<Key, Error> {
        match self {
            Some(identity) => identity.into_key(),
            None => Err(Error::new(ErrorKind::MissingIdentity, "the request shows no identity")),
        }
    }
}

impl<T: IntoKey> IntoKey for Result<T, Error> {
    fn into_key(self) -> Result<Key, Error> {
        self.and_then(IntoKey::into_key)
    }
}

impl<F, T> KeyExtractor for F
where
    F: Fn(&Parts) -> T + Send + Sync + 'static,
    T: IntoKey,
{
    fn extract(&self, request: &Parts) -> Result<Key, Error> {
        self(request).into_key()
    }
}

impl KeyExtractor for Box<dyn KeyExtractor> {
    fn extract(&self, request: &Parts) -> Result<Key, Error> {
        (**self).extract(request)
    }
}

impl KeyExtractor for Arc<dyn KeyExtractor> {
    fn extract(&self, request: &Parts) -> Result<Key, Error> {
        (**self).extract(request)
    }
}
