//! Leases: a hot key gets units in one script call and spends them in this process.
//!
//! Redis charges a lease, or keeps its room free, before any of its units is spent and until the lease ends; see
//! `lua/decide.lua`. So the limit holds as long as each unit is spent once, and before the end. The end is counted from
//! before the request was sent, by the remaining time that Redis returned, so a lease ends here no later than in Redis.
//! Everything else, such as the size of a lease and when to return it, only affects efficiency.
//!
//! A lease is removed from the table before it is returned, and the return names it: Redis ignores the return of a
//! lease that has ended. A lease that was removed before a reset is not returned, because a window could not tell it
//! from an older one. A report is sent again only if it was certainly not sent. A report that fails is dropped, and the
//! end of the lease settles it.

use std::{
    collections::{HashMap, HashSet, hash_map},
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::{Handle, Id},
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    clock::Clock,
    deny_cache::{DenyCache, DenyObserver},
    lease::{Entry, Lease, LeaseStatus, ResetCount, Returned},
};
use crate::{
    base::{Error, random::hasher, sync::lock, time::micros},
    decision::{Charge, Decision, DecisionSource, Outcome, Verdict},
    key::Key,
    policy::Policy,
    store::{
        Action, ManualClock,
        redis::{
            script::Script,
            transport::Link,
            wire::{Job, KeyNames, LeaseRequest, LeaseReturn, Leased, Observer, Reply},
        },
    },
};

pub(crate) struct Leases {
    shards: Box<[Mutex<HashMap<u64, Entry>>]>,
    /// How often a key with this hash was reset. Leases that are being fetched or returned meanwhile are void.
    resets: Box<[AtomicU32]>,
    hasher: RandomState,
    clock: Clock,
    link: Arc<dyn Link>,
    names: KeyNames,
    deny_cache: Option<Arc<DenyCache>>,
    /// The runtimes in which a task returns unused leases. One of them may not be driven.
    sweeping: Mutex<HashSet<Id>>,
    /// The number of script calls in the background.
    in_flight: watch::Sender<usize>,
    #[cfg(feature = "metrics")]
    leased: crate::metrics::record::Leased,
}

/// Updates the leases with the result of a job that leases or returns units.
pub(crate) struct LeaseObserver {
    leases: Arc<Leases>,
    returned: Returned,
    fetch: Option<Fetch>,
}

/// A lease that is being fetched.
struct Fetch {
    policy: Policy,
    key: Key,
    requested_at: u64,
    set_back: u64,
    sent: AtomicBool,
    completed: AtomicBool,
    /// The reset count when the request was sent.
    resets: AtomicU32,
}

const SHARDS: usize = 64;
/// If keys share a counter, a reset of one voids at most one lease of another, and only one that is being fetched or
/// returned.
const RESET_COUNTERS: u32 = 1024;
/// The most keys in a shard. Other keys are decided by Redis, as if they were not leased.
const MAX_KEYS_PER_SHARD: usize = 64;
/// Microseconds between two requests to Redis for one key. Below the first, the next lease is larger; above the second,
/// smaller. Returning the leases of colder keys would cost more than they save.
const HOT_INTERVAL: u64 = 10_000;
const COLD_INTERVAL: u64 = 50_000;
/// A smaller lease saves little over charging its units one by one.
const MIN_LEASE: u64 = 8;
/// Microseconds. A lease is returned when nothing was spent from it for the first, or when it is older than the second.
const MAX_IDLE: u64 = 250_000;
const MAX_AGE: u64 = 1_000_000;
/// The longest life of a lease in microseconds. It is short, so differences in clock speed do not matter.
const MAX_LEASE_TIME: u64 = 2_000_000;
/// Between two searches for leases to return.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
/// A lease that ends within this many microseconds is returned while that is possible.
const RETURN_MARGIN: u64 = 150_000;
/// The deadline of a return.
const RETURN_DEADLINE: Duration = Duration::from_millis(500);

