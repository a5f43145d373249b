//! [`Lookup`]: a function that finds values, its settings as methods, and its cache.

use std::{borrow::Borrow, error::Error as StdError, fmt, hash::Hash, sync::Arc, time::Duration};

use tower_ratelimit::{Answer, Error, ErrorKind};

use super::{settings::Settings, shared::Shared};

/// An asynchronous lookup with a cache, such as of an account in a database.
///
/// Key extractors and policy sources can use clones of one `Lookup`, which share its values. So a request
/// causes at most one lookup if values are [kept](Self::capacity), and most requests cause none.
///
/// * **Freshness.** A value serves for the [`ttl`](Self::ttl). After that, it still serves while one
///   background task refreshes it, and for up to [`stale_for`](Self::stale_for) while lookups fail or hang.
///   After a failure, the next request at least one second later tries again.
/// * **Coalescing.** Concurrent requests for one key in one runtime share one lookup. It runs in a separate
///   task, so a dropped request does not disturb the others. It has a value or an error within
///   [`timeout`](Self::timeout).
/// * **Bounds.** At most [`capacity`](Self::capacity) values are kept. The least used ones are dropped first,
///   so a flood of unknown keys does not displace the values of busy clients. At most the same number of
///   lookups run concurrently in each runtime; further ones are an error. Limit the length of keys that
///   clients can choose.
/// * **Misses.** An error whose kind blames the client is a miss:
///   [`UnknownIdentity`](ErrorKind::UnknownIdentity) for a key without a value, `MissingIdentity` and
///   `InvalidIdentity`. Misses are cached for the [`ttl`](Self::ttl), at most [`misses`](Self::misses) of
///   them, separately from the values. Other errors are not cached.
/// * **When it runs.** A lookup starts when its answer is first awaited. A layer does not await it if another
///   rule has already denied the request.
/// * **Runtime.** Time comes from `tokio::time`. A lookup needs a Tokio runtime, and callers only wait for
///   one in their own runtime.
///
/// # Errors of a lookup
///
/// The function's error becomes the [`source`](StdError::source) of an [`Error`] of the kind
/// [`IdentityUnavailable`](ErrorKind::IdentityUnavailable), and the request is rejected with 500. A lookup
/// that takes too long fails with the same kind. If the function returns an [`Error`] of this crate, it is
/// returned unchanged. If its kind blames the client, such as
/// [`UnknownIdentity`](ErrorKind::UnknownIdentity), the old value no longer serves.
///
/// The start of an outage is logged once, with the message of the [`Error`] and without its source, which may
/// contain a client's identity. Log the source in your function.
///
/// # Example
///
/// ```
/// use http::{Request, request::Parts};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{
///     Error, ErrorKind, Header, Key, KeyExtractor, MemoryStore, Policy, PolicySource, Quota, RateLimitLayer,
/// };
/// use tower_ratelimit_extra::lookup::Lookup;
///
/// #[derive(Clone)]
/// struct Account {
///     id: u64,
///     policy: Policy,
/// }
///
/// /// A query of the database.
/// async fn find(api_key: &str) -> Result<Account, Error> {
///     let policy = Policy::new("free", Quota::per_hour(1));
///     let account = (api_key == "k-ann").then_some(Account { id: 7, policy });
///     account.ok_or_else(|| Error::new(ErrorKind::UnknownIdentity, "no account has this API key"))
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let accounts = Lookup::new(|api_key: String| async move { find(&api_key).await });
///
/// // The client is the account, regardless of the API key.
/// let client = Header::new("x-api-key").map({
///     let accounts = accounts.clone();
///     move |api_key| accounts.get(api_key).map(|account| Key::new(account.id))
/// });
/// let tier = PolicySource::per_request(move |request: &Parts, _: &Key| {
///     // A CORS preflight has no API key: there is no such account, and the preflight is not limited.
///     let api_key = request.headers.get("x-api-key").and_then(|api_key| api_key.to_str().ok());
///     accounts.get(api_key.unwrap_or_default()).map(|account| account.policy)
/// });
///
/// let layer = RateLimitLayer::new(MemoryStore::new(), tier, client);
/// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
///     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// }));
/// for (api_key, status) in [("k-ann", 200), ("k-ann", 429), ("k-bob", 401)] {
///     let request = Request::get("/").header("x-api-key", api_key).body(String::new())?;
///     assert_eq!(service.clone().oneshot(request).await?.status(), status);
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a lookup does nothing until `get` is called"]
pub struct Lookup<K, V> {
    shared: Arc<Shared<K, V>>,
}

