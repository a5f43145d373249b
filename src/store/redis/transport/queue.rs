//! Group commit: decisions wait while others are under way, and are sent as a batch.
//!
//! A lane carries one batch at a time. If no lane is open, a decision is sent at once and alone. If one is open, it opens
//! a second one, which takes its decision and those of the tasks that are ready. If both are open, it waits for the
//! first lane that has its replies, which takes all that wait by then. So a lone decision never waits. The more
//! decisions there are, the more share a batch, and a batch costs only as much as two of its decisions.
//!
//! Two lanes are enough while a batch takes as long as Redis decides it. Over a network it takes longer, and decisions
//! wait longer. Then up to [`Lanes::if_slow`] open.

use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio::{runtime, sync::oneshot, time::Instant};

use super::watch::{Caller, Place, Watch};
use crate::{decision::Decision, error::Error, store::redis::wire::Job, util::sync::lock};

/// How long decisions wait before further lanes open.
const PATIENCE: Duration = Duration::from_micros(500);
/// The most decisions in a batch.
const MAX_BATCH_DECISIONS: usize = 128;
/// The most charges in a batch. A key has at most 389 bytes, so a batch has at most 150 KB.
const MAX_BATCH_CHARGES: usize = 256;
/// The most microseconds for which a batch blocks Redis. A single decision may take longer.
const MAX_BATCH_MICROS: u64 = 2_000;
/// The most decisions that wait. Further ones fail at once.
pub(crate) const MAX_WAITING: usize = 16_384;

/// Batches under way at once.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    /// With more lanes, each batch is smaller and each decision costs Redis more.
    pub(super) usual: usize,
    /// If decisions wait for longer than [`PATIENCE`]: a round trip takes longer than deciding a batch, or a lane is
    /// stuck.
    pub(super) if_slow: usize,
}

pub(super) struct Queue {
    lanes: Lanes,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open_lanes: usize,
    /// Sorted by their numbers.
    waiting: VecDeque<Waiting>,
    /// The latest deadline of the decisions that have entered since none waited.
    latest_deadline: Option<Instant>,
    next: u64,
    watch: Watch,
}

/// A decision that waits for a lane.
struct Waiting {
    job: Job,
    number: u64,
    caller: Caller,
}

/// The caller's side of a waiting decision.
pub(super) struct Ticket {
    pub(super) reply: oneshot::Receiver<Result<Decision, Error>>,
    /// Whether lanes answer it at its deadline. Otherwise its caller needs a timer.
    pub(super) is_watched: bool,
    number: u64,
}

pub(super) enum Entry {
    /// No lane was open. One is now, in which the caller sends this job at once.
    Alone(Job),
    /// A lane was opened for the waiting decisions, which the caller must start.
    Open(Ticket, Place),
    Wait(Ticket),
    Full,
}

impl Queue {
    pub(super) fn new(lanes: Lanes) -> Self {
        Self { lanes, state: Mutex::default() }
    }

    /// Enters a decision of a caller in the runtime `here`.
    pub(super) fn enter(&self, job: Job, deadline: Instant, here: Option<runtime::Id>) -> Entry {
        let mut state = self.lock();
        if state.open_lanes == 0 {
            state.open_lanes = 1;
            return Entry::Alone(job);
        }
        state.drop_abandoned();
        if state.waiting.len() >= MAX_WAITING {
            return Entry::Full;
        }
        let entered = deadline.checked_sub(job.deadline);
        let opened = (state.open_lanes < self.wanted_lanes(&state, entered)).then(|| {
            state.open_lanes += 1;
            state.watch.join(here)
        });
        if state.waiting.is_empty() {
            state.latest_deadline = None;
        }
        let is_watched = state.watch.covers(here, deadline, state.latest_deadline);
        state.latest_deadline = state.latest_deadline.max(Some(deadline));
        let (reply, receiver) = oneshot::channel();
        let (number, allowed) = (state.next, job.deadline);
        state.next += 1;
        let caller = Caller { deadline, allowed, is_watched, reply: Some(reply) };
        state.waiting.push_back(Waiting { job, number, caller });
        let ticket = Ticket { reply: receiver, is_watched, number };
        match opened {
            Some(place) => Entry::Open(ticket, place),
            None => Entry::Wait(ticket),
        }
    }

