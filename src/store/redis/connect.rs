//! Builds stores from their settings: connects to the server or the Cluster.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bb8_redis::bb8::{Builder, ManageConnection, Pool};
use redis::{RedisError, aio::ConnectionLike};

#[cfg(feature = "sentinel")]
use super::sentinel;
use super::{
    address::connection_info,
    builder::RedisStoreBuilder,
    error,
    instances::Instances,
    job::KeyNames,
    lease::Leases,
    manager::{Manager, Source},
    opener::Opener,
    script::Scripts,
    shortcut::DenyCache,
    store::RedisStore,
    transport::{ConnectErrors, Health, Link, PROBE_TIMEOUT, Single, current, tcp_settings},
};
#[cfg(feature = "cluster")]
use super::{
    job::Shards,
    script::Script,
    transport::cluster::{self, ClusterManager, Clustered},
};
use crate::{base::Error, store::LocalCounts};

impl RedisStoreBuilder {
    /// Connects to the server at `url`, such as `redis://user:password@127.0.0.1:6379/0`. See [`RedisStore::connect`].
    ///
    /// # Errors
    ///
    /// Those of [`RedisStore::connect`], and [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if a setting is
    /// invalid.
    pub async fn connect(self, url: &str) -> Result<RedisStore, Error> {
        self.check()?;
        let (manager, address) = self.manager(url)?;
        in_real_time(self.connect_to(manager, &address)).await
    }

    /// A store for the server at `url`, which connects on first use. See [`RedisStore::connect_lazy`].
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if a setting is invalid or `url` is malformed.
    pub fn connect_lazy(self, url: &str) -> Result<RedisStore, Error> {
        self.check()?;
        let (manager, address) = self.manager(url)?;
        Ok(self.connect_to_lazily(manager, address))
    }

    /// Connects to the primary that the sentinels at `urls` name. See [`RedisStore::connect_sentinel`].
    ///
    /// # Errors
    ///
    /// Those of [`RedisStore::connect_sentinel`], and [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if a setting is
    /// invalid.
    #[cfg(feature = "sentinel")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sentinel")))]
    pub async fn connect_sentinel<U: AsRef<str>>(
        self,
        urls: impl IntoIterator<Item = U>,
        primary: &str,
    ) -> Result<RedisStore, Error> {
        self.check()?;
        let (manager, description) = self.sentinel_manager(urls, primary)?;
        in_real_time(self.connect_to(manager, &description)).await
    }

    /// A store for the primary that the sentinels at `urls` name, which connects on first use. See
    /// [`RedisStore::connect_sentinel_lazy`].
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if a setting is invalid, a URL is malformed, there are no
    /// URLs, or they differ in more than the address.
    #[cfg(feature = "sentinel")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sentinel")))]
    pub fn connect_sentinel_lazy<U: AsRef<str>>(
        self,
        urls: impl IntoIterator<Item = U>,
        primary: &str,
    ) -> Result<RedisStore, Error> {
        self.check()?;
        let (manager, description) = self.sentinel_manager(urls, primary)?;
        Ok(self.connect_to_lazily(manager, description))
    }

    /// Connects to the Redis Cluster that the servers at `urls` belong to. See [`RedisStore::connect_cluster`].
    ///
    /// # Errors
    ///
    /// Those of [`RedisStore::connect_cluster`], and [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if a setting is
    /// invalid.
    #[cfg(feature = "cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cluster")))]
    pub async fn connect_cluster<U: AsRef<str>>(
        self,
        urls: impl IntoIterator<Item = U>,
    ) -> Result<RedisStore, Error> {
        self.check()?;
        let clients = cluster::clients(urls, &self.tls, self.deadline)?;
        in_real_time(self.connect_to_cluster(clients)).await
    }

    /// A store for the Redis Cluster that the servers at `urls` belong to, which connects on first use. See
    /// [`RedisStore::connect_cluster_lazy`].
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if a setting is invalid, a URL is malformed, there are no
    /// URLs, or they differ in more than the address.
    #[cfg(feature = "cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cluster")))]
    pub fn connect_cluster_lazy<U: AsRef<str>>(
        self,
        urls: impl IntoIterator<Item = U>,
    ) -> Result<RedisStore, Error> {
        self.check()?;
        let clients = cluster::clients(urls, &self.tls, self.deadline)?;
        let health = Arc::new(Health::new(Some(clients.addresses.clone()), self.deadline));
        let shards = self.shards();
        let link = cluster_link(clients, None, health, shards.clone());
        Ok(self.with_cluster(Arc::new(link), shards))
    }

