//! The deny cache: denies requests on an exhausted key without Redis, and knows which other keys are denied.
//!
//! A denial of one unit by a policy that had none left is *final*: until its wait is over, no instance can
//! charge that key a unit, so the same request gets the same denial, with the rest of the wait. Five events
//! end a denial early: a reset, a refund, returned leased units, a debit that became debt, and a policy of
//! the same name with another quota. Events in the same store take effect immediately, events of other
//! instances when the denial has been stored for [`DenyCache::max_age`]. A denial by several policies ends
//! with such an event of each of them.
//!
//! A denial of a banned key is final until the ban ends: a ban is ended early by the same events. If the wait
//! for units is longer than the ban, a repeated denial reports that wait as it was in the first denial, and
//! it does not report a ban that another of its policies imposes later.
//!
//! Other denials are not final. Redis must count those by a policy whose penalty counts them. Denials of
//! several units become longer if another request is charged some of the units in the meantime. A final
//! denial that is older than the longest age may have ended. Still, until the wait of any denial is over,
//! Redis denies the key, unless one of the events ends that. So before a request waits for the lookup of
//! another key, [`DenyCache::has_denied`] decides whether to ask Redis first.
//!
//! A denial only for the sake of [more critical](crate::Policy::headroom) requests is final too, although these may charge what
//! is kept: then its wait is too short by the time in which that is replenished, and it is a denial still.
//!
//! Denials for want of a permit are not stored, because a permit may be released at any moment.
//!
//! The table has a fixed number of cells. A cell holds the latest denial whose hash leads there. An
//! overwritten denial only costs one more decision in Redis. A lookup takes no lock and writes nothing that
//! threads share: all clients of an exhausted key read one cell.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;

use crate::{
    base::time::micros,
    decision::{Charge, Decision, DecisionSource, Outcome, Verdict},
    key::Key,
    policy::Policy,
    store::{Action, StoreClock},
};

pub(crate) struct DenyCache {
    cells: Box<[Cell]>,
    clock: StoreClock,
    /// The longest time for which a denial is final, in microseconds.
    max_age: u64,
    /// How many invalidations there were.
    invalidations: AtomicU64,
}

#[derive(Default)]
struct Cell {
    /// The hash of the policy and the key of the latest denial, so that a lookup of another key reads no more
    /// than this.
    hash: AtomicU64,
    denial: ArcSwapOption<CachedDenial>,
    /// The number of the latest invalidation of a key in this cell. Replies to earlier requests no longer
    /// hold.
    invalidated: AtomicU64,
}

struct CachedDenial {
    decision: Decision,
    /// The number of invalidations in the cache when the request was sent.
    invalidations: u64,
    /// When the reply was received. Redis decided before that, so a wait counted from here is never too
    /// short.
    received_at: u64,
    /// Until when the same request gets the same denial. Counted from before the request was sent, so never
    /// too late.
    final_until: u64,
    /// Until when Redis denies the key, if none of the events ends that.
    denied_until: u64,
}

const CELLS: usize = 4096;

impl DenyCache {
    pub(crate) fn new(max_age: Duration, clock: StoreClock) -> Self {
        Self {
            cells: (0..CELLS).map(|_| Cell::default()).collect(),
            clock,
            max_age: micros(max_age),
            invalidations: AtomicU64::new(0),
        }
    }

