use std::{
    collections::hash_map::RandomState,
    fmt,
    hash::{BuildHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use indexmap::{Equivalent, IndexMap};

use super::{Answer, Store};
use crate::{
    Action, Charge, Decision, Error, Key, ManualClock, Outcome, Policy, Verdict,
    algorithm::rules::{Admission, Change, Kept, Plan, State, Twin},
    clock::wall_micros,
};

/// Counts in this process: for a service of one instance, for tests, and for development without a
/// Redis. The same rules and the same results as [`RedisStore`](crate::RedisStore), to the
/// microsecond. Cloning gives another handle on the same counts.
///
/// # Bounded
///
/// It holds at most [`capacity`](Self::capacity) keys: about 150 bytes each, and more by 8 for each cell of a
/// sliding window, 32 for each request in a sliding log, and 32 for each unit in use of a limit on concurrency.
/// Keys that no longer matter
/// are dropped as new ones come. Where all of them matter, a new key takes the place of one of those
/// that were about to be as good as new: whoever can invent identities without end can so get some of
/// its own forgotten, and needs a limit on something it cannot invent.
///
/// # Time
///
/// A monotonic clock that is set once, when the store is made, so a change of the wall clock changes no
/// decision. [`aligned`](crate::FixedWindow::aligned) windows follow the wall clock as it was then.
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
    shards: Arc<[Mutex<Shard>]>,
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

const SHARDS: usize = 16;
/// More than the policies of one decision, so that none of them takes another's place.
const MIN_SHARD: usize = 16;
const DEFAULT_CAPACITY: usize = 200_000;
/// How many old entries are looked at for every new one.
const SWEEP: usize = 4;
/// How many entries a new one chooses from when it must take the place of one that still matters.
const CANDIDATES: usize = 8;
/// Below so many entries a shard is not swept: there is nothing to gain.
const UNSWEPT: usize = 64;

struct Shard {
    entries: IndexMap<EntryKey, Entry, RandomState>,
    capacity: usize,
    /// Where the next sweep goes on.
    cursor: usize,
    /// Whether state is over when it expires. Under a manual clock it is kept, as it is in Redis, so that the
    /// clock can step back to it.
    expiring: bool,
}

struct EntryKey {
    policy: Policy,
    key: Key,
}

struct Entry {
    /// Taken out while it is changed.
    state: Option<State>,
    /// When the state no longer matters.
    expires: u64,
}

/// An [`EntryKey`] that owns nothing, to look up with.
#[derive(Clone, Copy, Hash)]
struct Lookup<'a> {
    policy: &'a str,
    algorithm: &'a str,
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

    /// Holds at most about `keys` keys (a multiple of 16, at least 256). Defaults to 200 000.
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
            lock(shard).expiring = false;
        }
        self
    }

    /// How many keys are held now, those included that no longer matter and were not dropped yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).entries.len()).sum()
    }

    /// Whether no key is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn now(&self) -> u64 {
        match &self.clock {
            Clock::Monotonic { started, wall } => {
                wall + u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX / 2)
            }
            Clock::Manual(clock) => clock.micros(),
        }
    }

    /// One shard per identity, so that all policies of one identity are behind one lock.
    fn shard_of(&self, key: &Key) -> usize {
        self.hasher.hash_one(key) as usize % SHARDS
    }

    fn run(&self, action: Action, charges: &[Charge]) -> Result<Decision, Error> {
        for charge in charges {
            self.accept(&charge.policy)?;
        }
        let homes: Vec<usize> = charges.iter().map(|charge| self.shard_of(&charge.key)).collect();
        let mut guards = Guards::lock(&self.shards, &homes);
        // Read under the locks, so that what one decision writes the next one does not see as future.
        let now = self.now();

        let change = |charge: &Charge| match action {
            Action::Refund => Some(Change::Refund(charge.cost, charge.holder())),
            Action::Renew => Some(Change::Renew(charge.holder())),
            Action::Take | Action::TakeUpTo | Action::Peek => None,
        };
        for (charge, home) in charges.iter().zip(&homes).filter(|(charge, _)| charge.cost > 0) {
            if let Some(change) = change(charge) {
                guards.shard(*home).change(charge, now, change);
            }
        }
        let mut plans = Vec::with_capacity(charges.len());
        for (charge, home) in charges.iter().zip(&homes) {
            let shard = guards.shard(*home);
            let mut cost = if change(charge).is_some() { 0 } else { charge.bounded_cost() };
            let mut plan = shard.plan(charge, now, cost);
            if action == Action::TakeUpTo && !plan.admission.is_admitted() {
                // What there is, or if there is nothing, when there will be something.
                cost = plan.before.remaining.max(1);
                plan = shard.plan(charge, now, cost);
            }
            plans.push((cost, plan));
        }

        let admitted = plans.iter().all(|(_, plan)| plan.admission.is_admitted());
        let takes = matches!(action, Action::Take | Action::TakeUpTo);
        if takes {
            for ((charge, home), (cost, plan)) in charges.iter().zip(&homes).zip(&plans) {
                if *cost > 0 && admitted {
                    guards.shard(*home).change(charge, now, Change::Charge(*cost, charge.holder()));
                } else if *cost > 0 && plan.stale {
                    guards.shard(*home).change(charge, now, Change::Repair);
                }
            }
        }
        Ok(Decision::new(charges.iter().zip(&plans).map(|(charge, (cost, plan))| {
            let gauge = if admitted && takes { plan.after } else { plan.before };
            let (verdict, granted) = match plan.admission {
                Admission::After(0) => (Verdict::Allow, *cost),
                Admission::After(delay) => (Verdict::Delay(Duration::from_micros(delay)), *cost),
                Admission::Retry(wait) => {
                    (Verdict::Deny { retry_after: Some(Duration::from_micros(wait)) }, 0)
                }
                Admission::Never => (Verdict::Deny { retry_after: None }, 0),
            };
            let reset = Duration::from_micros(gauge.reset);
            Outcome::new(charge, verdict, gauge.remaining, reset).granting(granted)
        })))
    }
}

