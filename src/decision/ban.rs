use std::{slice, time::Duration, vec};

use crate::key::Key;

/// The keys that a policy bans, the longest ban first. From [`Operator::bans`](crate::Operator::bans).
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{decision::{Ban, BanList}, Key};
///
/// let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3_600));
/// let list = BanList::new([Ban::new(Key::new("alice"), minute), Ban::new(Key::new("mallory"), hour)], true);
/// assert_eq!((list.bans()[0].key().as_str(), list.bans().len()), ("mallory", 2));
/// assert!(list.is_complete());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BanList {
    bans: Vec<Ban>,
    is_complete: bool,
}

impl BanList {
    /// A list of `bans`, which may come in any order, for your own stores. `is_complete` says whether there are no others.
    #[must_use]
    pub fn new(bans: impl IntoIterator<Item = Ban>, is_complete: bool) -> Self {
        let mut bans: Vec<Ban> = bans.into_iter().collect();
        bans.sort_unstable_by(|one, other| {
            other.rest().cmp(&one.rest()).then_with(|| one.key().cmp(other.key()))
        });
        Self { bans, is_complete }
    }

    /// The bans, the longest first. Bans of the same length are in the order of their keys.
    #[must_use]
    pub fn bans(&self) -> &[Ban] {
        &self.bans
    }

    /// Whether there are no others: `false` if the store has more than the list may have, or has looked at as many keys as
    /// it does at most.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The `most` longest ones.
    pub(crate) fn longest(mut self, most: usize) -> Self {
        self.is_complete &= self.bans.len() <= most;
        self.bans.truncate(most);
        self
    }
}

impl IntoIterator for BanList {
    type Item = Ban;
    type IntoIter = vec::IntoIter<Ban>;

    fn into_iter(self) -> Self::IntoIter {
        self.bans.into_iter()
    }
}

impl<'a> IntoIterator for &'a BanList {
    type Item = &'a Ban;
    type IntoIter = slice::Iter<'a, Ban>;

    fn into_iter(self) -> Self::IntoIter {
        self.bans.iter()
    }
}

/// A key that a policy bans, from [`Operator::bans`](crate::Operator::bans).
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{decision::Ban, Key};
///
/// let ban = Ban::new(Key::new("alice"), Duration::from_secs(60));
/// assert_eq!((ban.key().as_str(), ban.rest().as_secs()), ("alice", 60));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    key: Key,
    rest: Duration,
}

impl Ban {
    /// A ban of `key` that ends after `rest`, for your own stores.
    #[must_use]
    pub const fn new(key: Key, rest: Duration) -> Self {
        Self { key, rest }
    }

    /// The key, as it is [stored](crate::key#the-stored-form): a long identity is a hash.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// The time until the ban ends.
    #[must_use]
    pub const fn rest(&self) -> Duration {
        self.rest
    }
}