    /// A store on your own pool of connections to one server, with the pool's own size. See [`RedisStore::new`].
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if a setting is invalid, or if the connections are to a Redis
    /// Cluster: use `build_cluster` then.
    pub fn build<M>(self, pool: Pool<M>) -> Result<RedisStore, Error>
    where
        M: ManageConnection<Error = RedisError>,
        M::Connection: ConnectionLike + Sync,
    {
        self.check()?;
        #[cfg(feature = "cluster")]
        if cluster::is_clustered(&pool) {
            return Err(Error::invalid(
                "the pool has connections to a Redis Cluster, where keys in different slots cannot share a batch: use \
                 `build_cluster` or `RedisStore::new_cluster`",
            ));
        }
        let link = Single::new(move || pool.clone(), None, Arc::new(Health::new(None, self.deadline)));
        Ok(self.with_link(Arc::new(link)))
    }

    /// A store on your own pool of Redis Cluster connections. See [`RedisStore::new_cluster`].
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if a setting is invalid.
    #[cfg(feature = "cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cluster")))]
    pub fn build_cluster<M>(self, pool: Pool<M>) -> Result<RedisStore, Error>
    where
        M: ManageConnection<Connection = redis::cluster_async::ClusterConnection, Error = RedisError>,
    {
        self.check()?;
        let shards = self.shards();
        let health = Arc::new(Health::new(None, self.deadline));
        let link = Clustered::new(move || (pool.clone(), None), None, true, health, shards.clone());
        Ok(self.with_cluster(Arc::new(link), shards))
    }

    async fn connect_to(self, manager: Manager, address: &str) -> Result<RedisStore, Error> {
        current()?;
        let selects = manager.database() != 0;
        let unreachable = |cause: RedisError| error::unreachable(&format!(" at {address}"), &cause);
        let health = Arc::new(Health::new(Some(address.to_owned()), self.deadline));
        let first = pool(&health, self.pool_size).build(manager.for_another_pool());
        let first = first.await.map_err(unreachable)?;
        let link = link_to(manager, self.pool_size, Some(first), health);
        RedisStore { selects, ..self.with_link(link) }.checked().await
    }

    fn connect_to_lazily(self, manager: Manager, address: String) -> RedisStore {
        let selects = manager.database() != 0;
        let health = Arc::new(Health::new(Some(address), self.deadline));
        let link = link_to(manager, self.pool_size, None, health);
        RedisStore { selects, ..self.with_link(link) }
    }

    #[cfg(feature = "cluster")]
    async fn connect_to_cluster(self, clients: cluster::Clients) -> Result<RedisStore, Error> {
        current()?;
        let health = Arc::new(Health::new(Some(clients.addresses.clone()), self.deadline));
        let unreachable =
            |cause: RedisError| error::unreachable(&format!(" at {}", clients.addresses), &cause);
        let cluster_pool = || pool(&health, cluster::CONNECTIONS);
        let retrying =
            cluster_pool().build(ClusterManager(clients.retrying.clone())).await.map_err(unreachable)?;
        let single_attempt = cluster_pool().build_unchecked(ClusterManager(clients.single_attempt.clone()));
        let (first, shards) = ((retrying, Some(single_attempt)), self.shards());
        let link = Arc::new(cluster_link(clients, Some(first), health, shards.clone()));
        for script in Script::all_built_in() {
            link.load(script).await?;
        }
        self.with_cluster(link, shards).checked().await
    }

    #[cfg(feature = "sentinel")]
    fn sentinel_manager<U: AsRef<str>>(
        &self,
        urls: impl IntoIterator<Item = U>,
        primary: &str,
    ) -> Result<(Manager, String), Error> {
        let opener = Arc::new(Opener::new(&self.tls));
        let user = self.sentinel_user.as_ref();
        let (primary, description) = sentinel::primary(urls, primary, user, &self.tls, opener.clone())?;
        Ok((Manager::new(Source::Primary(primary.into()), &self.connection_name, opener), description))
    }

    /// The connection manager for `url`, and the server's address without the password.
    fn manager(&self, url: &str) -> Result<(Manager, String), Error> {
        let info = connection_info(url, &self.tls)?.set_tcp_settings(tcp_settings());
        let address = info.addr().to_string();
        let opener = Arc::new(Opener::new(&self.tls));
        Ok((Manager::new(Source::Url(info.into()), &self.connection_name, opener), address))
    }

    #[cfg(feature = "cluster")]
    fn shards(&self) -> Option<Arc<Shards>> {
        (self.cluster_shards > 0).then(|| Arc::new(Shards::new(self.cluster_shards)))
    }

    #[cfg(feature = "cluster")]
    fn with_cluster(self, link: Arc<dyn Link>, shards: Option<Arc<Shards>>) -> RedisStore {
        let names = KeyNames::new(&self.prefix).in_shards(shards);
        self.with_names(link, names)
    }

