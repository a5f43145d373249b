//! [`RedisHash`]: what instances share in addition to counts.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use redis::{FromRedisValue, ToRedisArgs, Value, cmd, from_redis_value};

use super::{
    script::{lua, text_of},
    transport::Link,
};
use crate::base::{Error, ErrorKind, random::random};

/// What the methods send, as in an ACL, in addition to what the algorithms call.
pub(super) const COMMANDS: [&str; 5] = ["hdel", "hget", "hgetall", "hlen", "hset"];

const READ: &str = lua!("hash/read");
const CHANGE: &str = lua!("hash/change");

/// A hash on the Redis of a [`RedisStore`](crate::RedisStore): settings that every instance reads, or a table with an
/// entry for each instance. Made by [`RedisStore::hash`](crate::RedisStore::hash).
///
/// No command is sent while the store's circuit breaker is open. A failure is not an outage of the store, but on a
/// single server, a command without a reply in time counts for the circuit breaker. Keep the hash small.
///
/// # Errors
///
/// Each method fails as a decision does: with [`StoreTimeout`](ErrorKind::StoreTimeout),
/// [`StoreUnreachable`](ErrorKind::StoreUnreachable) and the like; with [`StoreFailed`](ErrorKind::StoreFailed) if the
/// Redis user may not run the command, which [`acl_rule`](crate::RedisStore::acl_rule) includes once a hash was made;
/// with [`ForeignValue`](ErrorKind::ForeignValue) if the key holds another type; or with
/// [`StoreReply`](ErrorKind::StoreReply) if a reply cannot be read.
///
/// # Example
///
/// ```no_run
/// # async fn example() -> Result<(), tower_ratelimit::Error> {
/// let store = tower_ratelimit::RedisStore::connect("redis://127.0.0.1:6379").await?;
/// let plans = store.hash("plans");
/// plans.set(&[("alice", "gold")]).await?;
/// assert_eq!(plans.fields().await?[&b"alice"[..]], b"gold");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisHash {
    pub(super) link: Arc<dyn Link>,
    pub(super) key: Arc<str>,
    pub(super) timeout: Duration,
}

/// What [`RedisHash::read`] has found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HashContent {
    /// The time of the server, since 1970.
    pub time: Duration,
    /// Changes with the number of fields and with the field `@version`. The next [`read`](RedisHash::read) takes it.
    pub mark: Vec<u8>,
    /// The fields. `None` if the mark is the known one.
    pub fields: Option<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl RedisHash {
    /// The key in Redis: the store's prefix, a colon, and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Sets how long a command may take. Defaults to the [deadline](crate::store::RedisStoreBuilder::deadline) of a
    /// decision, and at most half a second.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// All fields, with `HGETALL`. Empty if there is no hash.
    ///
    /// # Errors
    ///
    /// See [`RedisHash`](Self#errors).
    pub async fn fields(&self) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
        value(self.ask("HGETALL", None::<&str>).await?)
    }

    /// Sets fields, with one `HSET`. Without any, it sends nothing.
    ///
    /// # Errors
    ///
    /// See [`RedisHash`](Self#errors).
    pub async fn set(&self, fields: &[(&str, &str)]) -> Result<(), Error> {
        if fields.is_empty() {
            return Ok(());
        }
        self.ask("HSET", fields).await.map(drop)
    }

    /// Removes fields, with `HDEL`. Without any, it sends nothing.
    ///
    /// # Errors
    ///
    /// See [`RedisHash`](Self#errors).
    pub async fn remove(&self, fields: &[impl AsRef<[u8]>]) -> Result<(), Error> {
        if fields.is_empty() {
            return Ok(());
        }
        let fields: Vec<&[u8]> = fields.iter().map(AsRef::as_ref).collect();
        self.ask("HDEL", fields).await.map(drop)
    }

    /// Lets the whole hash expire after `time`, with `PEXPIRE`.
    ///
    /// # Errors
    ///
    /// See [`RedisHash`](Self#errors).
    pub async fn expire(&self, time: Duration) -> Result<(), Error> {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.ask("PEXPIRE", millis).await.map(drop)
    }

    /// The fields, unless their mark is `known`: Redis does little then, even if there are many. The fields change
    /// unnoticed if their number and the field `@version` do not, so [`change`](Self::change) sets that field.
    ///
    /// # Errors
    ///
    /// See [`RedisHash`](Self#errors), and [`InvalidConfig`](ErrorKind::InvalidConfig) if there are more than `most`
    /// fields. They are not read then.
    pub async fn read(&self, known: &[u8], most: usize) -> Result<HashContent, Error> {
        let reply = self.evaluate(READ, &[known, most.to_string().as_bytes()]).await?;
        let mut parts = value::<Vec<Value>>(reply)?.into_iter();
        let mut next = || parts.next().unwrap_or(Value::Nil);
        let (seconds, micros): (u64, u64) = value(next())?;
        let mark = value(next())?;
        let fields = match next() {
            Value::Nil => None,
            Value::Int(_) => {
                return Err(invalid!(
                    "the Redis hash `{}` has more than {most} fields: is it of another program?",
                    self.key
                ));
            }
            fields => Some(value(fields)?),
        };
        let time = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
        Ok(HashContent { time, mark, fields })
    }

    /// In one step, removes each field of `removed` that still has the value beside it, sets the fields of `set`, and
    /// gives `@version` a new value.
    ///
    /// # Errors
    ///
    /// See [`RedisHash`](Self#errors).
    pub async fn change(&self, removed: &[(Vec<u8>, Vec<u8>)], set: &[(&str, &str)]) -> Result<(), Error> {
        let version = format!("{:016x}", random());
        let count = removed.len().to_string();
        let mut arguments = vec![version.as_bytes(), count.as_bytes()];
        arguments.extend(removed.iter().flat_map(|(field, value)| [&field[..], value]));
        arguments.extend(set.iter().flat_map(|(field, value)| [field.as_bytes(), value.as_bytes()]));
        self.evaluate(CHANGE, &arguments).await.map(drop)
    }

    async fn evaluate(&self, script: &str, arguments: &[&[u8]]) -> Result<Value, Error> {
        let mut command = cmd("EVAL");
        command.arg(&*text_of(script)).arg(1).arg(&*self.key).arg(arguments);
        self.link.clone().ask_if_available(command, self.timeout).await
    }

    /// The reply to the command `name` with `arguments`.
    async fn ask(&self, name: &str, arguments: impl ToRedisArgs) -> Result<Value, Error> {
        let mut command = cmd(name);
        command.arg(&*self.key).arg(arguments);
        self.link.clone().ask_if_available(command, self.timeout).await
    }
}

fn value<T: FromRedisValue>(reply: Value) -> Result<T, Error> {
    from_redis_value(reply)
        .map_err(|_| Error::new(ErrorKind::StoreReply, "the reply of Redis is not that of a hash"))
}

impl fmt::Debug for RedisHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisHash").field("key", &self.key).finish_non_exhaustive()
    }
}
