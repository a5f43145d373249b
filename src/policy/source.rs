use std::{any::type_name, fmt, sync::Arc};

use http::request::Parts;
use tokio::sync::watch;

use super::Policy;
use crate::{
    error::{Error, ErrorKind},
    key::Key,
};

/// Which [`Policy`] a request falls under: one for all requests, one that changes while the service runs, or one chosen per
/// request.
///
/// A [`Policy`] converts into the source of one policy for all requests.
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
    Watched(watch::Receiver<Policy>),
    PerRequest(Arc<dyn Fn(&Parts, &Key) -> Result<Policy, Error> + Send + Sync>),
}

impl PolicySource {
    /// The policy that `choose` gives for the request and its key. [`Key::identity`] is the identity as the request has it,
    /// also if the key stores only a hash.
    ///
    /// Build the policies once and return clones: cloning is cheap, building is not.
    #[must_use]
    pub fn per_request(choose: impl Fn(&Parts, &Key) -> Policy + Send + Sync + 'static) -> Self {
        Self(Source::PerRequest(Arc::new(move |request, key| Ok(choose(request, key)))))
    }

    /// The policy that `choose` gives for a value in the request's extensions, such as the user that an outer
    /// authentication layer has put there.
    ///
    /// A request without the value is answered 500, with a message for the operator: the layers are in the wrong order.
    /// Use [`or`](Self::or) if the value is optional.
    ///
    /// # Example
    ///
    /// ```
    /// use http::Request;
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{key::Constant, MemoryStore, Policy, PolicySource, Quota, RateLimitLayer};
    ///
    /// #[derive(Clone)]
    /// struct Plan(Policy);
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let plans = PolicySource::from_extension(|plan: &Plan| plan.0.clone())
    ///     .or(Policy::new("anonymous", Quota::per_hour(1)));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), plans, Constant::new("all"));
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
    pub fn from_extension<T>(choose: impl Fn(&T) -> Policy + Send + Sync + 'static) -> Self
    where
        T: Send + Sync + 'static,
    {
        Self(Source::PerRequest(Arc::new(move |request, _| {
            request.extensions.get::<T>().map(&choose).ok_or_else(|| {
                let value = type_name::<T>();
                let message = format!(
                    "the request's extensions hold no `{value}` to choose a policy by: add the layer that puts it there \
                     outside the rate limit, or a policy for such requests with `PolicySource::or`"
                );
                Error::new(ErrorKind::MissingSetup, message)
            })
        })))
    }

    /// The latest policy of a channel, for policies that change while the service runs. For policies from a file or from
    /// Redis, see `LivePolicies`, with the feature `reload`.
    ///
    /// A request reads the channel once, without waiting and without an allocation. Keep the name and the algorithm when
    /// you change a policy, and [the counts are kept](crate::policy#what-happens-to-the-counts). If the sender is dropped,
    /// its last policy stays.
    ///
    /// A layer checks the first policy when it is built. If the store does not support a later one, or another rule of the
    /// layer has the same name, requests are answered 500.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tokio::sync::watch;
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{key::Constant, MemoryStore, Policy, PolicySource, Quota, RateLimitLayer};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (sender, receiver) = watch::channel(Policy::new("api", Quota::per_hour(1)));
    /// let source = PolicySource::watched(receiver);
    /// let layer = RateLimitLayer::new(MemoryStore::new(), source, Constant::new("all"));
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

    /// The policy of `other` for the requests for which this source has none. See
    /// [`from_extension`](Self::from_extension) for an example.
    #[must_use]
    pub fn or(self, other: impl Into<Self>) -> Self {
        match self.0 {
            Source::Constant(_) | Source::Watched(_) => self,
            Source::PerRequest(first) => {
                let other = other.into();
                Self(Source::PerRequest(Arc::new(move |request, key| {
                    first(request, key).or_else(|_| other.policy(request, key))
                })))
            }
        }
    }

    /// The policy of a request that arrives now, if it does not depend on the request.
    pub(crate) fn known(&self) -> Option<Policy> {
        match &self.0 {
            Source::Constant(policy) => Some(policy.clone()),
            Source::Watched(policy) => Some(policy.borrow().clone()),
            Source::PerRequest(_) => None,
        }
    }

    /// # Errors
    ///
    /// [`MissingSetup`](ErrorKind::MissingSetup) if the request lacks what the policy is chosen by.
    pub(crate) fn policy(&self, request: &Parts, key: &Key) -> Result<Policy, Error> {
        match &self.0 {
            Source::Constant(policy) => Ok(policy.clone()),
            Source::Watched(policy) => Ok(policy.borrow().clone()),
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
            Source::Watched(policy) => f.debug_tuple("Watched").field(&*policy.borrow()).finish(),
            Source::PerRequest(_) => f.debug_tuple("PerRequest").finish_non_exhaustive(),
        }
    }
}
