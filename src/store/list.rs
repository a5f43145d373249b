//! Lists of keys, for operators.

use std::time::Duration;

use crate::key::Key;

/// The most bans that a list has.
const MOST_BANS: usize = 10_000;

/// How many keys a search in Redis looks at.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "a store in process looks at all its keys"))]
pub(crate) enum Extent {
    /// The keys of a single policy, until about this number is found. Other keys are not counted.
    Found(usize),
    /// About this number of keys of each server, including other programs' keys.
    Seen(usize),
}

/// The keys that a store has: see [`Operator::keys`](crate::Operator::keys).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredKeys {
    /// Each key as it is [stored](crate::key#the-stored-form), and the place of its policy among those that
    /// were asked for.
    pub keys: Vec<(usize, Key)>,
    /// The number of names under the prefix that belong to none of the policies: names of other policies, of
    /// a policy that had another algorithm, and of the hash of live policies.
    pub others: usize,
    /// Whether all keys were looked at.
    pub is_complete: bool,
}

/// The keys that a policy bans: see [`Operator::bans`](crate::Operator::bans).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BanList {
    /// Each key as it is [stored](crate::key#the-stored-form), and the time until its ban ends: the
    /// longest ban first, bans of the same length in the order of their keys.
    pub bans: Vec<(Key, Duration)>,
    /// Whether there are no others: `false` if the store has more than 10,000 bans, more keys than are looked
    /// at, or a value that another version or another program wrote.
    pub is_complete: bool,
}

impl BanList {
    /// The longest of `bans`.
    pub(crate) fn longest(mut bans: Vec<(Key, Duration)>, is_complete: bool) -> Self {
        bans.sort_unstable_by(|(one, rest), (other, others)| others.cmp(rest).then_with(|| one.cmp(other)));
        let is_complete = is_complete && bans.len() <= MOST_BANS;
        bans.truncate(MOST_BANS);
        Self { bans, is_complete }
    }
}
