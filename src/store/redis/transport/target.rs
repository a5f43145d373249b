use std::{future::Future, sync::Arc, time::Duration};

use redis::RedisResult;

use super::{breaker::Breaker, health::Health, queue::Queue};
use crate::{base::Error, store::redis::job::Job};

/// Where the lanes of a queue send their batches: a server, or a shard of a Cluster.
pub(super) struct Target<S> {
    pub(super) queue: Queue,
    pub(super) breaker: Breaker,
    pub(super) health: Arc<Health>,
    pub(super) sender: S,
}

/// Sends the batches of a target.
pub(super) trait Sender: Send + Sync + 'static {
    /// What a lane keeps while it has work.
    type Connection: Send + 'static;

    /// Asks whether the target answers, on the connection in `slot` or on another one, which it leaves there. `key` is one of
    /// its keys. Returns the round trip, in time in which the runtime ran.
    fn ping(
        &self,
        slot: &mut Option<Self::Connection>,
        key: &str,
    ) -> impl Future<Output = Result<Duration, Error>> + Send;

    /// A connection. Waits without a limit; the caller sets one.
    fn connection(&self) -> impl Future<Output = RedisResult<Self::Connection>> + Send;

    /// Sends `jobs` as one batch, on the connection in `slot` or on another one. Leaves a connection in `slot` if it can
    /// be used again. Sets the decision of each job, and returns how the call ended: if Redis has answered one decision, it
    /// has answered the call.
    fn send_batch(
        &self,
        slot: &mut Option<Self::Connection>,
        jobs: &[&Job],
    ) -> impl Future<Output = Result<(), Error>> + Send;
}
