//! The counts of this process: a table in shards, each behind a lock.
//!
//! # Why this table
//!
//! Nanoseconds to find one of 10 000 keys of 20 bytes and change its 16 bytes, by one thread and by each of two, and
//! bytes for each of 200 000 keys with that state; medians of 5 runs on two virtual cores that had other things to do
//! too, so differences of 10 ns mean nothing:
//!
//! | table | 1 thread | 2 threads | bytes |
//! |---|---|---|---|
//! | 16 x `Mutex<IndexMap>`, SipHash for the shard and for the entry | 65 | 135 | 98 |
//! | **128 x `Mutex<IndexMap>`, SipHash once** | 49 | 95 | 98 |
//! | 1024 x `Mutex<IndexMap>`, SipHash once | 50 | 83 | 100 |
//! | 128 x `Mutex<IndexMap>`, foldhash 0.2 once | 26 | 57 | 98 |
//! | 128 x `Mutex<IndexMap>`, ahash 0.8 once | 35 | 58 | 98 |
//! | 128 x `Mutex<hashbrown::HashTable>`, SipHash once | 37 | 85 | 94 |
//! | the same, with `parking_lot::Mutex` | 46 | 98 | 94 |
//! | dashmap 6.2, SipHash | 48 | 93 | 83 |
//! | dashmap 6.2, foldhash | 34 | 60 | 83 |
//! | scc 3.8, SipHash | 51 | 81 | 85 |
//! | papaya 0.2, SipHash, a `Mutex` in each entry | 46 | 126 | 104 |
//! | quick_cache 0.7, SipHash | 78 | 126 | 149 |
//! | moka 0.12, SipHash | 316 | 782 | 328 |
//!
//! No other map is faster by more than that, and none does what is needed besides. A decision over several charges
//! holds the locks of all of them, taken in one order; dashmap, scc and papaya give out one entry at a time. What no
//! longer matters is dropped a few entries at a time, which takes a table whose entries have places: `IndexMap` has
//! them, without gaps. The caches are bounded, but by what was used last; here what matters longest stays.
//!
//! SipHash stays although it costs 10 to 20 ns more, because strangers choose the keys: foldhash promises only a
//! minimum of resistance against keys that are made to collide.

use std::{
    collections::hash_map::RandomState,
    fmt,
    hash::{BuildHasher, Hasher},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use indexmap::{
    IndexMap,
    map::raw_entry_v1::{RawEntryApiV1, RawEntryMut},
};

use super::Store;
use crate::answer::Answer;
use crate::{
    algorithm::{
        state::State,
        twin::{Admission, Change, Gauge, Plan, Receipt, Twin},
    },
    decision::{Charge, Decision, Outcome, Verdict},
    error::Error,
    key::Key,
    policy::Policy,
    store::{Action, ManualClock},
    util::{sync::lock, time::wall_micros},
};

/// Counts in this process: for a service of one instance, for tests, and for development without a
/// Redis. The same rules and the same results as [`RedisStore`](crate::RedisStore), to the
/// microsecond. Cloning gives another handle on the same counts.
///
/// # Bounded
///
/// It holds at most [`capacity`](Self::capacity) keys: 115 to 150 bytes each with a key of 20 bytes, and more by
/// 32 to 64 for a sliding window or log, 8 for each cell of a sliding window, 32 for each request in a sliding
/// log, and 32 for each unit in use of a limit on concurrency.
/// Keys that no longer matter are dropped as new ones come. Where all of them matter, a new key takes the place of one of those
/// that were about to be as good as new: whoever can invent identities without end can so get some of
/// its own forgotten, and needs a limit on something it cannot invent.
///
/// # Time
///
/// A monotonic clock that is set once, when the store is made, so a change of the wall clock changes no
/// decision. [`aligned`](crate::algorithm::FixedWindow::aligned) windows follow the wall clock as it was then.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(MemoryStore::new());
/// let policy = Policy::new("api", Quota::per_hour(1));
///
/// assert!(limiter.check(&policy, &Key::new("alice"), 1).await?.is_allowed());
/// assert!(!limiter.check(&policy, &Key::new("alice"), 1).await?.is_allowed());
/// assert!(limiter.check(&policy, &Key::new("bob"), 1).await?.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    /// As many as a power of two.
    shards: Arc<[Apart<Mutex<Shard>>]>,
    hasher: RandomState,
    clock: Clock,
}

#[derive(Clone)]
enum Clock {
    /// The wall clock at the moment `started`, in microseconds, from which `started.elapsed()` counts on.
    Monotonic {
        started: Instant,
        wall: u64,
    },
    Manual(ManualClock),
}

