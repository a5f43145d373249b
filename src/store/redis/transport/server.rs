//! How batches and commands are sent to one server.

use std::{sync::Arc, time::Duration};

use bb8_redis::bb8::{ManageConnection, Pool, PooledConnection};
use redis::{Cmd, RedisError, RedisResult, Value, aio::ConnectionLike};
use tokio::{sync::Mutex, time::timeout_at};

use super::{
    breaker::Breaker,
    connections::{Connections, Slot},
    deadline::{PROBE_TIMEOUT, TimeLeft, deadline_in, not_answered},
    health::Health,
    link::{Found, Scan},
    queue::{Lanes, Queue},
    runtimes::in_task,
    target::{Sender, Target},
};
use crate::{
    base::Error,
    decision::Decision,
    store::redis::{
        job::{Job, Reply},
        wire::{self, Call},
    },
};

/// With three lanes, one batch is made, one is on its way and one is decided. Over a network of 1 ms, six lanes make 1.16
/// times as many decisions as three; eight make no more.
const LANES: Lanes = Lanes { usual: 3, if_far: 6 };

/// Sends to one server.
pub(super) struct Server<M: ManageConnection> {
    connections: Arc<Connections<M>>,
    /// Held during a scan: several at a time would keep decisions waiting.
    scans: Mutex<()>,
}

impl<M> Server<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    pub(super) fn target(pool: Pool<M>, health: Arc<Health>, breaker: Breaker) -> Target<Self> {
        let connections = Arc::new(Connections::new(pool, health.clone()));
        let sender = Self { connections, scans: Mutex::default() };
        Target { queue: Queue::new(LANES), breaker, health, sender }
    }

    /// The reply to a command.
    pub(super) async fn reply(&self, command: Cmd, allowed: Duration) -> Result<Value, Error> {
        let connections = self.connections.clone();
        // In a task, also while it waits for a connection: the pool would offer one to a caller that is not polled.
        in_task(async move {
            let (deadline, mut slot) = (deadline_in(allowed), None);
            connections.check_out(&mut slot, deadline).await?;
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

    /// The keys that `scan` wants.
    pub(super) async fn scan(&self, scan: &Scan, deadline: Duration) -> Result<Found, Error> {
        let _alone = self.scans.lock().await;
        let mut found = Found::new();
        scan.finish(0, scan.steps(), &mut found, |command| self.reply(command, deadline)).await?;
        Ok(found)
    }

    async fn send(&self, slot: &mut Slot<M>, jobs: &[&Job]) -> Vec<Result<Decision, Error>> {
        let Some(call) = wire::encode(jobs) else { return Vec::new() };
        let failed = match self.connections.exchange(slot, &call).await {
            Ok(reply) => return settle(jobs, wire::decode(&reply, jobs)),
            Err(failed) => failed,
        };
        let mut repeated = Vec::new();
        if failed.was_closed && !call.may_repeat {
            // Only jobs that must not be repeated fail.
            let others: Vec<&Job> = jobs.iter().copied().filter(|job| job.may_be_repeated()).collect();
            repeated = Box::pin(self.send(slot, &others)).await;
        }
        let mut repeated = repeated.into_iter();
        let next = |job: &&Job| job.may_be_repeated().then(|| repeated.next()).flatten();
        let failed = || Err(failed.error.clone());
        jobs.iter().map(next).map(|decided| decided.unwrap_or_else(failed)).collect()
    }
}

impl<M> Sender for Server<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    type Connection = PooledConnection<'static, M>;

    async fn ping(&self, slot: &mut Slot<M>, _: &str) -> Result<Duration, Error> {
        if slot.is_none() {
            self.connections.check_out(slot, deadline_in(PROBE_TIMEOUT)).await?;
        }
        let (connections, mut taken) = (self.connections.clone(), slot.take());
        let exchange = in_task(async move {
            let ping = Call::of(redis::cmd("PING"), PROBE_TIMEOUT);
            (connections.exchange(&mut taken, &ping).await, taken)
        });
        let mut time = TimeLeft::in_ticks(PROBE_TIMEOUT);
        let (reply, returned) = time.spend_on(exchange).await.ok_or_else(not_answered)??;
        *slot = returned;
        reply.map_err(|failed| failed.error)?;
        Ok(PROBE_TIMEOUT - time.left())
    }

    async fn connection(&self) -> RedisResult<Self::Connection> {
        self.connections.connection().await
    }

    async fn send_batch(&self, slot: &mut Slot<M>, jobs: &mut [Job]) -> Vec<Result<Decision, Error>> {
        jobs.iter_mut().for_each(Job::sending);
        let jobs: Vec<&Job> = jobs.iter().collect();
        self.send(slot, &jobs).await
    }
}

/// The decisions in `replies`. Notifies the observers of `jobs`.
pub(super) fn settle(jobs: &[&Job], replies: Vec<Result<Reply, Error>>) -> Vec<Result<Decision, Error>> {
    let settle = |(job, reply): (&&Job, Result<Reply, Error>)| match reply {
        Ok(reply) => Ok(job.settled(reply)),
        Err(error) => {
            job.failed();
            Err(error)
        }
    };
    jobs.iter().zip(replies).map(settle).collect()
}
