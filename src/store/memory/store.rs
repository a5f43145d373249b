//! [`MemoryStore`]: finds the shards of a decision, and decides under their locks.

use std::{
    collections::hash_map::RandomState,
    fmt,
    hash::{BuildHasher, Hasher},
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{
    counting::Counting,
    phases::{Item, Phases, Planned},
    shard::{CachePadded, DEFAULT_CAPACITY, Guards, Location, Shard, shards},
};
use crate::{
    algorithm::{
        Receipt,
        counter::Charged,
        twin::{Admission, Gauge},
    },
    base::{Answer, Error, ErrorKind, random::random, sync::lock, time::micros},
    decision::{Charge, Decision, Outcome, Verdict},
    key::Key,
    policy::Policy,
    store::{
        Action, Backend, BackendRef, DecideOne, LocalCounts, ManualClock, PenaltyCharge, Store, StoreClock,
        StoreIdentity,
        list::{Extent, StoredKeys},
    },
};

/// Counts in the memory of this process: for a service with one instance, for tests, and for development
/// without Redis.
///
/// It decides as [`RedisStore`](crate::RedisStore) does, to the microsecond. Cloning gives another handle on
/// the same counts.
///
/// # Bounded
///
/// The store holds about [`capacity`](Self::capacity) keys. A key of 20 bytes takes 115 to 150 bytes of
/// memory. Some algorithms add to that: a sliding window or log 32 to 64 bytes, each segment of a sliding
/// window 8, each request in a sliding log 32, and each request that holds permits 32.
///
/// New keys push out expired ones, except under a [manual clock](Self::with_clock), which can step back. If
/// no key is expired, a new key evicts one of those nearest to their reset. So a client that can invent
/// identities can have some of its counts evicted: also limit it by an identity that it cannot invent, such
/// as its address.
///
/// # Time
///
/// The store uses a monotonic clock that is set once, when the store is built, so a change of the wall clock
/// changes no decision. [`aligned`](crate::algorithm::FixedWindow::aligned) windows follow the wall clock as
/// it was then.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, store::ManualClock};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(MemoryStore::new());
/// let policy = Policy::new("api", Quota::per_hour(1));
///
/// assert!(limiter.check(&policy, &Key::new("alice"), 1).await?.is_admitted());
/// assert!(!limiter.check(&policy, &Key::new("alice"), 1).await?.is_admitted());
/// assert!(limiter.check(&policy, &Key::new("bob"), 1).await?.is_admitted());
///
/// // With time under your control, and room for more keys.
/// let clock = ManualClock::new();
/// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()).capacity(1_000_000));
/// assert!(limiter.check(&policy, &Key::new("alice"), 1).await?.is_admitted());
/// clock.advance(Duration::from_secs(3_600));
/// assert!(limiter.check(&policy, &Key::new("alice"), 1).await?.is_admitted());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    /// The number of shards is a power of two.
    shards: Arc<[CachePadded<Mutex<Shard>>]>,
    hasher: RandomState,
    clock: StoreClock,
    identity: Arc<StoreIdentity>,
}

impl MemoryStore {
    /// A store with a monotonic clock.
    #[must_use]
    pub fn new() -> Self {
        Self::of(StoreClock::wall())
    }

    /// A store that takes the time from `clock`, for tests.
    #[must_use]
    pub fn with_clock(clock: ManualClock) -> Self {
        Self::of(StoreClock::new(Some(clock), 0))
    }

    pub(in crate::store) fn of(clock: StoreClock) -> Self {
        let shards = shards(DEFAULT_CAPACITY, clock.manual().is_none());
        Self { shards, hasher: RandomState::new(), clock, identity: identity() }
    }

    /// Returns an empty store with the clock of this one and room for about `keys` keys. Call it before
    /// cloning. A key is one identity under one policy. Defaults to 200,000.
    ///
    /// The store divides the capacity among 16 to 1024 shards of at least 16 keys each and rounds it up, so
    /// the smallest store holds 256 keys. Shards fill unevenly, so keys are evicted before the store is full:
    /// it holds about 1 % less at the default capacity, and 10 % less in the smallest store.
    #[must_use]
    pub fn capacity(mut self, keys: usize) -> Self {
        self.shards = shards(keys, self.clock.manual().is_none());
        self.identity = identity();
        self
    }

