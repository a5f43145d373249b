use std::sync::Arc;

use bb8_redis::bb8::ManageConnection;
use redis::{RedisError, RedisResult};

use super::{connection::ToCluster, nodes::Nodes};
use crate::{
    decision::Decision,
    error::{Error, ErrorKind},
    fault::Fault,
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

/// Identities whose keys are in one slot, so that their decisions can share batches. If each identity has a slot of its
/// own, a part of the slots, which has a breaker and no batches.
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
    M: ManageConnection<Connection: ToCluster, Error = RedisError>,
{
    type Connection = M::Connection;

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
        self.nodes.run(exists, PROBE_TIMEOUT).await.map(|_| ()).map_err(|error| {
            // Another node has answered.
            if matches!(error.fault(), Some(Fault::Moved | Fault::Ask)) {
                Error::new(ErrorKind::StoreUnreachable, error.to_string())
            } else {
                error
            }
        })
    }

    async fn connection(&self) -> RedisResult<M::Connection> {
        self.nodes.connection().await
    }

    async fn send_batch(
        &self,
        slot: &mut Option<M::Connection>,
        jobs: &mut [Job],
    ) -> Vec<Result<Decision, Error>> {
        self.nodes.send_batch(slot, jobs).await
    }
}
