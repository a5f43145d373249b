use std::{
    collections::hash_map::RandomState,
    fmt,
    hash::{BuildHasher, Hasher},
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{
    builder::MemoryStoreBuilder,
    clock::Clock,
    shard::{Apart, Guards, Home, Shard, shards},
};
use crate::{
    algorithm::twin::{Admission, Change, Gauge, Receipt, Twin},
    answer::Answer,
    decision::{Charge, Decision, Outcome, Verdict},
    error::Error,
    key::Key,
    policy::Policy,
    store::{Action, ManualClock, Store},
    util::sync::lock,
};

/// Counts in this process: for a service of one instance, for tests, and for development without a
/// Redis. The same rules and the same results as [`RedisStore`](crate::RedisStore), to the
/// microsecond. Cloning gives another handle on the same counts.
///
/// # Bounded
///
/// It holds at most [`capacity`](MemoryStoreBuilder::capacity) keys: 115 to 150 bytes each with a key of 20 bytes, and
/// more by 32 to 64 for a sliding window or log, 8 for each cell of a sliding window, 32 for each request in a sliding
/// log, and 32 for each unit in use under a concurrency policy. Keys that no longer matter are dropped as new ones
/// come. If all of them matter, a new key evicts one of those that are nearest to their reset. So a client that can
/// invent any number of identities can have some of its own counts forgotten: limit it by something that it cannot
/// invent, too.
///
/// # Time
///
/// A monotonic clock that is set once, when the store is built, so a change of the wall clock changes no
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

impl MemoryStore {
    /// A store with the default settings: for up to 200 000 keys, by a monotonic clock.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A store that takes the time from `clock`: for tests.
    #[must_use]
    pub fn with_clock(clock: ManualClock) -> Self {
        Self::builder().manual_clock(clock).build()
    }

    /// The settings of a new store: its capacity and its clock.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder::new()
    }

    /// How many keys are held now, those included that no longer matter and were not dropped yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(&shard.0).len()).sum()
    }

    /// Whether no key is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
        let now = self.clock.now();
        let taken = shard.update(&home, now, |state| {
            let taken = twin.charge(policy.arguments(), state, now, cost, charge.holder());
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
        let now = self.clock.now();

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

impl MemoryStoreBuilder {
    /// A store with these settings.
    #[must_use]
    pub fn build(self) -> MemoryStore {
        let shards = shards(self.capacity, self.clock.is_none());
        MemoryStore { shards, hasher: RandomState::new(), clock: Clock::new(self.clock) }
    }
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

/// The algorithm's form for this process.
fn twin(policy: &Policy) -> Result<&dyn Twin, Error> {
    policy.counting().twin().ok_or_else(|| {
        Error::invalid(
            "a MemoryStore counts by the built-in algorithms only: use a RedisStore, or another algorithm",
        )
    })
}
