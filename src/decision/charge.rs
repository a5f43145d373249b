//! [`Charge`]: a cost for a key under a policy.

use std::{
    ops::Deref,
    slice,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::unit::RuleUnit;
use crate::{
    algorithm::twin::Receipt,
    base::{Error, random::random},
    key::Key,
    policy::{Criticality, Policy},
};

/// What a decision is about: `cost` units for `key` under `policy`.
///
/// A decision covers one or more charges, all or nothing.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Charge, Key, Limiter, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(MemoryStore::new());
/// let uploads = Policy::new("uploads", Quota::per_hour(100));
/// let charge = Charge::new(&uploads, &Key::new("alice"), 60);
/// assert_eq!((charge.policy().name(), charge.cost()), ("uploads", 60));
/// assert!(limiter.check_all(&[charge.clone()]).await?.is_admitted());
/// assert!(!limiter.check_all(&[charge]).await?.is_admitted());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Charge {
    policy: Policy,
    key: Key,
    cost: u64,
    meaning: Meaning,
    /// The index of the layer's rule that made the charge.
    rule: u16,
    /// What the rule counts.
    unit: RuleUnit,
    criticality: Criticality,
    /// Whether the request goes on if the charge is denied.
    degrades: bool,
}

/// The most rules of a layer: a charge has 16 bits for the index of its rule.
pub(crate) const MOST_RULES: usize = 1 << 16;

/// Charges are equal if their policy, key, cost and criticality are. The holder of a
/// [permit](crate::algorithm::Concurrency) is not compared.
impl PartialEq for Charge {
    fn eq(&self, other: &Self) -> bool {
        self.cost == other.cost
            && self.key == other.key
            && self.policy == other.policy
            && self.criticality == other.criticality
    }
}

impl Eq for Charge {}

/// What a charge is beyond its cost. Each meaning excludes the others.
#[derive(Clone, Copy, Debug)]
pub(super) enum Meaning {
    /// A cost and no more.
    Cost,
    /// A permit, which has this holder.
    Permit([u64; 2]),
    /// A charge that was made, and may be refunded by this receipt.
    Made(Receipt),
    /// A question of an operator, who can wait: a deadline that it misses does not count as a failure for requests.
    Question,
    /// A charge that was denied because the key is banned, for this many more microseconds.
    Banned(u64),
    /// The stamp of a settlement, whose token expires at this time.
    #[cfg_attr(not(feature = "settlement-tokens"), expect(dead_code, reason = "only tokens have stamps"))]
    Stamp(u64),
}

impl Charge {
    /// A charge of `cost` units to `key` under `policy`. A cost of 0 charges nothing and is admitted, unless
    /// the store is unavailable and the policy is [`Closed`](crate::FailureMode::Closed). A cost above the
    /// policy's capacity is denied, unless the store is unavailable and the policy is
    /// [`Open`](crate::FailureMode::Open).
    #[must_use]
    pub fn new(policy: &Policy, key: &Key, cost: u64) -> Self {
        Self::of(policy.clone(), key.clone(), cost)
    }

    // Inlined because a call would move the policy and the key once more.
    #[inline(always)]
    pub(crate) fn of(policy: Policy, key: Key, cost: u64) -> Self {
        let meaning = if policy.has_permits() { Meaning::Permit(next_holder()) } else { Meaning::Cost };
        let (criticality, degrades) = (Criticality::CriticalPlus, false);
        Self {
            policy,
            key: key.stored(),
            cost,
            meaning,
            rule: 0,
            unit: RuleUnit::default(),
            criticality,
            degrades,
        }
    }

    /// Notes the index of the layer's rule that made the charge, below [`MOST_RULES`], and what it counts.
    pub(crate) const fn by_rule(mut self, rule: usize, unit: RuleUnit) -> Self {
        (self.rule, self.unit) = (rule as u16, unit);
        self
    }

    /// The index of the layer's rule that made the charge; 0 if no layer did.
    pub(crate) fn rule(&self) -> usize {
        self.rule.into()
    }

