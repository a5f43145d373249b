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
    store::redis::{
        job::Job,
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

    async fn send(&self, slot: &mut Slot<M>, jobs: &[&Job]) -> Result<(), Error> {
        let Some(call) = wire::encode(jobs) else { return Ok(()) };
        let failed = match self.connections.exchange(slot, &call).await {
            Ok(reply) => {
                wire::decode(&reply, jobs, Job::answer);
                return Ok(());
            }
            Err(failed) => failed,
        };
        // Only jobs that must not be repeated fail.
        let repeats = |job: &&&Job| failed.was_closed && !call.may_repeat && job.may_be_repeated();
        let others: Vec<&Job> = jobs.iter().filter(repeats).copied().collect();
        jobs.iter().filter(|job| !repeats(job)).for_each(|job| job.slot.set(Err(failed.error.clone())));
        if others.is_empty() { Err(failed.error) } else { Box::pin(self.send(slot, &others)).await }
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

    async fn send_batch(&self, slot: &mut Slot<M>, jobs: &[&Job]) -> Result<(), Error> {
        jobs.iter().for_each(|job| job.sending());
        self.send(slot, jobs).await
    }
}
