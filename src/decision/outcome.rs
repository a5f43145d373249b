//! [`Outcome`]: what one policy decided about one charge.

use std::{
    cmp::Ordering,
    sync::{
        Arc, OnceLock,
        atomic::{self, AtomicU64},
    },
    time::Duration,
};

use super::{Charge, local::LocalCharge};
use crate::{algorithm::twin::Receipt, base::time::micros, key::Key, policy::Policy};

/// Admitted now, admitted after a delay, or denied.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::decision::Verdict;
///
/// let wait = Duration::from_secs(1);
/// assert!(!Verdict::Delay(wait).is_denied());
/// assert_eq!(Verdict::deny(Some(wait)).retry_after(), Some(wait));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// Admitted now, and charged if the whole [`Decision`](super::Decision) is admitted and was not a peek.
    Admit,
    /// Admitted, and charged as for `Admit`. The request may go on after this delay; a layer waits for it.
    Delay(Duration),
    /// Denied, and nothing was charged. [`Verdict::deny`] makes it.
    #[non_exhaustive]
    Deny {
        /// The shortest wait, to the microsecond, after which the same request is admitted if the key is not
        /// charged in the meantime; under [`Concurrency`](crate::algorithm::Concurrency), until permits
        /// expire, though they may be released at any moment. `None` if the cost, with its
        /// [headroom](crate::Charge::headroom), is above the capacity or, in an outage, above this instance's share of it.
        retry_after: Option<Duration>,
    },
}

impl Verdict {
    /// A denial with this wait, for a custom store. `None` if waiting cannot help.
    #[must_use]
    pub const fn deny(retry_after: Option<Duration>) -> Self {
        Self::Deny { retry_after }
    }

    /// Whether the request is denied.
    #[must_use]
    pub const fn is_denied(&self) -> bool {
        matches!(self, Self::Deny { .. })
    }

    /// The wait of a denial. `None` if the request is admitted, or if waiting cannot help.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Deny { retry_after } => *retry_after,
            _ => None,
        }
    }
}

/// The outcome of a decision under one policy.
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
/// assert!(!admitted.verdict().is_denied());
/// assert_eq!((admitted.granted(), admitted.remaining()), (2, 0));
/// assert_eq!(admitted.policy().name(), "api");
///
/// let decision = limiter.check(&policy, &Key::new("alice"), 1).await?;
/// let denied = &decision.outcomes()[0];
/// assert!(denied.verdict().is_denied());
/// assert!(denied.verdict().retry_after() <= Some(denied.reset_after()));
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
    /// The number of refunded units, shared by all clones. Allocated on first use, because few outcomes are
    /// refunded or cloned.
    refunded: OnceLock<Arc<Refunded>>,
}

#[derive(Debug, Default)]
struct Refunded {
    units: AtomicU64,
    /// The units that the guarantee of the request has in this pool, right after this decision. It is here because few outcomes have
    /// one, and every request moves some.
    guaranteed: AtomicU64,
    /// The charge in this process, if the store did not make it.
    local: Option<LocalCharge>,
}

// Not derived, because a refund of one clone counts for all.
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

/// Outcomes are equal if their values and charges are.
impl PartialEq for Outcome {
    fn eq(&self, other: &Self) -> bool {
        let values =
            |outcome: &Self| (outcome.verdict, outcome.granted, outcome.remaining, outcome.reset_after);
        values(self) == values(other) && self.charge == other.charge
    }
}

impl Eq for Outcome {}

/// Units that are claimed for a refund under way.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) units: u64,
    refunded: Arc<Refunded>,
}

impl Claim {
    /// Makes the units claimable again, if they were certainly not refunded.
    pub(crate) fn release(self) {
        self.refunded.units.fetch_sub(self.units, atomic::Ordering::Relaxed);
    }
}

impl Outcome {
    /// An outcome of `charge`, for your own stores. It grants 0 units; see
    /// [`with_granted`](Self::with_granted). `remaining` are the units that the most critical requests can still be charged,
    /// without regard to the charge's [headroom](Charge::headroom).
    #[must_use]
    pub fn new(charge: &Charge, verdict: Verdict, remaining: u64, reset_after: Duration) -> Self {
        Self::of(charge.clone(), verdict, remaining, reset_after)
    }

    /// The same as [`new`](Self::new), without the two reference counts of a cloned charge.
    pub(crate) const fn of(charge: Charge, verdict: Verdict, remaining: u64, reset_after: Duration) -> Self {
        Self { charge, verdict, granted: 0, remaining, reset_after, refunded: OnceLock::new() }
    }

    /// Sets the receipt of the charge, which makes it refundable.
    #[inline]
    pub(crate) fn with_receipt(mut self, receipt: Receipt) -> Self {
        self.charge.set_receipt(receipt);
        self
    }

