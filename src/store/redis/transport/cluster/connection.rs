//! Connections to a Cluster: those of this crate, and those of a user's pool.

use bb8_redis::bb8::ManageConnection;
use redis::{
    Cmd, RedisError, RedisResult, Value,
    aio::ConnectionLike,
    cluster::ClusterClient,
    cluster_async::{ClusterConnection, Connect},
    cluster_routing::{MultipleNodeRoutingInfo, ResponsePolicy, RoutingInfo, SingleNodeRoutingInfo},
};

use super::node::NodeConnection;

/// A connection to all nodes of a Cluster. Its clones share it.
pub(crate) trait ToCluster: ConnectionLike + Clone + Send + Sync + 'static {
    /// Runs `command` on all primaries. Succeeds if it succeeds on one.
    fn on_any_primary(&mut self, command: Cmd) -> impl Future<Output = RedisResult<Value>> + Send;

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
    fn on_any_primary(&mut self, command: Cmd) -> impl Future<Output = RedisResult<Value>> + Send {
        let primaries = MultipleNodeRoutingInfo::AllMasters;
        self.route_command(command, RoutingInfo::MultiNode((primaries, Some(ResponsePolicy::OneSucceeded))))
    }

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
