use std::{sync::Arc, time::Duration};

use bb8_redis::{
    RedisConnectionManager,
    bb8::{Builder, ManageConnection, Pool},
};
use redis::{RedisError, aio::ConnectionLike};

#[cfg(feature = "cluster")]
use super::transport::cluster::{self, Clustered};
use super::{
    error::{self, connection_info},
    eviction::warn_of_eviction,
    script::{Script, Scripts},
    shortcut::{DenyCache, Leases},
    store::RedisStore,
    transport::{ConnectErrors, Health, Link, PATIENCE, Single},
};
use crate::{error::Error, store::ManualClock};

/// Settings of a [`RedisStore`], from [`RedisStore::builder`].
///
/// Its last call names the server, or the pool, and checks the settings: so each can come from a configuration.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::RedisStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let store = RedisStore::builder()
///     .prefix("shop")
///     .deadline(Duration::from_millis(20))
///     .deny_cache(Duration::ZERO)
///     .connect_lazy("redis://127.0.0.1:6379")?;
/// assert!(store.acl_rule().starts_with("~shop:*"));
///
/// let error = RedisStore::builder().prefix("sh{o}p").connect_lazy("redis://127.0.0.1:6379").unwrap_err();
/// assert!(error.to_string().starts_with("a Redis key prefix must have 1 to 64 printable ASCII characters"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder builds nothing until it is told where Redis is"]
pub struct RedisStoreBuilder {
    prefix: String,
    deadline: Duration,
    pool_size: u32,
    deny_cache: Duration,
    clock: Option<ManualClock>,
}

const DEFAULT_PREFIX: &str = "rl";
const DEFAULT_DEADLINE: Duration = Duration::from_millis(50);
const DEFAULT_DENY_CACHE: Duration = Duration::from_secs(1);
/// More than there are lanes, for connections that are being replaced.
const DEFAULT_POOL_SIZE: u32 = 8;

impl RedisStoreBuilder {
    pub(super) fn new() -> Self {
        Self {
            prefix: DEFAULT_PREFIX.to_owned(),
            deadline: DEFAULT_DEADLINE,
            pool_size: DEFAULT_POOL_SIZE,
            deny_cache: DEFAULT_DENY_CACHE,
            clock: None,
        }
    }

    /// What every key starts with, before a colon: 1 to 64 printable ASCII characters without spaces and braces.
    /// Defaults to `rl`. Services that share a server and not their limits need different prefixes.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long one decision may take, including the wait for a connection. Above zero. Defaults to 50 milliseconds.
    /// After it, the policy's [`FailureMode`](crate::FailureMode) decides.
    ///
    /// Connections give up on a reply after 500 ms, so a longer deadline only allows a longer wait for a connection.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The most connections of the pool that the store makes to one server: at least 1. Defaults to 8; four are used at
    /// once, and the others while broken ones are replaced. A Redis Cluster has one connection to each node, or two.
    pub const fn pool_size(mut self, connections: u32) -> Self {
        self.pool_size = connections;
        self
    }

    /// How long a denial may be repeated from this process' memory before Redis is asked again. Defaults to one second;
    /// zero turns the cache off.
    ///
    /// A key that is exhausted is denied here, without Redis, until its wait is over: the same verdict, with the wait
    /// that is left. The cache holds the denials of up to 4096 keys, some 270 bytes each, for requests of one unit.
    ///
    /// What ends a denial early takes effect at once where it happens through this store or its clones, and within this
    /// time where another instance does it: a [reset](crate::Limiter::reset), a [refund](crate::Limiter::refund_latest),
    /// [leased](crate::Policy::leased) units that are returned, a higher limit under the same name. Where a request is
    /// counted by several policies, what is reported of those that did not deny it may be as old as this too.
    pub const fn deny_cache(mut self, longest: Duration) -> Self {
        self.deny_cache = longest;
        self
    }

    /// Takes the time from `clock`. Defaults to the Redis server's clock.
    ///
    /// For tests. Keys written under a manual clock live for an hour, as it does not move with the server's.
    pub fn manual_clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Connects to the server at `url`, such as `redis://user:password@127.0.0.1:6379/0`. See [`RedisStore::connect`].
    ///
    /// # Errors
    ///
    /// Those of [`RedisStore::connect`], and [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a setting.
    pub async fn connect(self, url: &str) -> Result<RedisStore, Error> {
        self.check()?;
        let (manager, address) = manager(url)?;
        let unreachable = |cause: RedisError| error::unreachable(&format!(" at {address}"), &cause);
        let health = Arc::new(Health::default());
        let pool = pool(&health, self.pool_size).build(manager).await.map_err(unreachable)?;
        let link = Arc::new(Single::new(pool.clone(), health));
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(Script::built_in().text());
        // A server that wants a password closes the connection of a client that sends a long script without one, but
        // says why to PING.
        for command in [redis::cmd("PING"), load] {
            link.clone().run(command, PATIENCE).await?;
        }
        warn_of_eviction(&pool).await;
        Ok(self.over(link))
    }

    /// A store for the server at `url` that connects when it is first used. See [`RedisStore::connect_lazy`].
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a setting or a malformed `url`.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime.
    pub fn connect_lazy(self, url: &str) -> Result<RedisStore, Error> {
        self.check()?;
        let (manager, _) = manager(url)?;
        let health = Arc::new(Health::default());
        let pool = pool(&health, self.pool_size).build_unchecked(manager);
        Ok(self.over(Arc::new(Single::new(pool, health))))
    }

