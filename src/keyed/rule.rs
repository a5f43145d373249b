use std::{fmt, sync::Arc, time::Duration};

use crate::{
    base::Answer,
    decision::Charge,
    key::{IntoKey, Key, Keys},
    limiter::Limiter,
    policy::{IntoPolicy, Policy},
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
///     .cost(|message| message.len() as u64);
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
    /// The policy, if it is not chosen per request.
    pub(super) known: Option<Policy>,
    choose: Arc<dyn Fn(&R, &Key) -> Answer<Option<Policy>> + Send + Sync>,
    key: Arc<dyn Fn(&R) -> Answer<Key> + Send + Sync>,
    cost: Option<Arc<dyn Fn(&R) -> u64 + Send + Sync>>,
}

impl<R: 'static> KeyedRule<R> {
    /// Limits each key that `key` returns for a request to `policy`, at a cost of one unit per request.
    pub fn new<K: IntoKey>(policy: Policy, key: impl Fn(&R) -> K + Send + Sync + 'static) -> Self {
        Self { known: Some(policy.clone()), ..Self::per_request(move |_, _| policy.clone(), key) }
    }

    /// Limits each key that `key` returns to the policy that `choose` returns for the request and its key, now or later: a
    /// [`Policy`], `None` to leave the request out, or anything else that can be made [into a policy](IntoPolicy). Build the
    /// policies once and return clones.
    ///
    /// # Example
    ///
    /// ```
    /// use tower::{ServiceBuilder, ServiceExt};
    /// use tower_ratelimit::{keyed::{KeyedRateLimitLayer, KeyedRule}, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower::BoxError> {
    /// let (free, paid) = (Policy::new("free", Quota::per_hour(1)), Policy::new("paid", Quota::per_hour(100)));
    /// let tiers = KeyedRule::per_request(
    ///     move |tenant: &String, _| if tenant == "acme" { paid.clone() } else { free.clone() },
    ///     |tenant: &String| tenant.clone(),
    /// );
    /// let service = ServiceBuilder::new()
    ///     .layer(KeyedRateLimitLayer::with_rule(MemoryStore::new(), tiers))
    ///     .service_fn(|tenant: String| async move { Ok::<_, std::io::Error>(tenant) });
    ///
    /// for (tenant, is_admitted) in [("acme", true), ("acme", true), ("globex", true), ("globex", false)] {
    ///     assert_eq!(service.clone().oneshot(tenant.into()).await.is_ok(), is_admitted);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn per_request<P: IntoPolicy, K: IntoKey>(
        choose: impl Fn(&R, &Key) -> P + Send + Sync + 'static,
        key: impl Fn(&R) -> K + Send + Sync + 'static,
    ) -> Self {
        Self {
            known: None,
            choose: Arc::new(move |request, key| choose(request, key).into_policy()),
            key: Arc::new(move |request| key(request).into_key()),
            cost: None,
        }
    }

    /// Sets the cost of a request in units. Defaults to 1. A cost of 0 is always admitted and charges nothing. A cost
    /// above the policy's capacity is always denied.
    pub fn cost(mut self, cost: impl Fn(&R) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }
}

impl<R> KeyedRule<R> {
    /// The charge for `request`, whose key is `key`. `None` if the rule has no policy for it.
    fn charge(&self, key: Key, request: &R) -> Answer<Option<Charge>> {
        let cost = self.cost.as_ref().map_or(1, |cost| cost(request));
        let policy = (self.choose)(request, &key);
        policy.map(move |policy| policy.map(|policy| Charge::of(policy, key, cost)))
    }
}

// Written out because derives would require the traits of `R`.

impl<R> Clone for KeyedRule<R> {
    fn clone(&self) -> Self {
        let Self { known, choose, key, cost } = self;
        Self { known: known.clone(), choose: choose.clone(), key: key.clone(), cost: cost.clone() }
    }
}

impl<R> fmt::Debug for KeyedRule<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRule").field("policy", &self.known).finish_non_exhaustive()
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

    /// The charges for `request`, one for each rule that has a policy for it.
    pub(super) fn charges(&self, keys: Keys, request: &R) -> Answer<Vec<Charge>> {
        let charge = |(rule, key): (&KeyedRule<R>, Key)| rule.charge(key, request);
        Answer::all(self.rules.iter().zip(keys.into_vec()).map(charge))
    }

    /// The policies that are not chosen per request.
    pub(super) fn known_policies(&self) -> impl Iterator<Item = &Policy> {
        self.rules.iter().filter_map(|rule| rule.known.as_ref())
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
            .field("policies", &self.known_policies().collect::<Vec<_>>())
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}
