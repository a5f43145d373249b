//! The link to one server. Decisions share batches while others are under way.

use std::{future::ready, sync::Arc, time::Duration};

use bb8_redis::bb8::Pool;
use futures_util::future::BoxFuture;
use redis::{Cmd, Value};

use super::{
    breaker::Breaker,
    connections::{ConnectionManager, Connections},
    health::Health,
    lane,
    link::{Found, Link, Scan},
    queue::Lanes,
    runtimes::{PerRuntime, in_task},
    target::Target,
};
use crate::{
    base::{Answer, Error},
    decision::Decision,
    store::redis::job::{Decides, Fate, Job},
};

/// A link to one server, with any connection manager.
pub(crate) struct ServerLink<M: ConnectionManager> {
    servers: PerRuntime<Target<Arc<Connections<M>>>>,
    health: Arc<Health>,
    /// As in an ACL.
    commands: Vec<&'static str>,
}

/// The commands that every link to one server sends.
pub(crate) const COMMANDS: [&str; 3] = ["evalsha", "eval", "ping"];

impl<M: ConnectionManager> Decides for ServerLink<M> {
    fn begin(self: Arc<Self>, job: Arc<Job>) -> Option<BoxFuture<'static, Result<Decision, Error>>> {
        match self.servers.here() {
            Ok(server) => lane::begin(server, job),
            Err(error) => Some(Box::pin(ready(Err(error)))),
        }
    }

    fn finish(&self, job: &Job, fate: Fate) -> Result<Decision, Error> {
        self.health.finish(job, fate)
    }
}

impl<M: ConnectionManager> Link for ServerLink<M> {
    fn ask(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        Answer::pending(async move { self.servers.here()?.sender.reply(command, deadline).await })
    }

    fn ask_if_available(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        Answer::pending(async move {
            let server = self.servers.here()?;
            if let Some(error) = server.breaker.error() {
                server.probe();
                return Err(error);
            }
            // Calls without an answer keep their connections for a while, so these must open the breaker too.
            let reply = server.sender.reply(command, deadline).await;
            server.record(&reply);
            reply
        })
    }

    fn scan(self: Arc<Self>, scan: Scan, deadline: Duration) -> Answer<Found> {
        Answer::pending(async move {
            let server = self.servers.here()?;
            in_task(async move {
                let _alone = server.sender.scans.lock().await;
                let mut found = Found::default();
                scan.list(&mut found, |command| server.sender.reply(command, deadline)).await?;
                Ok(found)
            })
            .await?
        })
    }

    fn health(&self) -> &Health {
        &self.health
    }

    fn commands(&self) -> &[&'static str] {
        &self.commands
    }
}

impl<M: ConnectionManager> ServerLink<M> {
    /// A link with a pool of `pools` in each runtime, which sends `commands`.
    pub(crate) fn new(
        pools: impl Fn() -> Pool<M> + Send + Sync + 'static,
        health: Arc<Health>,
        commands: Vec<&'static str>,
    ) -> Self {
        let (breaker, shared) = (Arc::new(Breaker::default()), health.clone());
        let servers = PerRuntime::new(move || {
            let pool = pools();
            let lanes = LANES.at_most(pool.config().max_size);
            let connections = Connections::new(pool, shared.clone());
            Target::new(lanes, &breaker, &shared, connections.into(), String::new())
        });
        Self { servers, health, commands }
    }
}

/// With three lanes, one batch is made, one is on its way and one is decided. Over a network of 1 ms, six
/// lanes make 1.16 times as many decisions as three; eight make no more.
const LANES: Lanes = Lanes { usual: 3, if_far: 6 };
