//! [`PolicySource`]: where the policy of a request comes from.

use std::{any::type_name, fmt, sync::Arc};

use http::request::Parts;
use tokio::sync::watch;

use super::Policy;
use crate::{
    base::{Answer, Error, ErrorKind, Now, OutageWatch},
    key::Key,
};

/// Which [`Policy`] a request falls under: one for all requests, one that changes while the service runs, or
/// one chosen per request.
///
/// A [`Policy`] converts into the source of one policy for all requests.
///
/// # Policies that are looked up
///
/// A closure may return a [`Policy`], `None`, an error, or an [`Answer`] that resolves to one of these: see
/// [`IntoPolicy`].
///
/// * What the closure returns cannot borrow from the request, so copy what an `async` block needs into it:
///   `Answer::pending(async move { .. })`.
/// * If the policy is `None`, the rule charges nothing. If no rule of the layer charges anything, the request
///   goes straight to the service, like an [exempt](crate::RateLimitLayer::exempt_if) one.
/// * An error rejects the request, as an error of a [`KeyExtractor`](crate::KeyExtractor) does. For an API
///   key that no account has, return an error of the kind [`UnknownIdentity`](ErrorKind::UnknownIdentity),
///   which is rejected with 401.
/// * The request waits while the answer is pending. `Lookup` of the crate `tower-ratelimit-extra` caches what
///   it looks up and limits the wait. Otherwise use `tokio::time::timeout`.
///
/// # Example
///
/// ```
/// use http::{Request, request::Parts};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{Key, MemoryStore, Policy, PolicySource, Quota, RateLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (free, paid) = (Policy::new("free", Quota::per_hour(1)), Policy::new("paid", Quota::per_hour(100)));
/// let tiers = PolicySource::per_request(move |parts: &Parts, _: &Key| {
///     if parts.headers.contains_key("x-paid") { paid.clone() } else { free.clone() }
/// });
///
/// let layer = RateLimitLayer::new(MemoryStore::new(), tiers, Key::new("all"));
/// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
///     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// }));
///
/// let free = || Request::get("/").body(String::new());
/// assert_eq!(service.clone().oneshot(free()?).await?.status(), 200);
/// assert_eq!(service.clone().oneshot(free()?).await?.status(), 429);
/// let paid = Request::get("/").header("x-paid", "yes").body(String::new())?;
/// assert_eq!(service.clone().oneshot(paid).await?.status(), 200);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PolicySource(Source);

#[derive(Clone)]
enum Source {
    Constant(Policy),
    Watched(watch::Receiver<Policy>),
    PerRequest {
        choose: Arc<Choose>,
        /// Whether policies are looked up.
        looks_up: bool,
    },
}

/// The closure of a source. An immediate error means that the request lacks the value by which the policy is
/// chosen.
type Choose = dyn Fn(&Parts, &Key) -> Result<Answer<Option<Policy>>, Error> + Send + Sync;

