use std::{slice, sync::Arc, time::Duration};

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{Cmd, RedisError, Value};
use tokio::{sync::Semaphore, task::coop::consume_budget, time::timeout_at};

use super::{
    connection::ToCluster,
    nodes::Nodes,
    several_slots::{Slots, decide_in_several_slots},
    shard::Shard,
};
use crate::{
    answer::Answer,
    decision::Decision,
    error::Error,
    key::Key,
    store::redis::{
        script::Script,
        transport::{
            background::Finish,
            commit,
            deadline::{deadline_in, queue_full},
            health::Health,
            link::{Link, recorded},
            probe::probe,
            queue::MAX_WAITING,
            scan::{Found, Scan},
            target::Target,
        },
        wire::{self, Job, Shards},
    },
};

/// A link to a Cluster.
pub(crate) struct Clustered<M: ManageConnection> {
    nodes: Arc<Nodes<M>>,
    /// The parts of the slots, and what stands for each: the shard, or only the breaker of its slots.
    parts: Arc<Shards>,
    shards: Vec<Arc<Shard<M>>>,
    /// Whether the keys of a part are in one slot. Otherwise each identity has a slot of its own.
    is_sharded: bool,
    /// Limits the decisions in flight.
    in_flight: Semaphore,
}

/// The number of breakers if each identity has a slot of its own. A node that hangs opens those of its slots. Only a few
/// have slots of two nodes.
const BREAKERS: u16 = 64;

impl<M> Link for Clustered<M>
where
    M: ManageConnection<Connection: ToCluster, Error = RedisError>,
{
    fn decide(self: Arc<Self>, job: Job) -> Answer<Decision> {
        Answer::pending(async move {
            let Ok(_guard) = self.in_flight.try_acquire() else {
                let full = Err(queue_full());
                self.nodes.health.record(&full);
                return full;
            };
            if self.is_in_one_slot(&job) {
                self.decide_in_slot(job).await
            } else {
                // Boxed because few decisions need the space.
                Box::pin(decide_in_several_slots(self.clone(), job)).await
            }
        })
    }

    fn run(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        recorded(self.nodes.health.clone(), async move { self.nodes.run(command, deadline).await })
    }

    fn ask(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        Answer::pending(async move { self.nodes.run(command, deadline).await })
    }

    fn scan(self: Arc<Self>, scan: Scan, deadline: Duration) -> Answer<Found> {
        Answer::pending(async move { self.nodes.scan(&scan, deadline).await })
    }

    fn is_cluster(&self) -> bool {
        true
    }

    fn health(&self) -> &Health {
        &self.nodes.health
    }

    fn commands(&self) -> &'static [&'static str] {
        // A node without the script gets its text: during a migration it is unknown which node needs it loaded.
        if self.nodes.has_transactions() {
            &["evalsha", "eval", "multi", "exec", "script|load", "ping", "asking", "cluster|slots"]
        } else {
            &["evalsha", "eval", "script|load", "ping", "asking", "cluster|slots"]
        }
    }
}

impl<M> Clustered<M>
where
    M: ManageConnection<Connection: ToCluster, Error = RedisError>,
{
    /// `single_attempt` has connections that never send a call twice. `None` for a user's own pool.
    pub(crate) fn new(
        pool: Pool<M>,
        single_attempt: Option<Pool<M>>,
        health: Arc<Health>,
        shards: Option<Arc<Shards>>,
    ) -> Self {
        let nodes = Arc::new(Nodes::new(pool, single_attempt, health));
        let is_sharded = shards.is_some();
        let parts = shards.unwrap_or_else(|| Arc::new(Shards::new(BREAKERS)));
        let shards = (0..parts.count()).map(|_| Arc::new(Shard::new(nodes.clone()))).collect();
        Self { nodes, parts, shards, is_sharded, in_flight: Semaphore::new(MAX_WAITING) }
    }

    /// Loads `script` on all nodes. Succeeds if at least one loads it.
    pub(crate) async fn load(&self, script: &Script) -> Result<(), Error> {
        self.nodes.load(script).await
    }

    fn is_in_one_slot(&self, job: &Job) -> bool {
        match &*job.charges {
            [_] => true,
            [first, others @ ..] => others.iter().all(|other| self.share_a_slot(first.key(), other.key())),
            [] => false,
        }
    }

    /// Makes a decision without a batch.
    async fn decide_directly(&self, shard: &Arc<Shard<M>>, mut job: Job) -> Result<Decision, Error> {
        if let Some(error) = shard.breaker().error() {
            probe(shard, || job.first_key());
            let failed = Err(error);
            self.nodes.health.record(&failed);
            // A caller in a loop would never let another task run, not even the probe.
            consume_budget().await;
            return failed;
        }
        let (deadline, nodes) = (deadline_in(job.deadline), self.nodes.clone());
        let sent = async move {
            let mut decisions = nodes.send_batch(&mut None, slice::from_mut(&mut job)).await;
            decisions.pop().unwrap_or_else(|| Err(wire::unexpected()))
        };
        let decision = timeout_at(deadline, Finish(Some(Box::pin(sent)))).await;
        let decision = decision.unwrap_or_else(|_| Err(self.nodes.health.late()));
        shard.breaker().record(&decision);
        self.nodes.health.record(&decision);
        decision
    }
}

impl<M> Slots for Clustered<M>
where
    M: ManageConnection<Connection: ToCluster, Error = RedisError>,
{
    fn share_a_slot(&self, one: &Key, other: &Key) -> bool {
        if self.is_sharded {
            self.parts.of(one) == self.parts.of(other)
        } else {
            one.split_preflight().1 == other.split_preflight().1
        }
    }

    async fn decide_in_slot(&self, job: Job) -> Result<Decision, Error> {
        let shard = job.charges.first().and_then(|charge| self.shards.get(self.parts.of(charge.key())));
        match shard {
            Some(shard) if self.is_sharded => commit::decide(shard.clone(), job).await,
            Some(shard) => self.decide_directly(shard, job).await,
            None => Err(wire::unexpected()),
        }
    }
}
