//! A pool of cluster connections. They are shared, and replaced when a node does not answer.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{
    Cmd, RedisError, RedisResult, RetryMethod, Value,
    aio::ConnectionLike,
    cluster::ClusterClient,
    cluster_async::{ClusterConnection, Connect},
    cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo, SingleNodeRoutingInfo},
};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::node::{NodeConnection, usual};
use crate::{
    base::Error,
    store::redis::{
        error::{from_redis, is_broken},
        transport::{
            connections::{connection, connection_until},
            deadline::not_answered,
            health::Health,
            runtimes::Exclusive,
        },
    },
};

pub(super) struct ClusterPool<M: ManageConnection> {
    pool: Pool<M>,
    /// Whether the connections are being replaced.
    replacing: Arc<AtomicBool>,
}

/// The pause between two replacements of the connections.
const REPLACE_PAUSE: Duration = Duration::from_secs(2);

impl<M> ClusterPool<M>
where
    M: ManageConnection<Connection: ToCluster, Error = RedisError>,
{
    pub(super) fn new(pool: Pool<M>) -> Self {
        Self { pool, replacing: Arc::default() }
    }

    /// A connection. Waits without a limit; the caller sets one.
    pub(super) async fn connection(&self) -> RedisResult<M::Connection> {
        // A clone is used, and the pooled connection is free for others immediately.
        connection(&self.pool).await.map(|connection| connection.clone())
    }

    pub(super) async fn connection_until(
        &self,
        health: &Health,
        deadline: Instant,
    ) -> Result<M::Connection, Error> {
        connection_until(&self.pool, health, deadline).await.map(|connection| connection.clone())
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

    /// Replaces the connections, so the nodes are looked up again. redis-rs does that if a node has lost a slot or
    /// closes its connection, but not if a node hangs, or if the runtime of a connection was shut down.
    pub(super) fn start_replacing(&self, key: impl FnOnce() -> Vec<u8>) {
        let Some(guard) = Exclusive::acquire(&self.replacing) else { return };
        let (pool, key) = (self.pool.clone(), key());
        tokio::spawn(async move {
            let _guard = guard;
            let _ = timeout(REPLACE_PAUSE, replace(pool, key)).await;
            sleep(REPLACE_PAUSE).await;
        });
    }
}

/// Replaces the connections of `pool` if a new one finds the node that serves `key`. Until then the old ones are
/// better: redis-rs searches for a missing node before every call that needs it, and makes no other call during the search.
async fn replace<M>(pool: Pool<M>, key: Vec<u8>) -> RedisResult<()>
where
    M: ManageConnection<Connection: ToCluster, Error = RedisError>,
{
    let mut new = Vec::new();
    for _ in 0..pool.state().connections {
        new.push(pool.dedicated_connection().await?);
    }
    let Some(mut first) = new.first().cloned() else { return Ok(()) };
    let reply: RedisResult<Value> = redis::cmd("GET").arg(key).query_async(&mut first).await;
    match reply {
        // The value may be of another type.
        Err(error) if !matches!(error.retry_method(), RetryMethod::NoRetry) => return Err(error),
        _ => {}
    }
    // Checks out all of them first, or a pool that reuses the latest one would return it again and again.
    let mut old = Vec::new();
    for _ in &new {
        old.extend(pool.get_owned().await.ok());
    }
    for (old, new) in old.iter_mut().zip(new) {
        **old = new;
    }
    Ok(())
}

/// A connection to all nodes of a Cluster. Its clones share it.
pub(crate) trait ToCluster: ConnectionLike + Clone + Send + Sync + 'static {
    /// Runs `command` on all primaries. The reply is a map from their addresses to their replies.
    fn on_all_primaries(&mut self, command: Cmd) -> impl Future<Output = RedisResult<Value>> + Send;

    /// Runs `command` on one node.
    fn on_node(
        &mut self,
        command: Cmd,
        host: String,
        port: u16,
    ) -> impl Future<Output = RedisResult<Value>> + Send;
}

impl<C> ToCluster for ClusterConnection<C>
where
    C: ConnectionLike + Connect + Clone + Send + Sync + Unpin + 'static,
{
    fn on_all_primaries(&mut self, command: Cmd) -> impl Future<Output = RedisResult<Value>> + Send {
        self.route_command(command, RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None)))
    }

    fn on_node(
        &mut self,
        command: Cmd,
        host: String,
        port: u16,
    ) -> impl Future<Output = RedisResult<Value>> + Send {
        let node = SingleNodeRoutingInfo::ByAddress { host, port };
        self.route_command(command, RoutingInfo::SingleNode(node))
    }
}

/// Opens connections that a node which hangs does not stall.
#[derive(Debug)]
pub(crate) struct ClusterManager(pub(crate) ClusterClient);

impl ManageConnection for ClusterManager {
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
