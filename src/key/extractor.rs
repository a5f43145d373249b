use std::sync::Arc;

use http::request::Parts;

use super::{AnyOf, Hashed, Key, Map, Or, Secret};
use crate::{
    answer::Answer,
    error::{Error, ErrorKind},
};

/// Finds out who is asking.
///
/// Implemented by [`PeerIp`](crate::PeerIp), [`ClientIp`](crate::ClientIp), [`Header`](crate::Header),
/// [`Cookie`](crate::key::Cookie), [`FromExtension`](crate::key::FromExtension), [`Constant`](crate::key::Constant) and others
/// of this crate, tuples of extractors (all of them together), and closures over the request's head that return
/// something a [`Key`] can be made of, see [`IntoKey`].
///
/// An extractor sees the head of the request and never its body, so it is object safe: a
/// `Box<dyn KeyExtractor>` chosen at run time is an extractor too. One that has to ask somebody, such as a
/// session store, gives an [`Answer`] that is pending.
///
/// # Example
///
/// ```
/// use http::{Request, request::Parts};
/// use tower_ratelimit::{ErrorKind, Key, KeyExtractor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tenant = |parts: &Parts| parts.uri.path().split('/').nth(1).map(String::from);
///
/// let (parts, ()) = Request::get("/acme/orders").body(())?.into_parts();
/// assert_eq!(tenant.extract(&parts).await?, Key::new("acme"));
///
/// let (parts, ()) = Request::options("*").body(())?.into_parts();
/// assert_eq!(tenant.extract(&parts).await.unwrap_err().kind(), ErrorKind::MissingIdentity);
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say who is asking",
    note = "closures must write their argument's type: `|parts: &http::request::Parts| ...`",
    note = "and return a `Key`, a `String`, an `Option` or a `Result` of one, or an `Answer<Key>`"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// The key of the request with the head `request`.
    ///
    /// # Errors
    ///
    /// * [`MissingIdentity`](ErrorKind::MissingIdentity): the client owed one and gave none (400);
    ///   [`or`](Self::or) goes on with the next extractor.
    /// * [`InvalidIdentity`](ErrorKind::InvalidIdentity): the client gave one that cannot be used (400).
    /// * [`MissingSetup`](ErrorKind::MissingSetup): the server lacks something, whoever asks (500).
    /// * [`IdentityUnavailable`](ErrorKind::IdentityUnavailable), or any other kind: the server cannot say just
    ///   now (500).
    fn extract(&self, request: &Parts) -> Answer<Key>;

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

    /// The key that `change` makes of the identity which this extractor finds: as the client gave it, neither
    /// encoded nor hashed, see [`Key::identity`].
    ///
    /// For other forms of one identity: without this, a client has a limit for each. What
    /// [`or`](Self::or) keeps apart stays apart. Of a [`hashed`](Self::hashed) identity, `change` sees the hash, so
    /// call `map` first. An identity that is not UTF-8 is an [`InvalidIdentity`](ErrorKind::InvalidIdentity).
    ///
    /// # Example
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::{Header, Key, KeyExtractor};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // A limit per domain.
    /// let domain = Header::new("x-email").map(|email| email.split_once('@').map(|(_, domain)| domain.to_owned()));
    /// let (parts, ()) = Request::get("/").header("x-email", "josé@example.org").body(())?.into_parts();
    /// assert_eq!(domain.extract(&parts).await?, Key::new("example.org"));
    /// # Ok(())
    /// # }
    /// ```
    fn map<F, T>(self, change: F) -> Map<Self, F>
    where
        Self: Sized,
        F: Fn(&str) -> T + Send + Sync + 'static,
        T: IntoKey,
    {
        Map::new(self, change)
    }

    /// The identity in lower case, as Unicode defines it: for e-mail addresses and names whose case does not
    /// count. It is not normalized otherwise: `ß` and `SS` stay different.
    ///
    /// # Example
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::{Header, Key, KeyExtractor};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (parts, ()) = Request::get("/").header("x-email", "JOSÉ@Example.org").body(())?.into_parts();
    /// let key = Header::new("x-email").lowercase().extract(&parts).await?;
    /// assert_eq!(key, Key::new("josé@example.org"));
    /// # Ok(())
    /// # }
    /// ```
    fn lowercase(self) -> Map<Self, fn(&str) -> String>
    where
        Self: Sized,
    {
        Map::new(self, str::to_lowercase)
    }

    /// The identity without the white space around it, as Unicode defines it. One that is nothing but white space
    /// is an [`InvalidIdentity`](ErrorKind::InvalidIdentity).
    ///
    /// # Example
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::{key::Cookie, Key, KeyExtractor};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (parts, ()) = Request::get("/").header("cookie", "user=%20alice%20").body(())?.into_parts();
    /// assert_eq!(Cookie::new("user").trim().extract(&parts).await?, Key::new("alice"));
    /// # Ok(())
    /// # }
    /// ```
    fn trim(self) -> Map<Self, fn(&str) -> Result<String, Error>>
    where
        Self: Sized,
    {
        Map::new(self, |identity| match identity.trim() {
            "" => Err(Error::new(ErrorKind::InvalidIdentity, "the identity is only white space")),
            trimmed => Ok(trimmed.to_owned()),
        })
    }

    /// 128 bits of the HMAC-SHA256 of the key under `secret` in its place, for identities that must not
    /// reach Redis. Every instance needs the same secret; with another one all counts start anew.
    ///
    /// # Panics
    ///
    /// If `secret` is shorter than 16 bytes. Take 32 random ones, from the configuration.
    fn hashed(self, secret: impl AsRef<[u8]>) -> Hashed<Self>
    where
        Self: Sized,
    {
        Hashed::new(self, Secret::new(secret.as_ref()))
    }

    /// The requests of these identities, to [exempt](crate::RateLimitLayer::exempt) or to
    /// [ban](crate::RateLimitLayer::ban).
    ///
    /// Name an identity as the client shows it. It is found whatever key it becomes:
    ///
    /// | extractor | name | who is meant |
    /// |---|---|---|
    /// | [`PeerIp`](crate::PeerIp), [`ClientIp`](crate::ClientIp) | an address | that IPv4 address; of an IPv6 address, everybody in its network, which is one key |
    /// | [`a.or(b)`](Self::or) | what `a` finds, or what `b` does | every client that shows it to either: with a header first, a client can send an address of `b` there |
    /// | [`hashed`](Self::hashed), [`map`](Self::map) | the identity itself, before it is hashed or changed | |
    /// | a tuple | [`Key::join`] of the parts' identities | |
    ///
    /// To name single IPv6 addresses, or networks, use [`PeerIp::within`](crate::PeerIp::within). To exempt by one
    /// extractor of an `or` alone, use that one: `.exempt(PeerIp::new().any_of(["192.0.2.1"]))`.
    ///
    /// # Panics
    ///
    /// If this extractor gives no key for one of `identities`, whatever the request: a network, an address with a
    /// port, a header's value with a space at its end. [`try_any_of`](Self::try_any_of) returns an error instead.
    #[track_caller]
    fn any_of<T: Into<Key>>(self, identities: impl IntoIterator<Item = T>) -> AnyOf<Self>
    where
        Self: Sized,
    {
        match self.try_any_of(identities) {
            Ok(any_of) => any_of,
            Err(error) => panic!("{error}"),
        }
    }

    /// [`any_of`](Self::any_of) for identities that are not known to be right, such as those of a
    /// configuration file.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig): this extractor gives no key for one of `identities`, whatever
    /// the request. The message says which one, by its place among `identities`.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{KeyExtractor, PeerIp};
    ///
    /// assert!(PeerIp::new().try_any_of(["192.0.2.1", "2001:db8::1"]).is_ok());
    /// let error = PeerIp::new().try_any_of(["192.0.2.0/24"]).unwrap_err();
    /// assert!(error.to_string().starts_with("identity 1: \"192.0.2.0/24\" is not an IP address"), "{error}");
    /// ```
    fn try_any_of<T: Into<Key>>(self, identities: impl IntoIterator<Item = T>) -> Result<AnyOf<Self>, Error>
    where
        Self: Sized,
    {
        AnyOf::new(self, identities.into_iter().map(Into::into))
    }

    /// The keys that this extractor gives for an identity which [`any_of`](Self::any_of) names `named`.
    /// Defaults to `named`; an extractor that wraps another one and passes its keys on delegates to that one.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig): it gives no key for that identity, whatever the request.
    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        Ok(vec![named.clone()])
    }
}