    fn with_link(self, link: Arc<dyn Link>) -> RedisStore {
        let names = KeyNames::new(&self.prefix);
        self.with_names(link, names)
    }

    fn with_names(self, link: Arc<dyn Link>, names: KeyNames) -> RedisStore {
        let deny_cache = (!self.deny_cache.is_zero())
            .then(|| Arc::new(DenyCache::new(self.deny_cache, self.clock.clone())));
        let leases = Leases::new(link.clone(), names.clone(), self.clock.clone(), deny_cache.clone());
        let local = Arc::new(LocalCounts::with_reports());
        let instances = Instances::new(link.clone(), names.clone(), self.deadline, local.clone());
        RedisStore {
            instances: self.clock.is_none().then(|| Arc::new(instances)),
            local,
            link,
            scripts: Arc::new(Scripts::default()),
            names,
            deadline: self.deadline,
            clock: self.clock,
            deny_cache,
            leases: Arc::new(leases),
            selects: false,
        }
    }
}

fn link_to(
    manager: Manager,
    pool_size: u32,
    first: Option<Pool<Manager>>,
    health: Arc<Health>,
) -> Arc<dyn Link> {
    let (of_sentinels, shared) = (manager.asks_sentinels(), health.clone());
    let pools = move || pool(&shared, pool_size).build_unchecked(manager.for_another_pool());
    let link = Single::new(pools, first, health);
    #[cfg(feature = "sentinel")]
    let link = if of_sentinels { link.asking_for_role() } else { link };
    let _ = of_sentinels;
    Arc::new(link)
}

#[cfg(feature = "cluster")]
fn cluster_link(
    clients: cluster::Clients,
    first: Option<cluster::Pools<ClusterManager>>,
    health: Arc<Health>,
    shards: Option<Arc<Shards>>,
) -> Clustered<ClusterManager> {
    let shared = health.clone();
    let pools = move || {
        let of = |client: &redis::cluster::ClusterClient| {
            pool(&shared, cluster::CONNECTIONS).build_unchecked(ClusterManager(client.clone()))
        };
        (of(&clients.retrying), Some(of(&clients.single_attempt)))
    };
    Clustered::new(pools, first, false, health, shards)
}

/// By how much a clock may be ahead that is not paused.
const CLOCK_TOLERANCE: Duration = Duration::from_millis(100);

/// Waits for `connecting`. Under a paused clock, its timeouts are over before a server can answer.
async fn in_real_time<T>(connecting: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let (started, real) = (tokio::time::Instant::now(), Instant::now());
    connecting.await.map_err(|error| {
        if started.elapsed() <= real.elapsed() + CLOCK_TOLERANCE {
            return error;
        }
        let remedy = "the clock of Tokio is paused, so each timeout is over before Redis answers: test with \
                      `MemoryStore::with_clock`, or pause the clock in tests without Redis only";
        Error::invalid(remedy).with_source(error)
    })
}

impl RedisStore {
    /// The store, if its server can make decisions. Logs the other problems.
    async fn checked(self) -> Result<Self, Error> {
        let report = self.probe().await?;
        for problem in report.problems() {
            if problem.prevents_decisions() {
                return Err(problem.to_error());
            }
            log!(warn, "{problem}");
        }
        if report.eviction_policy().is_none() {
            log!(
                warn,
                "the eviction policy of Redis is unknown, so it may forget exhausted limits: run ACL SETUSER <user> +info \
                 to have it checked, or see that CONFIG GET maxmemory-policy is volatile-ttl or noeviction"
            );
        }
        if let Some(instances) = &self.instances {
            instances.look().await;
        }
        Ok(self)
    }
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
        .connection_timeout(PROBE_TIMEOUT)
        .error_sink(Box::new(ConnectErrors(Arc::downgrade(health))))
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "cluster")]
    use crate::store::redis::tls::TlsSettings;

    /// The clients keep their settings private, but print them.
    #[test]
    fn no_connection_delays_small_writes() {
        let mut clients =
            vec![format!("{:?}", RedisStoreBuilder::new().manager("redis://127.0.0.1:6379").unwrap().0)];
        #[cfg(feature = "cluster")]
        {
            let cluster = cluster::clients(
                ["redis://127.0.0.1:6379"],
                &TlsSettings::default(),
                Duration::from_millis(50),
            )
            .unwrap();
            clients.extend([cluster.retrying, cluster.single_attempt].map(|client| format!("{client:?}")));
        }
        for client in clients {
            assert!(client.contains("nodelay: true"), "{client}");
        }
    }
}
