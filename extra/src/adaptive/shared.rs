//! The shares of all instances, in one hash in Redis.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;
use tower_ratelimit::{Error, ErrorKind, Key, Policy, RedisStore, store::RedisHash};

use super::source::INTERVALS;
use crate::outage::Outage;

/// This instance's place among the others.
pub(super) struct Shares {
    store: RedisStore,
    table: RedisHash,
    roll: Roll,
    outage: Outage,
}

/// Who publishes, and whether it still does. It needs no clock that instances agree on: an entry is of a
/// running instance if it changes.
struct Roll {
    own: String,
    /// Changes with every entry of this instance.
    sequence: u64,
    /// The time between two entries of this instance.
    interval: Duration,
    /// The entries of the others, by instance.
    others: BTreeMap<Vec<u8>, Seen>,
}

struct Seen {
    text: Vec<u8>,
    entry: Entry,
    since: Instant,
    has_stopped: bool,
}

/// The entry that an instance publishes: its share, a number that changes with every entry, and its interval
/// in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    share: f64,
    /// After this time without a change, it is of an instance that stopped.
    expiry: Duration,
}

/// After this time, or once no entry counts if that is later, the table of a service that no longer runs is
/// removed.
const TTL: Duration = Duration::from_secs(60);
/// A hash with more fields is not for this crate.
const MAX_ENTRIES: usize = 10_000;
const SHORTEST_EXPIRY: Duration = Duration::from_secs(2);
/// In intervals.
const EXPIRY: u32 = 4;

impl Shares {
    pub(super) fn new(store: &RedisStore, policy: &Policy, interval: Duration) -> Self {
        let own = format!("{:016x}", fastrand::u64(..));
        Self {
            store: store.clone(),
            table: table_of(store, policy),
            roll: Roll::new(own, interval),
            outage: Outage::default(),
        }
    }

    /// The mean share of the instances that run already.
    pub(super) async fn join(&mut self) -> Option<f64> {
        let entries = self.read().await.ok()?;
        self.roll.read(&entries, Instant::now());
        self.roll.mean(None)
    }

    /// Publishes this instance's share. Returns the mean of all, or the own share while Redis is unavailable.
    pub(super) async fn agree(&mut self, own: f64) -> f64 {
        match self.exchange(own).await {
            Ok(share) => share,
            Err(_error) => {
                if self.outage.failed() {
                    log!(warn, error = %_error, "the shares of other instances are unknown; this one uses its own");
                }
                // The others cannot publish either.
                self.roll.keep(Instant::now());
                own
            }
        }
    }

    async fn exchange(&mut self, own: f64) -> Result<f64, Error> {
        let entry = self.roll.entry(own);
        self.table.set(&[(&self.roll.own, &entry)]).await?;
        self.table.expire(TTL.max(self.roll.expiry())).await?;
        let entries = self.read().await?;
        let stopped = self.roll.read(&entries, Instant::now());
        if !stopped.is_empty() {
            // If it fails, the next interval tries again.
            let _ = self.table.remove(&stopped).await;
        }
        Ok(self.roll.mean(Some(own)).unwrap_or(own))
    }

    async fn read(&self) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
        let entries = self.table.fields().await?;
        if entries.len() > MAX_ENTRIES {
            let message =
                format!("`{}` has more than {MAX_ENTRIES} fields: is it of this service?", self.table.key());
            return Err(Error::new(ErrorKind::StoreReply, message));
        }
        Ok(entries)
    }

    /// Moves this instance to the table of `policy`, if its name or its algorithm is another one.
    pub(super) async fn rename(&mut self, policy: &Policy) {
        let table = table_of(&self.store, policy);
        if table.key() == self.table.key() {
            return;
        }
        self.remove().await;
        self.table = table;
        self.roll.others.clear();
    }

    /// Removes this instance.
    pub(super) async fn leave(self) {
        self.remove().await;
    }

    async fn remove(&self) {
        // If it fails, the entry expires.
        let _ = self.table.remove(&[self.roll.own.clone().into_bytes()]).await;
    }
}

