//! The leases of this instance, by key.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    mem,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    clock::Clock,
    entry::{Entry, HOT_INTERVAL, Lease, Returned},
};
use crate::{
    base::{Guard, UnderWay, random::hasher, sync::lock, time::micros},
    decision::{Charge, Decision, DecisionSource, Outcome, Verdict},
    key::Key,
    policy::Policy,
    store::redis::job::{LeaseReturn, Leased},
};

pub(crate) struct LeaseTable {
    shards: Box<[Mutex<Shard>]>,
    /// How often a key with this hash was reset. A reset voids the leases that are being fetched or returned.
    resets: Box<[AtomicU32]>,
    /// When a key without an entry was last requested: the lower bits of the time, and the upper bits of the
    /// key's hash.
    requests: Box<[AtomicU64]>,
    hasher: RandomState,
    pub(super) clock: Clock,
}

/// Entries by the hashes of their keys.
type Shard = BTreeMap<u64, Entry>;

/// The result of the attempt to decide from a lease.
pub(crate) enum Spent {
    /// The decision, made from the lease. `true` if more units should be fetched.
    Decided(Decision, bool),
    /// Redis decides, and may grant a lease.
    Hot,
    /// The key was hardly requested, so Redis decides as for a policy without leases.
    Cold,
}

/// A request for a lease.
pub(super) struct Fetch {
    requested_at: u64,
    set_back: u64,
    /// How many units to lease.
    pub(super) wanted: u64,
}

const SHARDS: usize = 64;
/// The number of counters of resets. If keys share one, the reset of a key voids at most one lease of another
/// key, and only while that is fetched or returned.
const RESET_COUNTERS: usize = 1024;
/// The number of cells for requests. Keys that share a cell get their entries one after the other.
const REQUEST_CELLS: usize = 4096;
/// The bits of a cell that are a time, in microseconds: twelve days.
const TIME_BITS: u64 = (1 << 40) - 1;
/// The most keys in a shard. Other keys are decided by Redis, as if they were not leased.
const MAX_KEYS_PER_SHARD: usize = 64;
/// The longest life of a lease in microseconds. It is short, so differences in clock speed do not matter.
const MAX_LEASE_TIME: u64 = 2_000_000;