    /// Withdraws a waiting decision. Returns whether it was not sent and never will be.
    pub(super) fn withdraw(&self, ticket: &Ticket) -> bool {
        let mut state = self.lock();
        let position = state.waiting.binary_search_by_key(&ticket.number, |waiting| waiting.number);
        position.is_ok_and(|position| state.waiting.remove(position).is_some())
    }

    /// Closes a lane unless decisions wait for it. Returns whether it is closed.
    pub(super) fn close_lane(&self, place: &mut Place) -> bool {
        let mut state = self.lock();
        state.drop_abandoned();
        if state.waiting.iter().any(|waiting| place.may_take(&waiting.caller)) {
            return false;
        }
        state.open_lanes -= 1;
        state.watch.leave(place);
        true
    }

    /// The place of a task in the runtime `here` that takes over the lane in `place`, which was dropped. Fails the
    /// decisions that no lane watches any more: they are of the runtime that was shut down.
    pub(super) fn take_over(
        &self,
        place: &mut Place,
        here: Option<runtime::Id>,
        error: impl Fn() -> Error,
    ) -> Place {
        let mut state = self.lock();
        let mut unwatched = VecDeque::new();
        if state.watch.leave(place) {
            let all = mem::take(&mut state.waiting).into_iter();
            (unwatched, state.waiting) = all.partition(|waiting| waiting.caller.is_watched);
        }
        let place = state.watch.join(here);
        drop(state);
        fail_all(unwatched, error);
        place
    }

    /// Opens another lane if decisions have waited for long. The caller must start it.
    pub(super) fn open_another(&self, here: Option<runtime::Id>) -> Option<Place> {
        let mut state = self.lock();
        (state.open_lanes < self.lanes.if_slow && state.is_slow(Some(Instant::now()))).then(|| {
            state.open_lanes += 1;
            state.watch.join(here)
        })
    }

    /// Closes a lane that no task can continue. Fails the decisions that no lane takes or watches any more.
    pub(super) fn abandon(&self, place: &mut Place, error: impl Fn() -> Error) {
        let mut state = self.lock();
        state.open_lanes -= 1;
        let is_last_watcher = state.watch.leave(place);
        let is_last = state.open_lanes == 0;
        let all = mem::take(&mut state.waiting).into_iter();
        let (lost, kept) = all.partition(|waiting| is_last || is_last_watcher && waiting.caller.is_watched);
        state.waiting = kept;
        drop(state);
        fail_all(lost, error);
    }