/// As many keys as a shard holds, as long as there are neither too few shards nor too many. What a shard that
/// grows is locked for grows with it.
const SHARD: usize = 2_048;
const MIN_SHARDS: usize = 16;
const MAX_SHARDS: usize = 1_024;
/// More than the policies of one decision, so that none of them takes another's place.
const MIN_SHARD: usize = 16;
const DEFAULT_CAPACITY: usize = 200_000;
/// How many old entries are looked at for every new one.
const SWEEP: usize = 4;
/// How many entries a new one chooses from when it must take the place of one that still matters.
const CANDIDATES: usize = 8;
/// Below so many entries a shard is not swept: there is nothing to gain.
const UNSWEPT: usize = 8;

/// In cache lines of its own (two, as processors fetch them in pairs), so that a thread in one shard does not
/// slow down a thread in the next.
#[repr(align(128))]
struct Apart<T>(T);

struct Shard {
    /// Found by [`Home::hash`]: it hashes nothing itself.
    entries: IndexMap<Name, Entry, ()>,
    capacity: usize,
    /// Where the next sweep goes on.
    cursor: usize,
    /// Whether state is over when it expires. Under a manual clock it is kept, as it is in Redis, so that the
    /// clock can step back to it.
    expiring: bool,
}

struct Name {
    policy: Policy,
    key: Key,
}

struct Entry {
    /// Always there but while it is changed.
    state: Option<State>,
    /// When the state no longer matters.
    expires: u64,
}

/// Where the state of a key under a policy is kept.
struct Home<'a> {
    shard: usize,
    hash: u64,
    policy: &'a Policy,
    key: &'a Key,
}

impl MemoryStore {
    /// A store for up to 200 000 keys.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shards: shards(DEFAULT_CAPACITY, true),
            hasher: RandomState::new(),
            clock: Clock::Monotonic { started: Instant::now(), wall: wall_micros() },
        }
    }

    /// Holds at most about `keys` keys: rounded up to what 16 to 1024 equal parts hold, at least 256, and fewer by a
    /// percent or so, as the parts do not fill alike. Defaults to 200 000.
    ///
    /// A key is one identity under one policy. What was counted before is forgotten, so set it when
    /// the store is made.
    #[must_use]
    pub fn capacity(mut self, keys: usize) -> Self {
        self.shards = shards(keys, matches!(self.clock, Clock::Monotonic { .. }));
        self
    }

    /// Takes the time from `clock`. Defaults to a monotonic clock.
    #[must_use]
    pub fn manual_clock(mut self, clock: ManualClock) -> Self {
        self.clock = Clock::Manual(clock);
        for shard in &*self.shards {
            lock(&shard.0).expiring = false;
        }
        self
    }

    /// How many keys are held now, those included that no longer matter and were not dropped yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(&shard.0).entries.len()).sum()
    }

    /// Whether no key is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn now(&self) -> u64 {
        match &self.clock {
            Clock::Monotonic { started, wall } => {
                let elapsed = started.elapsed();
                wall + elapsed.as_secs() * 1_000_000 + u64::from(elapsed.subsec_micros())
            }
            Clock::Manual(clock) => clock.micros(),
        }
    }

    fn hash(&self, key: &Key) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        // One text alone, so it needs no mark of where it ends.
        hasher.write(key.as_bytes());
        hasher.finish()
    }

    fn home<'a>(&self, policy: &'a Policy, key: &'a Key) -> Home<'a> {
        let hash = self.hash(key);
        // One shard per identity, so that all policies of one identity are behind one lock. By bits that a
        // shard's own table makes no use of: it takes the lowest and the highest.
        let shard = (hash >> 32) as usize & (self.shards.len() - 1);
        Home { shard, hash: hash ^ policy.tag(), policy, key }
    }

    fn run_one(&self, charge: Charge) -> Result<Decision, Error> {
        let policy = charge.policy();
        let twin = twin(policy)?;
        let cost = charge.bounded_cost();
        let home = self.home(policy, charge.key());
        let mut shard = lock(&self.shards[home.shard].0);
        // Read under the lock, so that what one decision writes the next one does not see as future.
        let now = self.now();
        let taken = shard.update(&home, now, |state| {
            let taken = twin.take(policy.arguments(), state, now, cost, charge.holder());
            (taken, taken.lifetime)
        });
        drop(shard);
        let mut outcome = outcome(charge, taken.admission, taken.gauge, cost);
        if outcome.is_allowed() {
            outcome = outcome.with_receipt(Receipt { made: now, mark: taken.mark });
        }
        Ok(Decision::of_one(outcome))
    }

    fn run(&self, action: Action, charges: &[Charge]) -> Result<Decision, Error> {
        let twins: Vec<&dyn Twin> =
            charges.iter().map(|charge| twin(charge.policy())).collect::<Result<_, _>>()?;
        let homes: Vec<Home<'_>> =
            charges.iter().map(|charge| self.home(charge.policy(), charge.key())).collect();
        let mut guards = Guards::lock(&self.shards, &homes);
        // Read under the locks, as in `run_one`.
        let now = self.now();

        let change = |charge: &Charge| match action {
            Action::Refund => Some(Change::Refund(charge.cost(), charge.holder())),
            Action::Renew => Some(Change::Renew(charge.holder())),
            Action::Charge | Action::ChargeUpTo | Action::Peek => None,
        };
        let places = || charges.iter().zip(&homes).zip(&twins);
        for ((charge, home), twin) in places().filter(|((charge, _), _)| charge.cost() > 0) {
            let shard = guards.shard(home);
            match (charge.refund_of(), change(charge)) {
                (Some(receipt), Some(Change::Refund(units, _))) => {
                    let refund = |state: &mut _| {
                        ((), twin.refund(home.policy.arguments(), state, now, units, receipt))
                    };
                    shard.update(home, now, refund);
                }
                (_, Some(change)) => shard.change(home, *twin, now, change),
                (_, None) => {}
            }
        }
        let mut plans = Vec::with_capacity(charges.len());
        for ((charge, home), twin) in places() {
            let shard = guards.shard(home);
            let mut cost = if change(charge).is_some() { 0 } else { charge.bounded_cost() };
            let mut plan = shard.plan(home, *twin, now, cost);
            if action == Action::ChargeUpTo && !plan.admission.is_admitted() {
                // What there is, or if there is nothing, when there will be something.
                cost = plan.before.remaining.max(1);
                plan = shard.plan(home, *twin, now, cost);
            }
            plans.push((cost, plan));
        }

        let admitted = plans.iter().all(|(_, plan)| plan.admission.is_admitted());
        let takes = matches!(action, Action::Charge | Action::ChargeUpTo);
        if takes {
            for (((charge, home), twin), (cost, plan)) in places().zip(&plans) {
                if *cost > 0 && admitted {
                    guards.shard(home).change(home, *twin, now, Change::Charge(*cost, charge.holder()));
                } else if *cost > 0 && plan.stale {
                    guards.shard(home).change(home, *twin, now, Change::Repair);
                }
            }
        }
        drop(guards);
        Ok(Decision::new(charges.iter().zip(&plans).map(|(charge, (cost, plan))| {
            let charged = admitted && takes;
            let gauge = if charged { plan.after } else { plan.before };
            let outcome = outcome(charge.clone(), plan.admission, gauge, *cost);
            if charged { outcome.with_receipt(Receipt { made: now, mark: plan.mark }) } else { outcome }
        })))
    }
}