impl LeaseTable {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            resets: (0..RESET_COUNTERS).map(|_| AtomicU32::default()).collect(),
            requests: (0..REQUEST_CELLS).map(|_| AtomicU64::default()).collect(),
            hasher: hasher(),
            clock,
        }
    }

    pub(crate) fn hash_of(&self, charge: &Charge) -> u64 {
        self.hash(charge.policy(), charge.key())
    }

    /// Spends the units of `charge` from a lease, if it has enough. Counts a request at the time `now` if the
    /// key has no entry.
    pub(crate) fn spend(&self, charge: &Charge, hash: u64, now: u64) -> Spent {
        let mut shard = self.shard(hash);
        let Some(entry) = shard.get_mut(&hash).filter(|entry| entry.is_of(charge)) else {
            if self.is_frequent(hash, now) {
                insert(&mut shard, hash, charge, self.clock.micros());
            }
            return Spent::Cold;
        };
        let mut spent = || {
            let lease = entry.lease.as_mut()?;
            // The clock is read under the lock, so the time is not before the start of the lease.
            let now = self.clock.micros();
            if !lease.is_active(now, self.clock.times_set_back()) {
                return None;
            }
            lease.left = lease.left.checked_sub(charge.cost())?;
            lease.spent += charge.cost();
            lease.last_spent = now;
            let is_low = lease.left < lease.refill_below && !entry.fetching;
            // The sum exceeds the capacity if Redis lost its data after it leased the units.
            let remaining = lease.remaining.saturating_add(lease.left).min(charge.policy().capacity());
            Some((remaining, lease.reset.saturating_sub(now - lease.requested_at), is_low, lease.receipt))
        };
        let Some((remaining, reset, is_low, receipt)) = spent() else { return Spent::Hot };
        drop(shard);
        let outcome = Outcome::new(charge, Verdict::Admit, remaining, Duration::from_micros(reset));
        let outcome = outcome.with_granted(charge.cost()).with_lease_receipt(receipt);
        Spent::Decided(Decision::one(outcome, 0).made_by(DecisionSource::Lease), is_low)
    }

    /// What to lease in addition to the cost of `charge`, and what to return: `None` for a key that is not
    /// hot, or whose lease is being fetched. `ahead` is whether enough units are left for now.
    pub(super) fn fetch(&self, charge: &Charge, hash: u64, ahead: bool) -> Option<(Fetch, Returned)> {
        let (set_back, requested_at) = (self.clock.times_set_back(), self.clock.micros());
        let mut shard = self.shard(hash);
        let entry = shard.get_mut(&hash).filter(|entry| entry.is_of(charge))?;
        if entry.fetching {
            return None;
        }
        let wanted = entry.wanted(requested_at, charge.policy().most_leased().unwrap_or(0));
        let (lease, left) = match &mut entry.lease {
            Some(lease) if ahead => {
                let spent = mem::take(&mut lease.spent);
                let made = lease.receipt.made;
                (LeaseReturn { name: lease.name, units: spent, spent, made }, lease.left)
            }
            lease => (lease.take().map_or_else(LeaseReturn::default, |lease| lease.returned()), 0),
        };
        let wanted = wanted.saturating_sub(left);
        if wanted == 0 && lease.units == 0 {
            return None;
        }
        entry.fetching = true;
        Some((Fetch { requested_at, set_back, wanted }, self.returned(hash, entry, lease)))
    }

    /// Whether the key was requested shortly before. Only such a key gets an entry; most keys never do.
    fn is_frequent(&self, hash: u64, now: u64) -> bool {
        let cell = &self.requests[hash as usize % REQUEST_CELLS];
        let before = cell.load(Ordering::Relaxed);
        let is_recent = now.wrapping_sub(before) & TIME_BITS < HOT_INTERVAL;
        let is_same = (before ^ hash) & !TIME_BITS == 0;
        // Another recent key stays at random, or hot keys that share a cell would replace each other at every
        // request.
        if is_same || !is_recent || now.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 0 {
            cell.store(hash & !TIME_BITS | now & TIME_BITS, Ordering::Relaxed);
        }
        is_same && is_recent
    }

    /// Ends a fetch, and stores the units that Redis granted, unless the key was reset since `returned` was
    /// counted. Returns the lease that they replace, which may have no units. `None` if nothing is stored.
    pub(super) fn complete(
        &self,
        fetch: &Fetch,
        returned: &Returned,
        granted: Option<(Leased, &Outcome)>,
    ) -> Option<Returned> {
        let hash = returned.hash;
        let mut shard = self.shard(hash);
        // The entry exists, because none is evicted during a fetch.
        let entry = shard.get_mut(&hash)?;
        entry.fetching = false;
        // After a reset, earlier charges no longer exist.
        let is_valid = returned.resets == self.resets(hash);
        let granted = granted.filter(|(granted, _)| granted.units > 0 && is_valid);
        let Some((granted, outcome)) = granted else {
            // Without a grant, the limit has few units left, so none are fetched ahead.
            entry.lease.iter_mut().for_each(|lease| lease.refill_below = 0);
            return None;
        };
        // The lease ends in time even if this clock is slower than the clock of Redis by 0.1 %.
        let lifetime = granted.lifetime.min(MAX_LEASE_TIME);
        let ends_at = fetch.requested_at.saturating_add(lifetime - lifetime.div_ceil(1_000));
        let (same, replaced) = match entry.lease.take() {
            Some(previous) if previous.name == granted.name => (Some(previous), None),
            previous => (None, previous),
        };
        // The earliest receipt counts, because it is unknown which of the units are spent.
        let receipt = same.as_ref().map_or(granted.receipt, |lease| lease.receipt);
        let (left, spent) = same.map_or((0, 0), |lease| (lease.left, lease.spent));
        entry.lease = Some(Lease {
            name: granted.name,
            left: left.saturating_add(granted.units),
            spent,
            // More units are fetched when half of these are spent.
            refill_below: left.saturating_add(granted.units) / 2,
            requested_at: fetch.requested_at,
            set_back: fetch.set_back,
            ends_at,
            last_spent: self.clock.micros(),
            remaining: outcome.remaining().saturating_sub(granted.units),
            reset: micros(outcome.reset_after()),
            receipt,
        });
        let replaced = replaced.map_or_else(LeaseReturn::default, |lease| lease.returned());
        Some(self.returned(hash, entry, replaced))
    }

    /// Drops the lease of a key that is being reset.
    pub(crate) fn forget(&self, policy: &Policy, key: &Key) {
        let hash = self.hash(policy, key);
        let mut shard = self.shard(hash);
        self.resets[hash as usize % RESET_COUNTERS].fetch_add(1, Ordering::AcqRel);
        if let Some(entry) = shard.get_mut(&hash) {
            entry.lease = None;
        }
    }

    /// Removes the lease of a key, which may have no units. Also returns the reports under way for the key,
    /// and a guard that counts as a later report.
    pub(super) fn remove(&self, policy: &Policy, key: &Key) -> Option<(Returned, UnderWay, Guard)> {
        let hash = self.hash(policy, key);
        let mut shard = self.shard(hash);
        let entry = shard.get_mut(&hash)?;
        let lease = entry.lease.take().map_or_else(LeaseReturn::default, |lease| lease.returned());
        let returned = self.returned(hash, entry, lease);
        let reports = mem::take(&mut entry.reports);
        Some((returned, reports, entry.reports.begin()))
    }

    /// Removes all leases.
    pub(super) fn remove_all(&self) -> Vec<Returned> {
        self.remove_each(|entry, _, _| entry.lease.take())
    }

    /// Removes the leases that are to be returned because they are hardly used or end soon.
    pub(super) fn remove_unused(&self) -> Vec<Returned> {
        self.remove_each(Entry::take_unused)
    }

    /// Removes the leases that `take` takes, which gets the time and how often the clock was set back.
    fn remove_each(&self, take: impl Fn(&mut Entry, u64, u64) -> Option<Lease>) -> Vec<Returned> {
        let mut removed = Vec::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            let (now, set_back) = (self.clock.micros(), self.clock.times_set_back());
            for (hash, entry) in shard.iter_mut() {
                let lease = take(entry, now, set_back);
                removed.extend(lease.map(|lease| self.returned(*hash, entry, lease.returned())));
            }
        }
        removed
    }

    fn returned(&self, hash: u64, entry: &Entry, lease: LeaseReturn) -> Returned {
        let (charge, _report) = (entry.charge.clone(), entry.reports.begin());
        Returned { charge, lease, hash, resets: self.resets(hash), _report }
    }

    /// The numbers of keys with a lease, and of their units.
    pub(super) fn sizes(&self) -> (usize, u64) {
        let (mut keys, mut units) = (0, 0);
        for shard in &self.shards {
            for lease in lock(shard).values().filter_map(|entry| entry.lease.as_ref()) {
                keys += 1;
                units += lease.left;
            }
        }
        (keys, units)
    }

    /// How often the keys of this hash were reset.
    pub(super) fn resets(&self, hash: u64) -> u32 {
        self.resets[hash as usize % RESET_COUNTERS].load(Ordering::Acquire)
    }

    fn hash(&self, policy: &Policy, key: &Key) -> u64 {
        self.hasher.hash_one((policy.tag(), key))
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[hash as usize % SHARDS])
    }
}