impl PolicySource {
    /// The policy that `choose` returns for the request and its key. [`Key::identity`] is the identity as the
    /// request has it, even if the key stores only a hash. For a CORS preflight without an identity it is
    /// `None`, and the rule does not limit the preflight if `choose` fails with a client's error or
    /// `MissingSetup`.
    ///
    /// `choose` returns a [`Policy`] or anything else that can be made [into one](IntoPolicy), now or later.
    /// Build the policies once and return clones: cloning is cheap, building is not.
    ///
    /// # Example
    ///
    /// Tiers from a database, no limit for operators, and the usual policy if the database fails:
    ///
    /// ```
    /// use http::{Request, request::Parts};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Answer, Error, ErrorKind, Header, Key, MemoryStore, Policy, PolicySource, Quota, RateLimitLayer};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// /// A query of the database.
    /// async fn tier(api_key: String) -> Result<Option<&'static str>, Error> {
    ///     match &*api_key {
    ///         "k-ann" => Ok(Some("free")),
    ///         "k-ops" => Ok(Some("operator")),
    ///         "k-late" => Err(Error::new(ErrorKind::IdentityUnavailable, "the database is down")),
    ///         _ => Ok(None),
    ///     }
    /// }
    ///
    /// let free = Policy::new("free", Quota::per_hour(1));
    /// let tiers = PolicySource::per_request({
    ///     let free = free.clone();
    ///     move |_: &Parts, key: &Key| {
    ///         let (api_key, free) = (key.identity().unwrap_or_default().into_owned(), free.clone());
    ///         Answer::pending(async move {
    ///             match tier(api_key).await? {
    ///                 Some("operator") => Ok(None),
    ///                 Some(_) => Ok(Some(free)),
    ///                 None => Err(Error::new(ErrorKind::UnknownIdentity, "no account has this API key")),
    ///             }
    ///         })
    ///     }
    /// });
    /// let tiers = tiers.or_on_error(free);
    ///
    /// let layer = RateLimitLayer::new(MemoryStore::new(), tiers, Header::new("x-api-key"));
    /// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
    ///     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
    /// }));
    /// for (api_key, statuses) in
    ///     [("k-ann", [200, 429]), ("k-ops", [200, 200]), ("k-late", [200, 429]), ("k-none", [401, 401])]
    /// {
    ///     for status in statuses {
    ///         let request = Request::get("/").header("x-api-key", api_key).body(String::new())?;
    ///         assert_eq!(service.clone().oneshot(request).await?.status(), status, "{api_key}");
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn per_request<P: IntoPolicy>(choose: impl Fn(&Parts, &Key) -> P + Send + Sync + 'static) -> Self {
        Self::choosing(P::LOOKED_UP, move |request, key| Ok(choose(request, key).into_policy()))
    }

