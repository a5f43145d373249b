use std::{future::Future, sync::Arc, time::Duration};

use redis::{Cmd, Value};

use super::health::Health;
use crate::{answer::Answer, decision::Decision, error::Error, store::redis::wire::Job};

/// The way to Redis: one server or a Cluster, whatever manages the connections.
pub(crate) trait Link: Send + Sync {
    /// Makes a decision, alone or in a batch with others that are asked for meanwhile.
    fn decide(self: Arc<Self>, job: Job) -> Answer<Decision>;

    /// Runs a command that needs no script.
    fn run(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value>;

    /// The commands it sends, in the words of an ACL.
    fn commands(&self) -> &'static [&'static str];
}

/// `reply`, from which `health` learns whether Redis is available.
pub(super) fn noted<T>(
    health: Arc<Health>,
    reply: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Answer<T> {
    Answer::pending(async move {
        let reply = reply.await;
        health.note(&reply);
        reply
    })
}
