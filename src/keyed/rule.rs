use std::{fmt, sync::Arc, time::Duration};

use crate::{
    base::Answer,
    decision::Charge,
    key::{IntoKey, Key, Keys},
    limiter::Limiter,
    policy::Policy,
};

/// A rule of a [`KeyedRateLimitLayer`](super::KeyedRateLimitLayer) turns a request into a charge: a policy, the key
/// that it limits, and the cost of the request. See [`Rule`](crate::Rule) for HTTP.
///
/// # Example
///
/// ```
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_ratelimit::{keyed::{KeyedRateLimitLayer, KeyedRule}, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower::BoxError> {
/// let bytes = KeyedRule::new(Policy::new("bytes", Quota::per_hour(10)), |_: &String| "all")
///     .cost(|message: &String| message.len() as u64);
/// let messages = Policy::new("messages", Quota::per_hour(100));
/// let limit = KeyedRateLimitLayer::new(MemoryStore::new(), messages, |_: &String| "all").and(bytes);
/// let service = ServiceBuilder::new()
///     .layer(limit)
///     .service_fn(|message: String| async move { Ok::<_, std::io::Error>(message.len()) });
///
/// assert_eq!(service.clone().oneshot("12345678".into()).await?, 8);
/// assert!(service.oneshot("12345678".into()).await.is_err());
/// # Ok(())
/// # }
/// ```
#[must_use = "a rule does nothing until it is added to a layer"]
pub struct KeyedRule<R> {
    pub(super) policy: Policy,
    pub(super) key: Arc<dyn Fn(&R) -> Answer<Key> + Send + Sync>,
    pub(super) cost: Option<Arc<dyn Fn(&R) -> u64 + Send + Sync>>,
}

impl<R: 'static> KeyedRule<R> {
    /// Limits each key that `key` returns for a request to `policy`, at a cost of one unit per request.
    pub fn new<K: IntoKey>(policy: Policy, key: impl Fn(&R) -> K + Send + Sync + 'static) -> Self {
        Self { policy, key: Arc::new(move |request: &R| key(request).into_key()), cost: None }
    }

    /// Sets the cost of a request in units. Defaults to 1. A cost of 0 is always admitted and charges nothing. A cost
    /// above the policy's capacity is always denied.
    pub fn cost(mut self, cost: impl Fn(&R) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }
}

impl<R> KeyedRule<R> {
    /// The charge for `request`, whose key is `key`.
    pub(super) fn charge(&self, key: Key, request: &R) -> Charge {
        let cost = self.cost.as_ref().map_or(1, |cost| cost(request));
        Charge::of(self.policy.clone(), key, cost)
    }
}

// Written out because derives would require the traits of `R`.

impl<R> Clone for KeyedRule<R> {
    fn clone(&self) -> Self {
        Self { policy: self.policy.clone(), key: self.key.clone(), cost: self.cost.clone() }
    }
}

impl<R> fmt::Debug for KeyedRule<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRule").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// The settings of a layer, shared by all of its services.
pub(super) struct Config<R> {
    pub(super) limiter: Limiter,
    pub(super) rules: Vec<KeyedRule<R>>,
    pub(super) patience: Duration,
}

impl<R> Config<R> {
    pub(super) fn identify(&self, request: &R) -> Answer<Keys> {
        Keys::of(self.rules.iter().map(|rule| (rule.key)(request)))
    }

    /// The charges for `request`, one for each rule.
    pub(super) fn charges(&self, keys: Keys, request: &R) -> Vec<Charge> {
        let charge = |(rule, key): (&KeyedRule<R>, Key)| rule.charge(key, request);
        self.rules.iter().zip(keys.into_vec()).map(charge).collect()
    }
}

// Written out because derives would require the traits of `R`.

impl<R> Clone for Config<R> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), rules: self.rules.clone(), patience: self.patience }
    }
}

impl<R> fmt::Debug for Config<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("policies", &self.rules.iter().map(|rule| &rule.policy).collect::<Vec<_>>())
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}
