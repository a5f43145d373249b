//! A hash in Redis, for what instances share in addition to counts.

#![allow(dead_code, reason = "each method is for some of the features")]

use std::{collections::BTreeMap, time::Duration};

use tower_ratelimit::{
    Error, ErrorKind, RedisStore,
    bb8_redis::redis::{ToRedisArgs, Value, cmd, from_redis_value},
};

/// A hash on the Redis of a [`RedisStore`]: settings that every instance reads, or a table with an entry for
/// each instance.
///
/// No command is sent while the store's circuit breaker is open. A failure is not an outage of the store, but
/// on a single server, a command without a reply in time counts for the circuit breaker. Keep the hash small.
///
/// # Errors
///
/// Each method fails as a decision does: with [`StoreTimeout`](ErrorKind::StoreTimeout),
/// [`StoreUnreachable`](ErrorKind::StoreUnreachable) and the like, or with
/// [`StoreFailed`](ErrorKind::StoreFailed) if the Redis user may not run the command, which
/// [`RedisStore::acl_rule`] includes.
#[derive(Clone)]
pub(crate) struct RedisHash {
    store: RedisStore,
    key: String,
    /// `None` for the time of a decision, and at most half a second.
    timeout: Option<Duration>,
}

impl RedisHash {
    /// The hash whose key is the prefix of `store`, a colon and `name`.
    ///
    /// A name with braces is a key of a limit. Choose one without.
    pub(crate) fn new(store: &RedisStore, name: &str) -> Self {
        Self { store: store.clone(), key: format!("{}:{name}", store.prefix()), timeout: None }
    }

    /// The key in Redis.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Sets how long a command may take.
    pub(crate) const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// All fields, with `HGETALL`. Empty if there is no hash.
    pub(crate) async fn read(&self) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
        from_redis_value(self.ask("HGETALL", None::<&str>).await?)
            .map_err(|_| Error::new(ErrorKind::StoreReply, "the reply to HGETALL is not a hash"))
    }

    /// Sets fields, with one `HSET`.
    pub(crate) async fn set(&self, fields: &[(&str, &str)]) -> Result<(), Error> {
        self.ask("HSET", fields).await.map(drop)
    }

    /// Removes fields, with `HDEL`.
    pub(crate) async fn remove(&self, fields: &[Vec<u8>]) -> Result<(), Error> {
        self.ask("HDEL", fields).await.map(drop)
    }

    /// Lets the whole hash expire after `time`, with `PEXPIRE`.
    pub(crate) async fn expire(&self, time: Duration) -> Result<(), Error> {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.ask("PEXPIRE", millis).await.map(drop)
    }

    /// The reply to a Lua script, whose only key is the hash.
    pub(crate) async fn evaluate(&self, script: &str, arguments: impl ToRedisArgs) -> Result<Value, Error> {
        let mut command = cmd("EVAL");
        command.arg(script).arg(1).arg(&self.key).arg(arguments);
        self.store.ask_if_available(command, self.timeout).await
    }

    /// The reply to the command `name` with `arguments`.
    async fn ask(&self, name: &str, arguments: impl ToRedisArgs) -> Result<Value, Error> {
        let mut command = cmd(name);
        command.arg(&self.key).arg(arguments);
        self.store.ask_if_available(command, self.timeout).await
    }
}
