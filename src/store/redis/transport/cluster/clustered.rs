use std::{sync::Arc, task::Poll, time::Duration};

use bb8_redis::bb8::ManageConnection;
use redis::{Cmd, RedisError, Value};
use tokio::{sync::Semaphore, task::coop::consume_budget, time::timeout_at};

use super::{
    nodes::{Nodes, Pools},
    pool::ToCluster,
    several_slots::{Slots, decide_in_several_slots},
    shard::Shard,
};
use crate::{
    base::{Answer, Error},
    decision::Decision,
    key::Key,
    store::redis::{
        job::{Job, Shards},
        transport::{
            breaker::Breaker,
            deadline::{deadline_in, queue_full},
            health::Health,
            lane,
            link::{Found, Link, Scan},
            probe::probe,
            queue::MAX_WAITING,
            runtimes::{PerRuntime, in_task},
            target::Target,
        },
        wire,
    },
};

/// A link to a Cluster.
pub(crate) struct Clustered<M: ManageConnection> {
    runtimes: PerRuntime<Runtime<M>>,
    health: Arc<Health>,
    /// The parts of the slots.
    parts: Arc<Shards>,
    /// Whether the keys of a part are in one slot. Otherwise each identity has a separate slot.
    is_sharded: bool,
    /// Whether batches are sent in transactions.
    has_transactions: bool,
}

struct Runtime<M: ManageConnection> {
    nodes: Arc<Nodes<M>>,
    /// What stands for each part of the slots: the shard, or only the breaker of its slots.
    shards: Vec<Arc<Target<Shard<M>>>>,
    /// Limits the decisions in flight.
    in_flight: Semaphore,
}

/// The number of breakers if each identity has a separate slot. A node that hangs opens the breakers of its slots. Only
/// a few have slots of two nodes.
const BREAKERS: u16 = 64;

impl<M> Link for Clustered<M>
where
    M: ManageConnection<Connection: ToCluster, Error = RedisError>,
{
    fn decide(self: Arc<Self>, job: Arc<Job>) -> Answer<Decision> {
        Answer::pending(async move {
            let here = self.runtimes.here()?;
            let Ok(_guard) = here.in_flight.try_acquire() else {
                let full = Err(queue_full());
                self.health.record(&full);
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

    fn ask(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        Answer::pending(async move {
            let nodes = self.runtimes.here()?.nodes.clone();
            in_task(async move { nodes.run(command, deadline).await }).await?
        })
    }

    fn scan(self: Arc<Self>, scan: Scan, deadline: Duration) -> Answer<Found> {
        Answer::pending(async move {
            let nodes = self.runtimes.here()?.nodes.clone();
            in_task(async move { nodes.scan(&scan, deadline).await }).await?
        })
    }

    fn is_cluster(&self) -> bool {
        true
    }

    fn health(&self) -> &Health {
        &self.health
    }

    fn commands(&self) -> &'static [&'static str] {
        if self.has_transactions {
            &["evalsha", "eval", "multi", "exec", "ping", "asking", "cluster|slots"]
        } else {
            &["evalsha", "eval", "ping", "asking", "cluster|slots"]
        }
    }
}

impl<M> Clustered<M>
where
    M: ManageConnection<Connection: ToCluster, Error = RedisError>,
{
    /// A link with connections of `pools` in each runtime, and with `first` in this one. Connections of a user's pool
    /// have `transactions`.
    pub(crate) fn new(
        pools: impl Fn() -> Pools<M> + Send + Sync + 'static,
        first: Option<Pools<M>>,
        has_transactions: bool,
        health: Arc<Health>,
        shards: Option<Arc<Shards>>,
    ) -> Self {
        let is_sharded = shards.is_some();
        let parts = shards.unwrap_or_else(|| Arc::new(Shards::new(BREAKERS)));
        let breakers: Vec<_> = (0..parts.count()).map(|_| Breaker::new(health.deadline())).collect();
        let shared = health.clone();
        let runtime = move |pools| {
            let nodes = Arc::new(Nodes::new(pools, shared.clone()));
            let shard =
                |breaker: &Breaker| Arc::new(Shard::target(nodes.clone(), breaker.in_another_runtime()));
            let shards = breakers.iter().map(shard).collect();
            Runtime { nodes, shards, in_flight: Semaphore::new(MAX_WAITING) }
        };
        let first = first.map(&runtime);
        let runtimes = PerRuntime::new(move || runtime(pools()), first);
        Self { runtimes, health, parts, is_sharded, has_transactions }
    }

    fn is_in_one_slot(&self, job: &Job) -> bool {
        match &job.charges[..] {
            [_] => true,
            [first, others @ ..] => others.iter().all(|other| self.share_a_slot(first.key(), other.key())),
            [] => false,
        }
    }

    /// Makes a decision without a batch.
    async fn decide_directly(
        &self,
        here: &Runtime<M>,
        shard: &Arc<Target<Shard<M>>>,
        job: Arc<Job>,
    ) -> Result<Decision, Error> {
        if let Some(error) = shard.breaker.error() {
            probe(shard, || job.first_key());
            let failed = Err(error);
            self.health.record(&failed);
            // A caller in a loop would never let another task run, not even the probe.
            consume_budget().await;
            return failed;
        }
        let (deadline, nodes) = (deadline_in(job.deadline), here.nodes.clone());
        let sent = in_task(async move {
            let _ = nodes.send_batch(&mut None, &[&*job]).await;
            job.end();
            match job.slot.poll(None) {
                Poll::Ready(Some(decision)) => decision,
                _ => Err(wire::unexpected()),
            }
        });
        let decision = timeout_at(deadline, sent).await.unwrap_or_else(|_| Ok(Err(self.health.late())));
        let decision = decision.and_then(|decision| decision);
        shard.breaker.record(&decision);
        self.health.record(&decision);
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

    async fn decide_in_slot(&self, job: Arc<Job>) -> Result<Decision, Error> {
        let here = self.runtimes.here()?;
        let shard = job.charges.first().and_then(|charge| here.shards.get(self.parts.of(charge.key())));
        match shard {
            Some(shard) if self.is_sharded => lane::decide(shard.clone(), job).await,
            Some(shard) => self.decide_directly(&here, shard, job).await,
            None => Err(wire::unexpected()),
        }
    }
}
