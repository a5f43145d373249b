//! Where batches are sent: a server, or a shard of a Cluster; and whether it answers again while its breaker
//! is open.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, Weak},
};

use futures_util::future::BoxFuture;
use redis::RedisResult;
use tokio::{
    runtime::Handle,
    sync::Mutex,
    time::{sleep, sleep_until},
};

use super::{
    breaker::{Breaker, is_silence, says_nothing},
    deadline::{PROBE_TIMEOUT, TimeLeft, not_answered, slow},
    health::{Health, RECOVERY_AFTER_PROBE},
    queue::{Lanes, Queue, Wait},
};
use crate::{base::Error, store::redis::job::Job};

/// Where the lanes of a queue send their batches.
pub(super) struct Target<S> {
    pub(super) queue: Queue,
    pub(super) breaker: Arc<Breaker>,
    pub(super) health: Arc<Health>,
    pub(super) sender: S,
    /// A key of the target's slot, if it is a shard.
    key: String,
    /// Held by the task of this runtime that probes. Other runtimes do not wait for it.
    probing: Arc<Mutex<()>>,
}

/// Sends the batches of a target.
pub(super) trait Sender: Send + Sync + 'static {
    /// What a lane keeps while it has work.
    type Connection: Send + 'static;

    /// Asks whether the target answers within [`PROBE_TIMEOUT`]. `key` is one of its keys.
    fn ping(&self, key: &str) -> impl Future<Output = Result<(), Error>> + Send;

    /// A connection. Waits without a limit; the caller sets one.
    // Boxed because it has as much room as all else in a lane.
    fn connection(&self) -> BoxFuture<'_, RedisResult<Self::Connection>>;

    /// Sends `jobs`, which know that they are sent, as one batch: on the connection in `slot` or on another
    /// one. Leaves a connection in `slot` if it can be used again. Answers each job, and returns how the call
    /// ended: with an error if no decision was made, and with one that is a silence only if Redis has not
    /// answered any of them.
    fn send_batch(
        &self,
        slot: &mut Option<Self::Connection>,
        jobs: &[&Job],
    ) -> impl Future<Output = Result<(), Error>> + Send;
}

/// How many PINGs in a row Redis must answer in time: enough that few probes succeed if half of the answers
/// are late, and most if one in twenty is.
const PINGS: u32 = 8;
/// The same if it answered a probe before and then a decision was late again.
const MORE_PINGS: u32 = 16;

impl<S: Sender> Target<S> {
    pub(super) fn new(
        lanes: Lanes,
        breaker: &Arc<Breaker>,
        health: &Arc<Health>,
        sender: S,
        key: String,
    ) -> Self {
        let (breaker, health) = (breaker.clone(), health.clone());
        Self { queue: Queue::new(lanes), breaker, health, sender, key, probing: Arc::default() }
    }

    /// Records how a call ended. If this opens the breaker, the decisions that wait fail too, and probes
    /// start.
    pub(super) fn record<T>(self: &Arc<Self>, ended: &Result<T, Error>) {
        if ended.is_ok() {
            self.health.answered();
        }
        if self.breaker.record(ended)
            && let Some(error) = self.breaker.error()
        {
            self.queue.fail(|| error.clone());
            self.opened(&error);
        }
    }

    /// Call it if the breaker has opened because of `cause`.
    pub(super) fn opened(self: &Arc<Self>, cause: &Error) {
        self.health.failed(cause, 0);
        self.probe();
    }

    /// Records that decisions were not sent before their deadlines: as a call without an answer, if Redis was
    /// silent while they waited.
    pub(super) fn record_wait(self: &Arc<Self>, wait: Wait) {
        self.record::<()>(&Err(self.health.not_sent(wait)));
    }

