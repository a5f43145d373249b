//! A hash table in shards, each behind a lock.
//!
//! # Why this table
//!
//! Nanoseconds to find one of 10,000 keys (20 bytes each) and change its 16 bytes of state, by one thread and
//! by each of two threads; and bytes for each of 200,000 such keys. Medians of 5 runs on two virtual cores
//! with other load, so differences of 10 ns mean nothing:
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
//! No other map is significantly faster, and none does all that is needed. A decision over several charges
//! holds the locks of all of them, taken in one order; dashmap, scc and papaya lock one entry at a time.
//! Expired entries are removed a few at a time, which takes a table whose entries have gapless positions, as
//! in `IndexMap`. The caches are bounded, but evict by last use; this table evicts what resets first.
//!
//! SipHash costs 10 to 20 ns more, and stays because clients choose the keys: foldhash has only minimal
//! resistance against keys that are made to collide.

use std::sync::{Arc, Mutex, MutexGuard};

use indexmap::{
    IndexMap,
    map::raw_entry_v1::{RawEntryApiV1, RawEntryMut},
};

use crate::{
    algorithm::state::{Count, State},
    base::sync::lock,
    key::Key,
    policy::Policy,
    store::StoreClock,
};

/// Keys per shard, within the bounds on the number of shards. A growing shard is locked while its table
/// moves, so this bounds that time.
const KEYS_PER_SHARD: usize = 2_048;
const MIN_SHARDS: usize = 16;
const MAX_SHARDS: usize = 1_024;
/// The least keys of a shard. Nearly all decisions have fewer policies and penalties than this, so the
/// policies of one identity do not evict one another.
const MIN_KEYS_PER_SHARD: usize = 16;
pub(super) const DEFAULT_CAPACITY: usize = 200_000;
/// The number of old entries that are checked for each new one.
const SWEEP_STEPS: usize = 4;
/// The number of candidates for eviction when a new entry finds its shard full.
const CANDIDATES: usize = 8;
/// A shard with fewer entries is not swept, because that would gain nothing.
const MIN_SWEPT: usize = 8;

/// A value aligned to two cache lines, which processors fetch in pairs, so threads in neighboring shards do
/// not slow each other down.
#[repr(align(128))]
pub(super) struct CachePadded<T>(pub(super) T);

pub(super) struct Shard {
    /// Entries are looked up by [`Location::hash`]; the map itself hashes nothing.
    entries: IndexMap<Name, Entry, ()>,
    capacity: usize,
    /// Where the next sweep continues.
    cursor: usize,
    /// Whether expired state is ignored and removed. Under a manual clock it is kept, as in Redis, so the
    /// clock can step back.
    expiring: bool,
}

struct Name {
    policy: Policy,
    key: Key,
}

struct Entry {
    /// The state, `None` only while it is changed.
    state: Option<State>,
    /// The time from which the entry affects no decision.
    expires: u64,
}

/// The shard and the hash of a key under a policy.
pub(super) struct Location<'a> {
    pub(super) shard: usize,
    pub(super) hash: u64,
    pub(super) policy: &'a Policy,
    pub(super) key: &'a Key,
}

impl Shard {
    /// The number of keys.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the entry has expired. An expired state decides as a new one does, unless the quota was slowed
    /// down in the meantime. In that case Redis has removed the state too.
    fn is_expired(&self, entry: &Entry, now: u64) -> bool {
        self.expiring && entry.expires <= now
    }

    fn state(&self, location: &Location<'_>, now: u64) -> Option<&State> {
        let found = self.entries.raw_entry_v1().from_hash(location.hash, |name| location.is(name));
        let entry = found.map(|(_, entry)| entry).filter(|entry| !self.is_expired(entry, now));
        entry.and_then(|entry| entry.state.as_ref())
    }

    /// Until when the entry of a key matters. 0 without one.
    fn expires(&self, location: &Location<'_>) -> u64 {
        let found = self.entries.raw_entry_v1().from_hash(location.hash, |name| location.is(name));
        found.map_or(0, |(_, entry)| entry.expires)
    }

