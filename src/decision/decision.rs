//! [`Decision`]: the outcomes of all charges of a request.

use std::{fmt, sync::Arc, time::Duration};

use super::{Outcome, Verdict, charge::OneOrMany};
use crate::base::Error;

/// The result for a request under all its policies: admitted only if every policy admits, except those that never deny:
/// [shadows](crate::Policy::shadow), [guarantees](crate::Rule::guarantee), and those without which a request [goes
/// on](crate::Rule::or_degrade). Cloning is cheap.
///
/// # In a layer
///
/// A handler in axum extracts the decision; other handlers find it with
/// [`from_extensions`](Self::from_extensions). If none of the layers in front of the handler charges the
/// request, the handler gets a decision that admits and has no [outcomes](Self::outcomes). Without a layer,
/// extracting the decision fails with 500.
///
/// A middleware around the layer can read the decision in the extensions of the response. It must ask for it:
/// insert `Decision::new([])` into the extensions of the request, before the layer gets it. Without that, the
/// response has no decision, because the copy takes time in each request.
///
/// # Permits
///
/// Under a [`Concurrency`](crate::algorithm::Concurrency) policy, the decision that a
/// [`Limiter`](crate::Limiter) returns holds the permit, together with its clones: the permit is released when
/// the last one is dropped. A layer holds the permits it takes until the response's body ends, and also the
/// permit of a decision that a handler inserts into its response. A permit that is dropped outside of a runtime
/// is released before the next decision of its limiter that needs a permit. The decisions that a handler
/// extracts, or that [`on_decision`](crate::RateLimitLayer::on_decision) sees, hold no permit.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Charge, Key, Limiter, MemoryStore, Policy, Quota, decision::Verdict};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(MemoryStore::new());
/// let (burst, daily) = (Policy::new("burst", Quota::per_hour(1)), Policy::new("daily", Quota::per_day(9)));
/// let key = Key::new("alice");
/// let both = [Charge::new(&burst, &key, 1), Charge::new(&daily, &key, 1)];
///
/// let admitted = limiter.check_all(&both).await?;
/// assert_eq!(admitted.verdict(), Verdict::Admit);
/// // The binding policy of an admitted request is the one with the smallest share left.
/// assert_eq!(admitted.binding().unwrap().policy().name(), "burst");
///
/// let denied = limiter.check_all(&both).await?;
/// assert!(!denied.is_admitted());
/// // "daily" would have admitted the request, and was not charged either.
/// assert_eq!(denied.outcomes()[1].remaining(), 8);
/// // There is no outage, and no shadow policy.
/// assert!(denied.failure().is_none() && denied.shadows().is_empty());
/// assert_eq!(denied.source().as_str(), "store");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Decision {
    // Only a pointer, because each request moves and clones its decision often. A larger value would be copied right after
    // its parts were written one by one, for which processors have to wait.
    decided: Arc<Decided>,
}

#[derive(Clone)]
struct Decided {
    verdict: Verdict,
    /// Outcomes of shadow policies come last.
    outcomes: OneOrMany<Outcome>,
    /// The number of outcomes of shadow policies.
    shadows: u16,
    failure: Option<Arc<Error>>,
    /// The random wait that is added to the shortest one, in what the client sees.
    jitter: Duration,
    source: DecisionSource,
    /// Whether the instance leased units with the charge.
    has_lease: bool,
    /// When the store decided, in microseconds since 1970 by the store's clock. 0 if that is not known.
    made_at: u64,
    report: Report,
    /// Whether a later charge or a refund has replaced an outcome, whose cost then is not the request's.
    changed: bool,
    permit: Option<Permit>,
}

/// Whether the headers of a response already report the decision in its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// They do not yet: a handler inserted the decision, for the layer in front of it to report.
    Pending,
    /// They do not: a layer inserted the decision, and wrote no headers.
    Omitted,
    /// They do: a layer inserted the decision, and the response's headers name its policies.
    Done,
}

/// A permit for units in use, which are released when the last clone is dropped.
pub(crate) type Permit = Arc<dyn Send + Sync>;

