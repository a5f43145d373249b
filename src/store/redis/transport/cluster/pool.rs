//! The clients of a Cluster, and a pool of their connections. They are shared, and replaced when a node does not answer.

use std::{any::TypeId, sync::Arc, time::Duration};

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{
    RedisError, RedisResult, RetryMethod, Value,
    cluster::{ClusterClient, ClusterClientBuilder},
    cluster_async::ClusterConnection,
};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::node::{CONNECT, NodeConnection, usual};
use crate::{
    base::Error,
    store::redis::{
        address::{connection_infos, is_tls, tcp_settings},
        error::{from_redis, is_broken},
        tls::TlsSettings,
        transport::{
            connections::{connection, connection_until},
            deadline::not_answered,
            health::Health,
        },
    },
};

/// A client that tries again when a slot migrates or a connection could not be used, and one that does not.
pub(crate) struct Clients {
    pub(crate) retrying: ClusterManager,
    pub(crate) single_attempt: ClusterManager,
}

/// The size of a pool. A cluster connection is one connection to each node, shared by all calls. Four of them made no
/// more decisions than one (`benches/cluster.rs`), and each would have to follow migrations itself.
pub(crate) const CONNECTIONS: u32 = 1;
/// [`CONNECT`] with TLS, whose handshake takes long on a busy machine.
const CONNECT_TLS: Duration = Duration::from_secs(1);
/// A connection waits for a reply for at least this time, so that one late reply does not break it.
const RESPONSE: Duration = Duration::from_millis(500);
/// The pause between two replacements of the connection.
const REPLACE_PAUSE: Duration = Duration::from_secs(2);

/// Makes the clients for `urls`, for decisions with this `deadline`, and lists the addresses.
pub(crate) fn clients(
    urls: &[String],
    tls: &TlsSettings,
    deadline: Duration,
) -> Result<(Clients, String), Error> {
    // redis-rs uses the credentials of the first URL, and checks only some of those in the others.
    let differ =
        "the URLs of the Redis Cluster are invalid: they must have the same user, password and database";
    let (infos, addresses) = connection_infos(urls, tls, differ)?;
    #[cfg(feature = "tls-rustls-no-provider")]
    let certificates = tls.certificates()?;
    let is_tls = infos.iter().any(is_tls);
    let client = |retries| {
        let client = ClusterClientBuilder::new(infos.clone());
        #[cfg(feature = "tls-rustls-no-provider")]
        let client = match &certificates {
            Some(certificates) => client.certs(certificates.clone()),
            None => client,
        };
        let client = client
            .connection_timeout(if is_tls { CONNECT_TLS } else { CONNECT })
            .response_timeout(RESPONSE.max(deadline))
            .tcp_settings(tcp_settings())
            // The waits after a multi-key command on a migrating slot, or on a slot without a primary: 2 ms, 4 ms...
            .min_retry_wait(1)
            .retry_wait_formula(1, 2)
            .max_retry_wait(25);
        let client = if retries { client } else { client.retries(0) };
        client.build().map(ClusterManager).map_err(|_| {
            Error::invalid(
                "the URLs of the Redis Cluster are invalid: none of them can be used; check the hosts and the ports",
            )
        })
    };
    Ok((Clients { retrying: client(true)?, single_attempt: client(false)? }, addresses))
}

/// Whether the pool's connections are to a Cluster.
pub(crate) fn is_clustered<M: ManageConnection>(_: &Pool<M>) -> bool {
    TypeId::of::<M::Connection>() == TypeId::of::<ClusterConnection>()
}

/// Opens connections that a node which hangs does not stall.
#[derive(Clone, Debug)]
pub(crate) struct ClusterManager(ClusterClient);

impl ManageConnection for ClusterManager {
    /// A connection to all nodes. Its clones share it.
    type Connection = ClusterConnection<NodeConnection>;
    type Error = RedisError;

    async fn connect(&self) -> Result<Self::Connection, Self::Error> {
        self.0.get_async_generic_connection().await
    }

    async fn is_valid(&self, connection: &mut Self::Connection) -> Result<(), Self::Error> {
        redis::cmd("PING").query_async(connection).await
    }

    fn has_broken(&self, _: &mut Self::Connection) -> bool {
        false
    }
}

pub(super) struct ClusterPool {
    pool: Pool<ClusterManager>,
    health: Arc<Health>,
    /// Held while the connection is replaced.
    replacing: Arc<Mutex<()>>,
}

impl ClusterPool {
    pub(super) fn new(pool: Pool<ClusterManager>, health: Arc<Health>) -> Self {
        Self { pool, health, replacing: Arc::default() }
    }

    /// A connection. Waits without a limit; the caller sets one.
    pub(super) async fn connection(&self) -> RedisResult<ClusterConnection<NodeConnection>> {
        // A clone is used, and the pooled connection is free for others immediately.
        connection(&self.pool, &self.health).await.map(|connection| connection.clone())
    }

    pub(super) async fn connection_until(
        &self,
        deadline: Instant,
    ) -> Result<ClusterConnection<NodeConnection>, Error> {
        connection_until(&self.pool, &self.health, deadline).await.map(|connection| connection.clone())
    }

    /// Waits for the reply of the node that serves `key`.
    pub(super) async fn reply(
        &self,
        deadline: Instant,
        key: impl FnOnce() -> Vec<u8>,
        reply: impl Future<Output = RedisResult<Value>>,
    ) -> Result<Value, Error> {
        let reply = timeout_at(deadline, reply).await.map(|reply| reply.map_err(usual));
        if reply.as_ref().map_or(true, |reply| reply.as_ref().is_err_and(is_broken)) {
            self.start_replacing(key);
        }
        reply.map_or_else(|_| Err(not_answered()), |reply| reply.map_err(|error| from_redis(&error)))
    }

    /// Replaces the connection, so the nodes are looked up again. redis-rs does that if a node has lost a slot or
    /// closes its connection, but not if a node hangs.
    pub(super) fn start_replacing(&self, key: impl FnOnce() -> Vec<u8>) {
        let Ok(alone) = self.replacing.clone().try_lock_owned() else { return };
        let (pool, key) = (self.pool.clone(), key());
        tokio::spawn(async move {
            let _alone = alone;
            let _ = timeout(REPLACE_PAUSE, replace(pool, key)).await;
            sleep(REPLACE_PAUSE).await;
        });
    }
}

/// Replaces the connection of `pool` if a new one finds the node that serves `key`. Until then the old one is
/// better: redis-rs searches for a missing node before every call that needs it, and makes no other call during the search.
async fn replace(pool: Pool<ClusterManager>, key: Vec<u8>) -> RedisResult<()> {
    if pool.state().connections == 0 {
        return Ok(());
    }
    let mut new = pool.dedicated_connection().await?;
    let reply: RedisResult<Value> = redis::cmd("GET").arg(key).query_async(&mut new).await;
    match reply {
        // The value may be of another type.
        Err(error) if !matches!(error.retry_method(), RetryMethod::NoRetry) => return Err(error),
        _ => {}
    }
    if let Ok(mut old) = pool.get_owned().await {
        *old = new;
    }
    Ok(())
}