    /// The decision over `charges` at the time `now`, if it is stored.
    pub(crate) fn lookup(&self, charges: &[Charge], now: u64) -> Option<Decision> {
        for charge in charges {
            let hash = hash(charge.policy(), charge.key());
            let cell = self.cell(hash);
            if cell.hash.load(Ordering::Relaxed) != hash {
                continue;
            }
            let loaded = cell.denial.load();
            let Some(cached) = &*loaded else { continue };
            // A denial may be newer than this request.
            let is_later = cached.received_at > now;
            let is_over = cached.denied_until <= now
                || is_later && cached.received_at > self.clock.micros()
                || !self.holds(cached);
            if is_over || cached.conflicts_with(charge) {
                // The denial has ended, the clock stepped back, or the key is charged under another quota,
                // and this request may change its counts. A newer denial stays.
                cell.denial.compare_and_swap(&loaded, None);
            } else if !is_later && now < cached.final_until && covers(&cached.decision, charges) {
                let age = now - cached.received_at;
                let (elapsed, made_at) =
                    (Duration::from_micros(age), cached.decision.made_at().map_or(0, |made| made + age));
                let decision = match (cached.decision.all_outcomes(), charges) {
                    ([outcome], [charge]) => Decision::one(after(outcome, charge, elapsed), made_at),
                    (outcomes, charges) => {
                        let pairs = outcomes.iter().zip(charges);
                        Decision::new(pairs.map(|(outcome, charge)| after(outcome, charge, elapsed)))
                            .at(made_at)
                    }
                };
                return Some(decision.made_by(DecisionSource::DenyCache));
            }
        }
        None
    }

    /// Whether one of `charges` was denied, and is still denied unless another instance has ended that.
    pub(crate) fn has_denied(&self, charges: &[Charge], now: u64) -> bool {
        charges.iter().any(|charge| {
            let hash = hash(charge.policy(), charge.key());
            let cell = self.cell(hash);
            let is_denial = |cached: &CachedDenial| {
                now < cached.denied_until && cached.denies(charge) && self.holds(cached)
            };
            cell.hash.load(Ordering::Relaxed) == hash && cell.denial.load().as_deref().is_some_and(is_denial)
        })
    }

    /// Ends the denials of `key` under `policy`, including those in replies to earlier requests that are
    /// stored afterwards. Call it after the store refunded units.
    pub(crate) fn invalidate(&self, policy: &Policy, key: &Key) {
        let number = self.invalidations.fetch_add(1, Ordering::AcqRel) + 1;
        self.cell(hash(policy, key)).invalidated.fetch_max(number, Ordering::AcqRel);
    }

    /// Whether no denying key was invalidated since the request was sent.
    fn holds(&self, cached: &CachedDenial) -> bool {
        let mut denying = cached.decision.outcomes().iter().filter(|one| one.is_denied() || one.is_banned());
        denying.all(|outcome| {
            let cell = self.cell(hash(outcome.policy(), outcome.key()));
            cell.invalidated.load(Ordering::Acquire) <= cached.invalidations
        })
    }

    fn cell(&self, hash: u64) -> &Cell {
        &self.cells[hash as usize % CELLS]
    }
}

/// A client whose keys collide gains nothing: its denials overwrite each other, and Redis makes them again.
fn hash(policy: &Policy, key: &Key) -> u64 {
    key.quick_hash(policy.tag())
}

/// Updates a deny cache with the result of a job.
pub(crate) struct DenyObserver {
    cache: Arc<DenyCache>,
    sent_at: u64,
    /// The number of invalidations in the cache when the job was made.
    invalidations: u64,
    /// Whether the job frees units that other requests can be charged. Then its keys are invalidated,
    /// regardless of the decision.
    frees_units: bool,
}

impl DenyObserver {
    /// Observes a job that is sent after this, at the time `sent_at`.
    pub(crate) fn new(cache: &Arc<DenyCache>, sent_at: u64, frees_units: bool) -> Self {
        let invalidations = cache.invalidations.load(Ordering::Acquire);
        Self { cache: cache.clone(), sent_at, invalidations, frees_units }
    }

    /// Call it when Redis has made a decision over `charges`, or when it failed as a whole and may have been
    /// carried out in part.
    pub(crate) fn settled(&self, action: Action, charges: &[Charge], decision: Option<&Decision>) {
        match decision.filter(|_| !self.frees_units) {
            Some(decision) if action == Action::Charge => self.insert(decision),
            // A denied key may be charged debt, which makes its wait longer.
            Some(decision) => {
                for outcome in decision.all_outcomes().iter().filter(|outcome| outcome.granted() > 0) {
                    self.cache.invalidate(outcome.policy(), outcome.key());
                }
            }
            None if action == Action::Charge && !self.frees_units => {}
            None => {
                for charge in charges {
                    self.cache.invalidate(charge.policy(), charge.key());
                    if action == Action::Ban {
                        // The bans of a client hold for its preflights.
                        self.cache.invalidate(charge.policy(), &charge.key().of_preflight());
                    }
                }
            }
        }
    }

