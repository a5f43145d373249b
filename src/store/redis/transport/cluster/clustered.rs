use std::{sync::Arc, task::Poll, time::Duration};

use redis::{Cmd, Value};
use tokio::{sync::Semaphore, time::timeout_at};

use super::{
    nodes::{Nodes, Pools},
    several_slots::{Slots, decide_in_several_slots},
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
            queue::{Lanes, MAX_WAITING, Queue},
            runtimes::{PerRuntime, in_task},
            target::{Sender, Target},
        },
        wire,
    },
};

/// A link to a Cluster.
pub(crate) struct Clustered {
    runtimes: PerRuntime<Runtime>,
    health: Arc<Health>,
    /// The parts of the slots.
    parts: Arc<Shards>,
    /// Whether the keys of a part are in one slot. Otherwise each identity has a separate slot.
    is_sharded: bool,
}

struct Runtime {
    nodes: Arc<Nodes>,
    /// What stands for each part of the slots: a shard, whose keys are in one slot and share batches, or only the breaker of
    /// its slots.
    shards: Vec<Arc<Target<Arc<Nodes>>>>,
    /// Limits the decisions in flight.
    in_flight: Semaphore,
}

/// The number of breakers if each identity has a separate slot. A node that hangs opens the breakers of its slots. Only
/// a few have slots of two nodes.
const BREAKERS: u16 = 64;

/// A node has several shards, so it is busy while a lane waits.
const LANES: Lanes = Lanes { usual: 1, if_far: 2 };

impl Link for Clustered {
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
        &["evalsha", "eval", "ping", "asking", "cluster|slots"]
    }
}

impl Clustered {
    /// A link with connections of `pools` in each runtime.
    pub(crate) fn new(
        pools: impl Fn() -> Pools + Send + Sync + 'static,
        health: Arc<Health>,
        shards: Option<Arc<Shards>>,
    ) -> Self {
        let is_sharded = shards.is_some();
        let parts = shards.unwrap_or_else(|| Arc::new(Shards::new(BREAKERS)));
        let breakers: Vec<_> = (0..parts.count()).map(|_| Breaker::new(health.deadline())).collect();
        let shared = health.clone();
        let runtimes = PerRuntime::new(move || {
            let nodes = Arc::new(Nodes::new(pools(), shared.clone()));
            let shard = |breaker: &Breaker| {
                let (breaker, health) = (breaker.in_another_runtime(), shared.clone());
                Arc::new(Target { queue: Queue::new(LANES), breaker, health, sender: nodes.clone() })
            };
            let shards = breakers.iter().map(shard).collect();
            Runtime { nodes, shards, in_flight: Semaphore::new(MAX_WAITING) }
        });
        Self { runtimes, health, parts, is_sharded }
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
        shard: &Arc<Target<Arc<Nodes>>>,
        job: Arc<Job>,
    ) -> Result<Decision, Error> {
        if let Some(error) = shard.breaker.error() {
            return shard.fail_fast(error, &job).await;
        }
        let (deadline, nodes) = (deadline_in(job.deadline), shard.sender.clone());
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

impl Slots for Clustered {
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
            Some(shard) => self.decide_directly(shard, job).await,
            None => Err(wire::unexpected()),
        }
    }
}
