//! How a request becomes a charge: key, policy and cost.

use std::{fmt, sync::Arc};

use http::request::Parts;

use crate::{
    decision::Charge,
    error::Error,
    key::{Key, KeyExtractor},
    policy::PolicySource,
};

/// A rule turns a request into a charge: a policy, the key that it limits, and the cost of the request.
///
/// A layer starts with the rule of [`RateLimitLayer::new`](crate::RateLimitLayer::new). Add more with
/// [`and`](crate::RateLimitLayer::and). All rules are decided in one atomic step.
///
/// # Example
///
/// ```
/// use http::{Request, Response, request::Parts};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{key::Constant, Header, MemoryStore, Policy, Quota, RateLimitLayer, Rule};
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
#[must_use = "a rule does nothing until it is added to a layer"]
pub struct Rule {
    pub(super) key: Arc<dyn KeyExtractor>,
    pub(super) policy: PolicySource,
    pub(super) cost: Option<Arc<dyn Fn(&Parts) -> u64 + Send + Sync>>,
}

impl Rule {
    /// Limits each `key` to `policy`, at a cost of one unit per request.
    pub fn new(policy: impl Into<PolicySource>, key: impl KeyExtractor) -> Self {
        Self { key: Arc::new(key), policy: policy.into(), cost: None }
    }

    /// Sets the cost of a request in units. Defaults to 1. A cost of 0 is always admitted and charges nothing. A cost
    /// above the policy's capacity is always denied.
    pub fn cost(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }

    /// The charge for `request`, whose key is `key`.
    pub(super) fn charge(&self, key: Key, request: &Parts) -> Result<Charge, Error> {
        let policy = self.policy.policy(request, &key)?;
        let cost = self.cost.as_ref().map_or(1, |cost| cost(request));
        Ok(Charge::of(policy, key, cost))
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule").field("policy", &self.policy).finish_non_exhaustive()
    }
}
