//! One server. Decisions share batches while others are under way.

use std::{sync::Arc, time::Duration};

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{Cmd, RedisError, Value, aio::ConnectionLike};

use super::{
    breaker::Breaker,
    health::Health,
    lane,
    link::{Found, Link, Scan},
    probe::probe,
    runtimes::{PerRuntime, in_task},
    server::Server,
    target::Target,
};
use crate::{base::Answer, decision::Decision, store::redis::job::Job};

/// A link to one server, with any connection manager.
pub(crate) struct Single<M: ManageConnection> {
    servers: PerRuntime<Target<Server<M>>>,
    health: Arc<Health>,
    commands: &'static [&'static str],
}

impl<M> Link for Single<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    fn decide(self: Arc<Self>, job: Arc<Job>) -> Answer<Decision> {
        Answer::pending(async move { lane::decide(self.servers.here()?, job).await })
    }

    fn ask(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        Answer::pending(async move { self.servers.here()?.sender.reply(command, deadline).await })
    }

    fn ask_if_available(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        Answer::pending(async move {
            let server = self.servers.here()?;
            if let Some(error) = server.breaker.error() {
                // There may be no decisions that would.
                probe(&server, String::new);
                return Err(error);
            }
            // Calls without an answer keep their connections for a while, so these must open the breaker too.
            let reply = server.sender.reply(command, deadline).await;
            server.breaker.record(&reply);
            reply
        })
    }

    fn scan(self: Arc<Self>, scan: Scan, deadline: Duration) -> Answer<Found> {
        Answer::pending(async move {
            let server = self.servers.here()?;
            in_task(async move { server.sender.scan(&scan, deadline).await }).await?
        })
    }

    fn health(&self) -> &Health {
        &self.health
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
    /// A link with a pool of `pools` in each runtime, and `first` in this one.
    pub(crate) fn new(
        pools: impl Fn() -> Pool<M> + Send + Sync + 'static,
        first: Option<Pool<M>>,
        health: Arc<Health>,
    ) -> Self {
        let (breaker, shared) = (Breaker::new(health.deadline()), health.clone());
        let server = move |pool| Server::target(pool, shared.clone(), breaker.in_another_runtime());
        let first = first.map(&server);
        let servers = PerRuntime::new(move || server(pools()), first);
        Self { servers, health, commands: &["evalsha", "eval", "ping"] }
    }

    /// A link to the primary that sentinels name. Their client asks each primary for its role.
    #[cfg(feature = "sentinel")]
    pub(crate) fn asking_for_role(self) -> Self {
        Self { commands: &["evalsha", "eval", "ping", "role"], ..self }
    }
}