    /// Sets the receipt of a charge that was spent from the lease with the receipt `lease`.
    #[cfg(feature = "redis")]
    pub(crate) fn with_lease_receipt(self, lease: Receipt) -> Self {
        let policy = self.charge.policy();
        // Only built-in algorithms are leased.
        let Some(counter) = policy.settings().algorithm.counter() else { return self };
        let mark = counter.mark_of_leased(policy.arguments(), lease.mark, self.granted);
        self.with_receipt(Receipt { mark, ..lease })
    }

    /// This outcome as one of `policy`, which counts the same units.
    pub(crate) fn under(mut self, policy: &Policy) -> Self {
        self.charge = self.charge.under(policy);
        self
    }

    /// A denial of `charge`, which the store could not decide, so that the request goes on without it.
    pub(crate) fn undecided(charge: &Charge) -> Self {
        Self::new(charge, Verdict::deny(None), 0, Duration::ZERO)
    }

    /// This outcome as one of a charge that degrades, if its policy is among these.
    pub(crate) fn degrading(mut self, policies: &[Policy]) -> Self {
        if policies.iter().any(|policy| policy.is(self.policy())) {
            self.charge = self.charge.or_degrade();
        }
        self
    }

    /// This outcome of a debit, as one of `policy`: without its room for `max_debt`.
    pub(crate) fn of_debit(mut self, policy: &Policy, debt: u64) -> Self {
        self.charge = self.charge.under(policy);
        (self.verdict, self.remaining) = (Verdict::Admit, self.remaining.saturating_sub(debt));
        self
    }

    /// A charge that refunds `units` units of this one; `None` if nothing was charged. A permit is released,
    /// not refunded.
    pub(crate) fn refund(&self, units: u64) -> Option<Charge> {
        self.charge.receipt().filter(|_| units > 0)?;
        Some(self.charge.clone().with_cost(units))
    }

    /// A charge that undoes this one: it releases a permit, and refunds other units.
    #[cfg(feature = "cluster")]
    pub(crate) fn undo(&self) -> Charge {
        self.charge.clone().with_cost(self.granted)
    }

    /// Claims up to `units` units that were charged and are not refunded yet.
    pub(crate) fn claim_refund(&self, units: u64) -> Claim {
        let claim = |refunded| Some(self.granted.min(units.saturating_add(refunded)));
        let order = atomic::Ordering::Relaxed;
        let refunded = self.refunded();
        let before = refunded.units.fetch_update(order, order, claim).unwrap_or_else(|before| before);
        let units = self.granted.min(units.saturating_add(before)) - before;
        Claim { units, refunded: refunded.clone() }
    }

    /// The units that were charged and are not refunded yet.
    pub(crate) fn refundable(&self) -> u64 {
        let refunded = self.refunded.get().map_or(0, |all| all.units.load(atomic::Ordering::Relaxed));
        let is_charged = self.charge.receipt().is_some() || self.local().is_some();
        if is_charged { self.granted.saturating_sub(refunded) } else { 0 }
    }

    fn refunded(&self) -> &Arc<Refunded> {
        self.refunded.get_or_init(Arc::default)
    }

    /// Records that the charge was made in this process, in place of the store.
    pub(crate) fn counted_by(self, local: LocalCharge) -> Self {
        let refunded = Refunded { local: Some(local), ..Refunded::default() };
        Self { refunded: Arc::new(refunded).into(), ..self }
    }

    /// The charge in this process, if it was made there.
    pub(crate) fn local(&self) -> Option<&LocalCharge> {
        self.refunded.get()?.local.as_ref()
    }

    /// Sets the units granted. Defaults to 0.
    #[must_use]
    pub const fn with_granted(mut self, units: u64) -> Self {
        self.granted = units;
        self
    }

    /// This outcome as a denial because the key is banned for `rest`, for your own stores. Nothing remains
    /// then, and the wait is no shorter than the ban.
    pub(crate) fn banning(mut self, rest: Duration) -> Self {
        let retry_after = match self.verdict {
            Verdict::Deny { retry_after } => retry_after.map(|wait| wait.max(rest)),
            _ => Some(rest),
        };
        self.verdict = Verdict::Deny { retry_after };
        (self.granted, self.remaining) = (0, 0);
        self.reset_after = self.reset_after.max(rest);
        self.charge.set_ban(micros(rest));
        self
    }

    /// Takes what its guarantee has into this outcome of a pool: the units, and if both deny the shorter wait.
    pub(super) fn with_guarantee(&mut self, guarantee: &Self) {
        if self.is_banned() {
            return;
        }
        self.refunded().guaranteed.store(guarantee.remaining, atomic::Ordering::Relaxed);
        if let (Verdict::Deny { retry_after }, Some(most)) = (&mut self.verdict, guarantee.retry_after()) {
            *retry_after = Some(retry_after.map_or(most, |wait| wait.min(most)));
        }
    }

    /// This outcome of a refund as a denial with this wait.
    pub(crate) const fn denying(mut self, retry_after: Duration) -> Self {
        (self.verdict, self.granted) = (Verdict::Deny { retry_after: Some(retry_after) }, 0);
        self
    }

