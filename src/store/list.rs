//! Lists of keys, for operators.

use crate::key::Key;

/// How many keys a search in Redis looks at.
#[derive(Clone, Copy, Debug)]
pub enum Extent {
    /// The keys of a single policy, until about this number is found. Other keys are not counted.
    Found(usize),
    /// About this number of keys of each server, including other programs' keys.
    Seen(usize),
}

/// The keys that a store has.
#[derive(Clone, Debug)]
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
