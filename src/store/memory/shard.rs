//! A table in shards, each behind a lock.
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

use std::sync::{Arc, Mutex, MutexGuard};

use indexmap::{
    IndexMap,
    map::raw_entry_v1::{RawEntryApiV1, RawEntryMut},
};

use crate::{
    algorithm::{
        state::State,
        twin::{Change, Plan, Twin},
    },
    key::Key,
    policy::Policy,
    util::sync::lock,
};

/// As many keys as a shard holds, as long as there are neither too few shards nor too many. What a shard that
/// grows is locked for grows with it.
const SHARD: usize = 2_048;
const MIN_SHARDS: usize = 16;
const MAX_SHARDS: usize = 1_024;
/// More than the policies of one decision, so that none of them takes another's place.
const MIN_SHARD: usize = 16;
pub(super) const DEFAULT_CAPACITY: usize = 200_000;
/// How many old entries are looked at for every new one.
const SWEEP: usize = 4;
/// How many entries a new one chooses from when it must take the place of one that still matters.
const CANDIDATES: usize = 8;
/// Below so many entries a shard is not swept: there is nothing to gain.
const UNSWEPT: usize = 8;

/// In cache lines of its own (two, as processors fetch them in pairs), so that a thread in one shard does not
/// slow down a thread in the next.
#[repr(align(128))]
pub(super) struct Apart<T>(pub(super) T);

pub(super) struct Shard {
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
pub(super) struct Home<'a> {
    pub(super) shard: usize,
    pub(super) hash: u64,
    pub(super) policy: &'a Policy,
    pub(super) key: &'a Key,
}

impl Shard {
    /// How many keys it holds.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the entry no longer matters. Its state would say so too, unless the quota became slower
    /// since; then Redis has forgotten it as well.
    fn is_over(&self, entry: &Entry, now: u64) -> bool {
        self.expiring && entry.expires <= now
    }

    pub(super) fn plan(&self, home: &Home<'_>, twin: &dyn Twin, now: u64, cost: u64) -> Plan {
        let found = self.entries.raw_entry_v1().from_hash(home.hash, |name| home.is(name));
        let entry = found.map(|(_, entry)| entry).filter(|entry| !self.is_over(entry, now));
        twin.plan(home.policy.arguments(), entry.and_then(|entry| entry.state.as_ref()), now, cost)
    }

    pub(super) fn change(&mut self, home: &Home<'_>, twin: &dyn Twin, now: u64, change: Change) {
        let arguments = home.policy.arguments();
        self.update(home, now, |state| ((), Some(twin.change(arguments, state, now, change))));
    }

    /// Lets `update` read and change the state, in one look at the table where there is an entry. It says for
    /// how much longer the state matters, where it changed it.
    pub(super) fn update<T>(
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

    pub(super) fn remove(&mut self, home: &Home<'_>) {
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

pub(super) fn shards(capacity: usize, expiring: bool) -> Arc<[Apart<Mutex<Shard>>]> {
    // Clamped first: there is no power of two above the largest capacities.
    let shards = (capacity / SHARD).clamp(MIN_SHARDS, MAX_SHARDS).next_power_of_two();
    let capacity = capacity.div_ceil(shards).max(MIN_SHARD);
    let shard = || Shard { entries: IndexMap::with_hasher(()), capacity, cursor: 0, expiring };
    (0..shards).map(|_| Apart(Mutex::new(shard()))).collect()
}

/// The locks of one decision, taken in ascending order so that no two decisions wait for each other.
pub(super) struct Guards<'a>(Vec<(usize, MutexGuard<'a, Shard>)>);

impl<'a> Guards<'a> {
    pub(super) fn lock(shards: &'a [Apart<Mutex<Shard>>], homes: &[Home<'_>]) -> Self {
        let mut order: Vec<usize> = homes.iter().map(|home| home.shard).collect();
        order.sort_unstable();
        order.dedup();
        Self(order.into_iter().map(|shard| (shard, lock(&shards[shard].0))).collect())
    }

    pub(super) fn shard(&mut self, home: &Home<'_>) -> &mut Shard {
        match self.0.iter_mut().find(|(shard, _)| *shard == home.shard) {
            Some((_, shard)) => shard,
            None => unreachable!("every charge's shard is locked before the first is read"),
        }
    }
}

impl Home<'_> {
    fn is(&self, name: &Name) -> bool {
        *self.key == name.key && self.policy.shares_counts_with(&name.policy)
    }
}
