//! [`Sketch`]: which keys of a stream are the most frequent.

use std::cmp::Reverse;

use indexmap::{
    IndexMap,
    map::raw_entry_v1::{RawEntryApiV1, RawEntryMut},
};

use crate::{key::Key, policy::Policy};

/// When twice this many counters exist, only this many are kept.
const COUNTERS: usize = 256;

/// The most frequent keys of a stream, after Misra and Gries. Each cut takes as many denials from 257 keys or
/// more as from any other key, so all cuts together take at most 1/257 of all denials from a key.
#[derive(Default)]
pub(super) struct Sketch {
    /// By hash; the map itself hashes nothing.
    counters: IndexMap<u64, Counter, ()>,
    /// The most denials that a key without a counter can have had.
    floor: u64,
}

/// The policy and the key of an entry.
pub(super) struct Name {
    pub(super) policy: Policy,
    pub(super) key: Key,
    /// When the first denial was made, in microseconds since 1970.
    pub(super) first: u64,
}

struct Counter {
    name: Name,
    denials: u64,
    /// The floor when the counter was made.
    error: u64,
}

impl Sketch {
    /// Counts the denials of a key.
    pub(super) fn add(&mut self, hash: u64, name: Name, denials: u64) {
        match self.counters.raw_entry_mut_v1().from_hash(hash, |other| *other == hash) {
            RawEntryMut::Occupied(mut counter) => counter.get_mut().denials += denials,
            RawEntryMut::Vacant(place) => {
                let counter = Counter { name, denials: self.floor + denials, error: self.floor };
                place.insert_hashed_nocheck(hash, hash, counter);
                if self.counters.len() == 2 * COUNTERS {
                    self.cut();
                }
            }
        }
    }

    /// Keeps the 256 largest counters, or fewer if others are equal to the smallest of these.
    fn cut(&mut self) {
        let mut all: Vec<u64> = self.counters.values().map(|counter| counter.denials).collect();
        let (_, floor, _) = all.select_nth_unstable_by_key(COUNTERS, |denials| Reverse(*denials));
        self.floor = *floor;
        self.counters.retain(|_, counter| counter.denials > *floor);
    }

    /// The most denials that a key can have had, and how many of them may be none of it.
    pub(super) fn count_of(&self, hash: u64) -> (u64, u64) {
        let found = self.counters.raw_entry_v1().from_hash(hash, |other| *other == hash);
        found.map_or((self.floor, self.floor), |(_, counter)| (counter.denials, counter.error))
    }

    /// The hash, the name, the denials and the error of each counter.
    pub(super) fn counters(&self) -> impl Iterator<Item = (u64, &Name, u64, u64)> {
        self.counters.iter().map(|(hash, counter)| (*hash, &counter.name, counter.denials, counter.error))
    }
}