fn outcome(charge: Charge, admission: Admission, gauge: Gauge, cost: u64) -> Outcome {
    let (verdict, granted) = match admission {
        Admission::After(0) => (Verdict::Allow, cost),
        Admission::After(delay) => (Verdict::Delay(Duration::from_micros(delay)), cost),
        Admission::Retry(wait) => (Verdict::Deny { retry_after: Some(Duration::from_micros(wait)) }, 0),
        Admission::Never => (Verdict::Deny { retry_after: None }, 0),
    };
    Outcome::of(charge, verdict, gauge.remaining, Duration::from_micros(gauge.reset)).granting(granted)
}

impl Store for MemoryStore {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        Answer::ready(match charges {
            [charge] if action == Action::Charge => self.run_one(charge.clone()),
            _ => self.run(action, charges),
        })
    }

    fn decide_one(&self, action: Action, charge: Charge) -> Answer<Decision> {
        Answer::ready(match action {
            Action::Charge => self.run_one(charge),
            _ => self.run(action, &[charge]),
        })
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        let home = self.home(policy, key);
        lock(&self.shards[home.shard].0).remove(&home);
        Answer::ready(Ok(()))
    }

    fn accept(&self, policy: &Policy) -> Result<(), Error> {
        twin(policy).map(|_| ())
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("keys", &self.len()).finish_non_exhaustive()
    }
}

impl Shard {
    /// Whether the entry no longer matters. Its state would say so too, unless the quota became slower
    /// since; then Redis has forgotten it as well.
    fn is_over(&self, entry: &Entry, now: u64) -> bool {
        self.expiring && entry.expires <= now
    }

    fn plan(&self, home: &Home<'_>, twin: &dyn Twin, now: u64, cost: u64) -> Plan {
        let found = self.entries.raw_entry_v1().from_hash(home.hash, |name| home.is(name));
        let entry = found.map(|(_, entry)| entry).filter(|entry| !self.is_over(entry, now));
        twin.plan(home.policy.arguments(), entry.and_then(|entry| entry.state.as_ref()), now, cost)
    }

    fn change(&mut self, home: &Home<'_>, twin: &dyn Twin, now: u64, change: Change) {
        let arguments = home.policy.arguments();
        self.update(home, now, |state| ((), Some(twin.change(arguments, state, now, change))));
    }

