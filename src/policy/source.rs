use std::{fmt, sync::Arc};

use http::request::Parts;

use super::Policy;
use crate::{key::Key, util::per_thread::Apart};

/// Which [`Policy`] a request falls under: one for all, or chosen per request.
///
/// A [`Policy`] becomes one by itself wherever a source is wanted.
///
/// # Example
///
/// ```
/// use http::{Request, request::Parts};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{key::Constant, Key, MemoryStore, Policy, PolicySource, Quota, RateLimitLayer};
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

    pub(crate) fn policy(&self, request: &Parts, key: &Key) -> Policy {
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