impl Leases {
    pub(crate) fn new(
        link: Arc<dyn Link>,
        names: KeyNames,
        clock: Option<ManualClock>,
        deny_cache: Option<Arc<DenyCache>>,
    ) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            resets: (0..RESET_COUNTERS).map(|_| AtomicU32::default()).collect(),
            hasher: hasher(),
            // Counts suspension: units that are spent after the lease's end would be spent twice.
            clock: Clock::including_suspension(clock),
            link,
            names,
            deny_cache,
            sweeping: Mutex::default(),
            in_flight: watch::Sender::new(0),
            #[cfg(feature = "metrics")]
            leased: crate::metrics::record::Leased::default(),
        }
    }

    /// Spends the units of `charge` from a lease, if it has enough. Also returns whether more should be fetched.
    pub(crate) fn spend(&self, charge: &Charge) -> Option<(Decision, bool)> {
        let (remaining, reset, is_low, receipt) = {
            let (hash, mut shard) = self.shard(charge.policy(), charge.key());
            let entry = shard.get_mut(&hash).filter(|entry| entry.is_of(charge))?;
            let lease = entry.lease.as_mut()?;
            // Read under the lock, so it is not before the start of the lease.
            let now = self.clock.micros();
            if !lease.is_active(now, self.clock.times_set_back()) {
                return None;
            }
            lease.left = lease.left.checked_sub(charge.cost())?;
            lease.spent += charge.cost();
            lease.last_spent = now;
            let is_low = lease.left < lease.refill_below && !entry.fetching;
            // More if Redis lost its data since the units were leased.
            let remaining = lease.remaining.saturating_add(lease.left).min(charge.policy().capacity());
            (remaining, lease.reset.saturating_sub(now - lease.requested_at), is_low, lease.receipt)
        };
        let outcome = Outcome::new(charge, Verdict::Allow, remaining, Duration::from_micros(reset));
        let outcome = outcome.granting(charge.cost()).with_lease_receipt(receipt);
        Some((Decision::of_one(outcome).made_by(DecisionSource::Lease), is_low))
    }

    /// What to lease in addition to the cost of `charge`: `None` for a key that is not hot, or whose lease is being
    /// fetched. `ahead` is whether enough units are left for now.
    pub(crate) fn fetch(
        self: &Arc<Self>,
        charge: &Charge,
        ahead: bool,
    ) -> Option<(LeaseRequest, LeaseObserver)> {
        let (set_back, requested_at) = (self.clock.times_set_back(), self.clock.micros());
        let max_leased = charge.policy().most_leased();
        let (hash, mut shard) = self.shard(charge.policy(), charge.key());
        let entry = entry(&mut shard, hash, charge)?;
        if entry.fetching {
            return None;
        }
        match entry.last_request.replace(requested_at).map(|before| requested_at.saturating_sub(before)) {
            Some(since) if since < HOT_INTERVAL => {
                entry.target = (entry.target * 2).clamp(MIN_LEASE.min(max_leased), max_leased);
            }
            Some(since) if since > COLD_INTERVAL => entry.target /= 2,
            _ => {}
        }
        let resets = self.resets(hash);
        let (returned, left) = match &mut entry.lease {
            Some(lease) if ahead => {
                let spent = LeaseReturn { name: lease.name, units: lease.spent, spent: lease.spent };
                lease.spent = 0;
                (Returned { lease: spent, resets }, lease.left)
            }
            lease => {
                let nothing = Returned { resets, ..Returned::default() };
                (lease.take().map_or(nothing, |lease| lease.returned(resets)), 0)
            }
        };
        let wanted = entry.target.min(max_leased).saturating_sub(left);
        if wanted == 0 && returned.lease.units == 0 {
            return None;
        }
        entry.fetching = true;
        drop(shard);
        let fetch = Fetch {
            policy: charge.policy().clone(),
            key: charge.key().clone(),
            requested_at,
            set_back,
            sent: AtomicBool::new(false),
            completed: AtomicBool::new(false),
            resets: AtomicU32::new(resets.count),
        };
        let observer = LeaseObserver { leases: self.clone(), returned, fetch: Some(fetch) };
        Some((LeaseRequest { wanted, returned: returned.lease }, observer))
    }

    /// Stores the result of a fetch, if there is one.
    fn complete_fetch(self: &Arc<Self>, fetch: &Fetch, granted: Option<(Leased, &Outcome)>) {
        let replaced = {
            let (hash, mut shard) = self.shard(&fetch.policy, &fetch.key);
            // An entry is not evicted during a fetch.
            let Some(entry) = shard.get_mut(&hash) else { return };
            entry.fetching = false;
            let resets = self.resets(hash);
            let reset = fetch.resets.load(Ordering::Acquire) != resets.count;
            let now = self.clock.micros();
            match granted {
                // After a reset, earlier charges no longer exist.
                Some((granted, outcome)) if granted.units > 0 && !reset => {
                    // This clock may be slower than that of Redis by 0.1 %, and the lease still ends in time.
                    let lifetime = granted.lifetime.min(MAX_LEASE_TIME);
                    let ends_at = fetch.requested_at.saturating_add(lifetime - lifetime.div_ceil(1_000));
                    let previous = entry.lease.take();
                    let (same, replaced) = match previous {
                        Some(previous) if previous.name == granted.name => (Some(previous), None),
                        previous => (None, previous),
                    };
                    // It is unknown which of the units are spent, so the earliest receipt counts.
                    let receipt = same.as_ref().map_or(granted.receipt, |lease| lease.receipt);
                    let (left, spent) = same.map_or((0, 0), |lease| (lease.left, lease.spent));
                    let left = left.saturating_add(granted.units);
                    entry.lease = Some(Lease {
                        name: granted.name,
                        left,
                        spent,
                        refill_below: left / 2,
                        requested_at: fetch.requested_at,
                        set_back: fetch.set_back,
                        ends_at,
                        last_spent: now,
                        remaining: outcome.remaining().saturating_sub(granted.units),
                        reset: micros(outcome.reset_after()),
                        receipt,
                    });
                    replaced.map(|lease| lease.returned(resets))
                }
                _ => {
                    // The limit has few units left, so do not fetch ahead again.
                    if let Some(lease) = &mut entry.lease {
                        lease.refill_below = 0;
                    }
                    return;
                }
            }
        };
        if let Some(replaced) = replaced {
            self.spawn_return(&fetch.policy, &fetch.key, replaced);
        }
        self.start_sweeping();
    }

    /// Drops the lease of a key that is being reset.
    pub(crate) fn forget(&self, policy: &Policy, key: &Key) {
        let (hash, mut shard) = self.shard(policy, key);
        self.resets[(hash as u32 % RESET_COUNTERS) as usize].fetch_add(1, Ordering::AcqRel);
        if let Some(entry) = shard.get_mut(&hash) {
            entry.lease = None;
        }
    }

    /// Removes the lease of a key. Returns the job that returns it to Redis.
    pub(crate) fn remove(self: &Arc<Self>, policy: &Policy, key: &Key) -> Option<Job> {
        let (hash, mut shard) = self.shard(policy, key);
        let entry = shard.get_mut(&hash)?;
        let (lease, policy, key) = (entry.lease.take()?, entry.policy.clone(), entry.key.clone());
        let returned = lease.returned(self.resets(hash));
        drop(shard);
        self.return_job(&policy, &key, returned)
    }

    /// Removes all leases. Returns the jobs that return them to Redis.
    pub(crate) fn remove_all(self: &Arc<Self>) -> Vec<Job> {
        let mut removed = Vec::new();
        for shard in &self.shards {
            for (hash, entry) in lock(shard).iter_mut() {
                if let Some(lease) = entry.lease.take() {
                    let returned = lease.returned(self.resets(*hash));
                    removed.push((entry.policy.clone(), entry.key.clone(), returned));
                }
            }
        }
        self.report();
        removed.iter().filter_map(|(policy, key, returned)| self.return_job(policy, key, *returned)).collect()
    }

    fn spawn_return(self: &Arc<Self>, policy: &Policy, key: &Key, returned: Returned) {
        // Outside a runtime it is not sent, and the end of the lease settles it.
        if let (Some(job), Ok(runtime)) = (self.return_job(policy, key, returned), Handle::try_current()) {
            self.spawn(job, &runtime);
        }
    }

    /// Sends a job in the background.
    pub(crate) fn spawn(&self, job: Job, runtime: &Handle) -> JoinHandle<Result<(), Error>> {
        let guard = InFlight::new(&self.in_flight);
        let decide = self.link.clone().decide(job);
        runtime.spawn(async move {
            let _guard = guard;
            decide.await.map(|_| ())
        })
    }

    /// Waits until no job of [`spawn`](Self::spawn) is in flight, for half a second at most: under traffic there may
    /// always be one.
    pub(crate) async fn wait_until_idle(&self) {
        let mut in_flight = self.in_flight.subscribe();
        // The sender exists, so the wait itself cannot fail.
        let _ = timeout(RETURN_DEADLINE, in_flight.wait_for(|calls| *calls == 0)).await;
    }

    fn return_job(self: &Arc<Self>, policy: &Policy, key: &Key, returned: Returned) -> Option<Job> {
        if returned.lease.units == 0 {
            return None;
        }
        let observer = LeaseObserver { leases: self.clone(), returned, fetch: None };
        let frees_units = observer.frees_units();
        let cache = self.deny_cache.as_ref();
        let denial_observer =
            cache.map(|cache| DenyObserver::new(cache, cache.stamp(), Action::Refund, frees_units));
        Some(Job {
            action: Action::Refund,
            companions: Vec::new(),
            charges: vec![Charge::new(policy, key, 0)],
            names: self.names.clone(),
            time: self.clock.manual_micros(),
            script: Script::built_in().clone(),
            deadline: RETURN_DEADLINE,
            lease: Some(LeaseRequest { wanted: 0, returned: returned.lease }),
            observer: Some(Box::new((Some(observer), denial_observer))),
        })
    }

    fn start_sweeping(self: &Arc<Self>) {
        if let Ok(runtime) = Handle::try_current()
            && lock(&self.sweeping).insert(runtime.id())
        {
            runtime.spawn(sweep(Sweeper(Arc::downgrade(self), runtime.id())));
        }
    }

    /// Returns unused leases. The result is whether any lease remains.
    fn sweep(self: &Arc<Self>) -> bool {
        let mut any_left = false;
        let mut unused = Vec::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            let now = self.clock.micros();
            for (hash, entry) in shard.iter_mut() {
                let Some(lease) = &entry.lease else { continue };
                if !lease.is_active(now, self.clock.times_set_back())
                    || now.saturating_sub(lease.last_spent) >= MAX_IDLE
                    || now - lease.requested_at >= MAX_AGE
                    || lease.ends_at - now <= RETURN_MARGIN && !entry.fetching
                {
                    // The lease was too large.
                    entry.target /= 2;
                    let returned = lease.returned(self.resets(*hash));
                    entry.lease = None;
                    unused.push((entry.policy.clone(), entry.key.clone(), returned));
                } else {
                    any_left = true;
                }
            }
        }
        self.report();
        for (policy, key, returned) in unused {
            self.spawn_return(&policy, &key, returned);
        }
        any_left
    }

    /// Sets the gauges of leases, if there are any.
    fn report(&self) {
        #[cfg(feature = "metrics")]
        {
            let status = self.status();
            self.leased.set(status.keys, status.units);
        }
    }

    fn has_leases(&self) -> bool {
        self.shards.iter().any(|shard| lock(shard).values().any(|entry| entry.lease.is_some()))
    }

    pub(crate) fn status(&self) -> LeaseStatus {
        let mut status = LeaseStatus { keys: 0, units: 0, calls: *self.in_flight.borrow() };
        for shard in &self.shards {
            for lease in lock(shard).values().filter_map(|entry| entry.lease.as_ref()) {
                status.keys += 1;
                status.units += lease.left;
            }
        }
        status
    }

    fn resets(&self, hash: u64) -> ResetCount {
        let cell = hash as u32 % RESET_COUNTERS;
        ResetCount { cell, count: self.reset_count(cell) }
    }

    fn reset_count(&self, cell: u32) -> u32 {
        self.resets[cell as usize].load(Ordering::Acquire)
    }

    fn shard(&self, policy: &Policy, key: &Key) -> (u64, MutexGuard<'_, HashMap<u64, Entry>>) {
        let hash = self.hasher.hash_one((policy.tag(), key));
        (hash, lock(&self.shards[hash as usize % SHARDS]))
    }
}

