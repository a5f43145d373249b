//! The bans in Redis.

use std::collections::BTreeSet;

use tokio::task::JoinSet;

use super::{
    keys::without_permission,
    store::RedisStore,
    transport::{PROBE_TIMEOUT, Scan},
};
use crate::{
    base::{Error, ErrorKind},
    decision::Charge,
    key::Key,
    policy::Policy,
    store::{Action, BanList, Store as _},
};

/// About how many keys with denials or bans are looked at, at most.
const MOST_KEYS: usize = 100_000;
/// How many keys are looked at concurrently.
const CHUNK: usize = 128;

impl RedisStore {
    /// The keys that `policy` bans: the `most` longest bans.
    pub(super) async fn list_bans(self, policy: Policy, most: usize) -> Result<BanList, Error> {
        let Some(counted_by) = policy.bans() else { return Ok(BanList::longest(0, Vec::new(), true)) };
        let scan = Scan { pattern: self.names.pattern(counted_by), most: MOST_KEYS, looks: usize::MAX };
        let found = self.link.clone().scan(scan, self.deadline.max(PROBE_TIMEOUT)).await;
        let found = found.map_err(without_permission)?;
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
                return Ok(BanList::longest(most, bans, found.is_complete));
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
}