    /// The number of keys that the store holds, including expired ones that are not removed yet.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.shards.iter().map(|shard| lock(&shard.0).len()).sum()
    }

    fn hash(&self, key: &Key) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        // A single value needs no length prefix.
        hasher.write(key.as_bytes());
        hasher.finish()
    }

    #[inline]
    fn location<'a>(&self, policy: &'a Policy, key: &'a Key) -> Location<'a> {
        let hash = self.hash(key);
        // One shard per identity, so all policies of one identity are behind one lock. The shard's own table
        // uses the lowest and highest bits of the hash, so other bits select the shard.
        let shard = (hash >> 32) as usize & (self.shards.len() - 1);
        Location { shard, hash: hash ^ policy.tag(), policy, key }
    }

    /// Charges what [is counted alone](is_counted_alone).
    #[inline]
    fn charge_one(&self, charge: Charge) -> Result<Decision, Error> {
        let counting = Counting::of(&charge)?;
        let cost = charge.bounded_cost();
        let location = self.location(charge.policy(), charge.key());
        let mut shard = lock(&self.shards[location.shard].0);
        // The clock is read under the lock, because a decision must not see state from the future.
        let now = self.clock.micros();
        let charged = shard.update(
            &location,
            now,
            #[inline(always)]
            |state| {
                let charged = counting.charge(state, now, cost);
                let lifetime = charged.as_ref().ok().and_then(|charged| charged.lifetime);
                (charged, lifetime)
            },
        );
        drop(shard);
        let Charged { admission, gauge, mark, .. } = charged.map_err(|mistake| counting.error(mistake))?;
        let made = admission.is_admitted().then_some(Receipt { made: now, mark });
        Ok(Decision::one_enforced(outcome(charge, admission, gauge, cost, made), now))
    }

    fn decide_all(&self, action: Action, charges: &[Charge]) -> Result<Decision, Error> {
        let ordered = action.ordered(charges);
        let charges = ordered.as_deref().unwrap_or(charges);
        let spec = action.spec();
        let penalties = PenaltyCharge::of(action, charges);
        let all = charges.iter().chain(penalties.iter().map(|penalty| &penalty.charge));
        let locations: Vec<Location<'_>> =
            all.map(|charge| self.location(charge.policy(), charge.key())).collect();
        let phases = Phases::new(action, charges, &penalties, &locations)?;
        let mut guards = Guards::lock(&self.shards, &locations, &self.clock);
        let now = guards.now;

        let stamp = phases.plan_stamp(&mut guards)?;
        // A token that was settled before, or has expired, changes nothing.
        let may_change = stamp.as_ref().is_none_or(Planned::is_admitted);
        if may_change {
            phases.change(&mut guards)?;
        }
        let plans = phases.plan(&mut guards)?;
        if may_change {
            phases.write_stamp(&mut guards)?;
        }
        let is_banned = phases.bans(&mut guards).iter().any(|(_, rest)| *rest > 0);
        let is_charged = spec.charges && may_change && !is_banned && phases.admits(&plans);
        phases.charge(&mut guards, &plans, is_charged)?;
        if spec.charges {
            // A denial of a banned key counts for no penalty.
            let counts =
                |(item, planned): (&Item<'_>, &Planned)| !planned.is_admitted() && !item.is_shed(planned);
            let is_denied = |place: usize| phases.items.get(place).zip(plans.get(place)).is_some_and(counts);
            phases.strike(&mut guards, |place| !is_banned && is_denied(place));
        }
        let bans = phases.bans(&mut guards);
        drop(guards);

        let all = phases.items.iter().zip(&plans).chain(phases.stamp(&stamp));
        let outcomes = all.enumerate().map(|(place, (item, planned))| {
            let Planned { units, plan } = planned;
            let is_charged = is_charged && planned.is_admitted();
            let gauge = if is_charged { plan.after } else { plan.before };
            let made = is_charged.then_some(Receipt { made: now, mark: plan.mark });
            let mut outcome = outcome(item.charge.clone(), plan.admission, gauge, *units, made);
            for (_, rest) in bans.iter().filter(|(of, rest)| *of == place && *rest > 0) {
                outcome = outcome.banning(Duration::from_micros(*rest));
            }
            outcome
        });
        Ok(Decision::new(outcomes).at(now))
    }
}

/// Whether only the counts of the key decide over the charge. Leases do not matter, because this store has
/// none.
fn is_counted_alone(charge: &Charge) -> bool {
    charge.policy().bans().is_none() && !charge.never_denies() && charge.headroom() == 0
}

