//! [`KeyExtractor`]: the trait, and its combinators.

use std::{any::type_name, sync::Arc};

use http::request::Parts;

use super::{IntoKey, Key, KeyKind, Secret};
use crate::base::{Answer, Error, ErrorKind, Now, valid};

/// Finds the [`Key`] of a request, which identifies who is limited.
///
/// These types implement it: [`PeerIp`](crate::PeerIp), [`ClientIp`](crate::ClientIp),
/// [`Header`](crate::Header) and the others of the module [`key`](crate::key); a [`Key`], which is then the
/// key of all requests; tuples of 2 to 4 extractors, whose keys are joined; and closures over the head of the
/// request that return something which can be made [into a key](IntoKey).
///
/// An extractor sees the head of the request, but not its body. The trait is dyn-compatible: a `Box<dyn
/// KeyExtractor>` chosen at run time is an extractor too. An extractor that waits for something, such as a
/// session store, returns a pending [`Answer`]. `Lookup` of the crate `tower-ratelimit-extra` caches what it
/// looks up.
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
    message = "`{Self}` does not find the key of a request",
    note = "closures must write their argument's type, `|parts: &http::request::Parts| ...`, or be passed to \
            `tower_ratelimit::key::from_fn`",
    note = "and return a value that implements `IntoKey`: a `Key`, a `String`, a number, a tuple of these, or an \
            `Option`, a `Result<_, tower_ratelimit::Error>` or an `Answer` of one; not text borrowed from the request"
)]
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub trait KeyExtractor: Send + Sync + 'static {
    /// The key of the request with the head `request`.
    ///
    /// # Errors
    ///
    /// * [`MissingIdentity`](ErrorKind::MissingIdentity): the client sent no identity (400). [`or`](Self::or)
    ///   continues with the next extractor.
    /// * [`NotApplicable`](ErrorKind::NotApplicable): the rule does not limit this request. [`or`](Self::or)
    ///   continues with the next extractor.
    /// * [`InvalidIdentity`](ErrorKind::InvalidIdentity): the client sent an identity that cannot be used
    ///   (400).
    /// * [`UnknownIdentity`](ErrorKind::UnknownIdentity): the server does not know the identity (401).
    /// * [`MissingSetup`](ErrorKind::MissingSetup): the server is not set up for this extractor (500).
    /// * [`IdentityUnavailable`](ErrorKind::IdentityUnavailable), or any other kind: the server cannot find
    ///   the identity now (500).
    fn extract(&self, request: &Parts) -> Answer<Key>;

    /// Whether this extractor looks keys up, so that a client can cause lookups with invented identities. A
    /// layer [warns](crate::RateLimitLayer::warnings) of such an extractor if no other rule limits the same
    /// requests. Defaults to `false`.
    ///
    /// For a closure, the type of its result decides: see [`IntoKey::LOOKED_UP`]. An extractor that calls
    /// another one returns what the other one returns.
    fn looks_up(&self) -> bool {
        false
    }

    /// What the keys stand for, such as addresses or the values of one header. A layer
    /// [warns](crate::RateLimitLayer::warnings) if one policy has keys of two kinds, because equal identities share a
    /// count. Defaults to the type of the extractor. An extractor that calls another one and returns its keys returns
    /// what the other one returns.
    fn kind(&self) -> KeyKind {
        KeyKind::of::<Self>()
    }

    /// Uses `other` for requests without the identity that this extractor looks for.
    ///
    /// Only a *missing* identity continues with `other`. An identity that is unusable or unknown is an error,
    /// and so is a mistake in the server's setup. The two extractors never return the same key: a client
    /// cannot use up the quota of an address by sending that address as its API key.
    ///
    /// # Example
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::{Header, Key, KeyExtractor};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let key = Header::new("x-api-key").or(Key::new("anonymous"));
    ///
    /// let (parts, ()) = Request::get("/").header("x-api-key", "k1").body(())?.into_parts();
    /// assert_eq!(key.extract(&parts).await?, Key::new("k1"));
    ///
    /// // Requests without an API key share one limit. No API key shares it, not even "anonymous".
    /// let (parts, ()) = Request::get("/").body(())?.into_parts();
    /// assert_ne!(key.extract(&parts).await?, Key::new("anonymous"));
    /// # Ok(())
    /// # }
    /// ```
    fn or<K: KeyExtractor>(self, other: K) -> impl KeyExtractor
    where
        Self: Sized,
    {
        Or { first: self, second: other }
    }

    /// Applies `change` to the identities that this extractor finds.
    ///
    /// Use it if an identity can be written in several forms. Otherwise each form has a separate limit.
    ///
    /// * `change` gets the identity as the client sent it, see [`Key::identity`]. Call `map` before
    ///   [`hashed`](Self::hashed): after it, `change` gets the hash.
    /// * Keys of different extractors of an [`or`](Self::or) stay different.
    /// * An identity that is not UTF-8 is an error of the kind
    ///   [`InvalidIdentity`](ErrorKind::InvalidIdentity).
    ///
    /// # Example
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::{Header, Key, KeyExtractor};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // E-mail addresses are compared without regard to case.
    /// let email = Header::new("x-email").map(str::to_lowercase);
    /// let (parts, ()) = Request::get("/").header("x-email", "JOSÉ@Example.org").body(())?.into_parts();
    /// assert_eq!(email.extract(&parts).await?, Key::new("josé@example.org"));
    ///
    /// // A limit per domain.
    /// let domain = Header::new("x-email").map(|email| email.split_once('@').map(|(_, domain)| domain.to_owned()));
    /// assert_eq!(domain.extract(&parts).await?, Key::new("Example.org"));
    /// # Ok(())
    /// # }
    /// ```
    fn map<F, T>(self, change: F) -> impl KeyExtractor
    where
        Self: Sized,
        F: Fn(&str) -> T + Send + Sync + 'static,
        T: IntoKey,
    {
        let change = move |key: Key| match key.to_map().map(|identity| change(&identity).into_key()) {
            Some(changed) => changed.then(move |changed| Ok(changed?.made_of(&key))),
            None => Answer::ready(Err(Error::new(ErrorKind::InvalidIdentity, "the identity is not UTF-8"))),
        };
        let kind = self.kind().changed_by::<F>();
        Changed { extractor: self, change: Arc::new(change), looks_up: T::LOOKED_UP, kind }
    }

    /// Replaces the keys by 128 bits of their HMAC-SHA256 under `secret`. Use it for identities that must not
    /// be stored in Redis.
    ///
    /// Use 32 random bytes from the configuration, the same on every instance. With another secret all counts
    /// start again.
    ///
    /// # Panics
    ///
    /// If `secret` is shorter than 16 bytes. [`try_hashed`](Self::try_hashed) gives an error instead.
    ///
    /// # Example
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::{Header, Key, KeyExtractor};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let hashed = Header::new("x-api-key").hashed("32 random bytes from the config.");
    /// let (parts, ()) = Request::get("/").header("x-api-key", "k1").body(())?.into_parts();
    /// let key = hashed.extract(&parts).await?;
    /// assert_ne!(key, Key::new("k1"));
    /// // A policy source still sees the identity.
    /// assert_eq!(key.identity().unwrap(), "k1");
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    fn hashed(self, secret: impl AsRef<[u8]>) -> impl KeyExtractor
    where
        Self: Sized,
    {
        valid(self.try_hashed(secret))
    }

    /// The fallible form of [`hashed`](Self::hashed), for a secret read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) where [`hashed`](Self::hashed) panics.
    fn try_hashed(self, secret: impl AsRef<[u8]>) -> Result<impl KeyExtractor, Error>
    where
        Self: Sized,
    {
        let secret = Secret::new(secret.as_ref())?;
        let change = move |key: Key| Answer::ready(Ok(key.with_hash(&secret)));
        let kind = self.kind().hashed();
        Ok(Changed { extractor: self, change: Arc::new(change), looks_up: false, kind })
    }

    /// Matches the requests of `identities`, to [exempt](crate::RateLimitLayer::exempt_if) or to
    /// [block](crate::RateLimitLayer::block_if) them.
    ///
    /// Pass an identity as the client sends it, not as it is stored:
    ///
    /// | extractor | pass | what matches |
    /// |---|---|---|
    /// | [`PeerIp`](crate::PeerIp), [`ClientIp`](crate::ClientIp) | an address | that IPv4 address; for an IPv6 address, all addresses in its network, which have one key |
    /// | [`a.or(b)`](Self::or) | an identity of `a` or of `b` | requests in which `a` or `b` finds it. Careful: if `a` is a header, a client can put a `b` identity, such as an exempt address, into it and match |
    /// | [`hashed`](Self::hashed), [`map`](Self::map) | the identity before it is hashed or changed | |
    /// | a tuple | a tuple of the parts' identities, or [`Key::join`] of them | |
    /// | a closure, [`from_extension`](crate::key::from_extension), [`from_extractor`](crate::key::from_extractor) | the key that the closure returns | |
    ///
    /// To match single IPv6 addresses, or networks, use [`PeerIp::within`](crate::PeerIp::within). To exempt
    /// by only one extractor of an `or`, use that extractor:
    /// `.exempt_if(PeerIp::new().any_of(["192.0.2.1"]))`.
    ///
    /// # Panics
    ///
    /// If any of `identities` could never occur in a request, such as a network, an address with a port, or a
    /// header's value with a space at its end; or if the extractor looks keys up or does not implement
    /// [`keys_of`](Self::keys_of). [`try_any_of`](Self::try_any_of) gives an error instead.
    ///
    /// # Example
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::{Header, KeyExtractor};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let is_partner = Header::new("x-api-key").any_of(["partner-1", "partner-2"]);
    /// let (parts, ()) = Request::get("/").header("x-api-key", "partner-2").body(())?.into_parts();
    /// assert!(is_partner(&parts).await?);
    /// let (parts, ()) = Request::get("/").header("x-api-key", "k1").body(())?.into_parts();
    /// assert!(!is_partner(&parts).await?);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    fn any_of<T: Into<Key>>(
        self,
        identities: impl IntoIterator<Item = T>,
    ) -> impl Fn(&Parts) -> Answer<bool> + Send + Sync + 'static
    where
        Self: Sized,
    {
        valid(self.try_any_of(identities))
    }

    /// The fallible form of [`any_of`](Self::any_of), for identities read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) where [`any_of`](Self::any_of) panics. The message names
    /// the identity by its place among `identities`.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{KeyExtractor, PeerIp};
    ///
    /// assert!(PeerIp::new().try_any_of(["192.0.2.1", "2001:db8::1"]).is_ok());
    /// let error = PeerIp::new().try_any_of(["192.0.2.0/24"]).map(drop).unwrap_err();
    /// assert!(error.to_string().starts_with("identity 1: \"192.0.2.0/24\" is not an IP address"), "{error}");
    /// ```
    fn try_any_of<T: Into<Key>>(
        self,
        identities: impl IntoIterator<Item = T>,
    ) -> Result<impl Fn(&Parts) -> Answer<bool> + Send + Sync + 'static, Error>
    where
        Self: Sized,
    {
        let mut keys = Vec::new();
        for (i, named) in identities.into_iter().map(Into::into).enumerate() {
            let found = match named.is_final() {
                true => Ok(vec![named]),
                false => match self.keys_of(&named).now() {
                    Now::Ready(found) => found,
                    Now::Later(_) => Err(looked_up()),
                },
            };
            let found = found.map_err(|error| invalid!("identity {}: {error}", i + 1))?;
            keys.extend(found.into_iter().map(Key::stored));
        }
        keys.sort_unstable();
        let keys: Arc<[Key]> = keys.into();
        Ok(move |request: &Parts| {
            let keys = keys.clone();
            self.extract(request).then(move |key| {
                let key = key?;
                match keys.binary_search(&key) {
                    Ok(_) if key.is_assumed() => Err(not_determined()),
                    found => Ok(found.is_ok()),
                }
            })
        })
    }

    /// The keys that [`extract`](Self::extract) returns for requests with the identity `named`, for
    /// [`any_of`](Self::any_of).
    ///
    /// It is part of this trait because a blocklist compares keys in their stored form, which only the
    /// extractor can derive from an identity. Implement it for a custom extractor that is used with `any_of`:
    ///
    /// * If `extract` returns identities as the client sends them: `Answer::ready(Ok(vec![named.clone()]))`.
    /// * If it changes them: the changed one. `Key::identity` gives the text of `named`.
    /// * If it looks them up: a pending answer. `any_of` does not wait for it and fails. The router for
    ///   operators of the crate `tower-ratelimit-operate` waits.
    /// * If it calls another extractor and returns its keys: call `keys_of` of that extractor.
    ///
    /// Defaults to an error, so `any_of` fails when the service starts. A default that returned `named` would
    /// match nothing where `extract` changes identities, and that would silently disable a blocklist.
    ///
    /// # Errors
    ///
    /// [`InvalidIdentity`](ErrorKind::InvalidIdentity): no request can have this identity. In an
    /// [`or`](Self::or), the identity is then taken to belong to the other extractor. Any other kind: the
    /// keys are unknown, and `any_of` fails.
    fn keys_of(&self, named: &Key) -> Answer<Vec<Key>> {
        let _ = named;
        Answer::ready(Err(invalid!(
            "`{}` does not implement `KeyExtractor::keys_of`, which `any_of` needs",
            type_name::<Self>()
        )))
    }

    /// The keys that an operator means by `text`: an identity as a client sends it, or a key as the store has
    /// it.
    ///
    /// [`Key::from_stored`] reads the text, so a percent sign is written as `%25`. A stored key that only an
    /// extractor or a layer can have made, such as `%>203.0.113.7` or a hash, is returned as it is. Any other
    /// text is an identity, and [`keys_of`](Self::keys_of) finds its keys.
    ///
    /// # Errors
    ///
    /// The same as [`Key::from_stored`] and [`keys_of`](Self::keys_of).
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Header, Key, KeyExtractor, PeerIp};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// assert_eq!(PeerIp::new().keys_of_text("2001:db8::1").await?, [Key::new("2001:db8::/64")]);
    ///
    /// let hashed = Header::new("x-api-key").hashed("32 random bytes from the config.");
    /// let keys = hashed.keys_of_text("k1").await?;
    /// assert_ne!(keys, [Key::new("k1")]);
    /// assert_eq!(hashed.keys_of_text(keys[0].as_str()).await?, keys);
    /// # Ok(())
    /// # }
    /// ```
    fn keys_of_text(&self, text: &str) -> Answer<Vec<Key>> {
        match Key::from_stored(text) {
            Ok(key) if key.is_made() => Answer::ready(Ok(vec![key])),
            Ok(key) => self.keys_of(&key),
            Err(error) => Answer::ready(Err(error)),
        }
    }
}