    /// The keys under `policy`, including expired ones.
    pub(super) fn keys(&self, policy: &Policy) -> impl Iterator<Item = &Key> {
        self.entries.keys().filter(|name| policy.shares_counts_with(&name.policy)).map(|name| &name.key)
    }

    /// Calls `update` to read and change the state, with one lookup if the entry exists. `update` returns the
    /// remaining lifetime of the state in microseconds if it changed it.
    #[inline]
    pub(super) fn update<T>(
        &mut self,
        location: &Location<'_>,
        now: u64,
        update: impl FnOnce(&mut Option<State>) -> (T, Option<u64>),
    ) -> T {
        // Not `raw_entry_mut_v1`, whose functions are larger than compilers like to inline.
        let found = self.entries.raw_entry_v1().index_from_hash(location.hash, |name| location.is(name));
        match found.and_then(|at| Some((at, self.entries.get_index_mut(at)?.1))) {
            Some((at, entry)) => {
                if self.expiring && entry.expires <= now {
                    entry.state = None;
                }
                let (result, lifetime) = update(&mut entry.state);
                if let Some(lifetime) = lifetime {
                    entry.expires = now.saturating_add(lifetime);
                }
                if entry.state.is_none() {
                    self.entries.swap_remove_index(at);
                    metric!(memory_keys_changed(-1));
                }
                result
            }
            None => {
                let mut state = None;
                let (result, lifetime) = update(&mut state);
                if let (Some(lifetime), Some(_)) = (lifetime, &state) {
                    self.make_room(now);
                    self.insert(location, Entry { state, expires: now.saturating_add(lifetime) });
                }
                result
            }
        }
    }

    /// Removes the state of a key, and leaves the mark of the reset, if there was a state: for `least` more
    /// microseconds, and as long as the state or an earlier mark would have stayed.
    pub(super) fn reset(&mut self, location: &Location<'_>, now: u64, least: u64) {
        let lifetime = [location, &location.of_mark()]
            .into_iter()
            .fold(least, |lifetime, location| lifetime.max(self.expires(location).saturating_sub(now)));
        let had_state = self.update(location, now, |state| (state.take().is_some(), None));
        if had_state {
            self.update(&location.of_mark(), now, |mark| {
                let at = time_of(mark.as_ref()).map_or(now, |before| before.max(now));
                *mark = Some(State::Count(Count { at, count: 0 }));
                ((), Some(lifetime))
            });
        }
    }

    fn insert(&mut self, location: &Location<'_>, entry: Entry) {
        if let RawEntryMut::Vacant(place) =
            self.entries.raw_entry_mut_v1().from_hash(location.hash, |name| location.is(name))
        {
            let name = Name { policy: location.policy.clone(), key: location.key.clone() };
            place.insert_hashed_nocheck(location.hash, name, entry);
            metric!(memory_keys_changed(1));
        }
    }

    /// Removes a few expired entries, unless expired state is kept. If the shard is full of live entries,
    /// evicts the one among a few candidates that resets first.
    fn make_room(&mut self, now: u64) {
        if self.expiring && self.entries.len() >= MIN_SWEPT {
            for _ in 0..SWEEP_STEPS {
                self.advance();
                if self.entries.get_index(self.cursor).is_some_and(|(_, entry)| entry.expires <= now) {
                    // `swap_remove_index` moves another entry here, so the cursor stays.
                    self.entries.swap_remove_index(self.cursor);
                    metric!(memory_keys_changed(-1));
                    self.cursor = self.cursor.wrapping_sub(1);
                }
            }
        }
        while self.entries.len() >= self.capacity {
            let mut victim = (u64::MAX, 0);
            for _ in 0..CANDIDATES {
                self.advance();
                if let Some((_, entry)) = self.entries.get_index(self.cursor) {
                    victim = victim.min((entry.expires, self.cursor));
                }
            }
            self.entries.swap_remove_index(victim.1);
            metric!(memory_keys_changed(-1));
        }
    }

    fn advance(&mut self) {
        self.cursor = self.cursor.wrapping_add(1);
        if self.cursor >= self.entries.len() {
            self.cursor = 0;
        }
    }
}

