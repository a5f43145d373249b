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
    connections::Call,
    deadline::{deadline_in, no_connection, queue_full, timed_out},
    health::Health,
    lane::{Lane, open_another},
    link::{Link, recorded},
    queue::{Entry, Ticket},
    server::Server,
    watch::Place,
};
use crate::{
    answer::Answer,
    decision::Decision,
    error::Error,
    store::redis::{error::from_redis, wire::Job},
};

/// A link to one server, with any connection manager.
pub(crate) struct Single<M: ManageConnection>(Arc<Server<M>>);

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
            let decision = match self.0.queue.enter(job, deadline, here) {
                // Boxed because most decisions wait and do not need the space.
                Entry::Alone(job) => {
                    let lane = Lane::new(self.0.clone(), Place::default());
                    Box::pin(lane.carry_alone(job, deadline)).await
                }
                Entry::Open(ticket, place) => {
                    tokio::spawn(Lane::new(self.0.clone(), place).carry());
                    self.wait(ticket, deadline, allowed).await
                }
                Entry::Wait(ticket) => self.wait(ticket, deadline, allowed).await,
                Entry::Full => Err(queue_full()),
            };
            self.0.health.record(&decision);
            decision
        })
    }

    fn run(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        recorded(self.0.health.clone(), async move { self.reply(command, deadline).await })
    }

    fn commands(&self) -> &'static [&'static str] {
        &["evalsha", "script|load", "ping"]
    }
}

/// After this time a caller that no lane watches opens a lane of its own.
const STUCK: Duration = Duration::from_millis(5);

impl<M> Single<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    pub(crate) fn new(pool: Pool<M>, health: Arc<Health>) -> Self {
        Self(Arc::new(Server::new(pool, health)))
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
            let mut reply = timeout_at(deadline.min(deadline_in(STUCK)), &mut ticket.reply).await;
            if reply.is_err() && Instant::now() < deadline {
                // The open lanes may be of a runtime that is not driven.
                open_another(&self.0);
                reply = timeout_at(deadline, &mut ticket.reply).await;
            }
            match reply {
                Ok(reply) => reply,
                Err(_) if self.0.queue.withdraw(&ticket) => {
                    return Err(no_connection(&self.0.health, allowed));
                }
                Err(_) => return Err(timed_out(allowed)),
            }
        };
        // If the lane was dropped with its runtime, the decision may have been made.
        reply.unwrap_or_else(|_| Err(timed_out(allowed)))
    }

    async fn reply(&self, command: Cmd, allowed: Duration) -> Result<Value, Error> {
        let deadline = deadline_in(allowed);
        let mut slot = None;
        self.0.connections.check_out(&mut slot, deadline, allowed).await?;
        let connections = self.0.connections.clone();
        let exchange = async move {
            let call = Call { command: &command, script: None, may_repeat: true, deadline: allowed };
            connections.exchange(&mut slot, call).await
        };
        match timeout_at(deadline, Finish(Some(Box::pin(exchange)))).await {
            Ok(reply) => reply.map_err(|error| from_redis(&error.cause)),
            Err(_) => Err(timed_out(allowed)),
        }
    }
}