impl Decision {
    /// A decision over `outcomes`, for your own stores, in the order of their charges. It admits if every
    /// outcome admits whose charge can [deny](crate::Charge::never_denies).
    #[must_use]
    pub fn new(outcomes: impl IntoIterator<Item = Outcome>) -> Self {
        // Collecting a `Vec` into a `Vec` reuses its allocation.
        let mut outcomes: Vec<Outcome> = outcomes.into_iter().collect();
        // This test avoids the sort below for nearly all decisions.
        if outcomes.iter().all(|outcome| outcome.verdict() == Verdict::Admit && !outcome.never_denies()) {
            return Self::from_parts(Verdict::Admit, OneOrMany::Many(outcomes), 0, 0);
        }
        let shadows = outcomes.iter().filter(|outcome| outcome.never_denies()).count();
        if shadows > 0 {
            outcomes.sort_by_key(Outcome::never_denies);
        }
        let enforced = outcomes.len() - shadows;
        for at in enforced..outcomes.len() {
            if outcomes[at].charge().is_guarantee() {
                let guarantee = outcomes[at].clone();
                let of_pool =
                    outcomes.iter_mut().filter(|one| guarantee.charge().is_guarantee_in(one.charge()));
                of_pool.for_each(|pool| pool.with_guarantee(&guarantee));
            }
        }
        let severity = |verdict: &Verdict| match *verdict {
            Verdict::Admit => (0, Duration::ZERO),
            Verdict::Delay(delay) => (1, delay),
            Verdict::Deny { retry_after } => (2, retry_after.unwrap_or(Duration::MAX)),
        };
        let verdicts = outcomes[..enforced].iter().map(Outcome::verdict);
        let verdict = verdicts.max_by_key(severity).unwrap_or(Verdict::Admit);
        let shadows = u16::try_from(shadows).unwrap_or(u16::MAX);
        Self::from_parts(verdict, OneOrMany::Many(outcomes), shadows, 0)
    }

    /// A decision over one outcome: [`new`](Self::new) in a single allocation, with the time at which the store
    /// made it.
    // Inlined because a call would copy the outcome once more.
    #[inline(always)]
    #[cfg(feature = "redis")]
    pub(crate) fn one(outcome: Outcome, made_at: u64) -> Self {
        let is_shadow = outcome.never_denies();
        let verdict = if is_shadow { Verdict::Admit } else { outcome.verdict() };
        Self::from_parts(verdict, OneOrMany::One(outcome), u16::from(is_shadow), made_at)
    }

    /// The decision with the outcome of a charge that is known to be no shadow.
    // Without a call that borrows the outcome, the compiler builds it in its place.
    #[inline(always)]
    pub(crate) fn one_enforced(outcome: Outcome, made_at: u64) -> Self {
        Self::from_parts(outcome.verdict(), OneOrMany::One(outcome), 0, made_at)
    }

    // Inlined for the same reason.
    #[inline(always)]
    fn from_parts(verdict: Verdict, outcomes: OneOrMany<Outcome>, shadows: u16, made_at: u64) -> Self {
        let decided = Arc::new(Decided {
            verdict,
            outcomes,
            shadows,
            failure: None,
            jitter: Duration::ZERO,
            source: DecisionSource::Store,
            has_lease: false,
            made_at,
            report: Report::Pending,
            changed: false,
            permit: None,
        });
        Self { decided }
    }

    /// Sets whether the instance leased units with the charge.
    #[cfg(feature = "redis")]
    pub(crate) fn with_lease(self, has_lease: bool) -> Self {
        if has_lease { self.with(|decided| decided.has_lease = true) } else { self }
    }

    /// Whether the instance leased units with the charge.
    pub(crate) fn has_lease(&self) -> bool {
        self.decided.has_lease
    }

    /// Changes this decision, and no clone of it.
    fn with(mut self, change: impl FnOnce(&mut Decided)) -> Self {
        change(Arc::make_mut(&mut self.decided));
        self
    }

