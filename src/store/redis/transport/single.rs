//! One server. Decisions share batches while others are under way.

use std::{sync::Arc, time::Duration};

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{Cmd, RedisError, Value, aio::ConnectionLike};
use tokio::{
    runtime::Handle,
    time::{Instant, timeout_at},
};

use super::{
    background::Finish,
    connections::{Call, Connections, Slot},
    deadline::{deadline_in, no_connection, queue_full, timed_out},
    health::Health,
    lane::Lane,
    link::{Link, recorded},
    queue::{Entry, Queue, Ticket},
    watch::Place,
};
use crate::{
    answer::Answer,
    decision::Decision,
    error::Error,
    store::redis::{
        error::from_redis,
        wire::{self, Job, Reply},
    },
};

/// A link to one server, with any connection manager.
pub(crate) struct Single<M: ManageConnection> {
    pub(super) connections: Arc<Connections<M>>,
    pub(super) queue: Queue,
    pub(super) health: Arc<Health>,
}

impl<M> Link for Single<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    fn decide(self: Arc<Self>, job: Job) -> Answer<Decision> {
        // One future, not nested ones: each would hold and move the job once more.
        Answer::pending(async move {
            let (allowed, deadline) = (job.deadline, deadline_in(job.deadline));
            let here = Handle::try_current().ok().map(|runtime| runtime.id());
            let decision = match self.queue.enter(job, deadline, here) {
                // Boxed because most decisions wait and do not need the space.
                Entry::Alone(job) => {
                    let lane = Lane::new(self.clone(), Place::default());
                    Box::pin(lane.carry_alone(job, deadline)).await
                }
                Entry::Open(ticket, place) => {
                    tokio::spawn(Lane::new(self.clone(), place).carry());
                    self.wait(ticket, deadline, allowed).await
                }
                Entry::Wait(ticket) => self.wait(ticket, deadline, allowed).await,
                Entry::Full => Err(queue_full()),
            };
            self.health.record(&decision);
            decision
        })
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

    async fn wait(
        &self,
        mut ticket: Ticket,
        deadline: Instant,
        allowed: Duration,
    ) -> Result<Decision, Error> {
        let reply = if ticket.is_watched {
            (&mut ticket.reply).await
        } else {
            match timeout_at(deadline, &mut ticket.reply).await {
                Ok(reply) => reply,
                Err(_) if self.queue.withdraw(&ticket) => return Err(no_connection(&self.health, allowed)),
                Err(_) => return Err(timed_out(allowed)),
            }
        };
        // If the lane was dropped with its runtime, the decision may have been made.
        reply.unwrap_or_else(|_| Err(timed_out(allowed)))
    }

    async fn reply(&self, command: Cmd, allowed: Duration) -> Result<Value, Error> {
        let deadline = deadline_in(allowed);
        let mut slot = None;
        self.connections.check_out(&mut slot, deadline, allowed).await?;
        let connections = self.connections.clone();
        let exchange = async move {
            let call = Call { command: &command, script: None, may_repeat: true, deadline: allowed };
            connections.exchange(&mut slot, call).await
        };
        match timeout_at(deadline, Finish(Some(Box::pin(exchange)))).await {
            Ok(reply) => reply.map_err(|error| from_redis(&error.cause)),
            Err(_) => Err(timed_out(allowed)),
        }
    }

    /// Sends `jobs` as one batch, on the connection in `slot` or on another one.
    pub(super) async fn send_batch(
        &self,
        slot: &mut Slot<M>,
        jobs: &mut [Job],
    ) -> Vec<Result<Decision, Error>> {
        jobs.iter_mut().for_each(Job::sending);
        let jobs: Vec<&Job> = jobs.iter().collect();
        self.send(slot, &jobs).await
    }

    async fn send(&self, slot: &mut Slot<M>, jobs: &[&Job]) -> Vec<Result<Decision, Error>> {
        let Some(first) = jobs.first() else { return Vec::new() };
        let may_repeat = jobs.iter().all(|job| job.may_be_repeated());
        let reply = {
            let (command, script) = (&wire::encode(jobs), Some(&*first.script));
            let call = Call { command, script, may_repeat, deadline: first.deadline };
            self.connections.exchange(slot, call).await
        };
        let error = match reply {
            Ok(reply) => return settle(jobs, wire::decode(&reply, jobs)),
            Err(error) => error,
        };
        let mut repeated = Vec::new();
        if error.was_closed && !may_repeat {
            // Only jobs that must not be repeated fail.
            let others: Vec<&Job> = jobs.iter().copied().filter(|job| job.may_be_repeated()).collect();
            repeated = Box::pin(self.send(slot, &others)).await;
        }
        let mut repeated = repeated.into_iter();
        let next = |job: &&Job| job.may_be_repeated().then(|| repeated.next()).flatten();
        let failed = || Err(from_redis(&error.cause));
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