/// Creates the entry of `charge`, if there is room.
fn insert(shard: &mut Shard, hash: u64, charge: &Charge, now: u64) {
    if shard.len() >= MAX_KEYS_PER_SHARD {
        shard.retain(|_, entry| !entry.is_idle());
    }
    // The entry at this hash may belong to another quota or another key.
    let is_taken = shard.get(&hash).is_some_and(|other| !other.is_idle());
    if !is_taken && shard.len() < MAX_KEYS_PER_SHARD {
        let charge = Charge::new(charge.policy(), charge.key(), 0);
        let (lease, last_request, reports) = (None, Some(now), UnderWay::default());
        shard.insert(hash, Entry { charge, lease, target: 0, last_request, fetching: false, reports });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{algorithm::twin::Receipt, base::Quota, store::ManualClock};

    const LIMIT: u64 = 1_000;
    const LEASED: u64 = 100;

    struct Fixture {
        table: LeaseTable,
        clock: ManualClock,
        charge: Charge,
    }

    impl Fixture {
        fn new() -> Self {
            let clock = ManualClock::new();
            let policy = Policy::new("api", Quota::per_second(LIMIT)).max_lease(LEASED);
            let charge = Charge::new(&policy, &Key::new("alice"), 1);
            Self { table: LeaseTable::new(Clock::including_suspension(Some(clock.clone()))), clock, charge }
        }

        fn advance(&self, millis: u64) {
            self.clock.advance(Duration::from_millis(millis));
        }

        fn fetch(&self, ahead: bool) -> Option<(Fetch, Returned)> {
            self.table.fetch(&self.charge, self.table.hash_of(&self.charge), ahead)
        }

        /// The request for a lease of a key that is hot.
        fn hot(&self) -> (Fetch, Returned) {
            for _ in 0..2 {
                assert!(matches!(self.request(1), Spent::Cold), "two requests are not hot");
                self.advance(1);
            }
            self.fetch(false).unwrap()
        }

        /// Redis grants `units` under `name` for a second.
        fn grant(&self, fetch: &(Fetch, Returned), name: u64, units: u64) -> Option<Returned> {
            let receipt = Receipt { made: 0, mark: 0 };
            let leased = Leased { units, lifetime: 1_000_000, name, receipt };
            let outcome = Outcome::new(&self.charge, Verdict::Admit, LIMIT, Duration::from_secs(1));
            self.table.complete(&fetch.0, &fetch.1, Some((leased, &outcome)))
        }

        fn request(&self, units: u64) -> Spent {
            let (charge, hash) = (self.charge.clone().with_cost(units), self.table.hash_of(&self.charge));
            self.table.spend(&charge, hash, self.clock.micros())
        }

        fn spend(&self, units: u64) -> bool {
            matches!(self.request(units), Spent::Decided(..))
        }
    }

    #[test]
    fn each_unit_is_spent_once_and_before_the_end() {
        let one = Fixture::new();
        let fetch = one.hot();
        assert_eq!(fetch.0.wanted, 8);
        assert!(!one.spend(1), "nothing is granted yet");
        assert!(one.grant(&fetch, 7, 3).is_some());
        assert_eq!(one.table.sizes(), (1, 3));
        assert_eq!([one.spend(2), one.spend(2), one.spend(1), one.spend(1)], [true, false, true, false]);
        let fetch = one.fetch(false).unwrap();
        let returned = &fetch.1.lease;
        assert_eq!((returned.name, returned.units, returned.spent), (7, 3, 3));
        assert!(one.grant(&fetch, 8, 5).is_some());
        one.advance(998);
        assert!(one.spend(1));
        // A clock that is slower by 0.1 % is in time.
        one.advance(1);
        assert!(!one.spend(1));
    }

    #[test]
    fn a_key_has_one_fetch_at_a_time() {
        let one = Fixture::new();
        let fetch = one.hot();
        assert!(one.fetch(false).is_none());
        assert!(one.table.complete(&fetch.0, &fetch.1, None).is_none(), "it failed");
        assert!(one.fetch(false).is_some());
    }

    #[test]
    fn a_hot_key_leases_more_and_a_cold_one_less() {
        let one = Fixture::new();
        let mut wanted = vec![one.hot().0.wanted];
        let mut fetch = |millis| {
            let mut shard = one.table.shard(one.table.hash_of(&one.charge));
            shard.values_mut().for_each(|entry| entry.fetching = false);
            drop(shard);
            one.advance(millis);
            wanted.push(one.fetch(false).map_or(0, |fetch| fetch.0.wanted));
        };
        for millis in [1, 1, 1, 1, 30, 60, 60] {
            fetch(millis);
        }
        assert_eq!(wanted, [8, 16, 32, 64, 100, 100, 50, 25]);
    }

    #[test]
    fn a_lease_that_was_fetched_during_a_reset_is_void() {
        let one = Fixture::new();
        let fetch = one.hot();
        one.table.forget(one.charge.policy(), one.charge.key());
        assert!(one.grant(&fetch, 7, 8).is_none());
        assert!(!one.spend(1));
        let fetch = one.fetch(false).unwrap();
        assert!(one.grant(&fetch, 8, 8).is_some());
        assert!(one.spend(1));
        one.table.forget(one.charge.policy(), one.charge.key());
        assert!(!one.spend(1));
        assert!(one.table.remove_all().is_empty(), "units before a reset are not returned");
    }

    #[test]
    fn a_lease_is_returned_once_it_is_idle_or_replaced() {
        let one = Fixture::new();
        let fetch = one.hot();
        assert!(one.grant(&fetch, 7, 8).is_some_and(|replaced| replaced.lease.units == 0));
        assert!(one.spend(3));
        one.advance(249);
        assert!(one.table.remove_unused().is_empty());
        let ahead = one.fetch(true).unwrap();
        assert_eq!((ahead.1.lease.units, ahead.1.lease.spent), (3, 3), "a report");
        // The lease of that name goes on, and another one replaces it.
        assert!(one.grant(&ahead, 7, 4).is_some_and(|replaced| replaced.lease.units == 0));
        assert_eq!(one.table.sizes(), (1, 9));
        assert!(one.spend(1));
        let ahead = one.fetch(true).unwrap();
        let replaced = one.grant(&ahead, 9, 2).unwrap().lease;
        assert_eq!((replaced.name, replaced.units, replaced.spent), (7, 8, 0));
        one.advance(250);
        let [unused] = &one.table.remove_unused()[..] else { panic!("one lease is idle") };
        assert_eq!((unused.lease.name, unused.lease.units), (9, 2));
        assert_eq!(one.table.sizes(), (0, 0));
    }

    #[test]
    fn nothing_is_spent_after_the_clock_was_set_back() {
        let one = Fixture::new();
        one.advance(10_000);
        let fetch = one.hot();
        assert!(one.grant(&fetch, 7, 8).is_some() && one.spend(1));
        one.clock.step_back(Duration::from_secs(1));
        assert!(!one.spend(1));
        one.advance(1_000);
        assert!(!one.spend(1), "what Redis charged then is unknown");
    }

    #[test]
    fn hot_keys_that_share_a_cell_are_all_leased() {
        let one = Fixture::new();
        let of_key = |key: u64| Charge::new(one.charge.policy(), &Key::new(key.to_string()), 1);
        let cell = |charge: &Charge| one.table.hash_of(charge) as usize % REQUEST_CELLS;
        let shared = cell(&of_key(0));
        let charges: Vec<Charge> =
            (0..).map(of_key).filter(|charge| cell(charge) == shared).take(3).collect();
        let spend = |charge: &Charge| one.table.spend(charge, one.table.hash_of(charge), one.clock.micros());
        for _ in 0..200 {
            for charge in &charges {
                spend(charge);
                one.advance(1);
            }
        }
        assert!(charges.iter().all(|charge| matches!(spend(charge), Spent::Hot)));
    }

    #[test]
    fn a_key_that_is_requested_rarely_gets_no_lease() {
        let one = Fixture::new();
        for _ in 0..5 {
            assert!(matches!(one.request(1), Spent::Cold));
            one.advance(20);
        }
        assert!(one.fetch(false).is_none());
    }

    #[test]
    fn the_lease_after_one_that_was_hardly_used_is_half_as_large() {
        let one = Fixture::new();
        let fetch = one.hot();
        assert!(one.grant(&fetch, 7, 8).is_some());
        one.advance(1);
        let fetch = one.fetch(false).unwrap();
        assert_eq!(fetch.0.wanted, 16);
        assert!(one.grant(&fetch, 8, 16).is_some());
        one.advance(250);
        assert_eq!(one.table.remove_unused().len(), 1);
        // The pause before the next request halves it once more.
        assert_eq!(one.fetch(false).unwrap().0.wanted, 4);
    }

    #[test]
    fn a_lease_in_use_is_returned_before_it_ends() {
        let one = Fixture::new();
        let fetch = one.hot();
        assert!(one.grant(&fetch, 7, 50).is_some());
        for _ in 0..8 {
            one.advance(100);
            assert!(one.spend(1) && one.table.remove_unused().is_empty());
        }
        one.advance(50);
        assert_eq!(one.table.remove_unused().len(), 1);
    }

    #[test]
    fn a_full_shard_drops_idle_keys_for_a_hot_one_and_keeps_those_with_a_lease_or_a_fetch() {
        let one = Fixture::new();
        let of_key = |key: u64| Charge::new(one.charge.policy(), &Key::new(key.to_string()), 1);
        let hash = |charge: &Charge| one.table.hash_of(charge);
        let charges: Vec<Charge> = (0..)
            .map(of_key)
            .filter(|charge| (hash(charge) as usize).is_multiple_of(SHARDS))
            .take(MAX_KEYS_PER_SHARD + 2)
            .collect();
        let spend = |charge: &Charge| one.table.spend(charge, hash(charge), one.clock.micros());
        let has_entry = |charge: &Charge| {
            // Keys may share a cell for requests, so the request before must not be recent.
            one.advance(20);
            !matches!(spend(charge), Spent::Cold)
        };
        let heat = |charge: &Charge| {
            one.advance(20);
            for _ in 0..2 {
                spend(charge);
                one.advance(1);
            }
        };
        // A key is fetched while it is hot.
        let fetch = |charge: &Charge| one.table.fetch(charge, hash(charge), false).unwrap();
        let (all, [more, last]) = charges.split_at(MAX_KEYS_PER_SHARD) else { panic!("it has two more") };
        let [fetching, leased, idle, ..] = all else { panic!("a shard has more keys") };
        heat(fetching);
        fetch(fetching);
        heat(leased);
        let (request, returned) = fetch(leased);
        let receipt = Receipt { made: 0, mark: 0 };
        let granted = Leased { units: 50, lifetime: MAX_LEASE_TIME, name: 7, receipt };
        let outcome = Outcome::new(leased, Verdict::Admit, LIMIT, Duration::from_secs(1));
        assert!(one.table.complete(&request, &returned, Some((granted, &outcome))).is_some());
        all[2..].iter().for_each(heat);
        heat(more);
        fetch(more);
        assert_eq!([fetching, leased, idle, more].map(has_entry), [true, true, false, true]);
        assert_eq!(one.table.sizes().0, 1);

        // Once no key is idle, there is no room.
        for charge in &all[3..] {
            heat(charge);
            fetch(charge);
        }
        heat(last);
        assert!(!has_entry(last));
    }

    #[test]
    fn a_key_under_another_quota_replaces_an_idle_entry_and_no_other() {
        for is_fetching in [false, true] {
            let one = Fixture::new();
            let other = Charge::new(
                &Policy::new("api", Quota::per_second(2 * LIMIT)).max_lease(LEASED),
                one.charge.key(),
                1,
            );
            let hash = one.table.hash_of(&other);
            assert_eq!(hash, one.table.hash_of(&one.charge));
            for _ in 0..2 {
                one.request(1);
                one.advance(1);
            }
            assert_eq!(is_fetching, is_fetching && one.fetch(false).is_some());
            for _ in 0..2 {
                one.table.spend(&other, hash, one.clock.micros());
                one.advance(1);
            }
            let spent = one.table.spend(&other, hash, one.clock.micros());
            assert_eq!(matches!(spent, Spent::Cold), is_fetching);
        }
    }

    #[test]
    fn a_lease_in_use_is_returned_after_its_longest_time() {
        let one = Fixture::new();
        let fetch = one.hot();
        let receipt = Receipt { made: 0, mark: 0 };
        let leased = Leased { units: 50, lifetime: MAX_LEASE_TIME, name: 7, receipt };
        let outcome = Outcome::new(&one.charge, Verdict::Admit, LIMIT, Duration::from_secs(1));
        assert!(one.table.complete(&fetch.0, &fetch.1, Some((leased, &outcome))).is_some());
        for _ in 0..9 {
            one.advance(100);
            assert!(one.spend(1) && one.table.remove_unused().is_empty());
        }
        one.advance(100);
        assert_eq!(one.table.remove_unused().len(), 1);
    }
}