/// The entry of `charge`. Creates it if there is room.
fn entry<'a>(shard: &'a mut HashMap<u64, Entry>, hash: u64, charge: &Charge) -> Option<&'a mut Entry> {
    if shard.len() >= MAX_KEYS_PER_SHARD && !shard.contains_key(&hash) {
        // The coldest of a few. Checking all would cost cold keys more than leases save for hot keys.
        let idle = shard.iter().filter(|(_, entry)| entry.is_idle()).take(4);
        let idle = *idle.min_by_key(|(_, entry)| entry.last_request)?.0;
        shard.remove(&idle);
    }
    let new = || Entry {
        policy: charge.policy().clone(),
        key: charge.key().clone(),
        lease: None,
        target: 0,
        last_request: None,
        fetching: false,
    };
    match shard.entry(hash) {
        hash_map::Entry::Vacant(place) => Some(place.insert(new())),
        hash_map::Entry::Occupied(place) => {
            let entry = place.into_mut();
            if !entry.is_of(charge) {
                // The entry is of another quota, or of a key with the same hash.
                if !entry.is_idle() {
                    return None;
                }
                *entry = new();
            }
            Some(entry)
        }
    }
}

impl LeaseObserver {
    /// Whether units are freed that other requests can be charged.
    pub(crate) const fn frees_units(&self) -> bool {
        self.returned.lease.units > self.returned.lease.spent
    }
}