    /// The same charge with a new holder: a charge that is made twice needs two permits.
    pub(crate) fn with_new_holder(&self) -> Self {
        let charge = Self::of(self.policy.clone(), self.key.clone(), self.cost);
        charge.by_rule(self.rule(), self.unit).on_terms_of(self)
    }

    /// A charge of no units, which asks for what remains.
    pub(crate) fn asking(&self) -> Self {
        Self::of(self.policy.clone(), self.key.clone(), 0).on_terms_of(self)
    }

    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The key.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// The cost in units.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// What a unit of the cost is, for texts: the [unit](crate::Rule::unit) of the layer's rule, such as
    /// `tokens`. Without one, `concurrent-requests` if the policy counts [permits](Policy::concurrency), and
    /// otherwise the policy's [quota unit](Policy::quota_unit), such as `requests`.
    ///
    /// # Example
    ///
    /// The body of a [rejection](crate::response::ResponseMapper) of a service whose rules have units:
    ///
    /// ```
    /// use http::{Request, Response, request::Parts};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, Rejection, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rule = Rule::new(Policy::new("plan", Quota::per_month(1_000)), Key::new("acme"));
    /// let layer = RateLimitLayer::with_rules(MemoryStore::new(), rule.cost(|_| 2_000).reserve().unit("tokens"));
    /// let layer = layer.response(|rejection: &Rejection, _: &Parts| {
    ///     let denied = rejection.decision().into_iter().flat_map(|decision| decision.outcomes());
    ///     let costs = denied.map(|one| format!("{} of {} {}", one.charge().cost(), one.remaining(), one.charge().unit()));
    ///     Response::new(costs.collect::<String>())
    /// });
    /// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
    ///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    /// }));
    /// let denied = service.oneshot(Request::get("/").body(String::new())?).await?;
    /// assert_eq!(denied.headers()["ratelimit-policy"], r#""plan";q=1000;qu="tokens";w=2592000"#);
    /// # use http_body_util::BodyExt;
    /// # let body = denied.into_body().collect().await.unwrap_or_default().to_bytes();
    /// assert_eq!(body, "2000 of 1000 tokens");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn unit(&self) -> &str {
        match self.unit.name() {
            Some(name) => name,
            None if self.needs_permit() => "concurrent-requests",
            None => self.policy.settings().quota_unit.as_str(),
        }
    }

    /// Sets the cost. The charge keeps its receipt and its permit, so a store can refund or renew a part of
    /// it.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Charge, Key, Policy, Quota};
    ///
    /// let charge = Charge::new(&Policy::new("uploads", Quota::per_hour(100)), &Key::new("alice"), 60);
    /// assert_eq!(charge.with_cost(5).cost(), 5);
    /// ```
    #[must_use]
    pub const fn with_cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// Sets how critical the request is, which decides how much of the policy it leaves [to others](Policy::headroom). Defaults to
    /// [`CriticalPlus`](Criticality::CriticalPlus), which leaves nothing.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Charge, Criticality, Key, Policy, Quota, policy::Headroom};
    ///
    /// let site = Policy::new("site", Quota::per_hour(10)).headroom(Criticality::Critical, Headroom::Units(3));
    /// let charge = Charge::new(&site, &Key::new("all"), 1);
    /// assert_eq!(charge.headroom(), 0);
    /// assert_eq!(charge.with_criticality(Criticality::Sheddable).headroom(), 3);
    /// ```
    #[must_use]
    pub const fn with_criticality(mut self, criticality: Criticality) -> Self {
        self.criticality = criticality;
        self
    }

    /// How critical the request is.
    #[must_use]
    pub const fn criticality(&self) -> Criticality {
        self.criticality
    }

    /// The units that must remain after the charge: the policy's [headroom](Policy::headroom) for requests of this
    /// [criticality](Self::criticality). A store admits the charge if its cost and these units fit, and charges the cost. If a
    /// [guarantee](Self::guarantee) in the same decision fits, nothing need remain.
    #[must_use]
    #[inline]
    pub fn headroom(&self) -> u64 {
        match self.criticality {
            Criticality::CriticalPlus => 0,
            criticality => self.policy.headroom_of(criticality),
        }
    }

    /// Whether both have the same key and the same policy name.
    pub(crate) fn is_of_same_count(&self, other: &Self) -> bool {
        self.key == other.key && self.policy.name() == other.policy.name()
    }

    /// Takes the larger cost and the lower criticality if `other` has the same key and an equal policy, and degrades only if both do.
    /// `false` if it has not.
    pub(crate) fn merge(&mut self, other: &Self) -> bool {
        let is_same = self.key == other.key && self.policy == other.policy;
        if is_same {
            self.cost = self.cost.max(other.cost);
            self.criticality = self.criticality.min(other.criticality);
            self.degrades &= other.degrades;
        }
        is_same
    }

    /// The same charge under `policy`, which counts the same units.
    pub(crate) fn under(self, policy: &Policy) -> Self {
        Self { policy: policy.clone(), ..self }
    }

    /// Marks the charge as made, so it can be refunded. A permit is found by its holder instead.
    pub(super) const fn set_receipt(&mut self, receipt: Receipt) {
        if matches!(self.meaning, Meaning::Cost) {
            self.meaning = Meaning::Made(receipt);
        }
    }

    /// The receipt of the charge to refund; `None` for an operator's refund of the latest units.
    pub(crate) const fn receipt(&self) -> Option<Receipt> {
        match self.meaning {
            Meaning::Made(receipt) => Some(receipt),
            _ => None,
        }
    }

    /// Makes the charge the stamp of a settlement: the other charges of its decision are refunded or debited
    /// only if it fits and the store's time is before `expires`. Then it is charged too, even by a
    /// refund. It comes last.
    #[cfg(feature = "settlement-tokens")]
    pub(crate) const fn into_stamp(mut self, expires: u64) -> Self {
        self.meaning = Meaning::Stamp(expires);
        self
    }

    /// When the token expires whose stamp the charge is, in microseconds since 1970.
    pub(crate) const fn stamp(&self) -> Option<u64> {
        match self.meaning {
            Meaning::Stamp(expires) => Some(expires),
            _ => None,
        }
    }

    /// A charge with a receipt, to refund `cost` units of what another process has charged.
    #[cfg(feature = "settlement-tokens")]
    pub(crate) fn made(policy: &Policy, key: &Key, cost: u64, receipt: Receipt) -> Self {
        let mut charge = Self::new(policy, key, cost);
        charge.set_receipt(receipt);
        charge
    }

    /// Marks the charge as one that an operator peeks at, unless it needs a permit.
    pub(crate) const fn patiently(mut self) -> Self {
        if matches!(self.meaning, Meaning::Cost) {
            self.meaning = Meaning::Question;
        }
        self
    }

    /// Whether an operator peeks at it.
    #[cfg(feature = "redis")]
    pub(crate) const fn is_patient(&self) -> bool {
        matches!(self.meaning, Meaning::Question)
    }

    /// Marks the charge as denied because its key is banned for `rest` more microseconds.
    pub(super) const fn set_ban(&mut self, rest: u64) {
        self.meaning = Meaning::Banned(rest);
    }

    /// The microseconds until the ban ends because of which the charge was denied.
    pub(super) const fn ban(&self) -> Option<u64> {
        match self.meaning {
            Meaning::Banned(rest) => Some(rest),
            _ => None,
        }
    }

    /// Lets the request go on if this charge is denied: it is not made then, and the others are.
    /// [`Decision::degraded`](crate::Decision::degraded) has its outcome. In a layer, use
    /// [`Rule::or_degrade`](crate::Rule::or_degrade), which says more.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Charge, Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let (large, requests) = (Policy::new("large-model", Quota::per_month(1)), Policy::new("api", Quota::per_hour(9)));
    /// let (limiter, alice) = (Limiter::new(MemoryStore::new()), Key::new("alice"));
    /// let charges = [Charge::new(&requests, &alice, 1), Charge::new(&large, &alice, 1).or_degrade()];
    ///
    /// assert_eq!(limiter.check_all(&charges).await?.degraded().count(), 0);
    /// let second = limiter.check_all(&charges).await?;
    /// assert!(second.is_admitted());
    /// assert!(second.degraded().map(|outcome| outcome.policy().name()).eq(["large-model"]));
    /// assert_eq!(limiter.peek(&requests, &alice, 0).await?.remaining(), Some(7));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn or_degrade(mut self) -> Self {
        self.degrades = true;
        self
    }

    /// A charge of the same units on the guarantee that `key` has in the pool of this charge, at the quota of `policy`. Decide both
    /// together. In a layer, use [`Rule::guarantee`](crate::Rule::guarantee), which says what is guaranteed.
    ///
    /// If the guarantee fits, both are charged and the pool ignores its [headroom](Self::headroom). Otherwise only the pool is charged,
    /// and keeps its headroom: so give this charge a [criticality](Self::with_criticality) for which the pool has one.
    /// [`Decision::shadows`](crate::Decision::shadows) has the outcome of the guarantee.
    ///
    /// An [operator](crate::Operator) finds the guarantee by the policy and the key of the returned charge: `tenant` in `vendor` is
    /// stored under `tenant%@vendor:guarantee`. A reset empties it.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`Rule::guarantee`](crate::Rule::guarantee) panics.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Charge, Criticality, Key, Limiter, MemoryStore, Policy, Quota, policy::Headroom};
    /// use tower_ratelimit::store::ManualClock;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let clock = ManualClock::new();
    /// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
    /// let vendor = Policy::new("vendor", Quota::per_minute(10)).headroom(Criticality::Sheddable, Headroom::Units(4));
    /// let tenant = Policy::new("tenant", Quota::per_minute(5).burst(2));
    /// let call = async |name: &str| {
    ///     let pool = Charge::new(&vendor, &Key::new("all"), 1).with_criticality(Criticality::Sheddable);
    ///     let guarantee = pool.guarantee(&tenant, &Key::new(name))?;
    ///     Ok::<_, tower_ratelimit::Error>(limiter.check_all(&[pool, guarantee]).await?.is_admitted())
    /// };
    /// // The first one borrows what others leave, but for the headroom. A minute later it has a guarantee.
    /// assert!(call("acme").await?);
    /// clock.advance(std::time::Duration::from_secs(60));
    /// for _ in 0..6 {
    ///     assert!(call("crawler").await?);
    /// }
    /// assert!(!call("crawler").await?);
    /// assert!(call("acme").await? && call("acme").await? && !call("acme").await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn guarantee(&self, policy: &Policy, key: &Key) -> Result<Self, Error> {
        policy.check_guarantee_in(&self.policy)?;
        let charge = Self::of(policy.guarantee_in(&self.policy)?, key.in_pool(&self.key), self.cost);
        Ok(charge.by_rule(self.rule(), self.unit))
    }

    /// Whether the request [goes on](Self::or_degrade) if this charge is denied. `false` if the policy is a
    /// [shadow](Policy::shadow) for the key, which denies nothing.
    #[must_use]
    pub fn degrades(&self) -> bool {
        self.degrades && !self.is_shadow()
    }

    /// Whether the request is not one of the most critical, or goes on without the charge.
    pub(crate) const fn has_terms(&self) -> bool {
        self.degrades || !matches!(self.criticality, Criticality::CriticalPlus)
    }

    /// The same charge, as critical as `other` is, and denying as it does.
    pub(crate) const fn on_terms_of(mut self, other: &Self) -> Self {
        (self.criticality, self.degrades) = (other.criticality, other.degrades);
        self
    }

    /// Whether the policy is a [shadow](Policy::shadow) for this key: its denial does not deny the request.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Charge, Key, Policy, Quota};
    ///
    /// let strict = Policy::new("strict", Quota::per_hour(1));
    /// assert!(!Charge::new(&strict, &Key::new("alice"), 1).is_shadow());
    /// assert!(Charge::new(&strict.shadow(), &Key::new("alice"), 1).is_shadow());
    /// ```
    #[must_use]
    #[inline]
    pub fn is_shadow(&self) -> bool {
        !(self.policy.is_enforced_for(&self.key) || self.is_guarantee())
    }

    /// Whether a denial of the charge does not deny the request: the policy is a [shadow](Self::is_shadow), or the request [goes
    /// on](Self::or_degrade) without the charge, or it is of a [guarantee](Self::guarantee). A store admits a decision if every other
    /// charge fits, and makes such a charge only if it fits.
    #[must_use]
    #[inline]
    pub fn never_denies(&self) -> bool {
        self.degrades || !self.policy.is_enforced_for(&self.key)
    }

    /// Whether the charge is of a guarantee in the pool of `other`.
    pub(crate) fn is_guarantee_in(&self, other: &Self) -> bool {
        self.policy.pool() == Some(other.policy.tag()) && self.key.is_in_pool(&other.key)
    }

    /// Whether the charge is of a [guarantee](Self::guarantee). If it is denied and the decision is admitted, the request borrows.
    #[must_use]
    #[inline]
    pub fn is_guarantee(&self) -> bool {
        self.policy.pool().is_some()
    }

    /// Whether the units are a permit, in use until it is released.
    pub(crate) fn needs_permit(&self) -> bool {
        self.policy.has_permits()
    }

    pub(crate) const fn holder(&self) -> u128 {
        match self.meaning {
            Meaning::Permit([high, low]) => (high as u128) << 64 | low as u128,
            _ => 0,
        }
    }

    /// The cost as the algorithms see it: at most one unit above the capacity, which bounds their arithmetic.
    /// A larger cost is denied in the same way.
    pub(crate) fn bounded_cost(&self) -> u64 {
        self.cost.min(self.policy.capacity().saturating_add(1))
    }

    /// The headroom as the algorithms see it: with the [bounded cost](Self::bounded_cost), at most one unit above the capacity. 0
    /// for a cost of 0, which is always admitted.
    #[inline]
    pub(crate) fn bounded_headroom(&self) -> u64 {
        match (self.cost, self.headroom()) {
            (0, _) | (_, 0) => 0,
            (_, headroom) => headroom.min(self.policy.capacity().saturating_add(1) - self.bounded_cost()),
        }
    }

    /// The units that must remain for the charge to be admitted: its cost and its headroom.
    pub(crate) fn evaluated(&self) -> u64 {
        self.cost.saturating_add(if self.cost > 0 { self.headroom() } else { 0 })
    }

    /// The wait of a charge that never fits now: only a larger quota admits it.
    #[cold]
    pub(crate) fn retry_once_grown(&self) -> Option<Duration> {
        let (full, wait) = self.policy.reduced_from()?;
        let headroom = if self.cost > 0 { full.headroom_of(self.criticality) } else { 0 };
        (self.cost.saturating_add(headroom) <= full.capacity()).then_some(wait)
    }
}