    /// Connects to the Redis Cluster that the servers at `urls` belong to. See [`RedisStore::connect_cluster`].
    ///
    /// # Errors
    ///
    /// Those of [`RedisStore::connect_cluster`], and [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a setting.
    #[cfg(feature = "cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cluster")))]
    pub async fn connect_cluster<U: AsRef<str>>(
        self,
        urls: impl IntoIterator<Item = U>,
    ) -> Result<RedisStore, Error> {
        self.check()?;
        let clients = cluster::clients(urls)?;
        let health = Arc::new(Health::default());
        let unreachable =
            |cause: RedisError| error::unreachable(&format!(" at {}", clients.addresses), &cause);
        let usual = pool(&health, cluster::CONNECTIONS).build(clients.usual).await.map_err(unreachable)?;
        let once = pool(&health, cluster::CONNECTIONS).build_unchecked(clients.once);
        let link = Arc::new(Clustered::new(usual, Some(once), health));
        link.load(&Script::built_in()).await?;
        Ok(self.over(link))
    }

    /// A store for the Redis Cluster of the servers at `urls` that connects when it is first used. See
    /// [`RedisStore::connect_cluster_lazy`].
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a setting, a malformed URL, no URL, or URLs that differ in
    /// more than the address.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime.
    #[cfg(feature = "cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cluster")))]
    pub fn connect_cluster_lazy<U: AsRef<str>>(
        self,
        urls: impl IntoIterator<Item = U>,
    ) -> Result<RedisStore, Error> {
        self.check()?;
        let clients = cluster::clients(urls)?;
        let health = Arc::new(Health::default());
        let pool = |client| pool(&health, cluster::CONNECTIONS).build_unchecked(client);
        let (usual, once) = (pool(clients.usual), pool(clients.once));
        Ok(self.over(Arc::new(Clustered::new(usual, Some(once), health))))
    }

    /// A store on your own pool of connections to one server, which has its own size. See [`RedisStore::new`].
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a setting, or if the connections are to a Redis Cluster:
    /// use [`build_cluster`](Self::build_cluster).
    pub fn build<M>(self, pool: Pool<M>) -> Result<RedisStore, Error>
    where
        M: ManageConnection<Error = RedisError>,
        M::Connection: ConnectionLike + Sync,
    {
        self.check()?;
        #[cfg(feature = "cluster")]
        if cluster::is_clustered(&pool) {
            return Err(Error::invalid(
                "the pool has connections to a Redis Cluster, where keys of several slots cannot share a call: use \
                 `build_cluster` or `RedisStore::new_cluster`",
            ));
        }
        Ok(self.over(Arc::new(Single::new(pool, Arc::default()))))
    }

    /// A store on your own pool of Redis Cluster connections. See [`RedisStore::new_cluster`].
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a setting.
    #[cfg(feature = "cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cluster")))]
    pub fn build_cluster<M>(self, pool: Pool<M>) -> Result<RedisStore, Error>
    where
        M: ManageConnection<Connection = redis::cluster_async::ClusterConnection, Error = RedisError>,
    {
        self.check()?;
        Ok(self.over(Arc::new(Clustered::new(pool, None, Arc::default()))))
    }

    fn check(&self) -> Result<(), Error> {
        let printable = |byte: u8| byte.is_ascii_graphic() && byte != b'{' && byte != b'}';
        if !(1..=64).contains(&self.prefix.len()) || !self.prefix.bytes().all(printable) {
            return Err(Error::invalid(
                "a Redis key prefix must have 1 to 64 printable ASCII characters, without spaces and braces",
            ));
        }
        if self.deadline.is_zero() {
            return Err(Error::invalid("a deadline must be above zero, or no decision can be made"));
        }
        if self.pool_size == 0 {
            return Err(Error::invalid("a pool must have at least 1 connection"));
        }
        Ok(())
    }

    fn over(self, link: Arc<dyn Link>) -> RedisStore {
        let prefix: Arc<str> = self.prefix.into();
        let denied = (!self.deny_cache.is_zero())
            .then(|| Arc::new(DenyCache::new(self.deny_cache, self.clock.clone())));
        let leases = Leases::new(link.clone(), prefix.clone(), self.clock.clone(), denied.clone());
        RedisStore {
            link,
            scripts: Arc::new(Scripts::default()),
            prefix,
            deadline: self.deadline,
            clock: self.clock,
            denied,
            leases: Arc::new(leases),
        }
    }
}

/// The manager for `url`, and where it connects to, without the password.
fn manager(url: &str) -> Result<(RedisConnectionManager, String), Error> {
    let info = connection_info(url)?;
    let address = info.addr().to_string();
    Ok((RedisConnectionManager::new(info).map_err(|cause| error::malformed_by(&cause))?, address))
}

fn pool<M>(health: &Arc<Health>, size: u32) -> Builder<M>
where
    M: ManageConnection<Error = RedisError>,
{
    Pool::builder()
        .max_size(size)
        .min_idle(1)
        .max_lifetime(None)
        .test_on_check_out(false)
        .connection_timeout(PATIENCE)
        .error_sink(Box::new(ConnectErrors(Arc::downgrade(health))))
}
