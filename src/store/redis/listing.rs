//! Lists the keys of a store, for operators.

use std::collections::BTreeSet;

use super::{
    store::RedisStore,
    transport::{Found, PROBE_TIMEOUT, Scan},
};
use crate::{
    base::{Error, Fault},
    policy::Policy,
    store::list::{Extent, StoredKeys},
};

/// The keys under `policies`, in their order.
///
/// A thousand keys take up to a millisecond of Redis, and other commands run between two thousands. The list
/// may or may not have a key that is charged or expires in the meantime. A store makes one list at a time in
/// each runtime: others wait. The Redis user needs `+scan`, which is not part of
/// [`acl_rule`](RedisStore::acl_rule).
///
/// # Errors
///
/// The same as [`probe`](RedisStore::probe), with [`StoreTimeout`](crate::ErrorKind::StoreTimeout) if a step
/// takes longer than the deadline of a decision, or half a second if that is longer; and
/// [`StoreFailed`](crate::ErrorKind::StoreFailed) without the permission. In a Redis Cluster, all primaries
/// must answer.
pub(super) async fn list(
    store: RedisStore,
    policies: Vec<Policy>,
    extent: Extent,
) -> Result<StoredKeys, Error> {
    let all = || store.names.pattern_of_all();
    let scan = match extent {
        Extent::Found(most) => {
            let pattern = policies.first().map_or_else(all, |policy| store.names.pattern(policy));
            Scan { pattern, most, looks: usize::MAX }
        }
        Extent::Seen(looks) => Scan { pattern: all(), most: usize::MAX, looks },
    };
    let scanned = store.link.clone().scan(scan, store.deadline.max(PROBE_TIMEOUT));
    let Found { names, is_partial } = scanned.await.map_err(|error| match error.fault() {
        Some(Fault::NoPermission) => {
            Error::new(error.kind(), "keys cannot be listed: run ACL SETUSER <user> +scan")
        }
        _ => error,
    })?;
    // The sets remove duplicates: SCAN returns a key again if the table of Redis grows in the meantime.
    let (mut keys, mut others) = (BTreeSet::new(), BTreeSet::new());
    for name in names {
        let key = |(place, policy)| Some((place, store.names.key(&name, policy)?));
        match policies.iter().enumerate().find_map(key) {
            Some(key) => drop(keys.insert(key)),
            None => drop(others.insert(name)),
        }
    }
    let keys = keys.into_iter().collect();
    Ok(StoredKeys { keys, others: others.len(), is_complete: !is_partial })
}
