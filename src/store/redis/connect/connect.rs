//! Builds stores from their settings: connects to the server or the Cluster.

use std::{
    pin::Pin,
    slice,
    sync::Arc,
    time::{Duration, Instant},
};

use bb8_redis::bb8::{Builder, ManageConnection, Pool};
use redis::{RedisError, aio::ConnectionLike};

#[cfg(feature = "sentinel")]
use super::primary::Primary;
use super::{
    address::connection_info,
    builder::RedisStoreBuilder,
    manager::{Manager, Source},
    opener::Opener,
    probe::probe,
    servers::{Servers, Topology},
};
#[cfg(feature = "cluster")]
use crate::store::redis::{
    job::Shards,
    transport::cluster::{self, ClusterLink},
};
use crate::{
    base::{Error, ErrorKind},
    store::{
        LocalCounts, StoreClock, StoreIdentity,
        redis::{
            deny_cache::DenyCache,
            error,
            instances::Instances,
            job::KeyNames,
            lease::Leases,
            script::Scripts,
            store::RedisStore,
            transport::{COMMANDS, ConnectErrors, Health, Link, PROBE_TIMEOUT, ServerLink, Silence, current},
        },
    },
};

/// Makes the first connection.
type FirstConnection = Pin<Box<dyn Future<Output = Result<(), RedisError>> + Send>>;

impl RedisStoreBuilder {
    /// Connects to `servers`. See [`RedisStore::connect`].
    ///
    /// # Errors
    ///
    /// The same as [`RedisStore::connect`], and [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if a
    /// setting is invalid.
    pub async fn connect(self, servers: impl Into<Servers>) -> Result<RedisStore, Error> {
        let authenticator = self.authenticator.clone();
        let (store, first_connection) = self.store_and_connection(servers.into())?;
        current()?;
        // Boxed, because it is too large for the stack of a caller that connects to many servers.
        in_real_time(Box::pin(async {
            let connected = async {
                if let Some(authenticator) = authenticator {
                    authenticator.prepare().await?;
                }
                first_connection.await
            };
            connected.await.map_err(|cause| {
                error::unreachable(&format!(" at {}", store.link.health().server), &cause)
            })?;
            check_server(&store).await?;
            Ok(store)
        }))
        .await
    }

    /// A store for `servers`, which connects on first use, so the servers may be unavailable.
    ///
    /// A wrong password, a missing permission, or a certificate that the other side does not accept shows
    /// only in the log and in each decision's [failure](crate::Decision::failure). Call
    /// [`probe`](RedisStore::probe) to find it when the service starts.
    ///
    /// With `rediss://`, and without a certificate set for a private authority, this reads the certificates
    /// of the operating system, which takes some milliseconds. For a Redis Cluster, they are read whenever a
    /// connection is made.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig):
    ///
    /// * A setting is invalid, or a URL is malformed or missing.
    /// * The URLs of a Redis Cluster or of sentinels differ in more than the address.
    /// * A URL is `rediss://`, and the feature `tls-rustls` is off, a certificate is invalid, or no
    ///   certificate of an authority is set and the system has none.
    ///
    /// No message shows a password.
    pub fn connect_lazy(self, servers: impl Into<Servers>) -> Result<RedisStore, Error> {
        self.store_and_connection(servers.into()).map(|(store, _)| store)
    }

