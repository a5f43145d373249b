//! One server. Decisions share batches while others are under way.

use std::{sync::Arc, time::Duration};

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{Cmd, RedisError, Value, aio::ConnectionLike};

use super::{
    commit,
    health::Health,
    link::{Link, recorded},
    scan::{Found, Scan},
    server::Server,
};
#[cfg(feature = "reload")]
use super::{probe::probe, target::Target as _};
use crate::{answer::Answer, decision::Decision, store::redis::wire::Job};

/// A link to one server, with any connection manager.
pub(crate) struct Single<M: ManageConnection> {
    server: Arc<Server<M>>,
    commands: &'static [&'static str],
}

impl<M> Link for Single<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    fn decide(self: Arc<Self>, job: Job) -> Answer<Decision> {
        Answer::pending(commit::decide(self.server.clone(), job))
    }

    fn run(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        recorded(self.server.health.clone(), async move { self.server.reply(command, deadline).await })
    }

    fn ask(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        Answer::pending(async move { self.server.reply(command, deadline).await })
    }

    #[cfg(feature = "reload")]
    fn ask_if_available(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        Answer::pending(async move {
            if let Some(error) = self.server.breaker().error() {
                // There may be no decisions that would.
                probe(&self.server, String::new);
                return Err(error);
            }
            // Calls without an answer keep their connections for a while, so these must open the breaker too.
            let reply = self.server.reply(command, deadline).await;
            self.server.breaker().record(&reply);
            reply
        })
    }

    fn scan(self: Arc<Self>, scan: Scan, deadline: Duration) -> Answer<Found> {
        Answer::pending(async move {
            let mut found = Found::new();
            scan.finish(0, scan.steps(), &mut found, |command| self.server.reply(command, deadline)).await?;
            Ok(found)
        })
    }

    fn health(&self) -> &Health {
        &self.server.health
    }

    fn commands(&self) -> &'static [&'static str] {
        self.commands
    }
}

impl<M> Single<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    pub(crate) fn new(pool: Pool<M>, health: Arc<Health>) -> Self {
        let server = Arc::new(Server::new(pool, health));
        Self { server, commands: &["evalsha", "script|load", "ping"] }
    }

    /// A link to the primary that sentinels name. Their client asks each primary for its role.
    #[cfg(feature = "sentinel")]
    pub(crate) fn asking_for_role(self) -> Self {
        Self { commands: &["evalsha", "script|load", "ping", "role"], ..self }
    }
}
