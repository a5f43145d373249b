//! One server. Decisions share batches while others are under way.

use std::{slice, sync::Arc, time::Duration};

use bb8_redis::bb8::{ManageConnection, Pool, PooledConnection};
use redis::{Cmd, RedisError, Value, aio::ConnectionLike};
use tokio::{
    runtime::Handle,
    task::yield_now,
    time::{Instant, timeout, timeout_at},
};

use super::{
    background::Finish,
    connections::{Connections, MAX_BACKOFF},
    deadline::{REPLY_TIMEOUT, deadline_in, no_connection, queue_full, timed_out},
    health::Health,
    link::{Link, recorded},
    queue::{Entry, Queue, Ticket},
};
use crate::{
    answer::Answer,
    decision::Decision,
    error::{Error, ErrorKind},
    store::redis::{
        error::from_redis,
        wire::{self, Job, Reply},
    },
};

/// A link to one server, with any connection manager.
pub(crate) struct Single<M: ManageConnection> {
    connections: Arc<Connections<M>>,
    queue: Queue,
    health: Arc<Health>,
}

impl<M> Link for Single<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    fn decide(self: Arc<Self>, job: Job) -> Answer<Decision> {
        recorded(self.health.clone(), async move { self.decision(job).await })
    }

    fn run(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        recorded(self.health.clone(), async move { self.reply(command, deadline).await })
    }

    fn commands(&self) -> &'static [&'static str] {
        &["evalsha", "script|load", "ping"]
    }
}

impl<M> Single<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    pub(crate) fn new(pool: Pool<M>, health: Arc<Health>) -> Self {
        let connections = Arc::new(Connections::new(pool, health.clone()));
        Self { connections, queue: Queue::default(), health }
    }

    async fn decision(self: &Arc<Self>, job: Job) -> Result<Decision, Error> {
        let (allowed, deadline) = (job.deadline, deadline_in(job.deadline));
        match self.queue.enter(job) {
            // Boxed because most decisions wait and do not need the space.
            Entry::Lane(job) => {
                // Dropping the lane passes it on.
                let lane = Lane { link: self.clone(), polled: true };
                Box::pin(lane.carry_alone(job, deadline)).await
            }
            Entry::Carry(ticket) => {
                let lane = Lane { link: self.clone(), polled: false };
                tokio::spawn(lane.carry());
                self.wait(ticket, deadline, allowed).await
            }
            Entry::Wait(ticket) => self.wait(ticket, deadline, allowed).await,
            Entry::Full => Err(queue_full()),
        }
    }

    async fn wait(
        &self,
        mut ticket: Ticket,
        deadline: Instant,
        allowed: Duration,
    ) -> Result<Decision, Error> {
        match timeout_at(deadline, &mut ticket.reply).await {
            Ok(Ok(decision)) => decision,
            Ok(Err(_)) => Err(timed_out(allowed)),
            Err(_) if self.queue.withdraw(&ticket) => Err(no_connection(&self.health, allowed)),
            Err(_) => Err(timed_out(allowed)),
        }
    }

    async fn reply(self: &Arc<Self>, command: Cmd, allowed: Duration) -> Result<Value, Error> {
        let deadline = deadline_in(allowed);
        let connection = self.connections.connection_until(deadline, allowed).await?;
        let connections = self.connections.clone();
        let exchange = async move { connections.exchange(connection, &command, None, true, allowed).await };
        match timeout_at(deadline, Finish(Some(Box::pin(exchange)))).await {
            Ok(reply) => reply.map_err(|error| from_redis(&error.cause)),
            Err(_) => Err(timed_out(allowed)),
        }
    }

    /// Sends `jobs` as one batch. The connection returns to the pool afterwards.
    async fn send_batch(
        &self,
        connection: PooledConnection<'static, M>,
        jobs: &mut [Job],
    ) -> Vec<Result<Decision, Error>> {
        jobs.iter_mut().for_each(Job::sending);
        let jobs: Vec<&Job> = jobs.iter().collect();
        self.send(connection, &jobs).await
    }

    async fn send(
        &self,
        connection: PooledConnection<'static, M>,
        jobs: &[&Job],
    ) -> Vec<Result<Decision, Error>> {
        let Some(first) = jobs.first() else { return Vec::new() };
        let may_repeat = jobs.iter().all(|job| job.may_be_repeated());
        let reply = {
            let Some(call) = wire::encode(jobs) else { return Vec::new() };
            self.connections
                .exchange(connection, &call.command, Some(&call.script), may_repeat, first.deadline)
                .await
        };
        let error = match reply {
            Ok(reply) => return settle(jobs, wire::decode(&reply, jobs)),
            Err(error) => error,
        };
        let failed = || Err(from_redis(&error.cause));
        let others: Vec<&Job> = jobs.iter().copied().filter(|job| job.may_be_repeated()).collect();
        if !error.was_closed || may_repeat || others.is_empty() {
            return jobs.iter().map(|_| failed()).collect();
        }
        // Only jobs that must not be repeated fail.
        let timeout_after = first.deadline.max(REPLY_TIMEOUT);
        let mut repeated = match timeout(timeout_after, self.connections.connection()).await {
            Ok(Ok(connection)) => Box::pin(self.send(connection, &others)).await.into_iter(),
            _ => Vec::new().into_iter(),
        };
        let next = |job: &&Job| job.may_be_repeated().then(|| repeated.next()).flatten();
        jobs.iter().map(next).map(|decided| decided.unwrap_or_else(failed)).collect()
    }
}

