//! The shares of all instances, in one hash in Redis.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::{
    error::Error,
    policy::Policy,
    store::{RedisStore, ShareTable},
    util::{outage::Outage, random::random},
};

/// This instance's place among the others.
pub(super) struct Shares {
    table: ShareTable,
    roll: Roll,
    outage: Outage,
}

/// Who publishes, and whether it still does. It needs no clock that instances agree on: an entry is of a running instance if
/// it changes.
struct Roll {
    own: String,
    /// Changes with every entry of this instance.
    sequence: u64,
    /// After this time without a change, an entry is of an instance that stopped.
    expiry: Duration,
    /// The entries of the others, by instance.
    others: BTreeMap<Vec<u8>, Seen>,
}

struct Seen {
    entry: Vec<u8>,
    since: Instant,
}

const SHORTEST_EXPIRY: Duration = Duration::from_secs(2);
/// In intervals.
const EXPIRY: u32 = 4;

impl Shares {
    pub(super) fn new(store: &RedisStore, policy: &Policy, interval: Duration) -> Self {
        let own = format!("{:016x}", random());
        Self {
            table: store.share_table(policy),
            roll: Roll::new(own, (interval * EXPIRY).max(SHORTEST_EXPIRY)),
            outage: Outage::until_expiry(Duration::from_secs(60)),
        }
    }

    /// The mean share of the instances that run already.
    pub(super) async fn join(&mut self) -> Option<f64> {
        let entries = self.table.read().await.ok()?;
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
        self.table.write(&self.roll.own, &entry).await?;
        let entries = self.table.read().await?;
        let stopped = self.roll.read(&entries, Instant::now());
        if !stopped.is_empty() {
            self.table.remove(&stopped).await?;
        }
        Ok(self.roll.mean(Some(own)).unwrap_or(own))
    }

    /// Removes this instance.
    pub(super) async fn leave(self) {
        // If it fails, the entry expires.
        let _ = self.table.remove(&[self.roll.own.into_bytes()]).await;
    }
}

impl Roll {
    const fn new(own: String, expiry: Duration) -> Self {
        Self { own, sequence: 0, expiry, others: BTreeMap::new() }
    }

    fn entry(&mut self, share: f64) -> String {
        self.sequence += 1;
        format!("{share} {}", self.sequence)
    }

    /// Reads what all have published. Returns the instances that have stopped.
    fn read(&mut self, entries: &BTreeMap<Vec<u8>, Vec<u8>>, now: Instant) -> Vec<Vec<u8>> {
        let mut stopped = Vec::new();
        let mut others = BTreeMap::new();
        for (instance, entry) in entries {
            if *instance == self.own.as_bytes() || share_in(entry).is_none() {
                continue;
            }
            let unchanged = self.others.get(instance).filter(|seen| seen.entry == *entry);
            let since = unchanged.map_or(now, |seen| seen.since);
            if now - since > self.expiry {
                stopped.push(instance.clone());
            } else {
                others.insert(instance.clone(), Seen { entry: entry.clone(), since });
            }
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
        let others = self.others.iter().filter_map(|(name, seen)| Some((&**name, share_in(&seen.entry)?)));
        let mut all: BTreeMap<&[u8], f64> = others.collect();
        all.extend(own.map(|share| (self.own.as_bytes(), share)));
        (!all.is_empty()).then(|| all.values().sum::<f64>() / all.len() as f64)
    }
}

/// The share in an entry. `None` if it is not one of ours.
fn share_in(entry: &[u8]) -> Option<f64> {
    let share = str::from_utf8(entry).ok()?.split(' ').next()?.parse().ok()?;
    (0.0..=1.0).contains(&share).then_some(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn entries(rows: &[(&str, &str)]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        rows.iter().map(|(name, entry)| (name.as_bytes().to_vec(), entry.as_bytes().to_vec())).collect()
    }

    #[test]
    fn the_mean_is_over_this_instance_and_those_whose_entry_changes() {
        let mut roll = Roll::new("b".to_owned(), SECOND);
        let now = Instant::now();
        assert_eq!(roll.mean(None), None);
        assert_eq!(roll.mean(Some(0.5)), Some(0.5));
        assert!(roll.read(&entries(&[("a", "0.2 7"), ("b", "0.9 3"), ("c", "0.4 1")]), now).is_empty());
        assert!((roll.mean(None).unwrap() - 0.3).abs() < 1e-9);
        assert!((roll.mean(Some(0.9)).unwrap() - 0.5).abs() < 1e-9);

        // `c` stops.
        let later = entries(&[("a", "0.2 8"), ("c", "0.4 1")]);
        assert!(roll.read(&later, now + SECOND).is_empty());
        let later = entries(&[("a", "0.2 9"), ("c", "0.4 1")]);
        assert_eq!(roll.read(&later, now + SECOND * 2), [b"c"]);
        assert!((roll.mean(Some(0.4)).unwrap() - 0.3).abs() < 1e-9);
        // `a` is gone at once.
        assert!(roll.read(&entries(&[("b", "0.4 2")]), now + SECOND * 2).is_empty());
        assert_eq!(roll.mean(Some(0.4)), Some(0.4));
    }

    #[test]
    fn no_instance_has_stopped_while_nothing_could_be_read() {
        let mut roll = Roll::new("b".to_owned(), SECOND);
        let now = Instant::now();
        let same = entries(&[("a", "0.2 7")]);
        roll.read(&same, now);
        roll.keep(now + SECOND * 10);
        assert!(roll.read(&same, now + SECOND * 11).is_empty());
        assert_eq!(roll.read(&same, now + SECOND * 12).len(), 1);
    }

    #[test]
    fn what_is_no_share_is_ignored() {
        let mut roll = Roll::new("b".to_owned(), SECOND);
        let strange = [("c", ""), ("d", "NaN 1"), ("e", "7 1"), ("f", "-1 1"), ("g", "x"), ("h", "inf 2")];
        for wait in 0..5 {
            assert!(roll.read(&entries(&strange), Instant::now() + SECOND * wait).is_empty());
            assert_eq!(roll.mean(Some(0.25)), Some(0.25));
        }
    }

    #[test]
    fn entries_read_as_they_were_written() {
        let mut roll = Roll::new("b".to_owned(), SECOND);
        for share in [1.0, 0.05, 1.0 / 3.0] {
            let (first, second) = (roll.entry(share), roll.entry(share));
            assert_ne!(first, second);
            assert_eq!(share_in(first.as_bytes()), Some(share));
        }
    }
}
