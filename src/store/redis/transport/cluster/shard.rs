use std::{sync::Arc, time::Duration};

use bb8_redis::bb8::ManageConnection;
use redis::{RedisError, RedisResult};

use super::{nodes::Nodes, pool::ToCluster};
use crate::{
    base::{Error, ErrorKind, Fault},
    store::redis::{
        job::Job,
        transport::{
            breaker::Breaker,
            deadline::{PROBE_TIMEOUT, TimeLeft, not_answered},
            queue::{Lanes, Queue},
            target::{Sender, Target},
        },
    },
};

/// A node has several shards, so it is busy while a lane waits.
const LANES: Lanes = Lanes { usual: 1, if_far: 2 };

/// Sends to identities whose keys are in one slot, so that their decisions can share batches. If each identity has a
/// separate slot, to a part of the slots, which has a breaker and no batches.
pub(super) struct Shard<M: ManageConnection>(Arc<Nodes<M>>);

impl<M: ManageConnection> Shard<M> {
    pub(super) fn target(nodes: Arc<Nodes<M>>, breaker: Breaker) -> Target<Self> {
        Target { queue: Queue::new(LANES), breaker, health: nodes.health.clone(), sender: Self(nodes) }
    }
}

impl<M> Sender for Shard<M>
where
    M: ManageConnection<Connection: ToCluster, Error = RedisError>,
{
    type Connection = M::Connection;

    async fn ping(&self, _: &mut Option<M::Connection>, key: &str) -> Result<Duration, Error> {
        // A command with a key goes to the node of the shard.
        let mut exists = redis::cmd("EXISTS");
        exists.arg(key);
        let mut time = TimeLeft::in_ticks(PROBE_TIMEOUT);
        let reply = time.spend_on(self.0.run(exists, PROBE_TIMEOUT)).await;
        match reply.unwrap_or_else(|| Err(not_answered())) {
            Ok(_) => Ok(PROBE_TIMEOUT - time.left()),
            // Another node has answered.
            Err(error) if matches!(error.fault(), Some(Fault::Moved | Fault::Ask)) => {
                Err(Error::new(ErrorKind::StoreUnreachable, error.to_string()))
            }
            Err(error) => Err(error),
        }
    }

    async fn connection(&self) -> RedisResult<M::Connection> {
        self.0.connection().await
    }

    async fn send_batch(&self, slot: &mut Option<M::Connection>, jobs: &[&Job]) -> Result<(), Error> {
        self.0.send_batch(slot, jobs).await
    }
}