/// This key for all requests: a limit on the service as a whole.
impl KeyExtractor for Key {
    fn extract(&self, _: &Parts) -> Answer<Self> {
        Answer::ready(Ok(self.clone()))
    }

    fn kind(&self) -> KeyKind {
        KeyKind::named("one key for all requests")
    }

    fn keys_of(&self, named: &Self) -> Answer<Vec<Self>> {
        Answer::ready(if named == self { Ok(vec![named.clone()]) } else { Err(impossible("the one key")) })
    }
}

/// The closure `extract` as a [`KeyExtractor`]. Here its argument needs no type.
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{Key, KeyExtractor, key::from_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tenant = from_fn(|parts| parts.uri.path().split('/').nth(1).map(String::from));
/// let (parts, ()) = Request::get("/acme/orders").body(())?.into_parts();
/// assert_eq!(tenant.extract(&parts).await?, Key::new("acme"));
/// # Ok(())
/// # }
/// ```
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub const fn from_fn<F, T>(extract: F) -> F
where
    F: Fn(&Parts) -> T + Send + Sync + 'static,
    T: IntoKey,
{
    extract
}

/// An extractor, and another one for requests without the identity that the first looks for.
pub(super) struct Or<A, B> {
    pub(super) first: A,
    pub(super) second: B,
}

/// The key of the guarantee that the client has in the pool.
pub(crate) fn guarantee_key(pool: Arc<dyn KeyExtractor>, client: impl KeyExtractor) -> impl KeyExtractor {
    let extractor = (pool, client);
    let kind = extractor.kind();
    let change = |key: Key| Answer::ready(Ok(key.into_guarantee()));
    Changed { extractor, change: Arc::new(change), looks_up: false, kind }
}

/// An extractor whose keys a function changes.
pub(super) struct Changed<K> {
    pub(super) extractor: K,
    pub(super) change: Arc<dyn Fn(Key) -> Answer<Key> + Send + Sync>,
    /// Whether the function looks keys up.
    pub(super) looks_up: bool,
    pub(super) kind: KeyKind,
}

/// The key of the identity `named`, if a request can have it.
pub(super) fn only(
    named: &Key,
    is_possible: impl FnOnce(&[u8]) -> bool,
    expected: &'static str,
) -> Answer<Vec<Key>> {
    Answer::ready(match named.raw() {
        Some(identity) if is_possible(&identity) => Ok(vec![Key::of_bytes(&identity)]),
        _ => Err(impossible(expected)),
    })
}

/// The error for an identity that no request has. It does not show the identity, which may be a secret.
pub(super) fn impossible(expected: &'static str) -> Error {
    Error::new(ErrorKind::InvalidIdentity, format!("no request has this identity: it must be {expected}"))
}

/// The error for an identity whose keys are not known now.
fn looked_up() -> Error {
    Error::invalid(
        "its key is looked up, and `any_of` does not wait for a lookup: call `any_of` before `map`",
    )
}

/// Whether a request with this head matches.
pub(crate) type Matcher = Arc<dyn Fn(&Parts) -> Answer<bool> + Send + Sync>;

/// The matcher that calls `matches`.
pub(crate) fn matcher<M: Into<Answer<bool>>>(
    matches: impl Fn(&Parts) -> M + Send + Sync + 'static,
) -> Matcher {
    Arc::new(move |request: &Parts| matches(request).into())
}

/// The error for a request whose client is not known and whose proxy is matched.
pub(super) fn not_determined() -> Error {
    Error::new(ErrorKind::InvalidIdentity, "the client behind the proxy could not be determined")
}
