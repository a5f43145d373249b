//! The lane of a lone decision, which its caller polls. As a task it would add two wake-ups to each decision: a worker of a
//! multi-threaded runtime runs only three woken tasks in a row, and wakes another thread for the next one. That costs a
//! tenth of the time of the decision.
//!
//! A caller that is not polled must not delay the decisions that wait for its lane. So while there are such lanes, one task
//! looks every 5 ms, and takes over those that it has seen before. A caller that has its answer leaves the lane to a task
//! if others wait.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::{Arc, Mutex},
    task::Waker,
    time::Duration,
};

use tokio::{runtime::Handle, time::sleep};

use crate::{
    base::{Error, sync::lock},
    decision::Decision,
    store::redis::job::Slot,
};

/// A decision that has waited for this time waits for lanes that are stuck.
pub(super) const STUCK: Duration = Duration::from_millis(5);

/// The lanes that callers poll.
///
/// Those since the last look of the task that looks at them; some of them have ended. `None` if there is no task.
#[derive(Default)]
pub(super) struct LoneLanes(Mutex<Option<Vec<Arc<Lane>>>>);

/// A lane that a caller polls, and then perhaps a task.
struct Lane {
    runtime: Handle,
    /// `None` once it has ended, or a task has it.
    by_caller: Mutex<Option<ByCaller>>,
}

struct ByCaller {
    lane: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Woken if a task takes the lane over.
    caller: Option<Waker>,
}

/// The caller's side of its lane.
pub(super) struct LoneLane(Arc<Lane>);

impl LoneLanes {
    /// A lane that its caller polls. Call it in a runtime.
    pub(super) fn open(self: &Arc<Self>, lane: impl Future<Output = ()> + Send + 'static) -> LoneLane {
        let by_caller = ByCaller { lane: Box::pin(lane), caller: None };
        let lane = Arc::new(Lane { runtime: Handle::current(), by_caller: Mutex::new(Some(by_caller)) });
        let is_watched = {
            let mut lanes = lock(&self.0);
            let is_watched = lanes.is_some();
            lanes.get_or_insert_default().push(lane.clone());
            is_watched
        };
        if !is_watched {
            // Not under the lock: a runtime that ends drops the task here.
            lane.runtime.spawn(Watch { lanes: self.clone(), seen: Vec::new() }.run());
        }
        LoneLane(lane)
    }
}

impl LoneLane {
    /// The decision that the lane sets in `slot`. `None` if it was dropped with its runtime.
    pub(super) async fn decision(self, slot: &Slot) -> Option<Result<Decision, Error>> {
        poll_fn(|cx| {
            // Its timers would belong to the other runtime.
            if Handle::try_current().is_ok_and(|runtime| runtime.id() == self.0.runtime.id()) {
                let mut by_caller = lock(&self.0.by_caller);
                if let Some(own) = &mut *by_caller {
                    if own.lane.as_mut().poll(cx).is_ready() {
                        *by_caller = None;
                    } else if own.caller.as_ref().is_none_or(|caller| !caller.will_wake(cx.waker())) {
                        own.caller = Some(cx.waker().clone());
                    }
                    // With its waker, the lane would wake the task that polls it, and the runtime another thread for that.
                    let polled = slot.poll(None);
                    if polled.is_ready() || by_caller.is_some() {
                        return polled;
                    }
                }
            }
            slot.poll(Some(cx.waker()))
        })
        .await
    }
}

impl Drop for LoneLane {
    fn drop(&mut self) {
        self.0.take_over(|_| {});
    }
}

impl Lane {
    fn take_over(&self, then: impl FnOnce(Waker)) {
        let taken = lock(&self.by_caller).take();
        if let Some(ByCaller { lane, caller }) = taken {
            self.runtime.spawn(lane);
            caller.map(then);
        }
    }
}

/// Takes over the lanes that have not ended within two looks.
struct Watch {
    lanes: Arc<LoneLanes>,
    /// At the latest look.
    seen: Vec<Arc<Lane>>,
}

impl Watch {
    async fn run(mut self) {
        while self.look() {
            sleep(STUCK).await;
            self.take_over();
        }
    }

    /// Whether there are new lanes.
    fn look(&mut self) -> bool {
        let mut lanes = lock(&self.lanes.0);
        lanes.take_if(|lanes| lanes.is_empty());
        if let Some(lanes) = &mut *lanes {
            mem::swap(&mut self.seen, lanes);
        }
        lanes.is_some()
    }

    fn take_over(&mut self) {
        self.seen.drain(..).for_each(|lane| lane.take_over(Waker::wake));
    }
}

impl Drop for Watch {
    /// Tasks of a runtime that has ended are dropped, so the decisions of its lanes fail. Otherwise no lane is left.
    fn drop(&mut self) {
        self.take_over();
        self.look();
        self.take_over();
    }
}
