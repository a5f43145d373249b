//! Finds the keys that have a count, for operators.

use std::{collections::BTreeSet, fmt};

use super::{
    store::RedisStore,
    transport::{PROBE_TIMEOUT, Scan},
};
use crate::{
    base::{Error, Fault},
    key::Key,
    policy::Policy,
};

/// The keys that [`RedisStore::stored_keys`] has found.
#[derive(Clone)]
pub struct StoredKeys {
    /// Each policy with a key that is charged or banned under it, in the order of the policies, then of the keys. The keys
    /// of one policy are in the order of their [stored form](crate::key#the-stored-form).
    pub keys: Vec<(Policy, Key)>,
    /// How many names under the prefix belong to none of the policies: to other policies, to a policy that had another
    /// algorithm, or to the hash of live policies.
    pub others: usize,
    /// Whether all of Redis was looked at.
    pub is_complete: bool,
}

/// Shows no key.
impl fmt::Debug for StoredKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredKeys")
            .field("keys", &self.keys.len())
            .field("others", &self.others)
            .field("is_complete", &self.is_complete)
            .finish()
    }
}

impl RedisStore {
    /// The keys that are charged, denied or banned under `policies` now. For operators.
    ///
    /// It looks at about `at_most` keys of each server, including other programs' keys. A thousand of them take up to a
    /// millisecond of Redis, and other commands run between two thousands. A key that is charged or expires in between
    /// may be among them or not. A store makes one list at a time in each runtime: others wait. The Redis user needs
    /// `+scan`, which is not part of [`acl_rule`](Self::acl_rule).
    ///
    /// # Errors
    ///
    /// The same as [`probe`](Self::probe), with [`StoreTimeout`](crate::ErrorKind::StoreTimeout) if a step takes longer
    /// than the deadline of a decision, or half a second if that is longer; and
    /// [`StoreFailed`](crate::ErrorKind::StoreFailed) without the permission. In a Redis Cluster, all primaries must
    /// answer.
    #[doc(hidden)]
    pub async fn stored_keys(&self, policies: &[Policy], at_most: usize) -> Result<StoredKeys, Error> {
        let scan = Scan { pattern: self.names.pattern_of_all(), most: usize::MAX, looks: at_most };
        let scanned = self.link.clone().scan(scan, self.deadline.max(PROBE_TIMEOUT)).await;
        let scanned = scanned.map_err(without_permission)?;
        let mut found = vec![BTreeSet::new(); policies.len()];
        let mut others = BTreeSet::new();
        for name in scanned.names {
            // A key that is banned is not always charged too.
            let read = |policy: &Policy| {
                let of_bans = || self.names.key(&name, policy.bans()?);
                self.names.key(&name, policy).or_else(of_bans)
            };
            match policies.iter().enumerate().find_map(|(at, policy)| Some((at, read(policy)?))) {
                Some((at, key)) => drop(found[at].insert(key)),
                None => drop(others.insert(name)),
            }
        }
        let of = |(policy, keys): (&Policy, BTreeSet<Key>)| {
            keys.into_iter().map(|key| (policy.clone(), key)).collect::<Vec<_>>()
        };
        Ok(StoredKeys {
            keys: policies.iter().zip(found).flat_map(of).collect(),
            others: others.len(),
            is_complete: scanned.is_complete,
        })
    }
}

/// The error of a scan, with the permission that the Redis user lacks.
pub(super) fn without_permission(error: Error) -> Error {
    if !error.fault().is_some_and(Fault::is_missing_permission) {
        return error;
    }
    Error::new(error.kind(), "keys cannot be listed: run ACL SETUSER <user> +scan")
}
