use std::sync::Arc;

use bb8_redis::bb8::ManageConnection;
use redis::{RedisError, RedisResult, cluster_async::ClusterConnection};

use super::nodes::Nodes;
use crate::{
    decision::Decision,
    error::Error,
    store::redis::{
        transport::{
            breaker::Breaker,
            deadline::PROBE_TIMEOUT,
            health::Health,
            queue::{Lanes, Queue},
            target::Target,
        },
        wire::Job,
    },
};

/// A node has several shards, so it is busy while a lane waits.
const LANES: Lanes = Lanes { usual: 1, if_far: 2 };

/// Identities whose keys are in one slot, so that their decisions can share batches.
pub(super) struct Shard<M: ManageConnection> {
    queue: Queue,
    breaker: Breaker,
    nodes: Arc<Nodes<M>>,
}

impl<M: ManageConnection> Shard<M> {
    pub(super) fn new(nodes: Arc<Nodes<M>>) -> Self {
        Self { queue: Queue::new(LANES), breaker: Breaker::default(), nodes }
    }
}

impl<M> Target for Shard<M>
where
    M: ManageConnection<Connection = ClusterConnection, Error = RedisError>,
{
    type Connection = ClusterConnection;

    fn queue(&self) -> &Queue {
        &self.queue
    }

    fn health(&self) -> &Health {
        &self.nodes.health
    }

    fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    async fn ping(&self, key: String) -> Result<(), Error> {
        // A command with a key goes to the node of the shard.
        let mut exists = redis::cmd("EXISTS");
        exists.arg(key);
        self.nodes.run(exists, PROBE_TIMEOUT).await.map(|_| ())
    }

    async fn connection(&self) -> RedisResult<ClusterConnection> {
        self.nodes.connection().await
    }

    async fn send_batch(
        &self,
        slot: &mut Option<ClusterConnection>,
        jobs: &mut [Job],
    ) -> Vec<Result<Decision, Error>> {
        self.nodes.send_batch(slot, jobs).await
    }
}
