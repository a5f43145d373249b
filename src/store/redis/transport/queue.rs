//! Group commit: decisions wait while others are under way, and are sent as a batch.
//!
//! A lane carries one batch at a time. If no lane is open, a decision is sent at once and alone. If too few are open, it
//! opens another one, which takes its decision and those of the tasks that are ready. Otherwise it waits for the first
//! lane that has its replies, which takes all that wait by then. So a lone decision never waits. The more decisions
//! there are, the more share a batch, and a batch costs only as much as two of its decisions.
//!
//! How many lanes are enough depends on how far Redis is. It does not depend on how long decisions wait: they also wait
//! for a Redis or a machine that is busy, and with more lanes the batches would be smaller and both busier.

use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio::{runtime, sync::oneshot, time::Instant};

use super::watch::{Caller, Place, Watch};
use crate::{decision::Decision, error::Error, store::redis::wire::Job, util::sync::lock};

/// How much longer than its decisions a batch takes if Redis is far.
const FAR: Duration = Duration::from_micros(500);
/// How long a decision waits before the open lanes may be stuck.
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
    /// If Redis is [`FAR`], so that lanes mostly wait for the network; and if the usual ones may be stuck.
    pub(super) if_far: usize,
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
    latest_deadline: Option<Duration>,
    next: u64,
    watch: Watch,
    distance: Distance,
}

/// How much longer a batch takes than its decisions: the least of the latest batches, because the others also waited for
/// Redis or for a thread.
#[derive(Default)]
struct Distance(Duration);

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
    pub(super) fn enter(&self, job: Job, entered: Instant, here: Option<runtime::Id>) -> Entry {
        let mut state = self.lock();
        if state.open_lanes == 0 {
            state.open_lanes = 1;
            return Entry::Alone(job);
        }
        state.drop_abandoned();
        if state.waiting.len() >= MAX_WAITING {
            return Entry::Full;
        }
        let opened = (state.open_lanes < self.wanted_lanes(&state)).then(|| {
            state.open_lanes += 1;
            state.watch.join(here)
        });
        if state.waiting.is_empty() {
            state.latest_deadline = None;
        }
        let deadline = state.watch.time() + job.deadline;
        let is_watched = state.watch.covers(here, deadline, state.latest_deadline);
        state.latest_deadline = state.latest_deadline.max(Some(deadline));
        let (reply, receiver) = oneshot::channel();
        let (number, allowed) = (state.next, job.deadline);
        state.next += 1;
        let caller = Caller { entered, deadline, allowed, is_watched, reply: Some(reply) };
        state.waiting.push_back(Waiting { job, number, caller });
        metric!(enqueued(state.waiting.len()));
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

    /// Closes a lane unless decisions wait for it, or if more lanes are open than needed. Returns whether it is closed.
    pub(super) fn close_lane(&self, place: &mut Place) -> bool {
        let mut state = self.lock();
        state.drop_abandoned();
        let is_surplus = state.open_lanes > self.wanted_lanes(&state) && state.watch.has_others(place);
        if !is_surplus && state.waiting.iter().any(|waiting| place.may_take(&waiting.caller)) {
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
        (state.open_lanes < self.lanes.if_far && state.is_slow(Instant::now())).then(|| {
            state.open_lanes += 1;
            state.watch.join(here)
        })
    }

    /// Closes a lane that no task can continue. Fails the decisions that no lane watches any more. Callers that no lane
    /// watched open another one.
    pub(super) fn abandon(&self, place: &mut Place, error: impl Fn() -> Error) {
        let mut state = self.lock();
        state.open_lanes -= 1;
        let is_last_watcher = state.watch.leave(place);
        let all = mem::take(&mut state.waiting).into_iter();
        let (lost, kept) = all.partition(|waiting| is_last_watcher && waiting.caller.is_watched);
        state.waiting = kept;
        drop(state);
        fail_all(lost, error);
    }

    /// Moves the next decisions into an empty `batch`, oldest first. Fails those whose deadlines have passed.
    pub(super) fn fill(&self, batch: &mut Batch, place: &Place, late: impl Fn(Duration) -> Error) {
        let (mut charges, mut micros) = (0, 0);
        let mut state = self.lock();
        let now = state.watch.tick(place, Instant::now());
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
                batch.redis_micros = micros;
                batch.jobs.push(next.job);
                batch.callers.push(next.caller);
            }
        }
    }

    /// Counts the time for deadlines. Returns all that was counted.
    pub(super) fn tick(&self, place: &Place) -> Duration {
        self.lock().watch.tick(place, Instant::now())
    }

    /// Fails the oldest decisions if their deadlines have passed at the time `now`. They were not sent and never will be.
    /// Returns the last one's error.
    pub(super) fn expire(&self, now: Duration, error: impl Fn(Duration) -> Error) -> Option<Error> {
        let next = || {
            let mut state = self.lock();
            let is_late = state.waiting.front().is_some_and(|oldest| oldest.caller.deadline <= now);
            if is_late { state.waiting.pop_front() } else { None }
        };
        let mut last = None;
        while let Some(mut late) = next() {
            let error = error(late.caller.allowed);
            late.caller.answer(Err(error.clone()));
            last = Some(error);
        }
        last
    }

    /// Fails all waiting decisions with `error`.
    pub(super) fn fail(&self, error: impl Fn() -> Error) {
        fail_all(mem::take(&mut self.lock().waiting), error);
    }

    /// Records that Redis has answered `batch` after `time`.
    pub(super) fn record(&self, batch: &Batch, time: Duration) {
        let decisions = Duration::from_micros(batch.redis_micros);
        self.lock().distance.record(time.saturating_sub(decisions));
    }

    /// How many lanes should be open while decisions wait.
    fn wanted_lanes(&self, state: &State) -> usize {
        if state.distance.0 > FAR { self.lanes.if_far } else { self.lanes.usual }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Whether the oldest decision has waited for long.
    fn is_slow(&self, now: Instant) -> bool {
        let oldest = self.waiting.front();
        oldest.is_some_and(|oldest| now.saturating_duration_since(oldest.caller.entered) > PATIENCE)
    }

    /// Drops abandoned decisions at the front. They are about the oldest, because all wait equally long.
    fn drop_abandoned(&mut self) {
        while self.waiting.front().is_some_and(|oldest| oldest.caller.is_gone()) {
            self.waiting.pop_front();
        }
    }
}