    /// Whether the policy denied because it [bans](Policy::penalty) the key. The denial that triggers a ban
    /// counts too.
    pub(crate) const fn is_banned(&self) -> bool {
        self.charge.ban().is_some()
    }

    /// The time until the [ban](Policy::penalty) of the key ends. `None` if the key is not banned.
    #[must_use]
    pub fn banned_for(&self) -> Option<Duration> {
        self.charge.ban().map(Duration::from_micros)
    }

    /// Whether the policy is a [shadow](Policy::shadow) for this key.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.charge.is_shadow()
    }

    /// See [`Charge::never_denies`].
    pub(crate) fn never_denies(&self) -> bool {
        self.charge.never_denies()
    }

    /// The charge that was decided. The stores of this crate use it to make refunds and renew permits.
    #[must_use]
    pub const fn charge(&self) -> &Charge {
        &self.charge
    }

    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        self.charge.policy()
    }

    /// The key.
    pub(crate) const fn key(&self) -> &Key {
        self.charge.key()
    }

    /// The verdict of this policy alone. Another policy may have denied the request.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Whether this policy denied the request.
    pub(crate) const fn is_denied(&self) -> bool {
        self.verdict.is_denied()
    }

    /// The units that this policy granted: the cost, or for [`check_up_to`](crate::Limiter::check_up_to) and
    /// [`debit`](crate::Limiter::debit) at most the cost. 0 if it denied.
    ///
    /// The units were charged only if the whole [`Decision`](super::Decision) is admitted and was not a peek.
    #[must_use]
    pub const fn granted(&self) -> u64 {
        self.granted
    }

    /// The most units that one request can charge: the policy's [capacity](Policy::capacity).
    pub(crate) fn capacity(&self) -> u64 {
        self.charge.policy().capacity()
    }

    /// The units that requests of the same [criticality](Charge::criticality) can still be charged, right after this decision:
    /// those that remain, without the [headroom](Charge::headroom) for more critical ones, or what the request's
    /// [guarantee](Charge::guarantee) has of them if that is more.
    #[must_use]
    #[inline]
    pub fn remaining(&self) -> u64 {
        match self.charge.headroom() {
            0 => self.remaining,
            headroom => self.remaining.saturating_sub(headroom).max(self.guaranteed()),
        }
    }

    /// The units that remain of the request's guarantee.
    fn guaranteed(&self) -> u64 {
        let guaranteed = self.refunded.get().map_or(0, |all| all.guaranteed.load(atomic::Ordering::Relaxed));
        guaranteed.min(self.remaining)
    }

    /// The units of the [capacity](Policy::capacity) that are used, right after this decision. What is kept as
    /// [headroom](Policy::headroom) is not.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.capacity().saturating_sub(self.remaining)
    }

    /// The units that the most critical requests can still be charged.
    pub(crate) const fn remaining_for_all(&self) -> u64 {
        self.remaining
    }

    /// Whether the policy denied the request only for the sake of more critical ones: as many units as it costs remain, and are
    /// kept for them as [headroom](Policy::headroom).
    #[must_use]
    pub fn is_shed(&self) -> bool {
        self.verdict.is_denied()
            && !self.is_banned()
            && self.charge.headroom() > 0
            && self.charge.cost() <= self.remaining
    }

    /// The time until the quota is fully replenished, unless the key is charged before.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        self.reset_after
    }

    /// The shortest wait after which this policy admits the same request. `None` if it admitted, and if
    /// waiting cannot help.
    pub(crate) const fn retry_after(&self) -> Option<Duration> {
        self.verdict.retry_after()
    }

    /// The wait that clients see: the [retry time](Self::retry_after), but at most a second for a permit. It
    /// may be released at any moment, so a client that waits until permits expire mostly waits in vain, and a
    /// second is the shortest time that `Retry-After` can state.
    pub(crate) fn advised_wait(&self) -> Option<Duration> {
        let wait = self.retry_after()?;
        if !self.policy().has_permits() {
            return Some(wait);
        }
        Some(wait.min(Duration::from_secs(1)).max(self.banned_for().unwrap_or_default()))
    }

    /// Compares how much two outcomes bind. A denial binds more than an admission; of two denials the longer
    /// wait does, of two admissions the smaller share of the capacity left.
    pub(super) fn cmp_binding(&self, other: &Self) -> Ordering {
        let wait = |outcome: &Self| match outcome.verdict {
            Verdict::Deny { retry_after } => (true, retry_after.unwrap_or(Duration::MAX)),
            _ => (false, Duration::ZERO),
        };
        wait(self).cmp(&wait(other)).then_with(|| {
            let (mine, others) = (u128::from(self.remaining()), u128::from(other.remaining()));
            (others * u128::from(self.capacity())).cmp(&(mine * u128::from(other.capacity())))
        })
    }
}
