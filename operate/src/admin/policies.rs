//! [`Policies`]: the policies that operators see, fixed or changing.

use std::{fmt, sync::Arc};

use tower_ratelimit::{Error, Policy};

#[cfg(feature = "live")]
use crate::live::LivePolicies;

/// The policies that the router of [`Admin`](super::Admin) shows: a fixed list, those that change while the
/// service runs, or what a function returns.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{MemoryStore, Policy, Quota};
/// use tower_ratelimit_operate::admin::{self, Policies};
///
/// let (api, login) = (Policy::new("api", Quota::per_second(10)), Policy::new("login", Quota::per_minute(5)));
/// let router = admin::router(MemoryStore::new(), [api.clone(), login.clone()]);
/// let router = admin::router(MemoryStore::new(), Policies::from_fn(move || vec![api.clone(), login.clone()]));
/// # drop(router);
/// ```
#[derive(Clone)]
pub struct Policies(Source);

#[derive(Clone)]
enum Source {
    Fixed(Arc<[Policy]>),
    #[cfg(feature = "live")]
    Live(LivePolicies),
    Function(Arc<dyn Fn() -> Vec<Policy> + Send + Sync>),
}

impl Policies {
    /// The policies that `function` returns. It is called for every request.
    #[must_use]
    pub fn from_fn(function: impl Fn() -> Vec<Policy> + Send + Sync + 'static) -> Self {
        Self(Source::Function(Arc::new(function)))
    }

    /// The policies now.
    pub(super) fn current(&self) -> Vec<Policy> {
        match &self.0 {
            Source::Fixed(policies) => policies.to_vec(),
            #[cfg(feature = "live")]
            Source::Live(policies) => policies.current(),
            Source::Function(function) => function(),
        }
    }

    /// The fixed list, if it is one.
    pub(super) fn fixed(&self) -> Option<&[Policy]> {
        match &self.0 {
            Source::Fixed(policies) => Some(policies),
            _ => None,
        }
    }

    /// The live policies, if these are.
    #[cfg(feature = "live")]
    pub(super) const fn live(&self) -> Option<&LivePolicies> {
        match &self.0 {
            Source::Live(policies) => Some(policies),
            _ => None,
        }
    }

    /// Why live policies stay as they are.
    pub(super) fn error(&self) -> Option<Error> {
        match &self.0 {
            #[cfg(feature = "live")]
            Source::Live(policies) => policies.last_error(),
            _ => None,
        }
    }
}

impl From<Policy> for Policies {
    fn from(policy: Policy) -> Self {
        [policy].into()
    }
}

impl<const N: usize> From<[Policy; N]> for Policies {
    fn from(policies: [Policy; N]) -> Self {
        Self(Source::Fixed(policies.into()))
    }
}

impl From<Vec<Policy>> for Policies {
    fn from(policies: Vec<Policy>) -> Self {
        Self(Source::Fixed(policies.into()))
    }
}

/// The policies that are active when a request arrives.
#[cfg(feature = "live")]
#[cfg_attr(docsrs, doc(cfg(feature = "live")))]
impl From<LivePolicies> for Policies {
    fn from(policies: LivePolicies) -> Self {
        Self(Source::Live(policies))
    }
}

#[cfg(feature = "live")]
#[cfg_attr(docsrs, doc(cfg(feature = "live")))]
impl From<&LivePolicies> for Policies {
    fn from(policies: &LivePolicies) -> Self {
        policies.clone().into()
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Policies").field(&self.current()).finish()
    }
}
