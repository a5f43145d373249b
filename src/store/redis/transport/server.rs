//! One server: how batches and commands are sent to it. Decisions share batches while others are under way.

use std::{future::ready, sync::Arc, time::Duration};

use bb8_redis::bb8::{Pool, PooledConnection};
use futures_util::future::BoxFuture;
use redis::{Cmd, RedisResult, Value};
use tokio::time::timeout_at;

use super::{
    breaker::Breaker,
    connections::{ConnectionManager, Connections, Slot, connection, connection_until},
    deadline::{PROBE_TIMEOUT, deadline_in, not_answered},
    health::Health,
    lane,
    link::{Found, Link, Scan},
    queue::Lanes,
    runtimes::{PerRuntime, in_task},
    target::{Sender, Target},
};
use crate::{
    base::{Answer, Error},
    decision::Decision,
    store::redis::{
        job::{Job, Maker, Reply},
        wire::{self, Call},
    },
};

/// A link to one server, with any connection manager.
pub(crate) struct Single<M: ConnectionManager> {
    servers: PerRuntime<Target<Arc<Connections<M>>>>,
    health: Arc<Health>,
    /// As in an ACL.
    commands: Vec<&'static str>,
}

/// The commands that every link to one server sends.
pub(crate) const COMMANDS: [&str; 3] = ["evalsha", "eval", "ping"];

impl<M: ConnectionManager> Maker for Single<M> {
    fn begin(self: Arc<Self>, job: Arc<Job>) -> Option<BoxFuture<'static, Result<Decision, Error>>> {
        match self.servers.here() {
            Ok(server) => lane::begin(server, job),
            Err(error) => Some(Box::pin(ready(Err(error)))),
        }
    }

    fn finish(&self, job: &Job, reply: Option<Result<Reply, Error>>) -> Result<Decision, Error> {
        lane::finish(&self.health, job, reply)
    }
}

impl<M: ConnectionManager> Link for Single<M> {
    fn ask(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        Answer::pending(async move { self.servers.here()?.sender.reply(command, deadline).await })
    }

    fn ask_if_available(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        Answer::pending(async move {
            let server = self.servers.here()?;
            if let Some(error) = server.breaker.error() {
                server.probe();
                return Err(error);
            }
            // Calls without an answer keep their connections for a while, so these must open the breaker too.
            let reply = server.sender.reply(command, deadline).await;
            server.record(&reply);
            reply
        })
    }

    fn scan(self: Arc<Self>, scan: Scan, deadline: Duration) -> Answer<Found> {
        Answer::pending(async move {
            let server = self.servers.here()?;
            in_task(async move {
                let _alone = server.sender.scans.lock().await;
                let mut found = Found::default();
                scan.list(&mut found, |command| server.sender.reply(command, deadline)).await?;
                Ok(found)
            })
            .await?
        })
    }

    fn health(&self) -> &Health {
        &self.health
    }

    fn commands(&self) -> &[&'static str] {
        &self.commands
    }
}

impl<M: ConnectionManager> Single<M> {
    /// A link with a pool of `pools` in each runtime, which sends `commands`.
    pub(crate) fn new(
        pools: impl Fn() -> Pool<M> + Send + Sync + 'static,
        health: Arc<Health>,
        commands: Vec<&'static str>,
    ) -> Self {
        let (breaker, shared) = (Arc::new(Breaker::default()), health.clone());
        let servers = PerRuntime::new(move || {
            let connections = Connections::new(pools(), shared.clone());
            Target::new(LANES, &breaker, &shared, connections.into(), String::new())
        });
        Self { servers, health, commands }
    }
}

/// With three lanes, one batch is made, one is on its way and one is decided. Over a network of 1 ms, six
/// lanes make 1.16 times as many decisions as three; eight make no more.
const LANES: Lanes = Lanes { usual: 3, if_far: 6 };

impl<M: ConnectionManager> Connections<M> {
    /// The reply to a command.
    async fn reply(self: &Arc<Self>, command: Cmd, allowed: Duration) -> Result<Value, Error> {
        let connections = self.clone();
        // In a task, also while it waits for a connection: the pool would offer one to a caller that is not
        // polled.
        in_task(async move {
            let deadline = deadline_in(allowed);
            let mut slot = Some(connection_until(&connections.pool, &connections.health, deadline).await?);
            let exchange = in_task(async move {
                connections
                    .exchange(&mut slot, &Call::of(command, allowed))
                    .await
                    .map_err(|failed| failed.error)
            });
            timeout_at(deadline, exchange).await.unwrap_or_else(|_| Err(not_answered()))?
        })
        .await?
    }

    async fn send(self: &Arc<Self>, slot: &mut Slot<M>, jobs: &[&Job]) -> Result<(), Error> {
        let Some(call) = wire::encode(jobs) else { return Ok(()) };
        let failed = match self.exchange(slot, &call).await {
            Ok(reply) => {
                wire::decode(reply, jobs, Job::answer);
                return Ok(());
            }
            Err(failed) => failed,
        };
        // Only jobs that must not be repeated fail, and their callers do not wait for the others.
        let repeats = |job: &&&Job| failed.was_closed && !call.may_repeat && job.may_be_repeated();
        let others: Vec<&Job> = jobs.iter().filter(repeats).copied().collect();
        jobs.iter().filter(|job| !repeats(job)).for_each(|job| {
            job.answer(Err(failed.error.clone()));
            job.end();
        });
        if others.is_empty() { Err(failed.error) } else { Box::pin(self.send(slot, &others)).await }
    }
}

impl<M: ConnectionManager> Sender for Arc<Connections<M>> {
    type Connection = PooledConnection<'static, M>;

    async fn ping(&self, _: &str) -> Result<(), Error> {
        self.reply(redis::cmd("PING"), PROBE_TIMEOUT).await.map(drop)
    }

    async fn connection(&self) -> RedisResult<Self::Connection> {
        connection(&self.pool, &self.health).await
    }

    async fn send_batch(&self, slot: &mut Slot<M>, jobs: &[&Job]) -> Result<(), Error> {
        self.send(slot, jobs).await
    }
}