    /// The policy that `choose` returns for a value in the request's extensions, such as the user that an
    /// outer authentication layer has put there. `choose` returns what the closure of
    /// [`per_request`](Self::per_request) may.
    ///
    /// A request without the value is answered with 500, and the log states that a layer is missing: probably
    /// the layers are in the wrong order. Use [`or`](Self::or) if the value is optional.
    ///
    /// # Example
    ///
    /// ```
    /// use http::Request;
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Key, MemoryStore, Policy, PolicySource, Quota, RateLimitLayer};
    ///
    /// #[derive(Clone)]
    /// struct Plan(Policy);
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let plans = PolicySource::from_extension(|plan: &Plan| plan.0.clone())
    ///     .or(Policy::new("anonymous", Quota::per_hour(1)));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), plans, Key::new("all"));
    /// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
    ///     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
    /// }));
    ///
    /// let anonymous = || Request::get("/").body(String::new());
    /// assert_eq!(service.clone().oneshot(anonymous()?).await?.status(), 200);
    /// assert_eq!(service.clone().oneshot(anonymous()?).await?.status(), 429);
    /// let paid = Plan(Policy::new("paid", Quota::per_hour(100)));
    /// let paid = Request::get("/").extension(paid).body(String::new())?;
    /// assert_eq!(service.oneshot(paid).await?.status(), 200);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn from_extension<T, P>(choose: impl Fn(&T) -> P + Send + Sync + 'static) -> Self
    where
        T: Send + Sync + 'static,
        P: IntoPolicy,
    {
        Self::choosing(P::LOOKED_UP, move |request, _| match request.extensions.get::<T>() {
            Some(value) => Ok(choose(value).into_policy()),
            None => {
                let value = type_name::<T>();
                let message = format!(
                    "the request's extensions hold no `{value}` to choose a policy by: add the layer that puts it there \
                     outside the rate limit, or a policy for such requests with `PolicySource::or`"
                );
                Err(Error::new(ErrorKind::MissingSetup, message))
            }
        })
    }

    /// The policy of `other` for the requests for which this source has none: its closure returns `None`, or
    /// the [extension](Self::from_extension) is missing. An error stays an error. See
    /// [`from_extension`](Self::from_extension) for an example.
    ///
    /// With `or`, `None` no longer means that the rule does not limit the request. If you need both meanings,
    /// return the other policy from the closure.
    #[must_use]
    pub fn or(self, other: impl Into<Self>) -> Self {
        self.fallback(other, true, |chosen| matches!(chosen, Ok(None)))
    }

    /// The policy of `other` for the requests for which this source fails, such as those whose lookup failed
    /// or took too long.
    ///
    /// Only failures of the server count. The request is still rejected if the client caused the error
    /// ([`MissingIdentity`](ErrorKind::MissingIdentity), [`InvalidIdentity`](ErrorKind::InvalidIdentity),
    /// [`UnknownIdentity`](ErrorKind::UnknownIdentity)) or the setup is wrong
    /// ([`MissingSetup`](ErrorKind::MissingSetup), [`InvalidConfig`](ErrorKind::InvalidConfig)). The first
    /// failure of an outage is logged. See [`per_request`](Self::per_request) for an example.
    #[must_use]
    pub fn or_on_error(self, other: impl Into<Self>) -> Self {
        let outage = Arc::new(OutageWatch::default());
        self.fallback(other, false, move |chosen| {
            chosen.as_ref().is_err_and(|error| is_failure(error, &outage))
        })
    }

    /// The policy of `other` where `is_needed` for what this source chose, or, `if_missing`, the request
    /// lacks what it is chosen by.
    fn fallback(
        self,
        other: impl Into<Self>,
        if_missing: bool,
        is_needed: impl Fn(&Result<Option<Policy>, Error>) -> bool + Clone + Send + Sync + 'static,
    ) -> Self {
        let Source::PerRequest { choose: first, looks_up } = self.0 else { return self };
        let other = other.into();
        Self::choosing(looks_up || other.looks_up(), move |request, key| {
            let first = match first(request, key) {
                Err(_) if if_missing => return other.choose(request, key),
                first => first?,
            };
            Ok(match first.now() {
                Now::Ready(chosen) if is_needed(&chosen) => return other.choose(request, key),
                Now::Ready(chosen) => Answer::ready(chosen),
                Now::Later(first) => {
                    // Called now, because the request is not there later, and awaited only if it is needed.
                    let (other, is_needed) = (other.policy(request, key), is_needed.clone());
                    Answer::pending(async move {
                        match first.await {
                            chosen if is_needed(&chosen) => other.await,
                            chosen => chosen,
                        }
                    })
                }
            })
        })
    }

    fn choosing(
        looks_up: bool,
        choose: impl Fn(&Parts, &Key) -> Result<Answer<Option<Policy>>, Error> + Send + Sync + 'static,
    ) -> Self {
        Self(Source::PerRequest { choose: Arc::new(choose), looks_up })
    }

    /// The latest policy of a channel, for policies that change while the service runs. For policies from a
    /// file or from Redis, see `LivePolicies` of the crate `tower-ratelimit-operate`.
    ///
    /// A request reads the channel once, without waiting and without an allocation. Keep the name and the
    /// algorithm when you change a policy, and [the counts are
    /// kept](crate::policy#what-happens-to-the-counts). If the sender is dropped, its last policy stays.
    ///
    /// A layer checks the first policy when it is built. If the store does not support a later one, or
    /// another rule charges the same key under a policy of that name, requests are answered with 500.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tokio::sync::watch;
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Key, MemoryStore, Policy, PolicySource, Quota, RateLimitLayer};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (sender, receiver) = watch::channel(Policy::new("api", Quota::per_hour(1)));
    /// let source = PolicySource::watched(receiver);
    /// let layer = RateLimitLayer::new(MemoryStore::new(), source, Key::new("all"));
    /// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
    ///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    /// }));
    /// let status = async || service.clone().oneshot(Request::new(String::new())).await.unwrap().status();
    ///
    /// assert_eq!(status().await, 200);
    /// assert_eq!(status().await, 429);
    /// // One of three is used.
    /// sender.send_replace(Policy::new("api", Quota::per_hour(3)));
    /// assert_eq!([status().await, status().await, status().await], [200, 200, 429]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn watched(policy: watch::Receiver<Policy>) -> Self {
        Self(Source::Watched(policy))
    }

    /// A receiver of the policy that all requests fall under, now and after each change: to show the active
    /// policy, or to derive other values from it. `None` if the policy depends on the request.
    ///
    /// # Example
    ///
    /// ```
    /// use tokio::sync::watch;
    /// use tower_ratelimit::{Policy, PolicySource, Quota};
    ///
    /// let (sender, receiver) = watch::channel(Policy::new("api", Quota::per_hour(1)));
    /// let active = PolicySource::watched(receiver).receiver().expect("one policy for all requests");
    /// sender.send_replace(Policy::new("api", Quota::per_hour(3)));
    /// assert_eq!(active.borrow().quota(), Quota::per_hour(3));
    ///
    /// assert!(PolicySource::per_request(|_, _| None::<Policy>).receiver().is_none());
    /// ```
    #[must_use]
    pub fn receiver(&self) -> Option<watch::Receiver<Policy>> {
        match &self.0 {
            Source::Constant(policy) => Some(watch::channel(policy.clone()).1),
            Source::Watched(policy) => Some(policy.clone()),
            Source::PerRequest { .. } => None,
        }
    }

    /// The policy of all requests, if there is one that does not change.
    pub(crate) const fn constant(&self) -> Option<&Policy> {
        if let Source::Constant(policy) = &self.0 { Some(policy) } else { None }
    }

    /// The policies that count guarantees in `pool` at the quotas of these. Keys are joined: of the pool and of the client, by
    /// which a policy is chosen.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) if a policy cannot be a guarantee in the pool, or the pool is chosen per request.
    pub(crate) fn guarantee_in(self, pool: &Self) -> Result<Self, Error> {
        let known = pool.known().ok_or_else(|| {
            Error::invalid(
                "a pool with guarantees must be one policy: a policy that is chosen per request has no headroom to compare with",
            )
        })?;
        if let Some(policy) = self.known() {
            policy.check_guarantee_in(&known)?;
        }
        if let (Some(policy), Some(pool)) = (self.constant(), pool.constant()) {
            return Ok(policy.guarantee_in(pool)?.into());
        }
        let (looks_up, pool) = (self.looks_up(), pool.clone());
        Ok(Self::choosing(looks_up, move |request, joined| {
            let client = joined.client_in_pool();
            let (pool, chosen) = (pool.known(), self.choose(request, client.as_ref().unwrap_or(joined))?);
            Ok(chosen.then(move |chosen| match (chosen?, pool) {
                (Some(policy), Some(pool)) => policy.guarantee_in(&pool).map(Some),
                _ => Ok(None),
            }))
        }))
    }

    /// A copy whose constant policy is [apart](Policy::apart).
    pub(crate) fn apart(&self) -> Self {
        match &self.0 {
            Source::Constant(policy) => Self(Source::Constant(policy.apart())),
            _ => self.clone(),
        }
    }

    /// The policy of a request that arrives now, if it does not depend on the request.
    pub(crate) fn known(&self) -> Option<Policy> {
        match &self.0 {
            Source::Constant(policy) => Some(policy.clone()),
            Source::Watched(policy) => Some(policy.borrow().clone()),
            Source::PerRequest { .. } => None,
        }
    }

    /// Whether policies may be known later, because they are looked up.
    pub(crate) const fn looks_up(&self) -> bool {
        matches!(self.0, Source::PerRequest { looks_up: true, .. })
    }

    /// The policy of `request`, whose key is `key`. `None` if its rule does not limit it.
    pub(crate) fn policy(&self, request: &Parts, key: &Key) -> Answer<Option<Policy>> {
        self.choose(request, key).unwrap_or_else(|error| Answer::ready(Err(error)))
    }

    fn choose(&self, request: &Parts, key: &Key) -> Result<Answer<Option<Policy>>, Error> {
        match &self.0 {
            Source::PerRequest { choose, .. } => choose(request, key),
            _ => Ok(Answer::ready(Ok(self.known()))),
        }
    }
}

