//! How a request becomes a charge: who, how much, at what cost.

use std::{fmt, sync::Arc};

use http::request::Parts;

use crate::{Charge, Key, KeyExtractor, Policy, per_thread::Apart};

/// Which [`Policy`] a request falls under: one for all, or chosen per request.
///
/// A [`Policy`] becomes one by itself wherever a source is wanted.
///
/// # Example
///
/// ```
/// use http::{Request, request::Parts};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{Constant, Key, MemoryStore, Policy, PolicySource, Quota, RateLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (free, paid) = (Policy::new("free", Quota::per_hour(1)), Policy::new("paid", Quota::per_hour(100)));
/// let tiers = PolicySource::per_request(move |parts: &Parts, _: &Key| {
///     if parts.headers.contains_key("x-paid") { paid.clone() } else { free.clone() }
/// });
///
/// let layer = RateLimitLayer::new(MemoryStore::new(), tiers, Constant::new("all"));
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
    PerRequest(Arc<dyn Fn(&Parts, &Key) -> Policy + Send + Sync>),
}

impl PolicySource {
    /// The policy that `choose` gives for the request and its key, whose [`identity`](Key::identity) is there
    /// whatever its length and characters, hashed or not.
    ///
    /// Make the policies once and hand out clones: that is cheap, making one is not.
    #[must_use]
    pub fn per_request(choose: impl Fn(&Parts, &Key) -> Policy + Send + Sync + 'static) -> Self {
        Self(Source::PerRequest(Arc::new(choose)))
    }

    pub(crate) fn constant(&self) -> Option<&Policy> {
        match &self.0 {
            Source::Constant(policy) => Some(policy),
            Source::PerRequest(_) => None,
        }
    }

    fn policy(&self, request: &Parts, key: &Key) -> Policy {
        match &self.0 {
            Source::Constant(policy) => policy.clone(),
            Source::PerRequest(choose) => choose(request, key),
        }
    }
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
            Source::PerRequest(_) => f.debug_tuple("PerRequest").finish_non_exhaustive(),
        }
    }
}

impl Apart for PolicySource {
    fn apart(&self) -> Self {
        match &self.0 {
            Source::Constant(policy) => policy.apart().into(),
            Source::PerRequest(_) => self.clone(),
        }
    }
}

/// How a request becomes a charge: a policy, the key that it limits, and what the request costs.
///
/// A layer starts with one rule, that of [`RateLimitLayer::new`](crate::RateLimitLayer::new), and takes more with
/// [`and`](crate::RateLimitLayer::and). All of them are decided in one atomic step.
///
/// # Example
///
/// ```
/// use http::{Request, Response, request::Parts};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{Constant, Header, MemoryStore, Policy, Quota, RateLimitLayer, Rule};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Ten requests an hour for each API key, and two uploads an hour for all of them together.
/// let upload = |parts: &Parts| if parts.uri.path() == "/upload" { 1 } else { 0 };
/// let uploads = Rule::new(Policy::new("uploads", Quota::per_hour(2)), Constant::new("all")).cost(upload);
/// let per_key = Policy::new("per-key", Quota::per_hour(10));
/// let layer = RateLimitLayer::new(MemoryStore::new(), per_key, Header::new("x-api-key")).and(uploads);
///
/// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
/// }));
/// let status = async |path: &str, key: &str| {
///     let request = Request::get(path).header("x-api-key", key).body(String::new()).unwrap();
///     service.clone().oneshot(request).await.unwrap().status().as_u16()
/// };
/// assert_eq!([status("/upload", "k1").await, status("/upload", "k2").await], [200, 200]);
/// assert_eq!([status("/upload", "k3").await, status("/", "k3").await], [429, 200]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a rule does nothing until a layer has it"]
pub struct Rule {
    pub(crate) key: Arc<dyn KeyExtractor>,
    pub(crate) policy: PolicySource,
    pub(crate) cost: Option<Arc<dyn Fn(&Parts) -> u64 + Send + Sync>>,
}

impl Rule {
    /// Limits each `key` to `policy`, at one unit a request.
    pub fn new(policy: impl Into<PolicySource>, key: impl KeyExtractor) -> Self {
        Self { key: Arc::new(key), policy: policy.into(), cost: None }
    }

    /// What a request costs, in units. Defaults to 1. A cost of 0 is always admitted and charges nothing; one above
    /// the policy's capacity is denied for good.
    pub fn cost(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }

    /// What `request` is charged, once it is known whose it is.
    pub(crate) fn charge(&self, key: Key, request: &Parts) -> Charge {
        let policy = self.policy.policy(request, &key);
        let cost = self.cost.as_ref().map_or(1, |cost| cost(request));
        Charge::of(policy, key.stored(), cost)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Apart for Rule {
    fn apart(&self) -> Self {
        Self { policy: self.policy.apart(), ..self.clone() }
    }
}
