//! What is asked of a store, and what it says.

use std::{
    any::Any,
    cmp::Ordering,
    collections::hash_map::RandomState,
    fmt,
    hash::BuildHasher as _,
    sync::{
        Arc, LazyLock, OnceLock,
        atomic::{self, AtomicU64},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{Error, Key, Policy, algorithm::rules::Receipt};

/// What is asked: that `cost` units be taken from `key` under `policy`.
///
/// A decision is over one charge or several, all or nothing.
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
/// assert!(limiter.check_all(&[charge.clone()]).await?.is_allowed());
/// assert!(!limiter.check_all(&[charge]).await?.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Charge {
    /// How much is allowed.
    pub policy: Policy,
    /// Who asks.
    pub key: Key,
    /// How many units; 0 is always admitted and charges nothing.
    pub cost: u64,
    tie: Tie,
}

/// Charges are equal if they ask for the same: what one is [held](crate::Concurrency) by does not count.
impl PartialEq for Charge {
    fn eq(&self, other: &Self) -> bool {
        self.cost == other.cost && self.key == other.key && self.policy == other.policy
    }
}

impl Eq for Charge {}

/// What a charge is tied to, beside its key.
#[derive(Clone, Copy, Debug)]
enum Tie {
    None,
    /// Who holds its units, where they are in use until they are released.
    Holder([u64; 2]),
    /// The charge that was made, for a refund of it.
    Made(Receipt),
}

impl Charge {
    /// `cost` units from `key` under `policy`. Any cost will do; one above the policy's capacity is
    /// refused for good.
    #[must_use]
    pub fn new(policy: &Policy, key: &Key, cost: u64) -> Self {
        Self::of(policy.clone(), key.clone(), cost)
    }

    pub(crate) fn of(policy: Policy, key: Key, cost: u64) -> Self {
        let tie = if policy.is_held() { Tie::Holder(next_holder()) } else { Tie::None };
        Self { policy, key: key.stored(), cost, tie }
    }

    /// What a refund of `units` units of `outcome` asks for; `None` where nothing was charged. Units that are in use
    /// are released by their holder, not refunded.
    pub(crate) fn refunding(outcome: &Outcome, units: u64) -> Option<Self> {
        outcome.charge.refund_of().filter(|_| units > 0)?;
        Some(Self { cost: units, ..outcome.charge.clone() })
    }

    /// What undoes the charge that `outcome` is of: held units are released by their holder, others refunded.
    #[cfg(feature = "cluster")]
    pub(crate) fn undoing(outcome: &Outcome) -> Self {
        Self { cost: outcome.granted, ..outcome.charge.clone() }
    }

    /// Which charge is refunded; `None` for an administrator's refund, of the latest units.
    pub(crate) const fn refund_of(&self) -> Option<Receipt> {
        match self.tie {
            Tie::Made(receipt) => Some(receipt),
            _ => None,
        }
    }

    /// The same charge for a holder of its own, where its units are held: what is taken twice is held twice.
    pub(crate) fn taken_anew(&self) -> Self {
        Self::new(&self.policy, &self.key, self.cost)
    }

    /// Whether its units are in use until they are given back.
    pub(crate) fn is_held(&self) -> bool {
        self.policy.is_held()
    }

    pub(crate) const fn holder(&self) -> u128 {
        match self.tie {
            Tie::Holder([high, low]) => (high as u128) << 64 | low as u128,
            _ => 0,
        }
    }

    /// The cost as the algorithms take it. One unit above the capacity says all that a larger cost
    /// does, and keeps the arithmetic small.
    pub(crate) fn bounded_cost(&self) -> u64 {
        self.cost.min(self.policy.capacity().saturating_add(1))
    }
}

/// A number that no other process will give out either: a random half, and a counted one with the time in it. A
/// machine that was cloned while it ran has the same random half and the same count in each clone, and another time.
fn next_holder() -> [u64; 2] {
    static PROCESS: LazyLock<u64> =
        LazyLock::new(|| RandomState::new().hash_one((std::process::id(), SystemTime::now())));
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u32;
    let count = NEXT.fetch_add(1, atomic::Ordering::Relaxed) as u32;
    [*PROCESS, u64::from(nanos) << 32 | u64::from(count)]
}

/// Yes, yes but later, or no.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::Verdict;
///
/// assert!(Verdict::Allow.is_allowed());
/// assert!(Verdict::Delay(Duration::from_millis(20)).is_allowed());
/// assert!(!Verdict::Deny { retry_after: Some(Duration::from_secs(1)) }.is_allowed());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// Admitted now, and charged.
    Allow,
    /// Admitted and charged, to be carried out after this wait.
    Delay(Duration),
    /// Refused, and nothing was charged.
    Deny {
        /// The shortest wait after which the same request is admitted if the key is left alone until
        /// then, to the microsecond. `None`: waiting cannot help, because the cost is above the
        /// capacity.
        retry_after: Option<Duration>,
    },
}

