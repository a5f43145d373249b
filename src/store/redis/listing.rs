//! Lists the keys that have a count, and those that are banned, for operators.

use std::collections::BTreeSet;

use tokio::task::JoinSet;

use super::{
    store::RedisStore,
    transport::{Found, PROBE_TIMEOUT, Scan},
};
use crate::{
    base::{Error, ErrorKind, Fault},
    decision::Charge,
    key::Key,
    policy::Policy,
    store::{Action, BanList, Store as _},
};

/// About how many keys with denials or bans are looked at, at most.
const MOST_BANNED: usize = 100_000;
/// How many of them are looked at concurrently.
const CHUNK: usize = 128;

/// The keys that [`RedisStore::stored_keys`] has found.
#[derive(Clone, Debug)]
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
        let scanned = self.scan(scan).await?;
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
            is_complete: !scanned.is_partial,
        })
    }

    /// The keys that `policy` bans: the `most` longest bans.
    pub(super) async fn list_bans(self, policy: Policy, most: usize) -> Result<BanList, Error> {
        let Some(counted_by) = policy.bans() else { return Ok(BanList::longest(0, Vec::new(), true)) };
        let scan = Scan { pattern: self.names.pattern(counted_by), most: MOST_BANNED, looks: usize::MAX };
        let found = self.scan(scan).await?;
        // A key is listed again if the table of Redis grows during the scan.
        let keys: BTreeSet<Key> =
            found.names.iter().filter_map(|name| self.names.key(name, counted_by)).collect();
        let (mut keys, mut bans) = (keys.into_iter(), Vec::new());
        loop {
            let mut peeks = JoinSet::new();
            for key in keys.by_ref().take(CHUNK) {
                // Only the ban. What the key was charged does not matter, nor whether the policy is a shadow.
                let peeked = self.decide(Action::Peek, &[Charge::new(counted_by, &key, 1)]);
                peeks.spawn(async move { (key, peeked.await) });
            }
            if peeks.is_empty() {
                return Ok(BanList::longest(most, bans, !found.is_partial));
            }
            for (key, peeked) in peeks.join_all().await {
                match peeked {
                    Ok(decision) => bans.extend(decision.retry_after().map(|rest| (key, rest))),
                    Err(error) if error.kind() == ErrorKind::ForeignValue => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    async fn scan(&self, scan: Scan) -> Result<Found, Error> {
        let found = self.link.clone().scan(scan, self.deadline.max(PROBE_TIMEOUT)).await;
        found.map_err(|error| {
            if error.fault() != Some(Fault::NoPermission) {
                return error;
            }
            Error::new(error.kind(), "keys cannot be listed: run ACL SETUSER <user> +scan")
        })
    }
}