/// What a closure may return for a [`Key`]: a key, text, a number, an `Option` or `Result` of one, or an
/// [`Answer`] that comes later.
///
/// `None` is a [`MissingIdentity`](ErrorKind::MissingIdentity). A pair is both together, and 16 bytes are what a UUID
/// consists of: `uuid.into_bytes()`.
#[diagnostic::on_unimplemented(
    message = "no key can be made of `{Self}`",
    note = "return a `Key`, text, a number, an address, a pair of these, or an `Option`, a `Result<_, \
            tower_ratelimit::Error>` or an `Answer` of one",
    note = "of any other value make a key with `Key::new(value.to_string())`"
)]
pub trait IntoKey {
    /// The key, or why there is none.
    ///
    /// # Errors
    ///
    /// Those of [`KeyExtractor::extract`].
    fn into_key(self) -> Answer<Key>;
}

macro_rules! into_key {
    ($($identity:ty),+) => { $(
        impl IntoKey for $identity {
            fn into_key(self) -> Answer<Key> {
                Answer::ready(Ok(Key::from(self)))
            }
        }
    )+ };
}

into_key!(Key, &'static str, String, Arc<str>, Vec<u8>, [u8; 16], std::net::IpAddr);
into_key!(i32, i64, i128, isize, u16, u32, u64, u128, usize);

/// A tenant and a user, and the like: see [`Key::join`].
impl<A: Into<Key>, B: Into<Key>> IntoKey for (A, B) {
    fn into_key(self) -> Answer<Key> {
        Answer::ready(Ok(Key::join([&self.0.into(), &self.1.into()])))
    }
}

impl<T: IntoKey> IntoKey for Option<T> {
    fn into_key(self) -> Answer<Key> {
        match self {
            Some(identity) => identity.into_key(),
            None => {
                Answer::ready(Err(Error::new(ErrorKind::MissingIdentity, "the request shows no identity")))
            }
        }
    }
}

impl<T: IntoKey> IntoKey for Result<T, Error> {
    fn into_key(self) -> Answer<Key> {
        match self {
            Ok(identity) => identity.into_key(),
            Err(error) => Answer::ready(Err(error)),
        }
    }
}

impl IntoKey for Answer<Key> {
    fn into_key(self) -> Self {
        self
    }
}

impl<F, T> KeyExtractor for F
where
    F: Fn(&Parts) -> T + Send + Sync + 'static,
    T: IntoKey,
{
    fn extract(&self, request: &Parts) -> Answer<Key> {
        self(request).into_key()
    }
}

impl KeyExtractor for Box<dyn KeyExtractor> {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        (**self).extract(request)
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        (**self).keys_of(named)
    }
}

impl KeyExtractor for Arc<dyn KeyExtractor> {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        (**self).extract(request)
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        (**self).keys_of(named)
    }
}
