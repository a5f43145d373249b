//! Policies that operators change in a hash of Redis.

use std::{mem, sync::Arc, time::Duration};

use tokio::task::{JoinHandle, spawn_blocking};
use tower_ratelimit::{Error, Policy, RedisStore, store::RedisHash};

use super::{
    follow::Origin,
    hash::{Fields, PolicyHash},
    parsed::{Parsed, Position},
    policies::LivePolicies,
};

impl LivePolicies {
    /// Policies that operators change in Redis while the service runs. Every instance follows within a
    /// second.
    ///
    /// `defaults` are the policies of the service. Operators change them in one hash. Its key is the
    /// [prefix](tower_ratelimit::store::RedisStoreBuilder::prefix) and `:policies`, so `rl:policies` with the
    /// default prefix.
    ///
    /// | field | value |
    /// |---|---|
    /// | the name of a default | a quota such as `10/min burst 20`, which replaces only the quota of the default |
    /// | the name of a default | a JSON object with entries of a [configured policy](crate::config#entries) but `name`. An entry that it leaves out stays as the default has it; `null` removes one |
    /// | another name | such an object with at least `quota`, which adds a policy |
    /// | `@enforcement` | `on`, `report-only` or `off`, for the [switch](Self::enforcement). It takes effect independently of all other fields, even invalid ones and `@version` |
    /// | `@moved` | any text. When it changes, an instance takes the position of `@enforcement` even if that is as before: its own switch may have been moved. [`set_enforcement`](Self::set_enforcement) writes it |
    /// | `@version` | any text. While it stays the same, no other change is applied, and [`last_error`](Self::last_error) reports one that waits |
    ///
    /// ```text
    /// redis-cli HSET rl:policies login "10/min burst 20"
    /// redis-cli HSET rl:policies login '{"enforced":0.1}'      # the rest as in the default
    /// redis-cli HSET rl:policies export '{"quota":"100/day","algorithm":"fixed-window","failure_mode":"closed"}'
    /// redis-cli HDEL rl:policies login      # the default again
    /// redis-cli HSET rl:policies @enforcement off
    /// ```
    ///
    /// To change several policies in one step, set `@version` last, or change all in one `HSET` or a
    /// transaction. A starting instance applies the hash as it finds it.
    ///
    /// # How instances follow
    ///
    /// Each instance reads the hash with `HGETALL` every 500 ms, or at the interval of
    /// [`poll_every`](Self::poll_every), on the connections of this store and within its
    /// [deadline](tower_ratelimit::store::RedisStoreBuilder::deadline), at most half a second. No request
    /// waits for it. Keep the hash small: on a single server, a read without a reply in time counts for the
    /// circuit breaker, like a call for decisions.
    ///
    /// While Redis is unavailable, the policies stay as they are. The hash has no TTL, so no `volatile`
    /// eviction policy removes it. A Redis without persistence loses it in a restart: the defaults apply
    /// again, and a warning is logged.
    ///
    /// An invalid hash [changes nothing](Self#what-happens-to-a-change). If the hash is invalid or cannot be
    /// read when this function is called, the defaults apply, and [`last_error`](Self::last_error) has the
    /// reason. The call takes at most a second and a half.
    ///
    /// The Redis user needs `+hgetall`, which is part of [`acl_rule`](RedisStore::acl_rule); operators need
    /// `+hset +hdel ~rl:policies`. Anyone who can write the hash can turn the limits off. In a Redis Cluster,
    /// the hash is on one node.
    ///
    /// # Errors
    ///
    /// * [`InvalidConfig`](tower_ratelimit::ErrorKind::InvalidConfig): two defaults have one name, or the
    ///   name of one begins with `@`.
    /// * [`MissingSetup`](tower_ratelimit::ErrorKind::MissingSetup): no Tokio runtime runs here.
    ///
    /// # Example
    ///
    /// ```no_run
    /// use tower_ratelimit::{PeerIp, Policy, Quota, RateLimitLayer, RedisStore};
    /// use tower_ratelimit_operate::live::LivePolicies;
    ///
    /// # async fn example() -> Result<(), tower_ratelimit::Error> {
    /// let store = RedisStore::connect("redis://127.0.0.1:6379").await?;
    /// let login = Policy::new("login", Quota::per_minute(5));
    /// let live = LivePolicies::redis(&store, [login]).await?;
    ///
    /// let layer = RateLimitLayer::new(store, live.get("login")?, PeerIp::new()).enforcement(live.enforcement());
    /// # drop(layer);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub async fn redis(
        store: &RedisStore,
        defaults: impl IntoIterator<Item = Policy>,
    ) -> Result<Self, Error> {
        let table = store.hash("policies");
        let hash = Arc::new(PolicyHash::new(format!("the Redis hash `{}`", table.key()), defaults)?);
        let (name, defaults) = (hash.name().to_owned(), hash.defaults());
        let origin = PoliciesInRedis { table: table.clone(), hash, is_first: true };
        let mut policies = Self::following(name, defaults, origin).await?;
        policies.hash = Some(table);
        Ok(policies)
    }
}

/// The longest time of the first read, which may have to connect.
const FIRST_READ: Duration = Duration::from_millis(1_500);

struct PoliciesInRedis {
    table: RedisHash,
    hash: Arc<PolicyHash>,
    is_first: bool,
}

impl Origin for PoliciesInRedis {
    type Content = Fields;
    type Update = Parsed;

    async fn read(&mut self) -> Result<Fields, Error> {
        let table = self.table.clone();
        let table = if mem::take(&mut self.is_first) { table.timeout(FIRST_READ) } else { table };
        table.fields().await.map_err(|error| {
            let message = format!("{} cannot be read: {error}", self.hash.name());
            Error::new(error.kind(), message).with_source(error)
        })
    }

    fn position(&self, fields: &Fields) -> Option<Position> {
        PolicyHash::position(fields)
    }

    fn waits(&self, before: &Fields, fields: &Fields) -> Option<Error> {
        self.hash.waits(before, fields)
    }

    fn parse(&self, fields: Arc<Fields>) -> JoinHandle<Result<Parsed, Error>> {
        let hash = self.hash.clone();
        spawn_blocking(move || hash.parse(&fields))
    }
}