/// Whether `error` is a failure of the server, neither the client's fault nor a mistake in the setup. Logs
/// the first failure of an outage.
fn is_failure(error: &Error, outage: &OutageWatch) -> bool {
    let is_failure = !error.kind().is_clients()
        && !matches!(error.kind(), ErrorKind::MissingSetup | ErrorKind::InvalidConfig);
    if is_failure && outage.failed() {
        log!(warn, error = %error, "outage of a policy source; requests fall under the policy of `or_on_error`");
    }
    is_failure
}

impl From<Policy> for PolicySource {
    fn from(policy: Policy) -> Self {
        Self(Source::Constant(policy))
    }
}

impl fmt::Debug for PolicySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Constant(policy) => f.debug_tuple("Constant").field(policy).finish(),
            Source::Watched(policy) => f.debug_tuple("Watched").field(&*policy.borrow()).finish(),
            Source::PerRequest { .. } => f.debug_tuple("PerRequest").finish_non_exhaustive(),
        }
    }
}

/// A value that a closure may return as the [`Policy`] of a request.
///
/// | value | policy |
/// |---|---|
/// | a [`Policy`] | itself |
/// | `Some(value)`, `Ok(value)` | the policy of `value` |
/// | `None` | none: the rule does not limit the request |
/// | `Err(error)` | `error`; the request is rejected, as for an error of a [`KeyExtractor`](crate::KeyExtractor) |
/// | an [`Answer<Policy>`](Answer), an [`Answer<Option<Policy>>`](Answer) | known now or later |
///
/// # Example
///
/// ```
/// use tower_ratelimit::{policy::IntoPolicy, Answer, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let free = Policy::new("free", Quota::per_hour(10));
/// assert_eq!(Some(free.clone()).into_policy().await?, Some(free.clone()));
/// assert_eq!(None::<Policy>.into_policy().await?, None);
/// let later = Answer::pending({
///     let free = free.clone();
///     async move { Ok(free) }
/// });
/// assert_eq!(later.into_policy().await?, Some(free));
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be made into a policy",
    note = "return a `Policy`, or an `Option`, a `Result<_, tower_ratelimit::Error>` or an `Answer` of one",
    note = "for an `async` block write `Answer::pending(async move {{ .. }})`"
)]
pub trait IntoPolicy {
    /// Whether the policy may be [known later](Answer), because it is looked up. Defaults to `false`.
    const LOOKED_UP: bool = false;