    /// A store on your own pool of connections to one server: the pool of bb8-redis, or any bb8 pool of
    /// redis-rs connections. [`pool_size`](Self::pool_size) does not apply.
    ///
    /// Turn off bb8's `test_on_check_out`, or every checkout costs a PING. Turn on `nodelay`, which redis-rs
    /// leaves off: if other code uses the connections too, a call without it can wait for one more round
    /// trip. The store sends decisions on up to three connections at a time, or six over a slow network, and
    /// other commands on one more. With a smaller pool, decisions share fewer connections.
    ///
    /// The store checks no connection of your pool that was [silent for long](Self::check_idle_after). Let the
    /// pool close it (`idle_timeout`), and turn on TCP keepalive, as in the example.
    ///
    /// Build the pool in the Tokio runtime that uses the store, and use it in no other: all
    /// [runtimes](RedisStore#runtimes) of the store share it, and its connections work only while the
    /// runtimes that opened them are driven.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tower_ratelimit::{RedisStore, bb8_redis::{RedisConnectionManager, bb8::Pool}};
    /// use tower_ratelimit::bb8_redis::redis::{IntoConnectionInfo, io::tcp::{TcpSettings, socket2::TcpKeepalive}};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = "redis://127.0.0.1:6379".into_connection_info()?;
    /// let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(15));
    /// let server = server.set_tcp_settings(TcpSettings::default().set_nodelay(true).set_keepalive(keepalive));
    /// let pool = Pool::builder()
    ///     .max_size(8)
    ///     .test_on_check_out(false)
    ///     .idle_timeout(Duration::from_secs(30))
    ///     .build(RedisConnectionManager::new(server)?)
    ///     .await?;
    /// let store = RedisStore::builder().build(pool)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if a setting is invalid, or if the connections are
    /// to a Redis Cluster: connect to `Servers::cluster` then.
    pub fn build<M>(self, pool: Pool<M>) -> Result<RedisStore, Error>
    where
        M: ManageConnection<Error = RedisError>,
        M::Connection: ConnectionLike + Sync,
    {
        self.check()?;
        ensure!(
            self.authenticator.is_none(),
            "the connections of a pool log in themselves: set the credentials in its manager, or use `connect`"
        );
        #[cfg(feature = "cluster")]
        if cluster::is_clustered(&pool) {
            return Err(Error::invalid(
                "the pool has connections to a Redis Cluster, where keys in different slots cannot share a batch: connect to \
                 `Servers::cluster`",
            ));
        }
        let health = Arc::new(Health::new("Redis".to_owned(), self.deadline));
        let link = ServerLink::new(move || pool.clone(), health, COMMANDS.into());
        let names = KeyNames::new(&self.prefix);
        Ok(self.with_link(Arc::new(link), names))
    }

    /// Checks all settings. Returns the store for `servers`, and a future that makes a first connection to
    /// them.
    fn store_and_connection(self, servers: Servers) -> Result<(RedisStore, FirstConnection), Error> {
        self.check()?;
        self.check_logins(&servers)?;
        let names = KeyNames::new(&self.prefix);
        let authenticator = self.authenticator.clone();
        let silence = Silence::new(self.check_idle_after, self.deadline);
        let (source, address) = match servers.0 {
            Topology::One(url) => {
                let info = connection_info(&url, &self.tls)?;
                let opener = Opener::new(&self.tls, &info, authenticator)?;
                let address = info.addr().to_string();
                (Source::Url(info.into(), opener), address)
            }
            #[cfg(feature = "cluster")]
            Topology::Cluster(urls) => {
                let (clients, addresses) =
                    cluster::clients(&urls, &self.tls, self.deadline, authenticator.as_ref())?;
                let health = Arc::new(Health::new(addresses, self.deadline));
                let (shared, first) = (health.clone(), clients.retrying.clone());
                let pool = move |manager| pool(&shared, cluster::CONNECTIONS).build_unchecked(manager);
                let shards = Arc::new(Shards::new(self.cluster_shards));
                let link = ClusterLink::new(clients, pool, health, shards.clone(), &self.prefix, silence);
                let store = self.with_link(Arc::new(link), names.in_shards(shards));
                return Ok((store, Box::pin(async move { first.connect().await.map(drop) })));
            }
            #[cfg(feature = "sentinel")]
            Topology::Sentinel { urls, primary, credentials } => {
                let (primary, description) =
                    Primary::new(&urls, primary, &credentials, &self.tls, authenticator, silence)?;
                (Source::Primary(primary.into()), description)
            }
        };
        let (first, manager) = (Manager::new(source.clone(), silence), Manager::new(source, silence));
        let health = Arc::new(Health::new(address, self.deadline));
        let (shared, commands) = (health.clone(), manager.commands());
        let pools = move || {
            // The manager checks only connections that were silent for long.
            let pool = pool(&shared, self.pool_size).test_on_check_out(true);
            pool.build_unchecked(manager.for_another_pool())
        };
        let store = self.with_link(Arc::new(ServerLink::new(pools, health, commands)), names);
        Ok((store, Box::pin(async move { first.connect().await.map(drop) })))
    }

