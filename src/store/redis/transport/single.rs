//! One server. Decisions share batches while others are under way.

use std::{sync::Arc, time::Duration};

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{Cmd, RedisError, Value, aio::ConnectionLike};

use super::{
    commit,
    health::Health,
    link::{Link, recorded},
    server::Server,
};
use crate::{answer::Answer, decision::Decision, store::redis::wire::Job};

/// A link to one server, with any connection manager.
pub(crate) struct Single<M: ManageConnection>(Arc<Server<M>>);

impl<M> Link for Single<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    fn decide(self: Arc<Self>, job: Job) -> Answer<Decision> {
        Answer::pending(commit::decide(self.0.clone(), job))
    }

    fn run(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        recorded(self.0.health.clone(), async move { self.0.reply(command, deadline).await })
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
        Self(Arc::new(Server::new(pool, health)))
    }
}