    /// The policy of this value: `None` if the rule does not limit the request.
    ///
    /// # Errors
    ///
    /// The same as [`KeyExtractor::extract`](crate::KeyExtractor::extract).
    fn into_policy(self) -> Answer<Option<Policy>>;
}

impl IntoPolicy for Policy {
    fn into_policy(self) -> Answer<Option<Policy>> {
        Answer::ready(Ok(Some(self)))
    }
}

impl<P: IntoPolicy> IntoPolicy for Option<P> {
    const LOOKED_UP: bool = P::LOOKED_UP;

    fn into_policy(self) -> Answer<Option<Policy>> {
        self.map_or_else(|| Answer::ready(Ok(None)), IntoPolicy::into_policy)
    }
}

impl<P: IntoPolicy> IntoPolicy for Result<P, Error> {
    const LOOKED_UP: bool = P::LOOKED_UP;

    fn into_policy(self) -> Answer<Option<Policy>> {
        self.map_or_else(|error| Answer::ready(Err(error)), IntoPolicy::into_policy)
    }
}

impl IntoPolicy for Answer<Policy> {
    const LOOKED_UP: bool = true;

    fn into_policy(self) -> Answer<Option<Policy>> {
        self.map(Some)
    }
}

impl IntoPolicy for Answer<Option<Policy>> {
    const LOOKED_UP: bool = true;

    fn into_policy(self) -> Self {
        self
    }
}