    /// Moves the next decisions into an empty `batch`, oldest first. Fails those whose deadlines have passed.
    pub(super) fn fill(&self, batch: &mut Batch, place: &Place, late: impl Fn(Duration) -> Error) {
        let (mut charges, mut micros) = (0, 0);
        let now = Instant::now();
        let mut state = self.lock();
        let mut position = 0;
        while let Some(next) = state.waiting.get(position) {
            if !place.may_take(&next.caller) {
                position += 1;
                continue;
            }
            if next.caller.is_gone() || next.caller.deadline <= now {
                if let Some(mut waiting) = state.waiting.remove(position) {
                    waiting.caller.answer(Err(late(waiting.caller.allowed)));
                }
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
            if let Some(next) = state.waiting.remove(position) {
                batch.jobs.push(next.job);
                batch.callers.push(next.caller);
            }
        }
    }

    /// Fails the oldest decisions if their deadlines have passed. They were not sent and never will be.
    pub(super) fn expire(&self, error: impl Fn(Duration) -> Error) {
        let now = Instant::now();
        let next = || {
            let mut state = self.lock();
            let is_late = state.waiting.front().is_some_and(|oldest| oldest.caller.deadline <= now);
            if is_late { state.waiting.pop_front() } else { None }
        };
        while let Some(mut late) = next() {
            late.caller.answer(Err(error(late.caller.allowed)));
        }
    }

    /// Fails all waiting decisions with `error`.
    pub(super) fn fail(&self, error: impl Fn() -> Error) {
        fail_all(mem::take(&mut self.lock().waiting), error);
    }

    /// How many lanes should be open when a decision enters at `now`.
    fn wanted_lanes(&self, state: &State, now: Option<Instant>) -> usize {
        if state.is_slow(now) { self.lanes.if_slow } else { self.lanes.usual }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Whether the oldest decision has waited for long.
    fn is_slow(&self, now: Option<Instant>) -> bool {
        let oldest =
            self.waiting.front().and_then(|oldest| oldest.caller.deadline.checked_sub(oldest.caller.allowed));
        now.zip(oldest).is_some_and(|(now, oldest)| now.saturating_duration_since(oldest) > PATIENCE)
    }

    /// Drops abandoned decisions at the front. They are about the oldest, because all wait equally long.
    fn drop_abandoned(&mut self) {
        while self.waiting.front().is_some_and(|oldest| oldest.caller.is_gone()) {
            self.waiting.pop_front();
        }
    }
}

fn fail_all(waiting: VecDeque<Waiting>, error: impl Fn() -> Error) {
    waiting.into_iter().for_each(|mut waiting| waiting.caller.answer(Err(error())));
}

/// The decisions that a lane sends together. Used again for the lane's next batch.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) jobs: Vec<Job>,
    pub(super) callers: Vec<Caller>,
}

impl Batch {
    /// Sends each decision its answer.
    pub(super) fn answer(&mut self, answers: impl IntoIterator<Item = Result<Decision, Error>>) {
        self.callers.drain(..).zip(answers).for_each(|(mut caller, answer)| caller.answer(answer));
        self.jobs.clear();
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;

    use super::*;
    use crate::error::ErrorKind;

    /// Enters a decision that must be made within so many milliseconds.
    fn enter(queue: &Queue, millis: u64) -> Entry {
        let allowed = Duration::from_millis(millis);
        queue.enter(Job::for_tests(1, allowed), Instant::now() + allowed, Some(Handle::current().id()))
    }

    fn late(_: Duration) -> Error {
        Error::new(ErrorKind::StoreBusy, "late")
    }

    #[tokio::test(start_paused = true)]
    async fn a_decision_that_waits_behind_a_longer_deadline_keeps_its_own() {
        let queue = Queue::new(Lanes { usual: 2, if_slow: 4 });
        assert!(matches!(enter(&queue, 500), Entry::Alone(_)));
        let Entry::Open(_first, place) = enter(&queue, 500) else { panic!("the second lane opens") };
        let tickets = [enter(&queue, 20), enter(&queue, 20), enter(&queue, 499)].map(|entry| match entry {
            Entry::Wait(ticket) => ticket,
            _ => panic!("two lanes are open"),
        });
        // The lanes only look at the oldest decision.
        assert_eq!(tickets.each_ref().map(|ticket| ticket.is_watched), [false, false, true]);
        tokio::time::advance(Duration::from_millis(30)).await;
        let mut batch = Batch::default();
        queue.fill(&mut batch, &place, late);
        assert_eq!(batch.jobs.len(), 2, "late decisions are not sent");
        let [mut second, ..] = tickets;
        let answer = second.reply.try_recv().unwrap();
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::StoreBusy);
    }

    #[tokio::test(start_paused = true)]
    async fn a_decision_that_waits_for_stuck_lanes_gets_another_one() {
        let queue = Queue::new(Lanes { usual: 2, if_slow: 4 });
        let here = Some(Handle::current().id());
        assert!(matches!(enter(&queue, 50), Entry::Alone(_)));
        let Entry::Open(_ticket, mut place) = enter(&queue, 50) else { panic!("the second lane opens") };
        assert!(queue.open_another(here).is_none(), "nothing has waited for long");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(queue.open_another(here).is_some());
        // A lane that is lost fails no decision that another lane takes.
        queue.abandon(&mut place, || late(Duration::ZERO));
        let mut batch = Batch::default();
        queue.fill(&mut batch, &Place::default(), late);
        assert_eq!(batch.jobs.len(), 0, "it is watched by the lane that was opened");
    }
}