    /// Sets the failure of the store, and what made the decision instead.
    fn failed(self, failure: Option<Arc<Error>>, source: DecisionSource) -> Self {
        self.with(|decided| (decided.failure, decided.source) = (failure, source))
    }

    /// Holds `permit`, if there is one, until the last clone is dropped.
    pub(crate) fn hold(&mut self, permit: Option<Permit>) {
        if permit.is_some() {
            Arc::make_mut(&mut self.decided).permit = permit;
        }
    }

    /// Moves the permit out, for another value to hold.
    #[inline]
    pub(crate) fn take_permit(&mut self) -> Option<Permit> {
        self.decided.permit.as_ref()?;
        Arc::make_mut(&mut self.decided).permit.take()
    }

    /// An admission without outcomes, because the store failed and the failure modes admit.
    pub(crate) fn failed_open(failure: Error) -> Self {
        Self::new([]).failed(Some(Arc::new(failure)), DecisionSource::FailureMode)
    }

    /// The admission of a request that no policy limits.
    pub(crate) fn not_limited() -> Self {
        Self::new([])
    }

    /// Whether a policy limits the request, or would if the store had not failed.
    pub(crate) fn is_limited(&self) -> bool {
        !self.decided.outcomes.is_empty() || self.decided.failure.is_some()
    }

    /// This decision, changed to admit regardless of its outcomes.
    pub(crate) fn admitted(self) -> Self {
        if self.is_denied() { self.with(|decided| decided.verdict = Verdict::Admit) } else { self }
    }

    /// This decision after its delay: the request is admitted.
    pub(crate) fn after_delay(self) -> Self {
        if self.delay().is_some() { self.with(|decided| decided.verdict = Verdict::Admit) } else { self }
    }

    /// Sets what made the decision, if it is not the store.
    #[cfg(feature = "redis")]
    pub(crate) fn made_by(self, source: DecisionSource) -> Self {
        self.with(|decided| decided.source = source)
    }

    /// Sets when the store decided, in microseconds since 1970.
    pub(crate) fn at(self, made_at: u64) -> Self {
        self.with(|decided| decided.made_at = made_at)
    }

    /// When the store decided, in microseconds since 1970. `None` for a custom store, which does not report
    /// it.
    #[inline]
    pub(crate) fn made_at(&self) -> Option<u64> {
        Some(self.decided.made_at).filter(|made_at| *made_at > 0)
    }

    /// A decision that this process made because the store failed.
    pub(crate) fn failed_local(outcomes: impl IntoIterator<Item = Outcome>, failure: Error) -> Self {
        Self::new(outcomes).failed(Some(Arc::new(failure)), DecisionSource::Local)
    }

    /// The decision of a refund in this process, of units that it admitted because of the failure of
    /// `failed`.
    pub(crate) fn refunded_locally(outcomes: impl IntoIterator<Item = Outcome>, failed: &Self) -> Self {
        Self::new(outcomes).failed(failed.decided.failure.clone(), DecisionSource::Local)
    }

    /// Sets the random wait that is added to the shortest one, in what the client sees.
    pub(crate) fn with_jitter(self, jitter: Duration) -> Self {
        self.with(|decided| decided.jitter = jitter)
    }

    /// The wait that the client sees, with the jitter.
    pub(crate) fn advised_wait(&self) -> Option<Duration> {
        let mut wait = self.retry_after()?;
        if self.outcomes().iter().any(|outcome| outcome.policy().has_permits()) {
            wait = self.outcomes().iter().filter_map(Outcome::advised_wait).max().unwrap_or(wait);
        }
        Some(wait.saturating_add(self.decided.jitter))
    }

    /// Sets whether the headers report this decision.
    pub(crate) fn reported(self, report: Report) -> Self {
        self.with(|decided| decided.report = report)
    }

    pub(crate) fn report(&self) -> Report {
        self.decided.report
    }

    pub(crate) fn is_changed(&self) -> bool {
        self.decided.changed
    }