/// The table of the instances that share `policy`. The policy's name is encoded as a key, and its colons too.
fn table_of(store: &RedisStore, policy: &Policy) -> RedisHash {
    let name = Key::new(policy.name()).as_str().replace(':', "%3A");
    store.hash(&format!("adaptive:{name}:{}", policy.settings().algorithm.name()))
}

impl Roll {
    const fn new(own: String, interval: Duration) -> Self {
        Self { own, sequence: 0, interval, others: BTreeMap::new() }
    }

    fn entry(&mut self, share: f64) -> String {
        self.sequence += 1;
        format!("{share} {} {}", self.sequence, self.interval.as_millis())
    }

    /// The time after which no entry counts, if all instances stop now.
    fn expiry(&self) -> Duration {
        let others = self.others.values().map(|seen| seen.entry.expiry);
        others.fold(expiry_after(self.interval), Duration::max)
    }

    /// Reads what all have published. Returns the instances that have stopped.
    fn read(&mut self, entries: &BTreeMap<Vec<u8>, Vec<u8>>, now: Instant) -> Vec<Vec<u8>> {
        let mut stopped = Vec::new();
        let mut others = BTreeMap::new();
        for (instance, text) in entries {
            let Some(entry) = Entry::read(text) else { continue };
            if *instance == self.own.as_bytes() {
                continue;
            }
            let unchanged = self.others.get(instance).filter(|seen| seen.text == *text);
            let since = unchanged.map_or(now, |seen| seen.since);
            let has_stopped = now - since > entry.expiry;
            if has_stopped {
                stopped.push(instance.clone());
            }
            // Kept, or it would count again if it cannot be removed.
            others.insert(instance.clone(), Seen { text: text.clone(), entry, since, has_stopped });
        }
        self.others = others;
        stopped
    }

    /// Nothing was read, so nothing has changed.
    fn keep(&mut self, now: Instant) {
        self.others.values_mut().for_each(|seen| seen.since = now);
    }

    /// The mean of the others and `own`. All instances add in the same order, so they get the same mean.
    fn mean(&self, own: Option<f64>) -> Option<f64> {
        let others = self.others.iter().filter(|(_, seen)| !seen.has_stopped);
        let mut all: BTreeMap<&[u8], f64> = others.map(|(name, seen)| (&**name, seen.entry.share)).collect();
        all.extend(own.map(|share| (self.own.as_bytes(), share)));
        (!all.is_empty()).then(|| all.values().sum::<f64>() / all.len() as f64)
    }
}

impl Entry {
    /// `None` if it is not one of ours.
    fn read(text: &[u8]) -> Option<Self> {
        let mut parts = str::from_utf8(text).ok()?.split(' ');
        let share = parts.next()?.parse().ok()?;
        let _sequence = parts.next()?;
        let interval = Duration::from_millis(parts.next()?.parse().ok()?);
        let is_valid = (0.0..=1.0).contains(&share) && INTERVALS.contains(&interval);
        is_valid.then(|| Self { share, expiry: expiry_after(interval) })
    }
}

fn expiry_after(interval: Duration) -> Duration {
    (interval * EXPIRY).max(SHORTEST_EXPIRY)
}

#[cfg(test)]
mod tests {
    use tower_ratelimit::Quota;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn entries(rows: &[(&str, &str)]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        rows.iter().map(|(name, entry)| (name.as_bytes().to_vec(), entry.as_bytes().to_vec())).collect()
    }

    #[tokio::test]
    async fn the_table_has_the_name_under_which_the_store_counts_the_policy() {
        let store = RedisStore::builder().prefix("shop").connect_lazy("redis://127.0.0.1:1").unwrap();
        let policy = Policy::new("a:b {c}", Quota::per_second(1));
        assert_eq!(table_of(&store, &policy).key(), "shop:adaptive:a%3Ab%20%7Bc%7D:gcra");
    }