#[cfg(feature = "metrics")]
impl Drop for Shard {
    fn drop(&mut self) {
        metric!(memory_keys_changed(-(self.entries.len() as i64)));
    }
}

pub(super) fn shards(capacity: usize, expiring: bool) -> Arc<[CachePadded<Mutex<Shard>>]> {
    // The number is clamped first, because `next_power_of_two` overflows for the largest capacities.
    let shards = (capacity / KEYS_PER_SHARD).clamp(MIN_SHARDS, MAX_SHARDS).next_power_of_two();
    let capacity = capacity.div_ceil(shards).max(MIN_KEYS_PER_SHARD);
    let shard = || Shard { entries: IndexMap::with_hasher(()), capacity, cursor: 0, expiring };
    (0..shards).map(|_| CachePadded(Mutex::new(shard()))).collect()
}

/// The locked shards of one decision.
pub(super) struct Guards<'a> {
    shards: Vec<(usize, MutexGuard<'a, Shard>)>,
    /// The time of the decision.
    pub(super) now: u64,
}

impl<'a> Guards<'a> {
    /// Takes the locks in ascending order to prevent deadlocks. Reads `clock` while it holds them, because a
    /// decision must not see state from the future.
    pub(super) fn lock(
        shards: &'a [CachePadded<Mutex<Shard>>],
        locations: &[Location<'_>],
        clock: &StoreClock,
    ) -> Self {
        let mut order: Vec<usize> = locations.iter().map(|location| location.shard).collect();
        order.sort_unstable();
        order.dedup();
        let shards = order.into_iter().map(|shard| (shard, lock(&shards[shard].0))).collect();
        Self { shards, now: clock.micros() }
    }

    /// The state of a key that has one.
    pub(super) fn state(&mut self, location: &Location<'_>) -> Option<&State> {
        let now = self.now;
        self.shard(location).state(location, now)
    }

    /// When the key was last reset, if that may matter.
    pub(super) fn reset_at(&mut self, location: &Location<'_>) -> Option<u64> {
        time_of(self.state(&location.of_mark()))
    }

    /// See [`Shard::update`].
    pub(super) fn update<T>(
        &mut self,
        location: &Location<'_>,
        update: impl FnOnce(&mut Option<State>) -> (T, Option<u64>),
    ) -> T {
        let now = self.now;
        self.shard(location).update(location, now, update)
    }

    fn shard(&mut self, location: &Location<'_>) -> &mut Shard {
        match self.shards.iter_mut().find(|(shard, _)| *shard == location.shard) {
            Some((_, shard)) => shard,
            None => unreachable!("every charge's shard is locked before the first is read"),
        }
    }
}

impl Location<'_> {
    fn is(&self, name: &Name) -> bool {
        *self.key == name.key && self.policy.shares_counts_with(&name.policy)
    }

    /// The location of the mark that a reset leaves, in the same shard.
    fn of_mark(&self) -> Self {
        let policy = self.policy.resets();
        Self { policy, hash: self.hash ^ self.policy.tag() ^ policy.tag(), ..*self }
    }
}

/// The time of the mark that a reset has left.
const fn time_of(mark: Option<&State>) -> Option<u64> {
    match mark {
        Some(State::Count(mark)) => Some(mark.at),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Quota;

    #[test]
    fn the_mark_of_a_reset_lives_as_long_as_the_state_and_the_mark_that_it_replaces() {
        let (policy, key) = (Policy::new("p", Quota::per_second(5)), Key::new("all"));
        let place = Location { shard: 0, hash: 7, policy: &policy, key: &key };
        let shards = shards(MIN_KEYS_PER_SHARD, true);
        let mut shard = lock(&shards[0].0);
        for (now, lifetime) in [(1_000, 100), (1_001, 20)] {
            shard.update(&place, now, |state| {
                *state = Some(State::Count(Count { at: now, count: 1 }));
                ((), Some(lifetime))
            });
            shard.reset(&place, now, 10);
            assert!(shard.state(&place, now).is_none());
            assert_eq!(time_of(shard.state(&place.of_mark(), 1_099)), Some(now));
            assert!(shard.state(&place.of_mark(), 1_100).is_none());
        }
    }
}