    /// This decision with the outcomes of `newer`, which replace the outcomes of the same policy and key.
    pub(crate) fn updated(&self, newer: &Self) -> Self {
        let mut outcomes = self.all_outcomes().to_vec();
        let mut changed = self.is_changed() || newer.is_changed();
        for outcome in newer.all_outcomes() {
            match outcomes.iter_mut().find(|old| old.charge().is_of_same_count(outcome.charge())) {
                Some(old) => {
                    changed |= old != outcome;
                    *old = outcome.clone();
                }
                None => outcomes.push(outcome.clone()),
            }
        }
        let failure = newer.decided.failure.clone().or_else(|| self.decided.failure.clone());
        let updated = Self::new(outcomes).failed(failure, newer.source());
        updated.with(|decided| (decided.changed, decided.jitter) = (changed, newer.decided.jitter))
    }

    /// This decision with `change` applied to each outcome.
    pub(crate) fn map(self, change: impl FnMut(Outcome) -> Outcome) -> Self {
        let Decided { outcomes, failure, jitter, source, report, changed, permit, .. } = &*self.decided;
        let mapped = Self::new(outcomes.iter().cloned().map(change)).failed(failure.clone(), *source);
        mapped.with(|decided| {
            (decided.jitter, decided.report, decided.changed) = (*jitter, *report, *changed);
            decided.permit = permit.clone();
        })
    }

    /// `refunded`, the outcome of a refund of this decision, as a denial if its policy has delayed the request for
    /// longer than `left`.
    pub(crate) fn denied_after(&self, refunded: Outcome, left: Duration) -> Outcome {
        let is_same = |one: &&Outcome| one.charge().is_of_same_count(refunded.charge());
        match self.all_outcomes().iter().find(is_same).map(Outcome::verdict) {
            Some(Verdict::Delay(delay)) if delay > left => refunded.denying(delay - left),
            _ => refunded,
        }
    }

    /// Keeps only the first outcome of each policy name, because a header's items differ only in the name.
    pub(crate) fn by_name(&self) -> Self {
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(self.outcomes().len());
        for outcome in self.outcomes() {
            if !outcomes.iter().any(|first| first.policy().name() == outcome.policy().name()) {
                outcomes.push(outcome.clone());
            }
        }
        self.clone().with(|decided| (decided.outcomes, decided.shadows) = (OneOrMany::Many(outcomes), 0))
    }