impl Verdict {
    /// Whether the request is admitted, be it later.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        !matches!(self, Self::Deny { .. })
    }

    /// The wait that a refusal names; `None` for an admission too.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Deny { retry_after } => *retry_after,
            _ => None,
        }
    }
}

/// What one policy said.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(MemoryStore::new());
/// let policy = Policy::new("api", Quota::per_hour(2));
///
/// let decision = limiter.check(&policy, &Key::new("alice"), 2).await?;
/// let admitted = &decision.outcomes()[0];
/// assert!(admitted.is_allowed());
/// assert_eq!((admitted.capacity(), admitted.remaining()), (2, 0));
///
/// let decision = limiter.check(&policy, &Key::new("alice"), 1).await?;
/// let refused = &decision.outcomes()[0];
/// assert!(!refused.is_allowed());
/// assert!(refused.retry_after() <= Some(refused.reset_after()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Outcome {
    charge: Charge,
    verdict: Verdict,
    granted: u64,
    remaining: u64,
    reset_after: Duration,
    /// The units of it that were refunded, for all clones. Few outcomes are refunded, and few are cloned.
    refunded: OnceLock<Arc<AtomicU64>>,
}

// Written out, because what is refunded of one clone is refunded of all.
impl Clone for Outcome {
    fn clone(&self) -> Self {
        Self {
            charge: self.charge.clone(),
            refunded: self.refunded().clone().into(),
            verdict: self.verdict,
            granted: self.granted,
            remaining: self.remaining,
            reset_after: self.reset_after,
        }
    }
}

/// Outcomes are equal if they say the same of equal charges.
impl PartialEq for Outcome {
    fn eq(&self, other: &Self) -> bool {
        let said =
            |outcome: &Self| (outcome.verdict, outcome.granted, outcome.remaining, outcome.reset_after);
        said(self) == said(other) && self.charge == other.charge
    }
}

impl Eq for Outcome {}

/// Units that are about to be refunded.
#[derive(Debug)]
pub(crate) struct Claim {
    units: u64,
    refunded: Arc<AtomicU64>,
}

impl Claim {
    pub(crate) const fn units(&self) -> u64 {
        self.units
    }

    /// They were surely not refunded, and can be another time.
    pub(crate) fn release(self) {
        self.refunded.fetch_sub(self.units, atomic::Ordering::Relaxed);
    }
}

impl Outcome {
    /// What was said to `charge`. For stores of your own; see [`granting`](Self::granting) too.
    #[must_use]
    pub fn new(charge: &Charge, verdict: Verdict, remaining: u64, reset_after: Duration) -> Self {
        Self::of(charge.clone(), verdict, remaining, reset_after)
    }

    pub(crate) const fn of(charge: Charge, verdict: Verdict, remaining: u64, reset_after: Duration) -> Self {
        Self { charge, verdict, granted: 0, remaining, reset_after, refunded: OnceLock::new() }
    }

    /// The same of a charge that was made, for a refund to find it. Held units are found by their holder.
    pub(crate) const fn with_receipt(mut self, receipt: Receipt) -> Self {
        if matches!(self.charge.tie, Tie::None) {
            self.charge.tie = Tie::Made(receipt);
        }
        self
    }