/// The outcome of `charge`, which was `made` unless it was denied.
// Inlined because a call would copy the charge once more.
#[inline(always)]
fn outcome(charge: Charge, admission: Admission, gauge: Gauge, cost: u64, made: Option<Receipt>) -> Outcome {
    let (verdict, granted) = match admission {
        Admission::After(0) => (Verdict::Admit, cost),
        Admission::After(delay) => (Verdict::Delay(Duration::from_micros(delay)), cost),
        Admission::Retry(wait) => (Verdict::Deny { retry_after: Some(Duration::from_micros(wait)) }, 0),
        Admission::Never => (Verdict::Deny { retry_after: charge.retry_once_grown() }, 0),
    };
    let outcome = Outcome::of(charge, verdict, gauge.remaining, Duration::from_micros(gauge.reset))
        .with_granted(granted);
    match made {
        Some(receipt) => outcome.with_receipt(receipt),
        None => outcome,
    }
}

/// That of a new store. Its counts are in no other process, and end with it.
fn identity() -> Arc<StoreIdentity> {
    StoreIdentity::new(format!("memory {:016x}", random()))
}

impl Store for MemoryStore {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        Answer::ready(match charges {
            [charge] if action == Action::Charge && is_counted_alone(charge) => {
                self.charge_one(charge.clone())
            }
            _ => self.decide_all(action, charges),
        })
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        let location = self.location(policy, key);
        let mut shard = lock(&self.shards[location.shard].0);
        shard.reset(&location, self.clock.micros(), micros(policy.refundable_for()));
        Answer::ready(Ok(()))
    }

    fn backend(&self) -> Option<BackendRef<'_>> {
        Some(BackendRef(self))
    }
}

impl Backend for MemoryStore {
    fn decide_one(&self) -> Option<DecideOne> {
        let store = self.clone();
        Some(Box::new(move |action, charge| match action {
            Action::Charge if is_counted_alone(&charge) => store.charge_one(charge),
            _ => store.decide_all(action, &[charge]),
        }))
    }

    fn known_denial(&self, charges: &[Charge]) -> Option<Decision> {
        let is_denial = |decision: &Decision| decision.is_denied();
        let peeked = self.decide_all(Action::Peek, charges).ok().filter(is_denial)?;
        if peeked.is_banned() || !charges.iter().any(|charge| charge.policy().counts_denials()) {
            return Some(peeked);
        }
        let decided = self.decide_all(Action::Charge, charges).ok()?;
        if !decided.is_denied() {
            // A unit was replenished since the lookup. The caller charges it together with the other charges.
            let granted = |outcome: &Outcome| outcome.refund(outcome.granted());
            let undone: Vec<Charge> = decided.all_outcomes().iter().filter_map(granted).collect();
            let _ = self.decide_all(Action::Refund, &undone);
            return None;
        }
        Some(decided)
    }

    // `known_denial` reads the counts themselves, so it knows every denial.
    fn has_denied(&self, _: &[Charge]) -> bool {
        false
    }

    fn identity(&self) -> &StoreIdentity {
        &self.identity
    }

    fn stored_name(&self, _: &Policy, _: &Key) -> Option<String> {
        None
    }

    fn stored_keys(&self, policies: &[Policy], _: Extent) -> Answer<StoredKeys> {
        let mut keys = Vec::new();
        for shard in &*self.shards {
            let shard = lock(&shard.0);
            for (place, policy) in policies.iter().enumerate() {
                keys.extend(shard.keys(policy).map(|key| (place, key.clone())));
            }
        }
        Answer::ready(Ok(StoredKeys { keys, others: 0, is_complete: true }))
    }

    fn local_counts(&self) -> Option<Arc<LocalCounts<dyn Store>>> {
        None
    }

    fn manual_clock(&self) -> Option<ManualClock> {
        self.clock.manual().cloned()
    }

    fn supports(&self, policy: &Policy) -> Result<(), Error> {
        for cost in [0, 1] {
            let charge = Charge::new(policy, &Key::new("%try-out"), cost);
            if Counting::of(&charge)?.is_custom() {
                // A peek finds a mistake of the twin now, and not only at the first request.
                self.decide_all(Action::Peek, &[charge])
                    .map_err(|error| Error::new(ErrorKind::InvalidConfig, error.to_string()))?;
            }
        }
        Ok(())
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("keys", &self.key_count()).finish_non_exhaustive()
    }
}
