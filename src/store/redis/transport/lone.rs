//! The lane of a lone decision, which its caller polls. As a task it would add two wake-ups to each decision:
//! a worker of a multi-threaded runtime runs only three woken tasks in a row, and wakes another thread for
//! the next one. That costs a tenth of the time of the decision.
//!
//! A caller that is not polled must not delay the decisions that wait for its lane. So while there are such
//! lanes, one task looks every 5 ms, and takes over those that it has seen before. A caller that has its
//! answer leaves the lane to a task if others wait.

use std::{
    future::poll_fn,
    mem,
    sync::{Arc, Mutex, TryLockError},
    task::Waker,
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{runtime::Handle, time::sleep};

use crate::{
    base::{panics::caught, sync::lock},
    store::redis::job::{Fate, Job},
};

/// A decision that has waited for this time waits for lanes that are stuck.
pub(super) const STUCK: Duration = Duration::from_millis(5);

/// The lanes of a queue that callers poll: one at a time, because it is opened when no other is open.
#[derive(Default)]
pub(super) struct LoneLanes(Mutex<LatestLane>);

#[derive(Default)]
struct LatestLane {
    /// The one that was opened since the last look, if any. It may have ended.
    lane: Option<Arc<OpenLane>>,
    /// Whether a task looks.
    is_watched: bool,
}

/// A lane that a caller polls, and then perhaps a task.
struct OpenLane {
    runtime: Handle,
    /// `None` once it has ended, or a task has it.
    by_caller: Mutex<Option<PolledByCaller>>,
}

struct PolledByCaller {
    lane: BoxFuture<'static, ()>,
    /// Woken if a task takes the lane over.
    caller: Option<Waker>,
}

/// A handle on a lane that its caller polls. If it is dropped before the lane ends, a task continues the lane. The task
/// that looks for lanes whose callers are slow has one too.
pub(super) struct LoneLane(Arc<OpenLane>);

impl LoneLanes {
    /// A lane that its caller polls. Call it in a runtime.
    pub(super) fn open(self: &Arc<Self>, lane: BoxFuture<'static, ()>) -> LoneLane {
        let by_caller = PolledByCaller { lane, caller: None };
        let lane = Arc::new(OpenLane { runtime: Handle::current(), by_caller: Mutex::new(Some(by_caller)) });
        let was_watched = {
            let mut latest = lock(&self.0);
            latest.lane = Some(lane.clone());
            mem::replace(&mut latest.is_watched, true)
        };
        if !was_watched {
            // Not under the lock: a runtime that ends drops the task here.
            lane.runtime.spawn(Watch(self.clone()).run());
        }
        LoneLane(lane)
    }

    /// The lane that was opened since the last look.
    fn look(&self) -> Option<LoneLane> {
        let mut latest = lock(&self.0);
        latest.is_watched = latest.lane.is_some();
        latest.lane.take().map(LoneLane)
    }
}

impl LoneLane {
    /// Polls the lane until the fate of `job` is known.
    pub(super) async fn fate_of(self, job: &Job) -> Fate {
        poll_fn(|cx| {
            // Polled in another runtime, the lane would create its timers there.
            if Handle::try_current().is_ok_and(|runtime| runtime.id() == self.0.runtime.id()) {
                let mut by_caller = lock(&self.0.by_caller);
                if let Some(own) = &mut *by_caller {
                    if own.lane.as_mut().poll(cx).is_ready() {
                        *by_caller = None;
                    } else if own.caller.as_ref().is_none_or(|caller| !caller.will_wake(cx.waker())) {
                        own.caller = Some(cx.waker().clone());
                    }
                    // With its waker, the lane would wake the task that polls it, and the runtime another
                    // thread for that.
                    let polled = job.poll_fate(None);
                    if let Some(own) = by_caller.as_mut().filter(|_| polled.is_ready()) {
                        own.caller = None;
                    }
                    if polled.is_ready() || by_caller.is_some() {
                        return polled;
                    }
                }
            }
            job.poll_fate(Some(cx.waker()))
        })
        .await
    }

    /// Lets a task go on with the lane. Returns false while the caller polls it, perhaps in code of others that blocks,
    /// such as a subscriber of the log.
    fn hand_over(&self) -> bool {
        let taken = match self.0.by_caller.try_lock() {
            Ok(mut by_caller) => by_caller.take(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().take(),
            Err(TryLockError::WouldBlock) => return false,
        };
        if let Some(PolledByCaller { lane, caller }) = taken {
            self.0.runtime.spawn(lane);
            if let Some(caller) = caller {
                caught(|| caller.wake());
            }
        }
        true
    }
}

impl Drop for LoneLane {
    fn drop(&mut self) {
        // The task that looks may hold the lock for a moment. It takes the lane then.
        self.hand_over();
    }
}

/// Takes over the lanes that have not ended within two looks.
struct Watch(Arc<LoneLanes>);

impl Watch {
    async fn run(self) {
        while let Some(seen) = self.0.look() {
            sleep(STUCK).await;
            while !seen.hand_over() {
                sleep(STUCK).await;
            }
        }
    }
}

impl Drop for Watch {
    /// Tasks of a runtime that has ended are dropped, so the decisions of its lanes fail. Otherwise no lane
    /// is left.
    fn drop(&mut self) {
        drop(self.0.look());
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::{AtomicBool, Ordering},
            mpsc,
        },
        thread,
    };

    use futures_util::FutureExt as _;
    use tokio::runtime::Builder;

    use super::*;
    use crate::base::Error;

    /// The lane blocks until another task of the runtime has run, whose only thread also looks at the lane.
    #[test]
    fn a_lane_that_blocks_its_caller_blocks_no_other_thread() {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let other = runtime.handle().clone();
        let has_run = Arc::new(AtomicBool::new(false));
        let was_run = has_run.clone();
        let job = Arc::new(Job::for_tests(1, Duration::from_secs(60)));
        let decided = job.clone();
        let lane = async move {
            // After several looks.
            thread::sleep(10 * STUCK);
            let (done, wait) = mpsc::channel();
            other.spawn(async move { done.send(()) });
            was_run.store(wait.recv_timeout(Duration::from_secs(30)).is_ok(), Ordering::Relaxed);
            decided.fail(Error::new(crate::base::ErrorKind::StoreBusy, "it is done"));
        };
        let lanes = Arc::new(LoneLanes::default());
        let fate = runtime.block_on(async { lanes.open(lane.boxed()).fate_of(&job).await });
        assert!(matches!(fate, Fate::Replied(Err(_))), "{fate:?}");
        assert!(has_run.load(Ordering::Relaxed));
    }
}
