//! One server: decisions that are asked for while others are under way share a call.

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
    deadline::{GIVE_UP, in_time, no_turn, too_late, too_many},
    health::Health,
    link::{Link, noted},
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

/// One server, whatever manages the connections to it.
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
        noted(self.health.clone(), async move { self.decision(job).await })
    }

    fn run(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        noted(self.health.clone(), async move { self.reply(command, deadline).await })
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
        let (allowed, deadline) = (job.deadline, in_time(job.deadline));
        match self.queue.enter(job) {
            // Boxed, because most wait and need no room for it.
            Entry::Lane(job) => {
                // Dropped wherever this ends, and then it is somebody else's.
                let lane = Lane { link: self.clone(), polled: true };
                Box::pin(lane.carry_alone(job, deadline)).await
            }
            Entry::Carry(ticket) => {
                let lane = Lane { link: self.clone(), polled: false };
                tokio::spawn(lane.carry());
                self.wait(ticket, deadline, allowed).await
            }
            Entry::Wait(ticket) => self.wait(ticket, deadline, allowed).await,
            Entry::Full => Err(too_many()),
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
            Ok(Err(_)) => Err(too_late(allowed)),
            Err(_) if self.queue.give_up(&ticket) => Err(no_turn(&self.health, allowed)),
            Err(_) => Err(too_late(allowed)),
        }
    }

    async fn reply(self: &Arc<Self>, command: Cmd, allowed: Duration) -> Result<Value, Error> {
        let deadline = in_time(allowed);
        let connection = self.connections.connection_until(deadline, allowed).await?;
        let connections = self.connections.clone();
        let exchange = async move { connections.exchange(connection, &command, None, true, allowed).await };
        match timeout_at(deadline, Finish(Some(Box::pin(exchange)))).await {
            Ok(reply) => reply.map_err(|error| from_redis(&error.cause)),
            Err(_) => Err(too_late(allowed)),
        }
    }

    /// Makes `jobs` in one call. The connection returns to the pool when that is done.
    async fn call(
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
        let again = jobs.iter().all(|job| job.may_be_repeated());
        let reply = {
            let command = wire::encode(jobs);
            self.connections.exchange(connection, &command, Some(&first.script), again, first.deadline).await
        };
        let error = match reply {
            Ok(reply) => return settle(jobs, wire::decode(&reply, jobs)),
            Err(error) => error,
        };
        let failed = || Err(from_redis(&error.cause));
        let others: Vec<&Job> = jobs.iter().copied().filter(|job| job.may_be_repeated()).collect();
        if !error.closed_before || again || others.is_empty() {
            return jobs.iter().map(|_| failed()).collect();
        }
        // Only the jobs that must not be repeated fail.
        let patience = first.deadline.max(GIVE_UP);
        let mut repeated = match timeout(patience, self.connections.connection()).await {
            Ok(Ok(connection)) => Box::pin(self.send(connection, &others)).await.into_iter(),
            _ => Vec::new().into_iter(),
        };
        let next = |job: &&Job| job.may_be_repeated().then(|| repeated.next()).flatten();
        jobs.iter().map(next).map(|decided| decided.unwrap_or_else(failed)).collect()
    }
}

/// The decisions in `replies`, of which the observers of `jobs` learn.
pub(super) fn settle(jobs: &[&Job], replies: Vec<Result<Reply, Error>>) -> Vec<Result<Decision, Error>> {
    let settle = |(job, reply): (&&Job, Result<Reply, Error>)| {
        job.settled(reply.as_ref().ok());
        reply.map(|reply| reply.decision)
    };
    jobs.iter().zip(replies).map(settle).collect()
}

/// One of the [`Queue`]'s lanes. Whoever drops it hands it to those who wait.
struct Lane<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    link: Arc<Single<M>>,
    /// Whether a runtime has run it: one that drops new tasks at once would be handed the same lane for ever.
    polled: bool,
}

impl<M> Lane<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    /// Carries one decision that found it free.
    async fn carry_alone(self, mut job: Job, deadline: Instant) -> Result<Decision, Error> {
        let allowed = job.deadline;
        let connection = self.link.connections.connection_until(deadline, allowed).await?;
        let call = async move {
            let mut decisions = self.link.call(connection, slice::from_mut(&mut job)).await;
            drop(self);
            decisions.pop()
        };
        match timeout_at(deadline, Finish(Some(Box::pin(call)))).await {
            Ok(decision) => decision.unwrap_or_else(|| Err(wire::unexpected())),
            Err(_) => Err(too_late(allowed)),
        }
    }

    /// Carries calls as long as anybody waits for one.
    async fn carry(mut self) {
        self.polled = true;
        while self.link.queue.is_waited_for() {
            // Who was answered just now may ask again, and can then go along: with 64 callers that makes half as
            // many calls, and a tenth more decisions.
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
            let mut batch = self.link.queue.gather();
            let decisions = self.link.call(connection, &mut batch.jobs).await;
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
                // Nobody is left to carry anything.
                _ => self.link.queue.fail(|| {
                    Error::new(
                        ErrorKind::StoreUnreachable,
                        "the Tokio runtime that talks to Redis was shut down",
                    )
                }),
            }
        }
    }
}
