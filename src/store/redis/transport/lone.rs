//! The lane of a lone decision. Its caller moves it: a task would cost a runtime with several threads a tenth of the time of
//! the decision, because two more tasks to wake are so many that it wakes another thread for them.
//!
//! A caller that is not polled must not delay the decisions that wait meanwhile. So while there are such lanes, one task
//! looks every 5 ms, and takes over those that were there before. A caller that has its answer leaves the lane to a task
//! if others wait.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Poll, Waker},
};

use tokio::{
    runtime::Handle,
    sync::oneshot::{
        self,
        error::{RecvError, TryRecvError},
    },
    time::sleep,
};

use super::waiting::STUCK;
use crate::base::sync::lock;

/// The lanes that callers move.
#[derive(Default)]
pub(super) struct LoneLanes(Mutex<Watched>);

#[derive(Default)]
struct Watched {
    /// Since the last look. Some of them have ended.
    lanes: Vec<Arc<Moving>>,
    /// Whether there is a task that looks at them.
    is_running: bool,
}

/// A lane that is moved by a caller and then perhaps by a task.
struct Moving {
    runtime: Handle,
    /// `None` once it has ended, or a task has it.
    lane: Mutex<Option<ByCaller>>,
}

struct ByCaller {
    lane: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Woken if a task takes the lane over.
    caller: Option<Waker>,
}

/// The caller's side of its lane.
pub(super) struct LoneLane(Arc<Moving>);

impl LoneLanes {
    /// A lane that its caller moves. Call it in a runtime.
    pub(super) fn open(self: &Arc<Self>, lane: impl Future<Output = ()> + Send + 'static) -> LoneLane {
        let lane = ByCaller { lane: Box::pin(lane), caller: None };
        let moving = Arc::new(Moving { runtime: Handle::current(), lane: Mutex::new(Some(lane)) });
        let is_watched = {
            let mut watched = lock(&self.0);
            watched.lanes.push(moving.clone());
            mem::replace(&mut watched.is_running, true)
        };
        if !is_watched {
            // Not under the lock: a runtime that ends drops the task here.
            moving.runtime.spawn(Watch { lanes: self.clone(), seen: Vec::new() }.run());
        }
        LoneLane(moving)
    }
}

impl LoneLane {
    /// What the lane sends to `reply`.
    pub(super) async fn answer<T>(self, mut reply: oneshot::Receiver<T>) -> Result<T, RecvError> {
        poll_fn(|cx| {
            // Its timers would be those of the other runtime.
            if Handle::try_current().is_ok_and(|runtime| runtime.id() == self.0.runtime.id()) {
                let mut moving = lock(&self.0.lane);
                if let Some(own) = &mut *moving {
                    if own.lane.as_mut().poll(cx).is_ready() {
                        *moving = None;
                    } else if own.caller.as_ref().is_none_or(|caller| !caller.will_wake(cx.waker())) {
                        own.caller = Some(cx.waker().clone());
                    }
                    // `poll` would make the lane wake the task that moves it, and the runtime another thread for that.
                    match reply.try_recv() {
                        Ok(answer) => return Poll::Ready(Ok(answer)),
                        Err(TryRecvError::Empty) if moving.is_some() => return Poll::Pending,
                        Err(_) => {}
                    }
                }
            }
            Pin::new(&mut reply).poll(cx)
        })
        .await
    }
}

impl Drop for LoneLane {
    fn drop(&mut self) {
        self.0.take_over(|_| {});
    }
}

impl Moving {
    fn take_over(&self, then: impl FnOnce(Waker)) {
        let taken = lock(&self.lane).take();
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
    seen: Vec<Arc<Moving>>,
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
        let mut watched = lock(&self.lanes.0);
        watched.is_running = !watched.lanes.is_empty();
        mem::swap(&mut self.seen, &mut watched.lanes);
        watched.is_running
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
