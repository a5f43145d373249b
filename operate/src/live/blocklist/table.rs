//! The blocked networks by address, and the clock by which they end.

use std::{
    collections::{BTreeSet, HashMap},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tower_ratelimit::key::Network;

use super::network::{BlockedNetwork, Entry};

/// The most networks that a blocklist has.
pub(super) const MOST: usize = 10_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    entries: HashMap<Network, Entry>,
    /// The prefix lengths of the entries: of IPv4, and of IPv6. Few, so an address is looked up once for each.
    lengths: [BTreeSet<u8>; 2],
}

impl Table {
    /// Adds an entry in the place of the one that the network has.
    pub(super) fn insert(&mut self, network: Network, entry: Entry) {
        self.lengths[usize::from(network.address().is_ipv6())].insert(network.prefix_len());
        self.entries.insert(network, entry);
    }

    /// Adds an entry, unless the one that the network has ends later.
    #[cfg(feature = "redis")]
    pub(super) fn insert_longest(&mut self, network: Network, entry: Entry) {
        let end = |entry: &Entry| entry.until.unwrap_or(u64::MAX);
        if self.entries.get(&network).is_none_or(|other| end(other) < end(&entry)) {
            self.insert(network, entry);
        }
    }

    /// Removes the entry of `network`. Returns whether it blocked at `now`.
    pub(super) fn remove(&mut self, network: &Network, now: f64) -> bool {
        let removed = self.entries.remove(network);
        if removed.is_some() {
            self.find_lengths();
        }
        removed.is_some_and(|entry| entry.is_active(now))
    }

    /// Removes the entries that have ended at `now`.
    pub(super) fn remove_ended(&mut self, now: f64) {
        let before = self.entries.len();
        self.entries.retain(|_, entry| entry.is_active(now));
        if self.entries.len() < before {
            self.find_lengths();
        }
    }

    fn find_lengths(&mut self) {
        self.lengths = Default::default();
        for network in self.entries.keys() {
            self.lengths[usize::from(network.address().is_ipv6())].insert(network.prefix_len());
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entries whose networks contain `inner`, the widest first.
    pub(super) fn entries_containing(&self, inner: Network) -> impl Iterator<Item = (Network, &Entry)> {
        let lengths = self.lengths[usize::from(inner.address().is_ipv6())].range(..=inner.prefix_len());
        lengths.filter_map(move |length| {
            let network = inner.widened_to(*length)?;
            Some((network, self.entries.get(&network)?))
        })
    }

    /// What blocks at `now`, in the order of the networks.
    pub(super) fn active(&self, now: f64) -> Vec<BlockedNetwork> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_unstable_by_key(|(network, _)| **network);
        entries.into_iter().filter_map(|(network, entry)| entry.shown(network, now)).collect()
    }
}

/// The clock by which entries end: the server's, as the last read has found it, or this machine's.
pub(super) struct Clock {
    begin: Instant,
    /// The time at `begin`, in microseconds since 1970.
    micros: AtomicU64,
}

impl Clock {
    /// Begins with the time of this machine.
    pub(super) fn new() -> Self {
        let micros = since_1970().as_micros() as u64;
        Self { begin: Instant::now(), micros: AtomicU64::new(micros) }
    }

    /// Sets it to `time` since 1970.
    #[cfg(feature = "redis")]
    pub(super) fn set(&self, time: Duration) {
        let at_begin = time.saturating_sub(self.begin.elapsed());
        self.micros.store(at_begin.as_micros() as u64, Ordering::Relaxed);
    }

    /// The time in seconds since 1970.
    pub(super) fn now(&self) -> f64 {
        (Duration::from_micros(self.micros.load(Ordering::Relaxed)) + self.begin.elapsed()).as_secs_f64()
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