impl Observer for LeaseObserver {
    /// Does not return a lease that was removed before a reset. A job that was certainly not sent may be sent again.
    fn sending(&self, lease: &mut Option<LeaseRequest>) {
        let count = self.leases.reset_count(self.returned.resets.cell);
        if let Some(fetch) = &self.fetch {
            fetch.resets.store(count, Ordering::Release);
            fetch.sent.store(true, Ordering::Release);
        }
        if let Some(lease) = lease
            && self.returned.resets.count != count
        {
            lease.returned = LeaseReturn::default();
        }
    }

    fn settled(&self, _: &Job, reply: Option<&Reply>) {
        if let (Some(fetch), Some(Reply { decision, leased: Some(leased) })) = (&self.fetch, reply)
            && let [outcome] = decision.outcomes()
        {
            fetch.completed.store(true, Ordering::Release);
            self.leases.complete_fetch(fetch, Some((*leased, outcome)));
        }
    }
}

impl Drop for LeaseObserver {
    fn drop(&mut self) {
        let Some(fetch) = &mut self.fetch else { return };
        if !*fetch.completed.get_mut() {
            self.leases.complete_fetch(fetch, None);
        }
        if !*fetch.sent.get_mut() {
            self.leases.spawn_return(&fetch.policy, &fetch.key, self.returned);
        }
    }
}

/// Runs as long as there are leases, without keeping the store alive.
async fn sweep(mut sweeper: Sweeper) {
    loop {
        sleep(SWEEP_INTERVAL).await;
        let Some(leases) = sweeper.0.upgrade() else { return };
        if leases.sweep() {
            continue;
        }
        lock(&leases.sweeping).remove(&sweeper.1);
        // A lease that was stored meanwhile saw this task running, and started no other.
        if !leases.has_leases() || !lock(&leases.sweeping).insert(sweeper.1) {
            sweeper.0 = Weak::new();
            return;
        }
    }
}

/// Counts a background job while it is in flight.
struct InFlight(watch::Sender<usize>);

impl InFlight {
    fn new(calls: &watch::Sender<usize>) -> Self {
        calls.send_modify(|calls| *calls += 1);
        Self(calls.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.send_modify(|calls| *calls -= 1);
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status().fmt(f)
    }
}

/// Removes the runtime if the task ends with it, so that a later one can start another.
struct Sweeper(Weak<Leases>, Id);

impl Drop for Sweeper {
    fn drop(&mut self) {
        if let Some(leases) = self.0.upgrade() {
            lock(&leases.sweeping).remove(&self.1);
        }
    }
}