    /// Up to `units` units that were charged and not refunded yet, which are refunded with that.
    pub(crate) fn claim_refund(&self, units: u64) -> Claim {
        let claim = |refunded| Some(self.granted.min(units.saturating_add(refunded)));
        let order = atomic::Ordering::Relaxed;
        let refunded = self.refunded();
        let before = refunded.fetch_update(order, order, claim).unwrap_or_else(|before| before);
        let units = self.granted.min(units.saturating_add(before)) - before;
        Claim { units, refunded: refunded.clone() }
    }

    fn refunded(&self) -> &Arc<AtomicU64> {
        self.refunded.get_or_init(Arc::default)
    }

    /// The same, with `units` units granted. Defaults to 0.
    #[must_use]
    pub const fn granting(mut self, units: u64) -> Self {
        self.granted = units;
        self
    }

    #[cfg(feature = "redis")]
    pub(crate) const fn charge(&self) -> &Charge {
        &self.charge
    }

    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.charge.policy
    }

    /// Whose units were asked for.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.charge.key
    }

    /// What this policy alone would have done. Another one may have refused the request.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Whether this policy admitted the request.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.verdict.is_allowed()
    }

    /// The units that this policy granted: all that was asked for, or, where as much as there is was asked
    /// for, as much as there was. 0 for a refusal.
    ///
    /// They were taken only if the [`Decision`] is an admission, and was not a peek.
    #[must_use]
    pub const fn granted(&self) -> u64 {
        self.granted
    }

    /// The most units that can be taken at once: the policy's [capacity](Policy::capacity).
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.charge.policy.capacity()
    }

    /// The units that could be taken right after this decision.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The time until the key is as good as new, if it is left alone.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        self.reset_after
    }

    /// The wait that this policy's refusal named.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.verdict.retry_after()
    }

    /// Which of two outcomes binds: the later to be lifted of two refusals, a refusal before an
    /// admission, and of two admissions the one with less of its limit left.
    fn tighter(&self, other: &Self) -> Ordering {
        let wait = |outcome: &Self| match outcome.verdict {
            Verdict::Deny { retry_after } => (true, retry_after.unwrap_or(Duration::MAX)),
            _ => (false, Duration::ZERO),
        };
        wait(self).cmp(&wait(other)).then_with(|| {
            let (mine, others) = (u128::from(self.remaining), u128::from(other.remaining));
            (others * u128::from(self.capacity())).cmp(&(mine * u128::from(other.capacity())))
        })
    }
}

/// What became of a decision that is in a response's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Telling {
    /// It is a handler's, for the layer in front of it to tell.
    Asked,
    /// A layer put it there and told nothing of it.
    Silent,
    /// A layer put it there, and the response's lists name its policies.
    Told,
}

/// What all policies of a request said together: admitted only if every one of them admits.
///
/// The layer puts it into the extensions of the request, for the handler, and of the response, for
/// layers further out. Cloning is cheap. Where a [`Concurrency`](crate::Concurrency) policy took part, the
/// decision of a [`Limiter`](crate::Limiter) and its clones hold the units; those that the layer puts into the
/// extensions do not. Of one that a handler puts into its response's, the layer holds the units until the body is
/// done.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Charge, Key, Limiter, MemoryStore, Policy, Quota, Verdict};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(MemoryStore::new());
/// let (burst, daily) = (Policy::new("burst", Quota::per_hour(1)), Policy::new("daily", Quota::per_day(9)));
/// let key = Key::new("alice");
/// let both = [Charge::new(&burst, &key, 1), Charge::new(&daily, &key, 1)];
///
/// let admitted = limiter.check_all(&both).await?;
/// assert_eq!(admitted.verdict(), Verdict::Allow);
/// assert_eq!(admitted.binding().unwrap().policy().name(), "burst");
///
/// let refused = limiter.check_all(&both).await?;
/// assert!(!refused.is_allowed());
/// // The policy that would have admitted was not charged either.
/// assert_eq!(refused.outcomes()[1].remaining(), 8);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Decision {
    verdict: Verdict,
    outcomes: Arc<[Outcome]>,
    failure: Option<Arc<Error>>,
    /// How much later than need be the client is told to come back.
    postponed: Duration,
    telling: Telling,
    /// What holds units that are given back when the last clone is dropped; in a request's extensions, which hold
    /// none, the limiter that made it.
    attached: Option<Arc<dyn Any + Send + Sync>>,
}

