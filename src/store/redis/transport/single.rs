//! One server. Decisions share batches while others are under way.

use std::{sync::Arc, time::Duration};

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{Cmd, RedisError, Value, aio::ConnectionLike};
use tokio::time::timeout_at;

use super::{
    background::Finish,
    commit,
    connections::Call,
    deadline::{deadline_in, timed_out},
    health::Health,
    link::{Link, recorded},
    server::Server,
};
use crate::{
    answer::Answer,
    decision::Decision,
    error::Error,
    store::redis::{error::from_redis, wire::Job},
};

/// A link to one server, with any connection manager.
pub(crate) struct Single<M: ManageConnection>(Arc<Server<M>>, &'static [&'static str]);

impl<M> Link for Single<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    fn decide(self: Arc<Self>, job: Job) -> Answer<Decision> {
        Answer::pending(commit::decide(self.0.clone(), job))
    }

    fn run(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        recorded(self.0.health.clone(), async move { self.reply(command, deadline).await })
    }

    fn ask(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        Answer::pending(async move { self.reply(command, deadline).await })
    }

    fn commands(&self) -> &'static [&'static str] {
        self.1
    }
}

impl<M> Single<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    pub(crate) fn new(pool: Pool<M>, health: Arc<Health>) -> Self {
        Self(Arc::new(Server::new(pool, health)), &["evalsha", "script|load", "ping"])
    }

    /// A link to the primary that sentinels name. Their client asks each primary for its role.
    #[cfg(feature = "sentinel")]
    pub(crate) fn asking_for_role(self) -> Self {
        Self(self.0, &["evalsha", "script|load", "ping", "role"])
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
