//! Group commit: decisions that are asked for while others are under way gather, and go together.
//!
//! There are so many lanes. A lane carries one call at a time. A decision that finds nothing under way goes at
//! once and alone. One that finds a call under way and a lane free waits until the tasks that can run now
//! have run, and goes with what they asked for. Where no lane is free it waits for the first to become so,
//! which takes all that wait by then. So a lone decision waits for nobody, and the more there are the more
//! share a call, which costs as much as two of the decisions in it.

use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard},
};

use tokio::sync::oneshot;

use crate::{decision::Decision, error::Error, store::redis::wire::Job, util::sync::lock};

/// Calls under way at once. More would make each call carry less, and cost Redis more for each decision;
/// fewer would leave the client idle while Redis decides, and let one slow connection hold up more.
pub(crate) const LANES: usize = 4;
/// Decisions in one call.
const MOST_JOBS: usize = 128;
/// Charges in one call, where decisions have several. A key is at most 389 bytes, so a call is at most 150 KB.
const MOST_CHARGES: usize = 256;
/// Microseconds of Redis in one call, in which it answers no other client. One decision alone may take longer.
const MOST_MICROS: u64 = 2_000;
/// Decisions that wait. Whoever comes when there are more is turned away at once.
pub(crate) const MOST_WAITING: usize = 16_384;

#[derive(Default)]
pub(crate) struct Queue(Mutex<State>);

#[derive(Default)]
struct State {
    /// Lanes in use.
    busy: usize,
    /// In the order of their numbers.
    waiting: VecDeque<Waiting>,
    next: u64,
}

/// A decision that waits for a lane.
pub(crate) struct Waiting {
    job: Job,
    number: u64,
    reply: oneshot::Sender<Result<Decision, Error>>,
}

/// What whoever asked for it holds.
pub(crate) struct Ticket {
    pub(crate) reply: oneshot::Receiver<Result<Decision, Error>>,
    number: u64,
}

#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart at once, and a box would be another allocation"
)]
pub(crate) enum Entry {
    /// Nothing is under way: this one goes at once, in a lane that is now the caller's to
    /// [leave](Queue::leave).
    Lane(Job),
    /// There is a free lane, the caller's too, to carry whoever waits by then.
    Carry(Ticket),
    Wait(Ticket),
    Full,
}

impl Queue {
    pub(crate) fn enter(&self, job: Job) -> Entry {
        let mut state = self.lock();
        if state.busy == 0 {
            state.busy = 1;
            return Entry::Lane(job);
        }
        state.forget_abandoned();
        if state.waiting.len() >= MOST_WAITING {
            return Entry::Full;
        }
        let (reply, receiver) = oneshot::channel();
        let number = state.next;
        state.next += 1;
        state.waiting.push_back(Waiting { job, number, reply });
        let ticket = Ticket { reply: receiver, number };
        if state.busy < LANES {
            state.busy += 1;
            return Entry::Carry(ticket);
        }
        Entry::Wait(ticket)
    }

    /// Waits no longer. `true` where the decision was not sent and never will be.
    pub(crate) fn give_up(&self, ticket: &Ticket) -> bool {
        let mut state = self.lock();
        let place = state.waiting.binary_search_by_key(&ticket.number, |waiting| waiting.number);
        place.is_ok_and(|place| state.waiting.remove(place).is_some())
    }

    /// Leaves a lane. `true` where somebody waits for it: then it is still the caller's.
    pub(crate) fn leave(&self) -> bool {
        let mut state = self.lock();
        state.forget_abandoned();
        if state.waiting.is_empty() {
            state.busy -= 1;
            return false;
        }
        true
    }

    /// Whether anybody waits still.
    pub(crate) fn is_waited_for(&self) -> bool {
        let mut state = self.lock();
        state.forget_abandoned();
        !state.waiting.is_empty()
    }

    /// Takes what can go in one call, the oldest first.
    pub(crate) fn gather(&self) -> Batch {
        let mut batch = Batch { jobs: Vec::new(), replies: Vec::new() };
        let (mut charges, mut micros) = (0, 0);
        let mut state = self.lock();
        while let Some(next) = state.waiting.front() {
            if next.is_abandoned() {
                state.waiting.pop_front();
                continue;
            }
            charges += next.job.charges.len();
            micros += next.job.micros();
            let is_full = batch.jobs.len() >= MOST_JOBS || charges > MOST_CHARGES || micros > MOST_MICROS;
            if let Some(first) = batch.jobs.first()
                && (is_full || !next.job.goes_with(first))
            {
                break;
            }
            if let Some(next) = state.waiting.pop_front() {
                batch.jobs.push(next.job);
                batch.replies.push(next.reply);
            }
        }
        batch
    }

    /// Answers all that wait with `error`.
    pub(crate) fn fail(&self, error: impl Fn() -> Error) {
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
    /// Those who gave up are the oldest, or nearly so: they all wait equally long.
    fn forget_abandoned(&mut self) {
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

/// What goes in one call.
pub(crate) struct Batch {
    pub(crate) jobs: Vec<Job>,
    replies: Vec<oneshot::Sender<Result<Decision, Error>>>,
}

impl Batch {
    /// Gives each its own.
    pub(crate) fn answer(self, answers: impl IntoIterator<Item = Result<Decision, Error>>) {
        for (reply, answer) in self.replies.into_iter().zip(answers) {
            // Nobody waits for it any more.
            let _ = reply.send(answer);
        }
    }
}