impl<K, V> Lookup<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Looks up values with `find`, a function or closure that receives a key. Its error may be of any type,
    /// including an [`Error`] of this crate.
    ///
    /// The value is cloned for each request. If cloning is expensive, return an `Arc`.
    pub fn new<F, E>(find: impl Fn(K) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<V, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let find = move |key| {
            let found = find(key);
            Answer::pending(async move { found.await.map_err(|error| own_error(error.into())) })
        };
        Self { shared: Arc::new(Shared::new(Arc::new(find), Settings::default())) }
    }

    /// Sets how long a value serves before it is looked up again. Defaults to 60 seconds.
    ///
    /// Call this and the other setters before you clone the lookup: a setter returns one with an empty cache.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|settings| settings.ttl = ttl)
    }

    /// Sets how long a value serves after its [`ttl`](Self::ttl) while it cannot be refreshed. Defaults to
    /// one hour. With zero, requests wait for a new value once the old one has expired.
    pub fn stale_for(self, stale_for: Duration) -> Self {
        self.with(|settings| settings.stale_for = stale_for)
    }

    /// Sets how long one lookup may take. Defaults to one second.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|settings| settings.timeout = timeout)
    }

    /// Sets how many values are kept, and how many lookups run concurrently. Defaults to 10,000. With 0, no
    /// value is kept, and one lookup runs at a time.
    pub fn capacity(self, capacity: usize) -> Self {
        self.with(|settings| settings.capacity = capacity)
    }

    /// Sets how many misses are kept. Defaults to 10,000. With 0, each request with an unknown key causes a
    /// lookup.
    pub fn misses(self, misses: usize) -> Self {
        self.with(|settings| settings.misses = misses)
    }

    /// The value of `key`. If it is cached, the answer is ready and costs one clone of the value. Otherwise,
    /// the lookup starts when the answer is first awaited.
    ///
    /// The key is borrowed: `get` of a `Lookup<String, _>` takes a `&str`.
    ///
    /// # Errors
    ///
    /// * The [error](Self#errors-of-a-lookup) of the lookup.
    /// * [`IdentityUnavailable`](ErrorKind::IdentityUnavailable): the lookup took too long, panicked, its
    ///   runtime ended, or too many lookups run concurrently.
    /// * [`MissingSetup`](ErrorKind::MissingSetup): there is no Tokio runtime, and the value is not cached.
    pub fn get<Q>(&self, key: &Q) -> Answer<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.shared.get(key)
    }

    fn with(self, change: impl FnOnce(&mut Settings)) -> Self {
        let (find, mut settings) = (self.shared.find.clone(), self.shared.settings);
        change(&mut settings);
        Self { shared: Arc::new(Shared::new(find, settings)) }
    }
}

/// An error of this crate as it is, and any other as the cause of one. A downcast, because the error type of
/// `find` is any: no trait tells the two apart.
fn own_error(error: Box<dyn StdError + Send + Sync>) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => *error,
        Err(error) => Error::new(ErrorKind::IdentityUnavailable, "the lookup failed").with_source(error),
    }
}

// Written out because derives would require the traits of `K` and `V`.

impl<K, V> Clone for Lookup<K, V> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

/// Shows neither keys nor values.
impl<K, V> fmt::Debug for Lookup<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookup").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}
