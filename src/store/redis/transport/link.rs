use std::{sync::Arc, time::Duration};

use redis::{Cmd, Value};

use super::{
    health::Health,
    scan::{Found, Scan},
};
use crate::{base::Answer, decision::Decision, store::redis::wire::Job};

/// A link to Redis, one server or a Cluster, with any connection manager.
pub(crate) trait Link: Send + Sync + 'static {
    /// Makes a decision, alone or in a batch.
    fn decide(self: Arc<Self>, job: Job) -> Answer<Decision>;

    /// Runs a command without a script.
    fn run(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        let reply = self.clone().ask(command, deadline);
        Answer::pending(async move {
            let reply = reply.await;
            self.health().record(&reply);
            reply
        })
    }

    /// Runs a command, as [`run`](Self::run) does. Its failure is no outage, so it is not recorded.
    fn ask(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value>;

    /// Runs a command that can wait, as [`ask`](Self::ask) does. Does not send it while a breaker is open that covers it.
    fn ask_if_available(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        self.ask(command, deadline)
    }

    /// The keys of all primaries that `scan` wants, in any order. A key may be listed twice. Each step may take as long as
    /// `deadline`.
    fn scan(self: Arc<Self>, scan: Scan, deadline: Duration) -> Answer<Found>;

    /// Whether the link is to a Redis Cluster.
    fn is_cluster(&self) -> bool {
        false
    }

    /// Whether Redis is available, and where it is.
    fn health(&self) -> &Health;

    /// The commands that the link sends, as in an ACL.
    fn commands(&self) -> &'static [&'static str];
}