impl Decision {
    /// The decision over `outcomes`. For stores of your own.
    #[must_use]
    pub fn new(outcomes: impl IntoIterator<Item = Outcome>) -> Self {
        let outcomes: Arc<[Outcome]> = outcomes.into_iter().collect();
        let verdict =
            outcomes.iter().map(Outcome::verdict).fold(Verdict::Allow, |all, one| match (all, one) {
                (Verdict::Deny { retry_after: a }, Verdict::Deny { retry_after: b }) => {
                    Verdict::Deny { retry_after: a.zip(b).map(|(a, b)| a.max(b)) }
                }
                (deny @ Verdict::Deny { .. }, _) | (_, deny @ Verdict::Deny { .. }) => deny,
                (Verdict::Delay(a), Verdict::Delay(b)) => Verdict::Delay(a.max(b)),
                (delay @ Verdict::Delay(_), _) | (_, delay) => delay,
            });
        Self::over(verdict, outcomes)
    }

    /// The decision over one outcome: [`new`](Self::new) in a single allocation.
    pub(crate) fn of_one(outcome: Outcome) -> Self {
        Self::over(outcome.verdict, Arc::new([outcome]))
    }

    const fn over(verdict: Verdict, outcomes: Arc<[Outcome]>) -> Self {
        Self {
            verdict,
            outcomes,
            failure: None,
            postponed: Duration::ZERO,
            telling: Telling::Asked,
            attached: None,
        }
    }

    /// The same, with the limiter that a handler charges more by.
    pub(crate) fn made_by(mut self, limiter: Arc<dyn Any + Send + Sync>) -> Self {
        self.attached = Some(limiter);
        self
    }

    /// The limiter that made it, where it is a `T`: this module stands below the limiter's.
    #[cfg(feature = "axum")]
    pub(crate) fn maker<T: 'static>(&self) -> Option<&T> {
        self.attached.as_deref()?.downcast_ref()
    }

    pub(crate) fn hold(&mut self, permit: Arc<dyn Any + Send + Sync>) {
        self.attached = Some(permit);
    }

    /// The permit, for somebody else to hold.
    pub(crate) fn take_permit(&mut self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.attached.take()
    }

    /// Admitted because the store failed and every policy says [`Open`](crate::FailureMode::Open).
    pub(crate) fn failed_open(failure: Error) -> Self {
        Self { failure: Some(Arc::new(failure)), ..Self::new([]) }
    }

    /// The same, where the client is told to come back `by` later than need be.
    pub(crate) fn postponed(mut self, by: Duration) -> Self {
        self.postponed = by;
        self
    }

    /// The wait that the client is told.
    pub(crate) fn advised_wait(&self) -> Option<Duration> {
        self.retry_after().map(|wait| wait.saturating_add(self.postponed))
    }

    /// The same as a layer leaves it in the response's extensions.
    pub(crate) fn passed_on(mut self, told: bool) -> Self {
        self.telling = if told { Telling::Told } else { Telling::Silent };
        self
    }

    pub(crate) const fn telling(&self) -> Telling {
        self.telling
    }

    /// This one and `newer`, which is right where both speak of one policy and key.
    pub(crate) fn updated(&self, newer: &Self) -> Self {
        let mut outcomes = self.outcomes.to_vec();
        for outcome in &*newer.outcomes {
            let same = |old: &&mut Outcome| {
                old.policy().name() == outcome.policy().name() && old.key() == outcome.key()
            };
            match outcomes.iter_mut().find(same) {
                Some(old) => *old = outcome.clone(),
                None => outcomes.push(outcome.clone()),
            }
        }
        let failure = newer.failure.clone().or_else(|| self.failure.clone());
        Self { failure, postponed: newer.postponed, ..Self::new(outcomes) }
    }

    /// The same, with only the first outcome of those whose policies have one name: nothing else tells the items
    /// of a field apart.
    pub(crate) fn by_name(&self) -> Self {
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(self.outcomes.len());
        for outcome in &*self.outcomes {
            if !outcomes.iter().any(|first| first.policy().name() == outcome.policy().name()) {
                outcomes.push(outcome.clone());
            }
        }
        Self { outcomes: outcomes.into(), ..self.clone() }
    }

    /// Yes, yes but later, or no.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Whether the request is admitted, be it later.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.verdict.is_allowed()
    }

    /// The wait after which every policy that refused admits; `None` where nothing was refused, and
    /// where waiting cannot help.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.verdict.retry_after()
    }

    /// The units that could be taken right after this decision under the policy that
    /// [binds](Self::binding); `None` where the store [failed](Self::failure).
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        self.binding().map(Outcome::remaining)
    }

    /// What each policy said, in the order they were asked. **Empty** where the store
    /// [failed](Self::failure) and the request was let through for that reason.
    #[must_use]
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// The outcome that matters most to the client: of refusals the one that is lifted last, of
    /// admissions the one with the smallest share of its limit left.
    #[must_use]
    pub fn binding(&self) -> Option<&Outcome> {
        // The first of equals.
        self.outcomes.iter().rev().max_by(|a, b| a.tighter(b))
    }

    /// Why the store gave no decision, where the request was let through for that reason.
    #[must_use]
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_deref()
    }
}