    /// Checks that the servers have one source of credentials.
    fn check_logins(&self, servers: &Servers) -> Result<(), Error> {
        if self.authenticator.is_none() {
            return Ok(());
        }
        let urls: &[String] = match &servers.0 {
            Topology::One(url) => slice::from_ref(url),
            #[cfg(feature = "cluster")]
            Topology::Cluster(urls) => urls,
            #[cfg(feature = "sentinel")]
            Topology::Sentinel { urls, .. } => urls,
        };
        for url in urls {
            let info = connection_info(url, &self.tls)?;
            let settings = info.redis_settings();
            ensure!(
                settings.username().is_none() && settings.password().is_none(),
                "the URL has a user or a password although the builder has a provider of credentials: remove one of them"
            );
        }
        Ok(())
    }

    pub(in crate::store::redis) fn with_link(self, link: Arc<dyn Link>, names: KeyNames) -> RedisStore {
        let identity = StoreIdentity::new(format!("redis {}", names.prefix()));
        let instances = self.clock.is_none().then(|| Arc::new(Instances::new()));
        let clock = StoreClock::new(self.clock.clone(), 0);
        let deny_cache =
            (!self.deny_cache.is_zero()).then(|| Arc::new(DenyCache::new(self.deny_cache, clock.clone())));
        let local = LocalCounts::of_server(match &self.clock {
            Some(manual) => StoreClock::Manual(manual.clone()),
            None => StoreClock::Server(link.health().clock.clone()),
        });
        let leases =
            Leases::new(link.clone(), names.clone(), self.clock, deny_cache.clone(), local.watchers.clone());
        RedisStore {
            instances,
            local,
            link,
            scripts: Arc::new(Scripts::default()),
            names,
            deadline: self.deadline,
            clock,
            deny_cache,
            leases: Arc::new(leases),
            identity,
            has_hashes: Arc::default(),
        }
    }
}

/// By how much Tokio's clock may be ahead of the real one without being paused.
const CLOCK_TOLERANCE: Duration = Duration::from_millis(100);

/// Waits for `connecting`, and explains an error that is due to a paused clock, whose timeouts are over
/// before a server can answer.
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

/// Fails unless the server of `store` can make decisions. Logs the other findings.
async fn check_server(store: &RedisStore) -> Result<(), Error> {
    let report = probe(store).await?;
    if let Some(error) = report.error {
        return Err(Error::new(ErrorKind::StoreFailed, error));
    }
    for warning in report.warnings {
        log!(warn, "{warning}");
    }
    if report.eviction_policy.is_none() {
        log!(
            warn,
            "the eviction policy of Redis is unknown, so it may forget exhausted limits: run ACL SETUSER <user> +info to \
             have it checked, or see that CONFIG GET maxmemory-policy is volatile-ttl or noeviction"
        );
    }
    store.look_for_instances().await;
    Ok(())
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
    use super::{super::tls::TlsSettings, *};

    /// The clients keep their settings private, but print them.
    #[test]
    fn no_connection_delays_small_writes() {
        let (url, tls) = ("redis://127.0.0.1:6379", TlsSettings::default());
        #[cfg_attr(not(feature = "cluster"), expect(unused_mut, reason = "only a Cluster has other clients"))]
        let mut all = vec![format!("{:?}", connection_info(url, &tls).unwrap())];
        #[cfg(feature = "cluster")]
        {
            let (cluster, _) =
                cluster::clients(&[url.to_owned()], &tls, Duration::from_secs(1), None).unwrap();
            all.extend([cluster.retrying, cluster.single_attempt].map(|client| format!("{client:?}")));
        }
        for client in all {
            assert!(client.contains("nodelay: true"), "{client}");
        }
    }
}
