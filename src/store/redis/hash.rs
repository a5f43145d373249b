//! A hash in Redis, for what instances share in addition to counts.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use redis::{ToRedisArgs, Value, from_redis_value};

use super::{
    store::RedisStore,
    transport::{Link, PROBE_TIMEOUT},
};
use crate::base::{Error, ErrorKind};

/// A hash on the Redis of a [`RedisStore`]: settings that every instance reads, or a table with an entry for each instance.
/// From [`RedisStore::hash`].
///
/// No command is sent while the store's circuit breaker is open, and a failure is not an outage of the store.
///
/// # Errors
///
/// Each method fails as a decision does: with [`StoreTimeout`](ErrorKind::StoreTimeout),
/// [`StoreUnreachable`](ErrorKind::StoreUnreachable) and the like, or with [`StoreFailed`](ErrorKind::StoreFailed) if the Redis
/// user may not run the command, which [`RedisStore::acl_rule`] includes.
///
/// # Example
///
/// ```no_run
/// use tower_ratelimit::{Error, RedisStore};
///
/// async fn announce(store: &RedisStore, region: &str) -> Result<usize, Error> {
///     let regions = store.hash("regions");
///     regions.set(region, "up").await?;
///     Ok(regions.read().await?.len())
/// }
/// ```
#[derive(Clone)]
pub struct RedisHash {
    link: Arc<dyn Link>,
    key: String,
    timeout: Duration,
}

impl RedisStore {
    /// The hash whose key is the [prefix](super::RedisStoreBuilder::prefix), a colon and `name`.
    ///
    /// A name with braces is a key of a limit. Choose one without.
    #[doc(hidden)]
    #[must_use]
    pub fn hash(&self, name: &str) -> RedisHash {
        RedisHash {
            link: self.link.clone(),
            key: format!("{}:{name}", self.names.prefix()),
            timeout: self.deadline.min(PROBE_TIMEOUT),
        }
    }
}

impl RedisHash {
    /// The key in Redis.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Sets how long a command may take. Defaults to the store's [deadline](super::RedisStoreBuilder::deadline), and at most
    /// half a second.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// All fields, with `HGETALL`. Empty if there is no hash.
    ///
    /// # Errors
    ///
    /// See [above](Self#errors).
    pub async fn read(&self) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
        from_redis_value(self.ask("HGETALL", None::<&str>).await?)
            .map_err(|_| Error::new(ErrorKind::StoreReply, "the reply to HGETALL is not a hash"))
    }

    /// Sets one field, with `HSET`.
    ///
    /// # Errors
    ///
    /// See [above](Self#errors).
    pub async fn set(&self, field: &str, value: &str) -> Result<(), Error> {
        self.ask("HSET", &[field, value]).await.map(drop)
    }

    /// Removes fields, with `HDEL`.
    ///
    /// # Errors
    ///
    /// See [above](Self#errors).
    pub async fn remove(&self, fields: &[Vec<u8>]) -> Result<(), Error> {
        self.ask("HDEL", fields).await.map(drop)
    }

    /// Lets the whole hash expire after `time`, with `PEXPIRE`.
    ///
    /// # Errors
    ///
    /// See [above](Self#errors).
    pub async fn expire(&self, time: Duration) -> Result<(), Error> {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.ask("PEXPIRE", millis).await.map(drop)
    }

    /// The reply to the command `name` with `arguments`.
    async fn ask(&self, name: &str, arguments: impl ToRedisArgs) -> Result<Value, Error> {
        let mut command = redis::cmd(name);
        command.arg(&self.key).arg(arguments);
        self.link.clone().ask_if_available(command, self.timeout).await
    }
}

impl fmt::Debug for RedisHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisHash").field("key", &self.key).finish_non_exhaustive()
    }
}