/// The decisions in `replies`. Notifies the observers of `jobs`.
pub(super) fn settle(jobs: &[&Job], replies: Vec<Result<Reply, Error>>) -> Vec<Result<Decision, Error>> {
    let settle = |(job, reply): (&&Job, Result<Reply, Error>)| {
        job.settled(reply.as_ref().ok());
        reply.map(|reply| reply.decision)
    };
    jobs.iter().zip(replies).map(settle).collect()
}

/// A lane of the [`Queue`]. Dropping it passes it on to the waiting decisions.
struct Lane<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    link: Arc<Single<M>>,
    /// Whether a runtime has polled it. A runtime that drops new tasks would otherwise be given the same lane forever.
    polled: bool,
}

impl<M> Lane<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    /// Sends one decision alone.
    async fn carry_alone(self, mut job: Job, deadline: Instant) -> Result<Decision, Error> {
        let allowed = job.deadline;
        let connection = self.link.connections.connection_until(deadline, allowed).await?;
        let batch = async move {
            let mut decisions = self.link.send_batch(connection, slice::from_mut(&mut job)).await;
            drop(self);
            decisions.pop()
        };
        match timeout_at(deadline, Finish(Some(Box::pin(batch)))).await {
            Ok(decision) => decision.unwrap_or_else(|| Err(wire::unexpected())),
            Err(_) => Err(timed_out(allowed)),
        }
    }

    /// Sends batches as long as decisions wait.
    async fn carry(mut self) {
        self.polled = true;
        while self.link.queue.has_waiting() {
            // Callers that were just answered may send their next decision, which then joins this batch: with 64
            // callers this halves the batches and makes 10 % more decisions.
            yield_now().await;
            let connection = match timeout(MAX_BACKOFF, self.link.connections.connection()).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(error)) => {
                    self.link.queue.fail(|| from_redis(&error));
                    continue;
                }
                Err(_) => continue,
            };
            self.link.health.connected();
            let mut batch = self.link.queue.next_batch();
            let decisions = self.link.send_batch(connection, &mut batch.jobs).await;
            batch.answer(decisions);
        }
    }
}

impl<M> Drop for Lane<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    fn drop(&mut self) {
        while self.link.queue.leave() {
            let lane = || Self { link: self.link.clone(), polled: false };
            match Handle::try_current() {
                Ok(runtime) if self.polled => {
                    runtime.spawn(lane().carry());
                    return;
                }
                // No task is left to send them.
                _ => self.link.queue.fail(|| {
                    Error::new(
                        ErrorKind::StoreUnreachable,
                        "the Tokio runtime that sends to Redis was shut down",
                    )
                }),
            }
        }
    }
}