    #[test]
    fn the_mean_is_over_this_instance_and_those_whose_entry_changes() {
        let mut roll = Roll::new("b".to_owned(), SECOND);
        let now = Instant::now();
        assert_eq!(roll.mean(None), None);
        assert_eq!(roll.mean(Some(0.5)), Some(0.5));
        let first = entries(&[("a", "0.2 7 500"), ("b", "0.9 3 500"), ("c", "0.4 1 500")]);
        assert!(roll.read(&first, now).is_empty());
        assert!((roll.mean(None).unwrap() - 0.3).abs() < 1e-9);
        assert!((roll.mean(Some(0.9)).unwrap() - 0.5).abs() < 1e-9);

        // `c` stops.
        let later = entries(&[("a", "0.2 8 500"), ("c", "0.4 1 500")]);
        assert!(roll.read(&later, now + SECOND * 2).is_empty());
        let later = entries(&[("a", "0.2 9 500"), ("c", "0.4 1 500")]);
        assert_eq!(roll.read(&later, now + SECOND * 3), [b"c"]);
        assert!((roll.mean(Some(0.4)).unwrap() - 0.3).abs() < 1e-9);
        // It could not be removed.
        assert_eq!(roll.read(&later, now + SECOND * 4), [b"c"]);
        assert!((roll.mean(Some(0.4)).unwrap() - 0.3).abs() < 1e-9);
        // `a` leaves, so it stops counting immediately.
        assert!(roll.read(&entries(&[("b", "0.4 2 500")]), now + SECOND * 3).is_empty());
        assert_eq!(roll.mean(Some(0.4)), Some(0.4));
    }

    #[test]
    fn an_instance_counts_for_four_intervals_as_it_announced_them() {
        for own in [SECOND / 2, SECOND * 60] {
            let mut roll = Roll::new("b".to_owned(), own);
            let now = Instant::now();
            let same = entries(&[("seldom", "0.2 7 10000"), ("often", "0.4 7 500")]);
            assert!(roll.read(&same, now).is_empty());
            assert_eq!(roll.expiry(), (own * 4).max(SECOND * 40));
            assert_eq!(roll.read(&same, now + SECOND * 3), [b"often"]);
            assert!(roll.read(&entries(&[("seldom", "0.2 7 10000")]), now + SECOND * 40).is_empty());
            assert_eq!(roll.mean(None), Some(0.2));
            assert_eq!(roll.read(&same, now + SECOND * 41), [b"seldom"]);
        }
    }

    #[test]
    fn no_instance_has_stopped_while_nothing_could_be_read() {
        let mut roll = Roll::new("b".to_owned(), SECOND);
        let now = Instant::now();
        let same = entries(&[("a", "0.2 7 500")]);
        roll.read(&same, now);
        roll.keep(now + SECOND * 10);
        assert!(roll.read(&same, now + SECOND * 12).is_empty());
        assert_eq!(roll.read(&same, now + SECOND * 13).len(), 1);
    }

    #[test]
    fn an_invalid_share_is_ignored() {
        let mut roll = Roll::new("b".to_owned(), SECOND);
        let strange = [
            ("c", ""),
            ("d", "NaN 1 500"),
            ("e", "7 1 500"),
            ("f", "-1 1 500"),
            ("g", "x"),
            ("h", "inf 2 500"),
            ("i", "0.5 1"),
            ("j", "0.5 1 x"),
            ("k", "0.5 1 18446744073709551615"),
        ];
        for wait in 0..5 {
            assert!(roll.read(&entries(&strange), Instant::now() + SECOND * wait).is_empty());
            assert_eq!(roll.mean(Some(0.25)), Some(0.25));
        }
    }

    #[test]
    fn entries_read_as_they_were_written() {
        let mut roll = Roll::new("b".to_owned(), SECOND * 3);
        for share in [1.0, 0.05, 1.0 / 3.0] {
            let (first, second) = (roll.entry(share), roll.entry(share));
            assert_ne!(first, second);
            assert_eq!(Entry::read(first.as_bytes()), Some(Entry { share, expiry: SECOND * 12 }));
        }
    }
}