/// A number that is unique among all processes: a random half, and a half made of a counter and the time.
/// Clones of a running machine share the random half and the counter; the time differs.
fn next_holder() -> [u64; 2] {
    static PROCESS: LazyLock<u64> = LazyLock::new(random);
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u32;
    let count = NEXT.fetch_add(1, Ordering::Relaxed) as u32;
    [*PROCESS, u64::from(nanos) << 32 | u64::from(count)]
}

/// The charges of a decision.
pub(crate) type Charges = OneOrMany<Charge>;

/// Parts of a decision. One part, which most decisions have, needs no allocation.
#[derive(Clone, Debug)]
pub(crate) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    pub(crate) fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }

    pub(crate) const fn none() -> Self {
        Self::Many(Vec::new())
    }
}

impl<T> From<T> for OneOrMany<T> {
    #[inline]
    fn from(one: T) -> Self {
        Self::One(one)
    }
}

impl<T> From<Vec<T>> for OneOrMany<T> {
    fn from(mut many: Vec<T>) -> Self {
        let only = if many.len() == 1 { many.pop() } else { None };
        only.map_or(Self::Many(many), Self::One)
    }
}

impl<T: Clone> From<&[T]> for OneOrMany<T> {
    fn from(parts: &[T]) -> Self {
        match parts {
            [one] => Self::One(one.clone()),
            many => Self::Many(many.to_vec()),
        }
    }
}

impl<T> Deref for OneOrMany<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(one) => slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}
