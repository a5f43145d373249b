//! The link to a Redis Cluster: sends each decision to the shards of its keys.

use std::{sync::Arc, time::Duration};

use bb8_redis::bb8::Pool;
use futures_util::future::BoxFuture;
use redis::{Cmd, Value};

use super::{
    clients::{Clients, ClusterManager},
    nodes::{Nodes, ShardNodes},
    several_shards::{Sharded, decide_in_several_shards},
};
use crate::{
    base::{Answer, Error},
    decision::{Charge, Decision},
    store::redis::{
        job::{Decides, Fate, Job, Shards},
        transport::{
            breaker::Breaker,
            deadline::deadline_in,
            health::Health,
            lane,
            link::{Found, Link, Scan},
            queue::Lanes,
            runtimes::{PerRuntime, in_task},
            silence::Silence,
            target::Target,
        },
        wire::{self, Call},
    },
};

/// A link to a Cluster.
pub(crate) struct ClusterLink {
    runtimes: PerRuntime<Runtime>,
    health: Arc<Health>,
    shards: Arc<Shards>,
}

struct Runtime {
    nodes: Arc<Nodes>,
    /// In the order of their numbers. The keys of each are in one slot, so they share batches.
    shards: Vec<Arc<Target<ShardNodes>>>,
}

/// A node has several shards, so it is busy while a lane waits.
const LANES: Lanes = Lanes { usual: 1, if_far: 2 };

impl Decides for ClusterLink {
    fn begin(self: Arc<Self>, job: Arc<Job>) -> Option<BoxFuture<'static, Result<Decision, Error>>> {
        Some(Box::pin(async move {
            let share_a_shard = |pair: &[Charge]| self.share_a_shard(&pair[0], &pair[1]);
            if !job.charges.is_empty() && job.charges.windows(2).all(share_a_shard) {
                self.decide_in_shard(job).await
            } else {
                // Boxed because few decisions need the space.
                Box::pin(decide_in_several_shards(self.clone(), job)).await
            }
        }))
    }

    fn finish(&self, job: &Job, fate: Fate) -> Result<Decision, Error> {
        self.health.finish(job, fate)
    }
}

impl Link for ClusterLink {
    fn ask(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        Answer::pending(async move {
            let nodes = self.runtimes.here()?.nodes.clone();
            let (call, until) = (Call::of(command, deadline), deadline_in(deadline));
            in_task(async move { nodes.reply(&call, until).await }).await?
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

    fn commands(&self) -> &[&'static str] {
        &["evalsha", "eval", "ping", "asking", "cluster|slots"]
    }
}

impl ClusterLink {
    /// A link with a `pool` of each of the `clients` in each runtime. Keys begin with `prefix`.
    pub(crate) fn new(
        clients: Clients,
        pool: impl Fn(ClusterManager) -> Pool<ClusterManager> + Send + Sync + 'static,
        health: Arc<Health>,
        shards: Arc<Shards>,
        prefix: &str,
        silence: Silence,
    ) -> Self {
        let of_shard =
            |shard| (Arc::new(Breaker::default()), format!("{prefix}:%probe:{{{}}}", shards.tag(shard)));
        let breakers: Vec<_> = (0..shards.count()).map(of_shard).collect();
        let shared = health.clone();
        let runtimes = PerRuntime::new(move || {
            let nodes = Arc::new(Nodes::new(&clients, &pool, shared.clone(), silence));
            let shard = |(breaker, key): &(_, String)| {
                let sender = ShardNodes::new(nodes.clone(), key.clone());
                Arc::new(Target::new(LANES, breaker, &shared, sender, key.clone()))
            };
            let shards = breakers.iter().map(shard).collect();
            Runtime { nodes, shards }
        });
        Self { runtimes, health, shards }
    }
}

impl Sharded for ClusterLink {
    fn share_a_shard(&self, one: &Charge, other: &Charge) -> bool {
        self.shards.of(one.policy(), one.key()) == self.shards.of(other.policy(), other.key())
    }

    async fn decide_in_shard(&self, job: Arc<Job>) -> Result<Decision, Error> {
        let here = self.runtimes.here()?;
        let shard = job
            .charges
            .first()
            .and_then(|charge| here.shards.get(self.shards.of(charge.policy(), charge.key())));
        lane::decide(shard.ok_or_else(wire::unexpected)?, job).await
    }
}
