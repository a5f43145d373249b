//! Group commit: decisions wait while others are under way, and are sent as a batch.
//!
//! There are up to [`LANES`] lanes, and each carries one batch at a time. If no lane is open, a decision is sent at once
//! and alone. If some are open and one more may be, it opens one, which takes its decision and those of the tasks that
//! are ready. If all are open, it waits for the first lane that has its replies, which takes all that wait by then. So a
//! lone decision never waits. The more decisions there are, the more share a batch, and a batch costs only as much as
//! two of its decisions.

use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard},
};

use tokio::sync::oneshot;

use crate::{decision::Decision, error::Error, store::redis::wire::Job, util::sync::lock};

/// Batches under way at once. With more lanes, each batch is smaller and each decision costs Redis more. With fewer,
/// the client is idle while Redis decides, and a slow connection delays more decisions.
pub(crate) static LANES: std::sync::LazyLock<usize> = std::sync::LazyLock::new(|| std::env::var("LANES").map_or(2, |n| n.parse().unwrap()));
/// The most decisions in a batch.
const MAX_BATCH_DECISIONS: usize = 128;
/// The most charges in a batch. A key has at most 389 bytes, so a batch has at most 150 KB.
const MAX_BATCH_CHARGES: usize = 256;
/// The most microseconds for which a batch blocks Redis. A single decision may take longer.
const MAX_BATCH_MICROS: u64 = 2_000;
/// The most decisions that wait. Further ones fail at once.
pub(crate) const MAX_WAITING: usize = 16_384;

#[derive(Default)]
pub(super) struct Queue(Mutex<State>);

#[derive(Default)]
struct State {
    open_lanes: usize,
    /// Sorted by their numbers.
    waiting: VecDeque<Waiting>,
    next: u64,
}

/// A decision that waits for a lane.
struct Waiting {
    job: Job,
    number: u64,
    reply: oneshot::Sender<Result<Decision, Error>>,
}

/// The caller's side of a waiting decision.
pub(super) struct Ticket {
    pub(super) reply: oneshot::Receiver<Result<Decision, Error>>,
    number: u64,
}

pub(super) enum Entry {
    /// No lane was open. One is now, in which the caller sends this job at once.
    Alone(Job),
    /// A lane was opened for the waiting decisions, which the caller must start.
    Open(Ticket),
    Wait(Ticket),
    Full,
}

impl Queue {
    pub(super) fn enter(&self, job: Job) -> Entry {
        let mut state = self.lock();
        if state.open_lanes == 0 {
            state.open_lanes = 1;
            return Entry::Alone(job);
        }
        state.drop_abandoned();
        if state.waiting.len() >= MAX_WAITING {
            return Entry::Full;
        }
        let (reply, receiver) = oneshot::channel();
        let number = state.next;
        state.next += 1;
        state.waiting.push_back(Waiting { job, number, reply });
        let ticket = Ticket { reply: receiver, number };
        if state.open_lanes < *LANES {
            state.open_lanes += 1;
            return Entry::Open(ticket);
        }
        Entry::Wait(ticket)
    }

    /// Withdraws a waiting decision. Returns whether it was not sent and never will be.
    pub(super) fn withdraw(&self, ticket: &Ticket) -> bool {
        let mut state = self.lock();
        let position = state.waiting.binary_search_by_key(&ticket.number, |waiting| waiting.number);
        position.is_ok_and(|position| state.waiting.remove(position).is_some())
    }

    /// Closes a lane unless decisions wait. Returns whether it is closed.
    pub(super) fn close_lane(&self) -> bool {
        let mut state = self.lock();
        state.drop_abandoned();
        let is_idle = state.waiting.is_empty();
        state.open_lanes -= usize::from(is_idle);
        is_idle
    }

    /// Moves the next decisions into an empty `batch`, oldest first.
    pub(super) fn fill(&self, batch: &mut Batch) {
        let (mut charges, mut micros) = (0, 0);
        let mut state = self.lock();
        while let Some(next) = state.waiting.front() {
            if next.is_abandoned() {
                state.waiting.pop_front();
                continue;
            }
            charges += next.job.charges.len();
            micros += next.job.redis_micros();
            let is_full = batch.jobs.len() >= MAX_BATCH_DECISIONS
                || charges > MAX_BATCH_CHARGES
                || micros > MAX_BATCH_MICROS;
            if let Some(first) = batch.jobs.first()
                && (is_full || !next.job.can_share_batch(first))
            {
                break;
            }
            if let Some(next) = state.waiting.pop_front() {
                batch.jobs.push(next.job);
                batch.replies.push(next.reply);
            }
        }
    }

    /// Fails all waiting decisions with `error`.
    pub(super) fn fail(&self, error: impl Fn() -> Error) {
        let waiting = mem::take(&mut self.lock().waiting);
        for waiting in waiting {
            let _ = waiting.reply.send(Err(error()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl State {
    /// Drops abandoned decisions at the front. They are about the oldest, because all wait equally long.
    fn drop_abandoned(&mut self) {
        while self.waiting.front().is_some_and(Waiting::is_abandoned) {
            self.waiting.pop_front();
        }
    }
}

impl Waiting {
    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}

/// The decisions that a lane sends together. Used again for the lane's next batch.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) jobs: Vec<Job>,
    replies: Vec<oneshot::Sender<Result<Decision, Error>>>,
}

impl Batch {
    /// Sends each decision its answer.
    pub(super) fn answer(&mut self, answers: impl IntoIterator<Item = Result<Decision, Error>>) {
        for (reply, answer) in self.replies.drain(..).zip(answers) {
            // The error means that its caller was dropped.
            let _ = reply.send(answer);
        }
        self.jobs.clear();
    }
}