impl Store for MemoryStore {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        Answer::ready(self.run(action, charges))
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        lock(&self.shards[self.shard_of(key)]).entries.swap_remove(&lookup(policy, key));
        Answer::ready(Ok(()))
    }

    fn accept(&self, policy: &Policy) -> Result<(), Error> {
        match policy.counting().twin() {
            Some(_) => Ok(()),
            None => Err(Error::invalid(
                "a MemoryStore counts by the built-in algorithms only: use a RedisStore, or another algorithm",
            )),
        }
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

    fn plan(&self, charge: &Charge, now: u64, cost: u64) -> Plan {
        let entry = self.entries.get(&lookup(&charge.policy, &charge.key));
        let state = entry.filter(|entry| !self.is_over(entry, now)).and_then(|entry| entry.state.as_ref());
        twin(&charge.policy).plan(charge.policy.arguments(), state, now, cost)
    }

    fn change(&mut self, charge: &Charge, now: u64, change: Change) {
        let (policy, key) = (&charge.policy, &charge.key);
        let apply = |state| twin(policy).apply(policy.arguments(), state, now, change);
        let entry_of =
            |kept: Kept| Entry { state: Some(kept.state), expires: now.saturating_add(kept.lifetime) };
        let expiring = self.expiring;
        match self.entries.get_mut(&lookup(policy, key)) {
            Some(entry) => match apply(entry.state.take().filter(|_| !(expiring && entry.expires <= now))) {
                Some(kept) => *entry = entry_of(kept),
                None => drop(self.entries.swap_remove(&lookup(policy, key))),
            },
            None => {
                if let Some(kept) = apply(None) {
                    self.make_room(now);
                    self.entries
                        .insert(EntryKey { policy: policy.clone(), key: key.clone() }, entry_of(kept));
                }
            }
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

fn shards(capacity: usize, expiring: bool) -> Arc<[Mutex<Shard>]> {
    let capacity = capacity.div_ceil(SHARDS).max(MIN_SHARD);
    (0..SHARDS)
        .map(|_| Mutex::new(Shard { entries: IndexMap::default(), capacity, cursor: 0, expiring }))
        .collect()
}

/// A panic under a lock leaves whole entries behind, so the lock is taken all the same.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The locks of one decision, taken in ascending order so that no two decisions wait for each other.
struct Guards<'a>(Vec<(usize, MutexGuard<'a, Shard>)>);

impl<'a> Guards<'a> {
    fn lock(shards: &'a [Mutex<Shard>], homes: &[usize]) -> Self {
        let mut order = homes.to_vec();
        order.sort_unstable();
        order.dedup();
        Self(order.into_iter().map(|home| (home, lock(&shards[home]))).collect())
    }

    fn shard(&mut self, home: usize) -> &mut Shard {
        match self.0.iter_mut().find(|(index, _)| *index == home) {
            Some((_, shard)) => shard,
            None => unreachable!("every charge's shard is locked before the first is read"),
        }
    }
}

fn lookup<'a>(policy: &'a Policy, key: &'a Key) -> Lookup<'a> {
    Lookup { policy: policy.name(), algorithm: policy.counting().name(), key }
}

fn twin(policy: &Policy) -> &dyn Twin {
    match policy.counting().twin() {
        Some(twin) => twin,
        None => unreachable!("`accept` refuses a policy whose algorithm has no twin"),
    }
}

impl EntryKey {
    fn lookup(&self) -> Lookup<'_> {
        lookup(&self.policy, &self.key)
    }
}

impl Hash for EntryKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.lookup().hash(state);
    }
}

impl PartialEq for EntryKey {
    fn eq(&self, other: &Self) -> bool {
        other.lookup().equivalent(self)
    }
}

impl Eq for EntryKey {}

impl Equivalent<EntryKey> for Lookup<'_> {
    fn equivalent(&self, entry: &EntryKey) -> bool {
        *self.key == entry.key
            && self.policy == entry.policy.name()
            && self.algorithm == entry.policy.counting().name()
    }
}