    /// Lets `update` read and change the state, in one look at the table where there is an entry. It says for
    /// how much longer the state matters, where it changed it.
    fn update<T>(
        &mut self,
        home: &Home<'_>,
        now: u64,
        update: impl FnOnce(&mut Option<State>) -> (T, Option<u64>),
    ) -> T {
        match self.entries.raw_entry_mut_v1().from_hash(home.hash, |name| home.is(name)) {
            RawEntryMut::Occupied(mut occupied) => {
                let entry = occupied.get_mut();
                if self.expiring && entry.expires <= now {
                    entry.state = None;
                }
                let (said, lifetime) = update(&mut entry.state);
                if let Some(lifetime) = lifetime {
                    entry.expires = now.saturating_add(lifetime);
                }
                if entry.state.is_none() {
                    occupied.swap_remove();
                }
                said
            }
            RawEntryMut::Vacant(_) => {
                let mut state = None;
                let (said, lifetime) = update(&mut state);
                if let (Some(lifetime), Some(_)) = (lifetime, &state) {
                    self.make_room(now);
                    self.insert(home, Entry { state, expires: now.saturating_add(lifetime) });
                }
                said
            }
        }
    }

    fn remove(&mut self, home: &Home<'_>) {
        if let RawEntryMut::Occupied(entry) =
            self.entries.raw_entry_mut_v1().from_hash(home.hash, |name| home.is(name))
        {
            entry.swap_remove();
        }
    }

    fn insert(&mut self, home: &Home<'_>, entry: Entry) {
        if let RawEntryMut::Vacant(place) =
            self.entries.raw_entry_mut_v1().from_hash(home.hash, |name| home.is(name))
        {
            let name = Name { policy: home.policy.clone(), key: home.key.clone() };
            place.insert_hashed_nocheck(home.hash, name, entry);
        }
    }

    /// Drops a few entries that no longer matter; where the shard is full of entries that do, the one
    /// of a few that will be as good as new first.
    fn make_room(&mut self, now: u64) {
        if self.entries.len() >= UNSWEPT {
            for _ in 0..SWEEP {
                self.advance();
                if self.entries.get_index(self.cursor).is_some_and(|(_, entry)| entry.expires <= now) {
                    // Another entry takes its place, so the cursor stays.
                    self.entries.swap_remove_index(self.cursor);
                    self.cursor = self.cursor.wrapping_sub(1);
                }
            }
        }
        while self.entries.len() >= self.capacity {
            let mut chosen = (u64::MAX, 0);
            for _ in 0..CANDIDATES {
                self.advance();
                if let Some((_, entry)) = self.entries.get_index(self.cursor) {
                    chosen = chosen.min((entry.expires, self.cursor));
                }
            }
            self.entries.swap_remove_index(chosen.1);
        }
    }

    fn advance(&mut self) {
        self.cursor = self.cursor.wrapping_add(1);
        if self.cursor >= self.entries.len() {
            self.cursor = 0;
        }
    }
}

fn shards(capacity: usize, expiring: bool) -> Arc<[Apart<Mutex<Shard>>]> {
    // Clamped first: there is no power of two above the largest capacities.
    let shards = (capacity / SHARD).clamp(MIN_SHARDS, MAX_SHARDS).next_power_of_two();
    let capacity = capacity.div_ceil(shards).max(MIN_SHARD);
    let shard = || Shard { entries: IndexMap::with_hasher(()), capacity, cursor: 0, expiring };
    (0..shards).map(|_| Apart(Mutex::new(shard()))).collect()
}

/// The locks of one decision, taken in ascending order so that no two decisions wait for each other.
struct Guards<'a>(Vec<(usize, MutexGuard<'a, Shard>)>);

impl<'a> Guards<'a> {
    fn lock(shards: &'a [Apart<Mutex<Shard>>], homes: &[Home<'_>]) -> Self {
        let mut order: Vec<usize> = homes.iter().map(|home| home.shard).collect();
        order.sort_unstable();
        order.dedup();
        Self(order.into_iter().map(|shard| (shard, lock(&shards[shard].0))).collect())
    }

    fn shard(&mut self, home: &Home<'_>) -> &mut Shard {
        match self.0.iter_mut().find(|(shard, _)| *shard == home.shard) {
            Some((_, shard)) => shard,
            None => unreachable!("every charge's shard is locked before the first is read"),
        }
    }
}

/// The algorithm's form for this process.
fn twin(policy: &Policy) -> Result<&dyn Twin, Error> {
    policy.counting().twin().ok_or_else(|| {
        Error::invalid(
            "a MemoryStore counts by the built-in algorithms only: use a RedisStore, or another algorithm",
        )
    })
}

impl Home<'_> {
    fn is(&self, name: &Name) -> bool {
        *self.key == name.key && self.policy.shares_counts_with(&name.policy)
    }
}