    /// Stores a decision if it is a denial that lasts.
    fn insert(&self, decision: &Decision) {
        if !decision.is_denied() {
            return;
        }
        let is_banned = decision.is_banned();
        let (mut is_final, mut wait, mut first) = (true, u64::MAX, None);
        for outcome in decision.outcomes() {
            let charge = outcome.charge();
            // A banned request is denied until the ban ends, regardless of the policies that do not ban.
            let its_wait = if is_banned { outcome.banned_for() } else { outcome.retry_after() };
            let is_denied = if is_banned { its_wait.is_some() } else { outcome.is_denied() };
            let lasts = charge.cost() == 1 && outcome.remaining() == 0 && its_wait.is_some();
            is_final &= is_banned
                || (!outcome.policy().counts_denials() && !charge.needs_permit() && (!is_denied || lasts));
            if is_denied && (is_banned || !charge.needs_permit()) {
                // Without a wait, the cost exceeds the capacity.
                wait = its_wait.map_or(wait, |its_wait| wait.min(micros(its_wait)));
                first.get_or_insert(outcome);
            }
        }
        let Some(first) = first else { return };
        let hash = hash(first.policy(), first.key());
        let cell = self.cache.cell(hash);
        let received_at = self.cache.clock.micros();
        let is_of_key = || cell.hash.load(Ordering::Relaxed) == hash;
        if !is_final
            && is_of_key()
            && cell.denial.load().as_deref().is_some_and(|known| known.final_until > received_at)
        {
            // A final denial also implies that the key is denied.
            return;
        }
        let end = |time: u64| self.sent_at.saturating_add(time);
        let cached = CachedDenial {
            decision: decision.clone(),
            invalidations: self.invalidations,
            received_at,
            final_until: if is_final { end(wait.min(self.cache.max_age)) } else { 0 },
            denied_until: end(wait),
        };
        cell.hash.store(hash, Ordering::Relaxed);
        cell.denial.store(Some(Arc::new(cached)));
    }

    /// An observer for a job that undoes a part of this one, which was charged before another part was
    /// denied. It does not end the denial, which belongs to another key.
    #[cfg(feature = "cluster")]
    pub(crate) fn undoing(&self) -> Self {
        Self::new(&self.cache, self.sent_at, true)
    }
}

impl CachedDenial {
    /// Whether it is a denial of at most the units of `charge`, by its policy and of its key.
    fn denies(&self, charge: &Charge) -> bool {
        self.decision.all_outcomes().iter().any(|outcome| {
            (outcome.is_banned() || outcome.is_denied() && outcome.charge().evaluated() <= charge.evaluated())
                && outcome.key() == charge.key()
                && outcome.policy().counts_as(charge.policy())
        })
    }

    /// Whether `charge` is on the same key, under a policy of the same name that counts differently.
    fn conflicts_with(&self, charge: &Charge) -> bool {
        self.decision.all_outcomes().iter().any(|outcome| {
            outcome.key() == charge.key()
                && outcome.policy().label() == charge.policy().label()
                && !outcome.policy().counts_as(charge.policy())
        })
    }
}

/// Whether `decision` is over the same charges.
fn covers(decision: &Decision, charges: &[Charge]) -> bool {
    let outcomes = decision.all_outcomes();
    outcomes.len() == charges.len()
        && outcomes.iter().zip(charges).all(|(outcome, charge)| {
            outcome.charge().cost() == charge.cost()
                && outcome.charge().headroom() == charge.headroom()
                && outcome.key() == charge.key()
                && outcome.policy().counts_as(charge.policy())
                && outcome.never_denies() == charge.never_denies()
        })
}