    /// Admitted now, admitted after a delay, or denied.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.decided.verdict
    }

    /// Whether the request is admitted and may go on now.
    ///
    /// This is false for a request that a [queue](crate::algorithm::LeakyBucket::queue) admits after a
    /// [`delay`](Self::delay): wait for the delay first, or use [`Limiter::wait`](crate::Limiter::wait). A
    /// layer waits before it calls the service, so the decision that a handler gets from it has no delay.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        matches!(self.verdict(), Verdict::Admit)
    }

    /// The delay after which an admitted request may go on. The request is already charged. `None` if the
    /// request may go on now or is denied.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, algorithm::LeakyBucket, store::ManualClock};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    /// let queue = LeakyBucket::queue(Duration::from_secs(1));
    /// let policy = Policy::new("calls", Quota::per_second(10)).algorithm(queue);
    /// let partner = Key::new("partner");
    ///
    /// assert!(limiter.check(&policy, &partner, 1).await?.is_admitted());
    /// let delayed = limiter.check(&policy, &partner, 1).await?;
    /// assert!(!delayed.is_admitted() && !delayed.is_denied());
    /// assert_eq!(delayed.delay(), Some(Duration::from_millis(100)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        match self.verdict() {
            Verdict::Delay(delay) => Some(delay),
            _ => None,
        }
    }

    /// Whether the request is denied. Nothing was charged then.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.verdict().is_denied()
    }

    /// Whether a policy denies the request, or would if it were not a shadow.
    #[inline]
    pub(crate) fn may_have_denials(&self) -> bool {
        self.is_denied() || self.decided.shadows > 0
    }

    /// The outcomes of the charges without which the request [goes on](crate::Charge::or_degrade), because they were denied. None if
    /// the request is denied. A handler reads them from [`Degraded`](crate::layer::Degraded).
    pub fn degraded(&self) -> impl Iterator<Item = &Outcome> {
        let is_degraded = |outcome: &&Outcome| outcome.is_denied() && outcome.charge().degrades();
        self.shadows().iter().filter(is_degraded).filter(|_| !self.is_denied())
    }

    /// The outcomes of the guarantees beyond which the request [borrows](crate::Rule::guarantee) from a pool. None if the request is
    /// denied, or within its guarantees.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Charge, Criticality, Key, Limiter, MemoryStore, Policy, Quota, policy::Headroom};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let vendor = Policy::new("vendor", Quota::per_minute(10)).headroom(Criticality::Sheddable, Headroom::Units(4));
    /// let pool = Charge::new(&vendor, &Key::new("all"), 1).with_criticality(Criticality::Sheddable);
    /// let guarantee = pool.guarantee(&Policy::new("tenant", Quota::per_minute(2)), &Key::new("acme"))?;
    /// // A new client has no credit yet.
    /// let decision = limiter.check_all(&[pool, guarantee]).await?;
    /// assert!(decision.is_admitted());
    /// assert!(decision.borrowed().map(|outcome| outcome.policy().name()).eq(["tenant"]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn borrowed(&self) -> impl Iterator<Item = &Outcome> {
        let is_beyond = |outcome: &&Outcome| outcome.is_denied() && self.has_lent(outcome) == Some(true);
        self.shadows().iter().filter(is_beyond).filter(|_| !self.is_denied())
    }

    /// Of the outcome of a guarantee, whether the pool admits. `None` for any other outcome.
    pub(crate) fn has_lent(&self, guarantee: &Outcome) -> Option<bool> {
        let mut pools =
            self.all_outcomes().iter().filter(|one| guarantee.charge().is_guarantee_in(one.charge()));
        guarantee.charge().is_guarantee().then(|| pools.all(|pool| !pool.is_denied()))
    }

    /// Whether the request is denied only for the sake of [more critical](crate::Policy::headroom) ones: under each policy that
    /// denies it, as many units as it costs remain.
    #[must_use]
    pub fn is_shed(&self) -> bool {
        let mut denials = self.outcomes().iter().filter(|outcome| outcome.is_denied());
        self.is_denied() && denials.all(Outcome::is_shed)
    }

    /// Whether a policy denies the request because it [bans](crate::Policy::penalty) the key.
    pub(crate) fn is_banned(&self) -> bool {
        self.banned_for().is_some()
    }

    /// How long until the [ban](crate::Policy::penalty) that denies this request ends; with several bans,
    /// until the last one ends. Also set on the denial that triggers the ban. `None` if no key is banned.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{policy::Penalty, Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let hour = Duration::from_secs(3_600);
    /// let policy = Policy::new("login", Quota::per_minute(1)).penalty(Penalty::after(2, hour).ban(hour));
    /// let alice = Key::new("alice");
    ///
    /// limiter.check(&policy, &alice, 1).await?;
    /// assert_eq!(limiter.check(&policy, &alice, 1).await?.banned_for(), None);
    /// let banned = limiter.check(&policy, &alice, 1).await?;
    /// assert_eq!(banned.banned_for(), Some(hour));
    /// assert_eq!(banned.retry_after(), Some(hour));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn banned_for(&self) -> Option<Duration> {
        let bans = self.outcomes().iter().filter_map(Outcome::banned_for);
        bans.max().filter(|_| self.is_denied())
    }

    /// The shortest wait after which every policy that denied would admit. `None` if the request is admitted,
    /// or if waiting cannot help.
    ///
    /// Under [`Concurrency`](crate::algorithm::Concurrency), the time until permits expire. They may be
    /// released at any moment, so a [`Rejection`](crate::Rejection) asks the client to retry after a second.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.verdict().retry_after()
    }

    /// The units that can still be charged under the [binding](Self::binding) policy, which is the tightest
    /// one. `None` if there are no [outcomes](Self::outcomes).
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        self.binding().map(Outcome::remaining)
    }

    /// The outcome of each policy that [can deny](Self::shadows), in the order of the charges. If the
    /// store [failed](Self::failure), this has only the policies counted in this process: it can be
    /// **empty**.
    #[must_use]
    pub fn outcomes(&self) -> &[Outcome] {
        self.decided.outcomes.get(..self.enforced()).unwrap_or_default()
    }

    /// The outcomes of the charges that [never deny](crate::Charge::never_denies), in the order of the charges: of
    /// [shadow](crate::Policy::shadow) policies, of charges without which the request [goes on](crate::Charge::or_degrade), and of
    /// [guarantees](crate::Charge::guarantee), admitted or not.
    #[must_use]
    pub fn shadows(&self) -> &[Outcome] {
        self.decided.outcomes.get(self.enforced()..).unwrap_or_default()
    }

    /// The outcomes of all policies, in the order in which a limiter passes their charges to a store.
    pub(crate) fn all_outcomes(&self) -> &[Outcome] {
        &self.decided.outcomes
    }

    fn enforced(&self) -> usize {
        self.decided.outcomes.len() - usize::from(self.decided.shadows)
    }

    /// The decision of the policy `name` alone, to [debit](crate::Limiter::debit) only this policy, or to
    /// [refund](crate::Limiter::refund) or [settle](crate::Reservation) only what it charged. `None` if no
    /// such policy took part.
    ///
    /// It holds no permit. A refund of either decision counts for both.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Charge, Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let (requests, tokens) = (Policy::new("requests", Quota::per_hour(9)), Policy::new("tokens", Quota::per_hour(99)));
    /// let alice = Key::new("alice");
    /// let charges = [Charge::new(&requests, &alice, 1), Charge::new(&tokens, &alice, 1)];
    ///
    /// let decision = limiter.check_all(&charges).await?;
    /// limiter.debit(&decision.for_policy("tokens").unwrap(), 49).await?;
    /// let left = [limiter.peek(&requests, &alice, 1).await?.remaining(), limiter.peek(&tokens, &alice, 1).await?.remaining()];
    /// assert_eq!(left, [Some(8), Some(49)]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn for_policy(&self, name: &str) -> Option<Self> {
        self.of_policies(|known| known == name)
    }

    /// The decision of the policies for whose names `is_meant` holds. `None` if none of them took part.
    pub(crate) fn of_policies(&self, is_meant: impl Fn(&str) -> bool) -> Option<Self> {
        self.of_outcomes(|outcome| is_meant(outcome.policy().name()))
    }

    /// The decision of the outcomes for which `is_meant` holds. `None` if it holds for no outcome.
    pub(crate) fn of_outcomes(&self, is_meant: impl Fn(&Outcome) -> bool) -> Option<Self> {
        let outcomes = self.all_outcomes().iter().filter(|outcome| is_meant(outcome)).cloned();
        let alone = Self::new(outcomes).failed(self.decided.failure.clone(), self.source());
        (!alone.all_outcomes().is_empty()).then_some(alone)
    }

    /// The outcome that matters most to the client: the denial with the longest wait or, if the request is
    /// admitted, the outcome with the smallest share of its capacity left. `None` if there are no outcomes.
    #[must_use]
    #[inline]
    pub fn binding(&self) -> Option<&Outcome> {
        match self.outcomes() {
            // Without this arm, the comparison is called for the many decisions with one outcome.
            [one] => Some(one),
            // `max_by` returns the last of equals, so this returns the first.
            all => all.iter().rev().max_by(|a, b| a.cmp_binding(b)),
        }
    }

    /// What made the decision: the store, a shortcut that needs no store or, in an outage, the failure mode.
    #[must_use]
    pub fn source(&self) -> DecisionSource {
        self.decided.source
    }

    /// Why the store made no decision, if this decision was made without it, by the [failure
    /// mode](crate::FailureMode) of the policies.
    #[must_use]
    pub fn failure(&self) -> Option<&Error> {
        self.decided.failure.as_deref()
    }
}