    /// Starts a task that probes until the breaker closes, unless this runtime has one.
    ///
    /// Each runtime in which the breaker opens or a decision fails because of it has such a task, and they
    /// share the times of the probes. So another one continues if the runtime of one ends or is not driven.
    pub(super) fn probe(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else { return };
        let Ok(probing) = self.probing.clone().try_lock_owned() else { return };
        // The task must not keep a store that is dropped.
        let target = Arc::downgrade(self);
        runtime.spawn(async move {
            let has_answered = probe_until_closed(&target).await;
            drop(probing);
            let Some(target) = target.upgrade() else { return };
            if target.breaker.next_probe().is_some() {
                // It opened again, and that call has found this task.
                target.probe();
            }
            if has_answered {
                let target = Arc::downgrade(&{ target });
                sleep(RECOVERY_AFTER_PROBE).await;
                if let Some(target) = target.upgrade() {
                    target.health.end_after(RECOVERY_AFTER_PROBE);
                }
            }
        });
    }

    /// Probes once, and closes the breaker if Redis answers. Returns whether it answered all PINGs without an
    /// error.
    async fn probe_once(&self) -> bool {
        let pings = self.ping(&self.key).await;
        if let Err(cause) = &pings
            && (is_silence(cause) || says_nothing(cause))
        {
            self.breaker.failed_again(cause);
            self.health.failed(cause, 0);
            return false;
        }
        // An error of the server is an answer.
        self.breaker.close();
        if pings.is_ok() {
            self.health.succeeded();
        }
        pings.is_ok()
    }

    /// Whether the server answers all PINGs, each within the deadline of a decision.
    async fn ping(&self, key: &str) -> Result<(), Error> {
        let allowed = self.health.deadline;
        // The first one may have to wait for a connection.
        self.sender.ping(key).await?;
        for _ in 0..if self.breaker.has_opened_again() { MORE_PINGS } else { PINGS } {
            let mut time = TimeLeft::in_ticks(2 * PROBE_TIMEOUT);
            time.spend_on(pin!(self.sender.ping(key))).await.ok_or_else(not_answered)??;
            let round_trip = 2 * PROBE_TIMEOUT - time.left;
            if round_trip > allowed {
                return Err(slow(round_trip, allowed));
            }
        }
        Ok(())
    }
}

/// Probes whenever it is time to, until the breaker of `target` is closed. Returns whether a probe of this
/// task has closed it and was answered without an error.
async fn probe_until_closed<S: Sender>(target: &Weak<Target<S>>) -> bool {
    let next_probe = || target.upgrade()?.breaker.next_probe();
    let mut has_answered = false;
    while let Some(next) = next_probe() {
        sleep_until(next).await;
        let Some(target) = target.upgrade() else { break };
        if target.breaker.is_probe_due() {
            has_answered = target.probe_once().await;
        }
    }
    has_answered
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        sync::atomic::{AtomicU32, Ordering},
        time::Duration,
    };

    use tokio::{task::yield_now, time::advance};

    use super::*;
    use crate::base::ErrorKind;

    /// Does not answer. Counts the PINGs.
    #[derive(Default)]
    struct Silent(AtomicU32);

    impl Sender for Silent {
        type Connection = ();

        async fn ping(&self, _: &str) -> Result<(), Error> {
            self.0.fetch_add(1, Ordering::Relaxed);
            pending().await
        }

        fn connection(&self) -> BoxFuture<'_, RedisResult<()>> {
            Box::pin(ready(Ok(())))
        }

        async fn send_batch(&self, _: &mut Option<()>, _: &[&Job]) -> Result<(), Error> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_runtime_makes_one_probe_at_a_time() {
        let deadline = Duration::from_millis(50);
        let (breaker, health) = (Arc::default(), Arc::new(Health::new(String::new(), deadline)));
        let lanes = Lanes { usual: 1, if_far: 1 };
        let target = || Arc::new(Target::new(lanes, &breaker, &health, Silent::default(), String::new()));
        let (this, another) = (target(), target());
        while breaker.error().is_none() {
            breaker.record::<()>(&Err(Error::new(ErrorKind::StoreTimeout, "no answer")));
        }
        let pings_after_a_second = async |target: &Arc<Target<Silent>>| {
            advance(Duration::from_secs(1)).await;
            target.probe();
            yield_now().await;
            target.sender.0.load(Ordering::Relaxed)
        };
        assert_eq!(pings_after_a_second(&this).await, 1);
        assert_eq!(pings_after_a_second(&this).await, 1, "one is under way");
        assert_eq!(pings_after_a_second(&another).await, 1, "that runtime may not be driven");
    }
}
