//! A lane: a task that sends batches as long as decisions wait for it.
//!
//! A decision that finds no lane open opens one and is sent at once and alone, by its caller's task. A decision that
//! enters meanwhile opens another lane, if the [queue](super::queue) has one left, and starts a task for it. The task
//! owns a connection of the pool while there is work. It sends what waits as one batch, answers it, lets the callers run
//! that it has just answered, and takes what they sent. When nothing waits any more, the lane closes, its connection
//! returns to the pool, and the task ends. So an idle store has no tasks.
//!
//! A busy lane returns its connection every [`MAX_HOLD`], for others who share the pool.
//!
//! If a lane is dropped while decisions wait, because its caller was dropped or its runtime was shut down, a new task
//! takes its place. If there is no runtime for it, the waiting decisions fail that no other lane takes.

use std::{mem, slice, sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    task::yield_now,
    time::{Instant, timeout},
};

use super::{
    background::Finish,
    breaker::is_silence,
    connections::MAX_BACKOFF,
    deadline::TimeLeft,
    queue::Batch,
    target::Target,
    watch::{Place, expire, while_ticking},
};
use crate::{
    decision::Decision,
    error::{Error, ErrorKind},
    store::redis::{
        error::not_connected,
        wire::{self, Job},
    },
};

/// How long a busy lane keeps its connection.
const MAX_HOLD: Duration = Duration::from_millis(5);

/// An open lane of the queue. Dropping it closes it or passes it on to the waiting decisions.
pub(super) struct Lane<T: Target> {
    target: Arc<T>,
    place: Place,
    /// Whether a runtime has polled it. A runtime that drops new tasks would otherwise be given the same lane forever.
    polled: bool,
    closed: bool,
}

impl<T: Target> Lane<T> {
    /// A lane that was opened in the queue of `target`.
    pub(super) fn new(target: Arc<T>, place: Place) -> Self {
        Self { target, place, polled: false, closed: false }
    }

    /// Sends one decision alone.
    pub(super) async fn carry_alone(mut self, mut job: Job) -> Result<Decision, Error> {
        self.polled = true;
        let allowed = job.deadline;
        let mut time = TimeLeft::new(allowed);
        let mut slot = match time.spend_on(self.target.connection()).await {
            Some(Ok(connection)) => Some(connection),
            Some(Err(error)) => return record(&*self.target, Err(not_connected(&error))),
            None => return record(&*self.target, Err(self.target.health().no_connection())),
        };
        let target = self.target.clone();
        metric!(batch_sent(1));
        let batch = async move {
            let mut decisions = self.target.send_batch(&mut slot, slice::from_mut(&mut job)).await;
            drop((slot, self));
            decisions.pop()
        };
        let decision = match time.spend_on(Finish(Some(Box::pin(batch)))).await {
            Some(decision) => decision.unwrap_or_else(|| Err(wire::unexpected())),
            None => Err(target.health().late()),
        };
        record(&*target, decision)
    }

    /// Sends batches as long as decisions wait.
    pub(super) async fn carry(mut self) {
        self.polled = true;
        let mut batch = Batch::default();
        let mut slot = None;
        let mut held_since = Instant::now();
        loop {
            // Callers that were just answered may send their next decision, which then joins this batch.
            yield_now().await;
            if self.target.queue().close_lane(&mut self.place) {
                self.closed = true;
                return;
            }
            if slot.is_none() {
                match self.check_out().await {
                    Some(connection) => slot = Some(connection),
                    None => continue,
                }
                held_since = Instant::now();
            }
            // If this task had to wait long for a thread.
            self.expire_waiting();
            let late = |_| self.target.health().no_connection();
            self.target.queue().fill(&mut batch, &self.place, late);
            metric!(batch_sent(batch.jobs.len()));
            let sent_at = Instant::now();
            let sent = self.target.send_batch(&mut slot, &mut batch.jobs);
            let mut is_late = false;
            let decisions = while_ticking(sent, || {
                if let Some(late) = expire(&mut batch.callers, self.target.queue().tick(&self.place), |_| {
                    self.target.health().late()
                }) && !mem::replace(&mut is_late, true)
                {
                    let _ = record::<T, ()>(&self.target, Err(late));
                }
                self.expire_waiting();
                open_another(&self.target);
            });
            let decisions = decisions.await;
            let now = Instant::now();
            // A call that was late is recorded already. Its reply does not show that Redis answers in time.
            let is_recorded = is_late && now - sent_at > self.target.breaker().deadline();
            if record_batch(&*self.target, &decisions, is_recorded) {
                self.target.queue().record(&batch, now - sent_at);
            }
            batch.answer(decisions);
            if now - held_since > MAX_HOLD {
                slot = None;
            }
        }
    }

