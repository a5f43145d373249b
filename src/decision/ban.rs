use std::time::Duration;

use crate::key::Key;

/// The keys that a policy bans. From [`Operator::bans`](crate::Operator::bans), which has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BanList {
    /// Each key as it is [stored](crate::key#the-stored-form), and the time until its ban ends: the longest ban first,
    /// bans of the same length in the order of their keys.
    pub bans: Vec<(Key, Duration)>,
    /// Whether there are no others: `false` if the store has more than the list may have, or has looked at as many keys as
    /// it does at most.
    pub is_complete: bool,
}

impl BanList {
    /// The `most` longest of `bans`, which may come in any order.
    pub(crate) fn longest(most: usize, mut bans: Vec<(Key, Duration)>, is_complete: bool) -> Self {
        bans.sort_unstable_by(|(one, rest), (other, others)| others.cmp(rest).then_with(|| one.cmp(other)));
        let is_complete = is_complete && bans.len() <= most;
        bans.truncate(most);
        Self { bans, is_complete }
    }
}
