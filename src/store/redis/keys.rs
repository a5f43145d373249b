//! Finds the keys that have a count, for administrators.

use std::{collections::BTreeSet, fmt};

use redis::{Cmd, Value};

use super::{
    error::{from_redis, missing_permission},
    store::RedisStore,
    transport::PROBE_TIMEOUT,
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    policy::Policy,
};

/// About how many keys one `SCAN` looks at: less than a millisecond of Redis.
const AT_ONCE: usize = 1_000;

/// The keys that [`RedisStore::stored_keys`] has found.
#[derive(Clone)]
#[non_exhaustive]
pub struct StoredKeys {
    keys: Vec<(Policy, Key)>,
    others: usize,
    is_complete: bool,
}

impl StoredKeys {
    /// Each policy with a key that is charged under it, in the order of the policies, then of the keys. The keys of one
    /// policy are in the order of their [stored form](crate::key#the-stored-form).
    #[must_use]
    pub fn keys(&self) -> &[(Policy, Key)] {
        &self.keys
    }

    /// How many names under the prefix belong to none of the policies: to other policies, to a policy that had another
    /// algorithm, or to the hash of [live policies](crate::policy).
    #[must_use]
    pub const fn others(&self) -> usize {
        self.others
    }

    /// Whether all of Redis was looked at.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.is_complete
    }
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
    /// The keys that are charged under `policies` now, from a look at about `at_most` keys of each server, of any program.
    /// For administrators: it takes about a millisecond of Redis for a thousand keys that it looks at, in steps between
    /// which other commands run.
    ///
    /// A key that is charged or expires meanwhile may be among them or not. The Redis user needs `+scan`, which is not part
    /// of [`acl_rule`](Self::acl_rule).
    ///
    /// # Errors
    ///
    /// Those of [`probe`](Self::probe), and [`StoreFailed`](ErrorKind::StoreFailed) without the permission. In a Redis
    /// Cluster, all primaries must answer.
    ///
    /// # Example
    ///
    /// ```no_run
    /// use tower_ratelimit::{Policy, Quota, RedisStore};
    ///
    /// # async fn example() -> Result<(), tower_ratelimit::Error> {
    /// let store = RedisStore::connect("redis://127.0.0.1:6379").await?;
    /// let login = Policy::new("login", Quota::per_minute(5));
    /// for (policy, key) in store.stored_keys(&[login], 100_000).await?.keys() {
    ///     println!("{} {}", policy.name(), key.as_str());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn stored_keys(&self, policies: &[Policy], at_most: usize) -> Result<StoredKeys, Error> {
        let mut found = vec![BTreeSet::new(); policies.len()];
        let mut others = BTreeSet::new();
        let mut note = |name: String| {
            let read = |(at, policy)| Some((at, self.names.read(&name, policy)?));
            match policies.iter().enumerate().find_map(read) {
                Some((at, key)) => drop(found[at].insert(key)),
                None => drop(others.insert(name)),
            }
        };
        let mut is_complete = true;
        let first =
            self.link.clone().ask_all(self.scan("0"), PROBE_TIMEOUT).await.map_err(without_permission)?;
        let calls = at_most.div_ceil(AT_ONCE).max(1);
        for (server, reply) in first {
            let mut page = page(reply)?;
            for _ in 1..calls {
                page.names.drain(..).for_each(&mut note);
                if page.cursor == "0" {
                    break;
                }
                let next = self.scan(&page.cursor);
                page = self::page(self.link.clone().ask_one(&server, next, PROBE_TIMEOUT).await?)?;
            }
            page.names.into_iter().for_each(&mut note);
            is_complete &= page.cursor == "0";
        }
        let of = |(policy, keys): (&Policy, BTreeSet<Key>)| {
            keys.into_iter().map(|key| (policy.clone(), key)).collect::<Vec<_>>()
        };
        Ok(StoredKeys {
            keys: policies.iter().zip(found).flat_map(of).collect(),
            others: others.len(),
            is_complete,
        })
    }

    /// The command that looks at the next keys under the prefix.
    fn scan(&self, cursor: &str) -> Cmd {
        let mut command = Cmd::new();
        command.arg("SCAN").arg(cursor).arg("MATCH").arg(self.names.pattern()).arg("COUNT").arg(AT_ONCE);
        command
    }
}

/// A reply to SCAN.
struct Page {
    cursor: String,
    names: Vec<String>,
}

fn page(reply: Value) -> Result<Page, Error> {
    // In a Redis Cluster, the errors of nodes are values.
    let reply = reply.extract_error().map_err(|error| without_permission(from_redis(&error)))?;
    let (cursor, names): (String, Vec<Vec<u8>>) = redis::from_redis_value(reply)
        .map_err(|_| Error::new(ErrorKind::StoreReply, "the reply to SCAN is not a list of keys"))?;
    // A name of this crate is ASCII.
    let names = names.into_iter().map(|name| String::from_utf8_lossy(&name).into_owned()).collect();
    Ok(Page { cursor, names })
}

/// The error, with the permission that the Redis user lacks.
fn without_permission(error: Error) -> Error {
    if !missing_permission(&error) {
        return error;
    }
    Error::new(error.kind(), "keys cannot be listed: run ACL SETUSER <user> +scan")
}