/// Decisions are equal if their verdicts and outcomes are, and if they failed with the same kind of error or
/// not at all. Their [sources](Decision::source) may differ.
impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        let failure = |decision: &Self| decision.failure().map(Error::kind);
        self.verdict() == other.verdict()
            && self.all_outcomes() == other.all_outcomes()
            && failure(self) == failure(other)
    }
}

impl Eq for Decision {}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("verdict", &self.verdict())
            .field("outcomes", &self.outcomes())
            .field("shadows", &self.shadows())
            .field("source", &self.source())
            .field("failure", &self.failure())
            .finish()
    }
}

/// What made a [`Decision`](super::Decision), from [`Decision::source`](super::Decision::source).
///
/// # Example
///
/// ```
/// use tower_ratelimit::{decision::DecisionSource, Key, Limiter, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(MemoryStore::new());
/// let decision = limiter.check(&Policy::new("api", Quota::per_hour(2)), &Key::new("alice"), 1).await?;
/// assert_eq!(decision.source(), DecisionSource::Store);
/// assert_eq!(decision.source().as_str(), "store");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecisionSource {
    /// The store: Redis, a [`MemoryStore`](crate::MemoryStore), or your own.
    Store,
    /// The deny cache of a [`RedisStore`](crate::RedisStore): Redis has denied the key, and the wait is not
    /// over.
    DenyCache,
    /// Units that a [`RedisStore`](crate::RedisStore) has on [lease](crate::Policy::max_lease).
    Lease,
    /// This process, under [`FailureMode::Local`](crate::FailureMode::Local), because the store
    /// [failed](super::Decision::failure).
    Local,
    /// Nothing: [`FailureMode::Open`](crate::FailureMode::Open) admitted, because the store
    /// [failed](super::Decision::failure).
    FailureMode,
}