impl Distance {
    /// Records a batch that took `time` longer than its decisions.
    fn record(&mut self, time: Duration) {
        // Older batches count less: what they say grows by 3 % with each batch. So a distance that becomes ten times as
        // long is known after 75 batches.
        let before = self.0 + self.0 / 32 + Duration::from_micros(1);
        self.0 = time.min(before);
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
    /// About how long Redis takes to decide them.
    redis_micros: u64,
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
        queue.enter(Job::for_tests(1, allowed), Instant::now(), Some(Handle::current().id()))
    }

    const TWO: Lanes = Lanes { usual: 2, if_far: 4 };

    fn late(_: Duration) -> Error {
        Error::new(ErrorKind::StoreBusy, "late")
    }

    #[tokio::test(start_paused = true)]
    async fn a_decision_that_waits_behind_a_longer_deadline_keeps_its_own() {
        let queue = Queue::new(TWO);
        assert!(matches!(enter(&queue, 500), Entry::Alone(_)));
        let Entry::Open(_first, place) = enter(&queue, 500) else { panic!("the second lane opens") };
        let tickets = [enter(&queue, 20), enter(&queue, 20), enter(&queue, 499)].map(|entry| match entry {
            Entry::Wait(ticket) => ticket,
            _ => panic!("two lanes are open"),
        });
        // The lanes only look at the oldest decision.
        assert_eq!(tickets.each_ref().map(|ticket| ticket.is_watched), [false, false, true]);
        for _ in 0..10 {
            queue.tick(&place);
            tokio::time::advance(Duration::from_millis(3)).await;
        }
        let mut batch = Batch::default();
        queue.fill(&mut batch, &place, late);
        assert_eq!(batch.jobs.len(), 2, "late decisions are not sent");
        let [mut second, ..] = tickets;
        let answer = second.reply.try_recv().unwrap();
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::StoreBusy);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_without_cpu_time_does_not_fail_its_decisions() {
        let queue = Queue::new(TWO);
        assert!(matches!(enter(&queue, 50), Entry::Alone(_)));
        let Entry::Open(_ticket, place) = enter(&queue, 50) else { panic!("the second lane opens") };
        queue.tick(&place);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(queue.expire(queue.tick(&place), late).is_none());
        let mut batch = Batch::default();
        queue.fill(&mut batch, &place, late);
        assert_eq!(batch.jobs.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_decision_that_waits_for_stuck_lanes_gets_another_one() {
        let queue = Queue::new(TWO);
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

    #[tokio::test(start_paused = true)]
    async fn more_lanes_are_open_where_redis_is_far_and_close_where_it_is_near() {
        let queue = Queue::new(TWO);
        assert!(matches!(enter(&queue, 500), Entry::Alone(_)));
        let Entry::Open(_second, _place) = enter(&queue, 500) else { panic!("the second lane opens") };
        assert!(matches!(enter(&queue, 500), Entry::Wait(_)), "nothing is known yet");
        let batch = Batch { redis_micros: 100, ..Batch::default() };
        (0..200).for_each(|_| queue.record(&batch, Duration::from_millis(1)));
        let Entry::Open(_third, mut third) = enter(&queue, 500) else { panic!("900 us are far") };
        let Entry::Open(_fourth, mut fourth) = enter(&queue, 500) else { panic!("up to four lanes open") };
        assert!(matches!(enter(&queue, 500), Entry::Wait(_)), "not more");
        assert!(!queue.close_lane(&mut third), "decisions wait");
        queue.record(&batch, Duration::from_micros(300));
        assert!(matches!(enter(&queue, 500), Entry::Wait(_)), "200 us are near");
        assert!(queue.close_lane(&mut third), "the others take what waits");
        assert!(queue.close_lane(&mut fourth));
        let Entry::Wait(_) = enter(&queue, 500) else { panic!("two lanes are open") };
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_lane_that_watches_does_not_close_while_decisions_wait_for_it() {
        let queue = Queue::new(Lanes { usual: 1, if_far: 4 });
        assert!(matches!(enter(&queue, 50), Entry::Alone(_)));
        let Entry::Wait(_ticket) = enter(&queue, 50) else { panic!("one lane is open") };
        tokio::time::advance(Duration::from_millis(1)).await;
        let mut watching = queue.open_another(Some(Handle::current().id())).unwrap();
        let Entry::Wait(watched) = enter(&queue, 50) else { panic!("two lanes are open") };
        assert!(watched.is_watched);
        assert!(!queue.close_lane(&mut watching), "the other lane leaves it to this one");
    }
}