/// The outcome for `charge`, `elapsed` after `cached`. The values of the denying policies are exact, as
/// nothing was charged to them, but by more critical requests. Outcomes of the other policies are as old as the denial.
fn after(cached: &Outcome, charge: &Charge, elapsed: Duration) -> Outcome {
    let verdict = match cached.verdict() {
        Verdict::Deny { retry_after } => {
            Verdict::Deny { retry_after: retry_after.map(|wait| wait.saturating_sub(elapsed)) }
        }
        other => other,
    };
    let reset = cached.reset_after().saturating_sub(elapsed);
    let outcome =
        Outcome::new(charge, verdict, cached.remaining_for_all(), reset).with_granted(cached.granted());
    match cached.banned_for() {
        Some(rest) => outcome.banning(rest.saturating_sub(elapsed)),
        None => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{base::Quota, store::ManualClock};

    struct Fixture {
        cache: Arc<DenyCache>,
        clock: ManualClock,
    }

    impl Fixture {
        fn new() -> Self {
            let clock = ManualClock::new();
            let of_cache = StoreClock::new(Some(clock.clone()), 0);
            Self { cache: DenyCache::new(Duration::from_secs(1), of_cache).into(), clock }
        }

        /// Observes a charge that is sent now.
        fn send(&self) -> DenyObserver {
            DenyObserver::new(&self.cache, self.clock.micros(), false)
        }

        fn denies(&self, charges: &[Charge]) -> bool {
            self.cache.lookup(charges, self.clock.micros()).is_some()
        }
    }

    fn deny(sent: &DenyObserver, charges: &[Charge]) {
        let denial = Verdict::Deny { retry_after: Some(Duration::from_secs(60)) };
        let outcome = |charge| Outcome::new(charge, denial, 0, Duration::from_secs(60));
        let decision = Decision::new(charges.iter().map(outcome));
        sent.settled(Action::Charge, charges, Some(&decision));
    }

    fn charge(policy: &str, key: &str) -> Charge {
        Charge::new(&Policy::new(policy, Quota::per_minute(1)), &Key::new(key), 1)
    }

    fn invalidate(cache: &DenyCache, charge: &Charge) {
        cache.invalidate(charge.policy(), charge.key());
    }

    #[test]
    fn an_event_ends_only_denials_of_its_key() {
        let one = Fixture::new();
        let (alice, bob) = ([charge("api", "alice")], charge("api", "bob"));
        let sent = one.send();
        invalidate(&one.cache, &bob);
        deny(&sent, &alice);
        assert!(one.denies(&alice), "an event of another key");
        invalidate(&one.cache, &alice[0]);
        assert!(!one.denies(&alice));
        deny(&sent, &alice);
        assert!(!one.denies(&alice), "a reply that was under way then");
        deny(&one.send(), &alice);
        assert!(one.denies(&alice));
    }

    #[test]
    fn a_denial_by_several_policies_ends_with_an_event_of_each() {
        let one = Fixture::new();
        let charges = [charge("burst", "alice"), charge("daily", "alice")];
        for ended in &charges {
            deny(&one.send(), &charges);
            invalidate(&one.cache, &charge("daily", "bob"));
            assert!(one.denies(&charges), "an event of another key");
            invalidate(&one.cache, ended);
            assert!(!one.denies(&charges), "{ended:?}");
        }
    }

    #[test]
    fn a_request_that_is_older_than_a_denial_leaves_it() {
        let one = Fixture::new();
        let charges = [charge("api", "alice")];
        let (older, earlier) = (one.send(), one.clock.micros());
        one.clock.advance(Duration::from_millis(1));
        deny(&older, &charges);
        assert!(one.cache.lookup(&charges, earlier).is_none());
        assert!(one.denies(&charges));
        one.clock.step_back(Duration::from_millis(1));
        assert!(!one.denies(&charges), "the clock stepped back");
        one.clock.advance(Duration::from_millis(1));
        assert!(!one.denies(&charges), "a denial of a clock that stepped back");
    }
}