/// Decisions are equal if they say the same, and failed with the same kind of error or not at all.
impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        let failure = |decision: &Self| decision.failure().map(Error::kind);
        self.verdict == other.verdict && self.outcomes == other.outcomes && failure(self) == failure(other)
    }
}

impl Eq for Decision {}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("verdict", &self.verdict)
            .field("outcomes", &self.outcomes)
            .field("failure", &self.failure)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quota;

    fn outcome(name: &str, limit: u64, remaining: u64, verdict: Verdict) -> Outcome {
        let policy = Policy::new(name, Quota::per_second(limit));
        Outcome::new(&Charge::new(&policy, &Key::new("k"), 1), verdict, remaining, Duration::ZERO)
    }

    fn deny(seconds: Option<u64>) -> Verdict {
        Verdict::Deny { retry_after: seconds.map(Duration::from_secs) }
    }

    #[test]
    fn the_strictest_verdict_holds() {
        let delay = |seconds| Verdict::Delay(Duration::from_secs(seconds));
        let rows = [
            ("all admit", vec![Verdict::Allow, Verdict::Allow], Verdict::Allow),
            ("one refuses", vec![Verdict::Allow, deny(Some(1)), Verdict::Allow], deny(Some(1))),
            ("the longer wait", vec![deny(Some(1)), deny(Some(2))], deny(Some(2))),
            ("never is longest", vec![deny(None), deny(Some(2))], deny(None)),
            ("the longer delay", vec![delay(2), delay(1), Verdict::Allow], delay(2)),
            ("a refusal beats a delay", vec![delay(2), deny(Some(1))], deny(Some(1))),
            ("nothing asked", vec![], Verdict::Allow),
        ];
        for (name, verdicts, expected) in rows {
            let decision = Decision::new(verdicts.into_iter().map(|verdict| outcome("p", 1, 0, verdict)));
            assert_eq!(decision.verdict(), expected, "{name}");
        }
    }

    #[test]
    fn the_tightest_policy_binds() {
        let rows = [
            (
                "less left",
                vec![outcome("a", 10, 5, Verdict::Allow), outcome("b", 100, 20, Verdict::Allow)],
                "b",
            ),
            (
                "the first of equals",
                vec![outcome("a", 10, 5, Verdict::Allow), outcome("b", 2, 1, Verdict::Allow)],
                "a",
            ),
            ("a refusal", vec![outcome("a", 10, 0, Verdict::Allow), outcome("b", 10, 9, deny(Some(1)))], "b"),
            ("the longest", vec![outcome("a", 1, 0, deny(Some(9))), outcome("b", 1, 0, deny(Some(1)))], "a"),
            ("never", vec![outcome("a", 1, 0, deny(Some(9))), outcome("b", 1, 0, deny(None))], "b"),
        ];
        for (name, outcomes, expected) in rows {
            let decision = Decision::new(outcomes);
            assert_eq!(decision.binding().unwrap().policy().name(), expected, "{name}");
        }
    }
}