    /// A connection, unless the decisions that wait for it failed meanwhile.
    async fn check_out(&self) -> Option<T::Connection> {
        let connection = timeout(MAX_BACKOFF, self.target.connection());
        let (mut is_late, mut attempts) = (false, self.target.health().attempts());
        let connection = while_ticking(connection, || {
            // No call was sent, but none would be answered. If a connection is in use, its replies say otherwise.
            if let Some(error) = attempts.failed() {
                let _ = record::<T, ()>(&self.target, Err(not_connected(&error)));
            }
            if let Some(late) = self.expire_waiting()
                && !mem::replace(&mut is_late, true)
            {
                let _ = record::<T, ()>(&self.target, Err(late));
            }
        });
        match connection.await {
            Ok(Ok(connection)) => Some(connection),
            Ok(Err(error)) => {
                let error = not_connected(&error);
                self.target.queue().fail(|| error.clone());
                let _ = record::<T, ()>(&self.target, Err(error));
                None
            }
            Err(_) => None,
        }
    }

    /// Fails the decisions that wait and are late. Returns the last one's error.
    fn expire_waiting(&self) -> Option<Error> {
        let queue = self.target.queue();
        queue.expire(queue.tick(&self.place), |_| self.target.health().no_connection())
    }
}

/// Records how a call ended. If this opens the breaker, the decisions that wait fail too.
fn record<T: Target, D>(target: &T, ended: Result<D, Error>) -> Result<D, Error> {
    if target.breaker().record(&ended)
        && let Some(error) = target.breaker().error()
    {
        target.queue().fail(|| error.clone());
    }
    ended
}

/// Records how the call of a batch ended, unless that is done. Returns whether Redis has answered it: if it has answered one
/// decision, it has answered the call.
fn record_batch<T: Target>(target: &T, decisions: &[Result<Decision, Error>], is_recorded: bool) -> bool {
    let answered = decisions.iter().find(|decision| !decision.as_ref().is_err_and(is_silence));
    match answered.or_else(|| decisions.first()).filter(|_| !is_recorded) {
        Some(Err(error)) => drop(record::<T, ()>(target, Err(error.clone()))),
        Some(Ok(_)) => drop(record(target, Ok(()))),
        None => {}
    }
    answered.is_some()
}

/// Starts another lane if decisions have waited for long: the others may be stuck.
pub(super) fn open_another<T: Target>(target: &Arc<T>) {
    if let Ok(runtime) = Handle::try_current()
        && let Some(place) = target.queue().open_another(Some(runtime.id()))
    {
        runtime.spawn(Lane::new(target.clone(), place).carry());
    }
}

impl<T: Target> Drop for Lane<T> {
    fn drop(&mut self) {
        let shut_down =
            || Error::new(ErrorKind::StoreUnreachable, "the Tokio runtime that sends to Redis was shut down");
        if self.closed || self.target.queue().close_lane(&mut self.place) {
            return;
        }
        match Handle::try_current() {
            Ok(runtime) if self.polled => {
                let place = self.target.queue().take_over(&mut self.place, Some(runtime.id()), shut_down);
                runtime.spawn(Self::new(self.target.clone(), place).carry());
            }
            // No task is left to continue it.
            _ => self.target.queue().abandon(&mut self.place, shut_down),
        }
    }
}