impl DecisionSource {
    /// The name in lower case with underscores, for labels and logs: `store`, `deny_cache`, `lease`, `local`
    /// or `failure_mode`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::DenyCache => "deny_cache",
            Self::Lease => "lease",
            Self::Local => "local",
            Self::FailureMode => "failure_mode",
        }
    }
}

/// [`as_str`](Self::as_str).
impl fmt::Display for DecisionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{base::Quota, decision::Charge, key::Key, policy::Policy};

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
            ("all admit", vec![Verdict::Admit, Verdict::Admit], Verdict::Admit),
            ("one denies", vec![Verdict::Admit, deny(Some(1)), Verdict::Admit], deny(Some(1))),
            ("the longer wait", vec![deny(Some(1)), deny(Some(2))], deny(Some(2))),
            ("never is longest", vec![deny(None), deny(Some(2))], deny(None)),
            ("the longer delay", vec![delay(2), delay(1), Verdict::Admit], delay(2)),
            ("a denial beats a delay", vec![delay(2), deny(Some(1))], deny(Some(1))),
            ("no outcome", vec![], Verdict::Admit),
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
                vec![outcome("a", 10, 5, Verdict::Admit), outcome("b", 100, 20, Verdict::Admit)],
                "b",
            ),
            (
                "the first of equals",
                vec![outcome("a", 10, 5, Verdict::Admit), outcome("b", 2, 1, Verdict::Admit)],
                "a",
            ),
            ("a denial", vec![outcome("a", 10, 0, Verdict::Admit), outcome("b", 10, 9, deny(Some(1)))], "b"),
            ("the longest", vec![outcome("a", 1, 0, deny(Some(9))), outcome("b", 1, 0, deny(Some(1)))], "a"),
            ("never", vec![outcome("a", 1, 0, deny(Some(9))), outcome("b", 1, 0, deny(None))], "b"),
        ];
        for (name, outcomes, expected) in rows {
            let decision = Decision::new(outcomes);
            assert_eq!(decision.binding().unwrap().policy().name(), expected, "{name}");
        }
    }
}
