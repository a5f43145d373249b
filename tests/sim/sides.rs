//! Further Tokio runtimes of an instance, which may end or no longer be driven.
//!
//! A runtime cannot be driven inside of another one, so the schedule pauses while a side runs. Sides run on the clock of
//! the schedule: it is set forward to the schedule's time before each run, and does not advance otherwise.

use std::{
    collections::VecDeque,
    future::Future,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle, Id, Runtime},
    sync::oneshot,
    task::yield_now,
    time::{Instant, advance, sleep},
};

/// How often a side polls what is ready in one run.
const POLLS: usize = 30;

/// The runtimes beside the schedule's.
pub(super) struct Sides {
    runtimes: Mutex<Vec<Option<Runtime>>>,
    asked: Mutex<Asked>,
}

#[derive(Default)]
struct Asked {
    all: VecDeque<(Ask, oneshot::Sender<()>)>,
    waker: Option<Waker>,
}

enum Ask {
    /// Run this side until nothing is ready, at this time.
    Drive(usize, Instant),
    /// Shut it down.
    End(usize),
}

fn paused() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

fn now(runtime: &Runtime) -> Instant {
    runtime.block_on(async { Instant::now() })
}

impl Sides {
    /// The runtime of a schedule and this many sides.
    pub(super) fn new(count: usize) -> (Runtime, Arc<Self>) {
        loop {
            // The schedule's runtime is the last one, so no clock of a side is ahead of it.
            let sides: Vec<_> = (0..count).map(|_| paused()).collect();
            let main = paused();
            let ahead = |side: &Runtime| now(&main) - now(side);
            // A side's timers end at whole milliseconds since its start, so they end in the next millisecond of the
            // schedule, unless both started at the same fraction of a millisecond.
            if sides.iter().all(|side| ahead(side).as_nanos() % 1_000_000 != 0) {
                let runtimes = Mutex::new(sides.into_iter().map(Some).collect());
                return (main, Arc::new(Self { runtimes, asked: Mutex::default() }));
            }
        }
    }

    /// Ready if sides are to be run.
    pub(super) fn poll_asked(&self, cx: &Context<'_>) -> Poll<()> {
        let asked = &mut *self.asked.lock().unwrap();
        if asked.all.is_empty() {
            asked.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Runs them. Call it outside of all runtimes.
    pub(super) fn work(&self) {
        loop {
            let Some((ask, done)) = self.asked.lock().unwrap().all.pop_front() else { return };
            match ask {
                Ask::Drive(side, time) => {
                    // A task may ask for this side's handle.
                    let runtime = self.runtimes.lock().unwrap()[side].take();
                    if let Some(runtime) = &runtime {
                        runtime.block_on(async {
                            advance(time - Instant::now()).await;
                            for _ in 0..POLLS {
                                yield_now().await;
                            }
                        });
                    }
                    self.runtimes.lock().unwrap()[side] = runtime;
                }
                Ask::End(side) => {
                    let runtime = self.runtimes.lock().unwrap()[side].take();
                    drop(runtime);
                }
            }
            let _ = done.send(());
        }
    }

    async fn ask(&self, ask: Ask) {
        let (done, wait) = oneshot::channel();
        let waker = {
            let asked = &mut *self.asked.lock().unwrap();
            asked.all.push_back((ask, done));
            asked.waker.take()
        };
        waker.iter().for_each(Waker::wake_by_ref);
        let _ = wait.await;
    }

    pub(super) fn count(&self) -> usize {
        self.runtimes.lock().unwrap().len()
    }

    fn handle(&self, side: usize) -> Option<Handle> {
        self.runtimes.lock().unwrap()[side].as_ref().map(|runtime| runtime.handle().clone())
    }

    pub(super) fn id(&self, side: usize) -> Option<Id> {
        self.handle(side).map(|handle| handle.id())
    }

    /// Runs what is ready on a side.
    pub(super) async fn drive(&self, side: usize) {
        self.ask(Ask::Drive(side, Instant::now())).await;
    }

    /// Ends a side, and drops its tasks.
    pub(super) async fn end(&self, side: usize) {
        self.ask(Ask::End(side)).await;
    }

    /// Carries out `task` on a side, which is driven until the task has ended.
    pub(super) async fn carry_out<T: Send + 'static>(
        &self,
        side: usize,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let task = self.handle(side)?.spawn(task);
        loop {
            self.drive(side).await;
            if task.is_finished() {
                return task.await.ok();
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Starts `task` on a side, and drives the side once. After its end, carries it out here.
    pub(super) async fn start(&self, side: usize, task: impl Future<Output = ()> + Send + 'static) {
        match self.handle(side) {
            Some(handle) => {
                drop(handle.spawn(task));
                self.drive(side).await;
            }
            None => task.await,
        }
    }
}
