//! [`AdaptivePolicy`]: the handle on a policy that follows its signals.

use std::fmt;

use tokio::sync::watch;
use tower_ratelimit::{Policy, PolicySource};

/// A policy whose quota follows its signals, from [`Adaptive::start`](super::Adaptive::start). Cloning gives
/// another handle.
///
/// It converts into a [`PolicySource`], for a layer or a rule. Without a layer, ask for the
/// [`policy`](Self::policy) each time.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Decision, Error, Key, Limiter};
/// use tower_ratelimit_extra::adaptive::AdaptivePolicy;
///
/// async fn may_send(limiter: &Limiter, mails: &AdaptivePolicy, tenant: &Key) -> Result<Decision, Error> {
///     limiter.check(&mails.policy(), tenant, 1).await
/// }
/// ```
#[derive(Clone)]
pub struct AdaptivePolicy {
    active: watch::Receiver<Policy>,
    share: watch::Receiver<f64>,
}

impl AdaptivePolicy {
    pub(super) const fn new(active: watch::Receiver<Policy>, share: watch::Receiver<f64>) -> Self {
        Self { active, share }
    }

    /// The policy as it is now.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.active.borrow().clone()
    }

    /// The share of the full quota that is active, from the floor to 1: for a dashboard or a health check.
    /// With the feature `metrics`, it is the gauge `ratelimit_adaptive_share`.
    #[must_use]
    pub fn share(&self) -> f64 {
        *self.share.borrow()
    }
}

impl From<AdaptivePolicy> for PolicySource {
    fn from(policy: AdaptivePolicy) -> Self {
        Self::watched(policy.active)
    }
}

impl From<&AdaptivePolicy> for PolicySource {
    fn from(policy: &AdaptivePolicy) -> Self {
        policy.clone().into()
    }
}

impl fmt::Debug for AdaptivePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptivePolicy")
            .field("policy", &self.policy())
            .field("share", &self.share())
            .finish()
    }
}
