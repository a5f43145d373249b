//! Group commit: decisions wait while others are under way, and are sent as a batch.
//!
//! A lane carries one batch at a time. If no lane is open, a decision opens one, which sends it immediately
//! and alone. If too few are open, it opens another one, which takes its decision and the decisions of the
//! tasks that are ready. Otherwise it waits for the first lane that has its replies, which takes all that
//! wait by then. So a lone decision never waits. The more decisions there are, the more share a batch, and a
//! batch costs only as much as two of its decisions.
//!
//! Callers that are answered together ask again together. Near Redis, one batch would soon have all decisions, and the
//! callers and Redis would take turns, each idle while the other works. So near Redis, after a batch of several decisions, a
//! lane takes at most half of those that wait or are under way, and leaves the others to another lane. Where Redis is
//! not near, replies come at different times anyway.
//!
//! How many lanes are enough depends on how far Redis is. It does not depend on how long decisions wait: they
//! also wait for a Redis or a machine that is busy, and with more lanes the batches would be smaller and both
//! busier.
//!
//! A timer for each decision would cost 660 of its instructions, and a lock that all threads share. So lanes
//! keep the deadlines: each lane has one timer, and answers late decisions whenever it waits. If no lane has
//! done so lately, because all of them wait for a thread that is blocked, a decision has a separate timer.
//!
//! A lane looks at the deadlines every [`TICK`]. What a tick takes longer than that does not count, see
//! [`deadline`](super::deadline).

use std::{
    collections::VecDeque,
    mem, ptr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    deadline::{TICK, TOLERANCE, queue_full},
    lone::{LoneLanes, STUCK},
};
use crate::{
    base::{Error, sync::lock},
    store::redis::job::Job,
};

/// How much longer than its decisions a batch takes if Redis is far.
const FAR: Duration = Duration::from_micros(500);
/// How much longer than its decisions a batch takes at most if Redis is near.
const NEAR: Duration = Duration::from_micros(75);
/// How long a decision waits before the open lanes may be stuck.
const PATIENCE: Duration = Duration::from_micros(500);
/// Lanes that have not looked at the deadlines for this time do not keep them. Longer than a busy machine
/// takes for a tick, or each decision would need a timer there.
const LOST: Duration = Duration::from_millis(50);
/// A batch that leaves decisions to another one has at least this many.
const LEAST_SHARE: usize = 2;
/// The most decisions in a batch.
const MAX_BATCH_DECISIONS: usize = 128;
/// The most charges in a batch, those against penalties included. A key has at most 393 bytes, so a batch has
/// at most 101 KB, and one decision of 256 charges with penalties 202 KB.
const MAX_BATCH_CHARGES: usize = 256;
/// The most microseconds for which a batch blocks Redis. A single decision may take longer.
const MAX_BATCH_MICROS: u64 = 2_000;
/// The most decisions that wait. Further ones fail immediately.
pub(crate) const MAX_WAITING: usize = 16_384;

/// Batches under way concurrently.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    /// With more lanes, each batch is smaller and each decision costs Redis more.
    pub(super) usual: usize,
    /// If Redis is [`FAR`], so that lanes mostly wait for the network; and if the usual ones may be stuck.
    pub(super) if_far: usize,
}

impl Lanes {
    /// At most one for each of `connections`. A lane without one would only wait.
    pub(super) fn at_most(self, connections: u32) -> Self {
        let most = connections as usize;
        Self { usual: self.usual.min(most), if_far: self.if_far.min(most) }
    }
}

pub(super) struct Queue {
    lanes: Lanes,
    state: Mutex<State>,
    /// Lanes polled by their callers.
    pub(super) lone: Arc<LoneLanes>,
}

#[derive(Default)]
struct State {
    open_lanes: usize,
    /// The estimated number of open lanes that are between two batches. Each takes what waits by then.
    ready_lanes: usize,
    /// About how many decisions are in batches that Redis has not answered.
    under_way: usize,
    /// How many decisions the batch had that was answered last.
    last_batch: usize,
    waiting: VecDeque<Queued>,
    /// The latest deadline of the decisions that have entered since none waited.
    latest_deadline: Option<Duration>,
    time: RunTime,
    /// When Redis answered last, in the time that deadlines are points in.
    answered: Duration,
    /// How much longer a batch takes than its decisions. It is the minimum over the latest batches: the others also
    /// waited for Redis or for a thread.
    distance: Duration,
}

/// What Redis did while a decision waited until its deadline and was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// It answered others: there is more load than it can decide.
    ForOthers,
    /// It answered nothing: attempts to connect hang, or the calls of all connections do.
    InSilence,
}

/// Where a decision is that has entered, and so what its caller must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// Before a lane that was opened for it, because no other was open. The caller polls this lane.
    Alone,
    /// Behind others.
    InQueue {
        /// Whether a lane was opened, which the caller must start.
        opens_lane: bool,
        /// Whether lanes answer it at its deadline. Otherwise its caller needs a timer.
        is_watched: bool,
    },
}

/// What [`Queue::fill`] knows of its batch.
pub(super) struct Filled {
    /// When it was filled.
    pub(super) at: Instant,
    /// All the time that was counted for deadlines by then.
    pub(super) counted: Duration,
    /// About how long Redis takes to make the decisions.
    pub(super) redis_time: Duration,
    /// Whether a lane was opened for the decisions that are left, which the caller must start.
    pub(super) opens_lane: bool,
}

impl Queue {
    pub(super) fn new(lanes: Lanes) -> Self {
        Self { lanes, state: Mutex::default(), lone: Arc::default() }
    }

    /// Enters a decision at the time `entered`.
    pub(super) fn enter(&self, job: Arc<Job>, entered: Instant) -> Result<Entered, Error> {
        // Dropped after the lock is released, because that wakes its caller, whose waker may be a program's own.
        let _gone;
        let mut state = self.lock();
        _gone = state.take_abandoned();
        if state.waiting.len() >= MAX_WAITING {
            return Err(queue_full());
        }
        let is_alone = state.open_lanes == 0;
        let opens_lane = is_alone || state.ready_lanes == 0 && state.open_lanes < self.wanted_lanes(&state);
        state.open_lanes += usize::from(opens_lane);
        let is_first = state.waiting.is_empty();
        if is_first {
            state.latest_deadline = None;
        }
        let deadline = state.time.counted.saturating_add(job.deadline);
        // Lanes only look at the oldest decision, so a deadline that is earlier is not kept.
        let is_latest = state.latest_deadline.is_none_or(|latest| latest <= deadline.saturating_add(TICK));
        // The lanes that are ready may belong to a blocked thread. Then the first decision opens another for
        // all.
        let may_be_stuck = is_first && state.ready_lanes >= state.open_lanes;
        let is_watched = is_latest && !may_be_stuck && state.time.is_kept(entered);
        state.latest_deadline = state.latest_deadline.max(Some(deadline));
        state.waiting.push_back(Queued { job, entered, deadline });
        if is_alone {
            return Ok(Entered::Alone);
        }
        metric!(enqueued(state.waiting.len()));
        Ok(Entered::InQueue { opens_lane, is_watched })
    }

    /// Withdraws a waiting decision, which was not sent and never will be. Returns what Redis did while it
    /// waited; `None` if the decision was sent.
    pub(super) fn withdraw(&self, job: &Job) -> Option<Wait> {
        let mut state = self.lock();
        // The ones that waited longest are at the front, and their deadlines pass first.
        let position = state.waiting.iter().position(|waiting| ptr::eq(&*waiting.job, job))?;
        let waiting = state.waiting.remove(position)?;
        let wait = state.wait_of(&waiting);
        // Before the decision is dropped, which wakes its caller.
        drop(state);
        drop(waiting);
        Some(wait)
    }

    /// Closes a lane unless decisions wait for it, or if more lanes are open than needed. Returns whether it
    /// is closed.
    pub(super) fn close_lane(&self) -> bool {
        // Dropped after the lock is released.
        let _gone;
        let mut state = self.lock();
        _gone = state.take_abandoned();
        state.ready_lanes = state.ready_lanes.saturating_sub(1);
        // While decisions wait for long, the others are stuck.
        let is_surplus = state.open_lanes > self.wanted_lanes(&state) && !state.has_waited(STUCK);
        let closes = is_surplus || state.waiting.is_empty();
        if closes {
            state.close_lane();
        }
        closes
    }

    /// Opens another lane if decisions have waited for long. Returns whether it did: the caller must start
    /// it.
    pub(super) fn open_another(&self) -> bool {
        let mut state = self.lock();
        let opens = state.open_lanes < self.lanes.if_far && state.has_waited(PATIENCE);
        state.open_lanes += usize::from(opens);
        opens
    }

    /// Closes a lane that no task can continue. If it was the last one, fails the waiting decisions.
    pub(super) fn abandon(&self, error: impl Fn() -> Error) {
        let mut state = self.lock();
        state.close_lane();
        let lost = if state.open_lanes == 0 { mem::take(&mut state.waiting) } else { VecDeque::new() };
        drop(state);
        fail_all(&lost, error);
    }

    /// Moves the next decisions into an empty `batch`, oldest first. Fails those whose deadlines have passed.
    pub(super) fn fill(&self, batch: &mut Vec<Queued>, late: impl Fn(Wait) -> Error) -> Filled {
        let (mut charges, mut micros) = (0, 0);
        let (mut of_batch, mut ended) = (0, Vec::new());
        let mut state = self.lock();
        let at = Instant::now();
        let counted = state.time.tick(at);
        let share = self.share_of(&state);
        while let Some(next) = state.waiting.front() {
            if next.is_gone() || next.deadline <= counted {
                if let Some(waiting) = state.waiting.pop_front() {
                    ended.push((state.wait_of(&waiting), waiting));
                }
                continue;
            }
            charges += next.job.width();
            micros += next.job.redis_micros();
            let is_full = batch.len() >= share || charges > MAX_BATCH_CHARGES || micros > MAX_BATCH_MICROS;
            if let Some(first) = batch.first()
                && (is_full || !next.job.can_share_batch(&first.job))
            {
                break;
            }
            of_batch = micros;
            batch.extend(state.waiting.pop_front());
        }
        state.under_way += batch.len();
        let opens_lane = !state.waiting.is_empty()
            && state.ready_lanes == 0
            && state.open_lanes < self.wanted_lanes(&state);
        state.open_lanes += usize::from(opens_lane);
        // Their callers are woken once the lock is free: a waker may be a program's own.
        drop(state);
        ended.iter().for_each(|(wait, waiting)| waiting.job.fail(late(*wait)));
        Filled { at, counted, redis_time: Duration::from_micros(of_batch), opens_lane }
    }

    /// Counts the time for deadlines. Returns all that was counted.
    pub(super) fn tick(&self) -> Duration {
        self.lock().time.tick(Instant::now())
    }

    /// Counts the time, and fails the oldest decisions if their deadlines have passed. They were not sent and
    /// never will be. Returns what Redis did while the last one waited, unless it is patient.
    pub(super) fn expire(&self, error: impl Fn(Wait) -> Error) -> Option<Wait> {
        let late: Vec<(Wait, Queued)> = {
            let mut state = self.lock();
            let now = state.time.tick(Instant::now());
            let count = state.waiting.iter().take_while(|waiting| waiting.deadline <= now).count();
            (0..count)
                .filter_map(|_| state.waiting.pop_front().map(|late| (state.wait_of(&late), late)))
                .collect()
        };
        let fail = |(wait, waiting): &(Wait, Queued)| {
            waiting.job.fail(error(*wait));
            (!waiting.job.is_patient).then_some(*wait)
        };
        late.iter().filter_map(fail).last()
    }

    /// Fails all waiting decisions with `error`.
    pub(super) fn fail(&self, error: impl Fn() -> Error) {
        let waiting = mem::take(&mut self.lock().waiting);
        fail_all(&waiting, error);
    }

    /// Records that a lane has the answers of a batch of `decisions`, which took by `distance` longer than
    /// Redis, if Redis has answered. Returns whether it was one decision, and no other waits: then the lane
    /// does not wait for the next.
    pub(super) fn record(&self, decisions: usize, distance: Option<Duration>) -> bool {
        let mut state = self.lock();
        state.ready_lanes += 1;
        state.under_way = state.under_way.saturating_sub(decisions);
        state.last_batch = decisions;
        if let Some(distance) = distance {
            state.answered = state.time.counted;
            // Older batches count less: what they say grows by 3 % with each batch. So a distance that
            // becomes ten times as long is known after 75 batches.
            let before = state.distance + state.distance / 32 + Duration::from_micros(1);
            state.distance = before.min(distance);
        }
        decisions == 1 && state.waiting.is_empty()
    }

    #[cfg(test)]
    pub(super) fn distance(&self) -> Duration {
        self.lock().distance
    }

    /// How many lanes should be open while decisions wait.
    fn wanted_lanes(&self, state: &State) -> usize {
        if state.distance > FAR { self.lanes.if_far } else { self.lanes.usual }
    }

    /// The most decisions of the next batch. Near Redis it is half of all, so that the callers of one batch go on while
    /// Redis makes the decisions of another: if all were in one batch, they and Redis would take turns. Where Redis is not
    /// near, its replies come at other times anyway, and smaller batches would only cost more. So would they for decisions
    /// that come together once, after a lone one or none.
    fn share_of(&self, state: &State) -> usize {
        if state.distance > NEAR || state.last_batch < 2 || self.lanes.usual == 1 {
            return MAX_BATCH_DECISIONS;
        }
        (state.waiting.len() + state.under_way).div_ceil(2).clamp(LEAST_SHARE, MAX_BATCH_DECISIONS)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// What Redis did while a decision waited.
    fn wait_of(&self, waiting: &Queued) -> Wait {
        let entered = waiting.deadline.saturating_sub(waiting.job.deadline);
        if self.answered > entered { Wait::ForOthers } else { Wait::InSilence }
    }

    /// Whether the oldest decision has waited for longer than `time`.
    fn has_waited(&self, time: Duration) -> bool {
        self.waiting.front().is_some_and(|oldest| oldest.entered.elapsed() > time)
    }

    const fn close_lane(&mut self) {
        self.open_lanes -= 1;
        if self.open_lanes == 0 {
            (self.ready_lanes, self.under_way, self.last_batch) = (0, 0, 0);
            (self.time.last_tick, self.time.kept_until) = (None, None);
        }
    }

    /// Takes abandoned decisions from the front. They are about the oldest, because all wait equally long.
    fn take_abandoned(&mut self) -> Vec<Queued> {
        let mut gone = Vec::new();
        while self.waiting.front().is_some_and(Queued::is_gone) {
            gone.extend(self.waiting.pop_front());
        }
        gone
    }
}

/// The time in which the runtime ran while lanes were open.
#[derive(Default)]
struct RunTime {
    /// The time that deadlines are points in.
    counted: Duration,
    last_tick: Option<Instant>,
    /// Until when lanes that have looked at the deadlines then keep them.
    kept_until: Option<Instant>,
}

impl RunTime {
    /// Counts the time since the latest tick of any lane until `now`. Returns all that was counted.
    fn tick(&mut self, now: Instant) -> Duration {
        let since = self.last_tick.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.counted += since.min(TICK + TOLERANCE);
        (self.last_tick, self.kept_until) = (Some(now), Some(now + LOST));
        self.counted
    }

    /// Whether lanes keep deadlines at the time `now`.
    fn is_kept(&self, now: Instant) -> bool {
        self.kept_until.is_some_and(|until| now < until)
    }
}

/// A decision that waits for a lane, or is in its batch. If it is dropped, its caller is woken.
pub(super) struct Queued {
    pub(super) job: Arc<Job>,
    entered: Instant,
    /// A point in the [`RunTime`].
    deadline: Duration,
}

impl Queued {
    /// Whether nothing waits for the decision any more.
    fn is_gone(&self) -> bool {
        Arc::strong_count(&self.job) == 1
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.job.end();
    }
}

/// The undecided decisions of a batch whose deadlines have passed at the time `now`.
pub(super) fn late(batch: &[Queued], now: Duration) -> impl Iterator<Item = &Queued> {
    batch.iter().filter(move |waiting| waiting.deadline <= now && waiting.job.is_open())
}

/// Fails all, if there are any. Returns the last one's error.
pub(super) fn fail_all<'a>(
    waiting: impl IntoIterator<Item = &'a Queued>,
    error: impl Fn() -> Error,
) -> Option<Error> {
    waiting.into_iter().map(|waiting| waiting.job.fail(error())).last().map(|()| error())
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        task::{Poll, Wake, Waker},
    };

    use super::*;
    use crate::{base::ErrorKind, store::redis::job::Fate};

    /// Enters a decision that must be made within this many milliseconds.
    fn enter(queue: &Queue, millis: u64) -> (Entered, Arc<Job>) {
        let job = Arc::new(Job::for_tests(1, Duration::from_millis(millis)));
        (queue.enter(job.clone(), Instant::now()).unwrap(), job)
    }

    /// The error that the caller of `job` has, if it has one.
    fn error_of(job: &Job) -> Option<ErrorKind> {
        match job.poll_fate(None) {
            Poll::Ready(Fate::Replied(decided)) => Some(decided.unwrap_err().kind()),
            Poll::Ready(Fate::Lost) => unreachable!("each job fails with an error"),
            Poll::Pending => None,
        }
    }

    fn opens_lane(entered: Entered) -> bool {
        matches!(entered, Entered::Alone | Entered::InQueue { opens_lane: true, .. })
    }

    fn is_watched(entered: Entered) -> bool {
        matches!(entered, Entered::InQueue { is_watched: true, .. })
    }

    const TWO: Lanes = Lanes { usual: 2, if_far: 4 };

    fn late(_: Wait) -> Error {
        Error::new(ErrorKind::StoreBusy, "late")
    }

    #[tokio::test(start_paused = true)]
    async fn a_decision_that_waits_behind_a_longer_deadline_keeps_its_own() {
        let queue = Queue::new(TWO);
        let (first, _job) = enter(&queue, 500);
        assert_eq!(first, Entered::Alone);
        queue.tick();
        let entered = [20, 20, 499].map(|millis| enter(&queue, millis));
        assert_eq!(entered.each_ref().map(|(one, _)| opens_lane(*one)), [true, false, false]);
        // The lanes only look at the oldest decision.
        assert_eq!(entered.each_ref().map(|(one, _)| is_watched(*one)), [false, false, true]);
        for _ in 0..10 {
            queue.tick();
            tokio::time::advance(Duration::from_millis(3)).await;
        }
        let mut batch = Vec::new();
        queue.fill(&mut batch, late);
        assert_eq!(batch.len(), 2, "late decisions are not sent");
        assert_eq!(error_of(&entered[0].1), Some(ErrorKind::StoreBusy));
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_decision_waits_in_silence_unless_redis_has_answered_others_in_the_meantime() {
        for (answered_at, expected) in [(None, Wait::InSilence), (Some(20), Wait::ForOthers)] {
            let queue = Queue::new(TWO);
            let _busy = enter(&queue, 500);
            queue.fill(&mut Vec::new(), late);
            queue.record(1, Some(Duration::ZERO));
            let (_, _job) = enter(&queue, 50);
            let mut wait = None;
            for millis in 0..60 {
                tokio::time::advance(Duration::from_millis(1)).await;
                wait = wait.or_else(|| queue.expire(late));
                if answered_at == Some(millis) {
                    queue.record(1, Some(Duration::ZERO));
                }
            }
            assert_eq!(wait, Some(expected), "{answered_at:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_without_cpu_time_does_not_fail_its_decisions() {
        let queue = Queue::new(TWO);
        let _entered = enter(&queue, 50);
        queue.tick();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(queue.expire(late).is_none());
        let mut batch = Vec::new();
        queue.fill(&mut batch, late);
        assert_eq!(batch.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_decision_that_waits_for_stuck_lanes_gets_another_one() {
        let queue = Queue::new(Lanes { usual: 1, if_far: 2 });
        let _first = enter(&queue, 50);
        queue.tick();
        let waits = enter(&queue, 50);
        assert!(is_watched(waits.0));
        assert!(!queue.open_another(), "nothing has waited for long");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(queue.open_another());
        assert!(!queue.open_another(), "not more");
        tokio::time::advance(LOST).await;
        let second = enter(&queue, 50);
        assert!(!is_watched(second.0), "no lane has looked at the deadlines");
        assert!(!queue.close_lane(), "one is stuck");
        queue.fill(&mut Vec::new(), late);
        let third = enter(&queue, 50);
        assert!(is_watched(third.0));
        assert!(queue.close_lane(), "the other one takes what waits");
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_decision_of_a_lone_caller_waits_for_the_lane_that_is_ready() {
        let queue = Queue::new(TWO);
        let first = enter(&queue, 50);
        assert!(!queue.close_lane());
        let mut batch = Vec::new();
        queue.fill(&mut batch, late);
        queue.record(batch.len(), None);
        drop((batch, first));
        let second = enter(&queue, 50);
        assert!(!opens_lane(second.0) && !is_watched(second.0), "its thread may be blocked");
        assert!(!queue.close_lane(), "it takes the second one");
        assert!(opens_lane(enter(&queue, 50).0));
    }

    #[tokio::test(start_paused = true)]
    async fn decisions_fail_once_the_last_lane_is_lost() {
        let queue = Queue::new(TWO);
        let tickets = [enter(&queue, 50), enter(&queue, 50), enter(&queue, 50)];
        queue.abandon(|| late(Wait::InSilence));
        tickets.iter().for_each(|(_, job)| assert!(job.is_open(), "the other lane takes it"));
        queue.abandon(|| late(Wait::InSilence));
        tickets.iter().for_each(|(_, job)| assert_eq!(error_of(job), Some(ErrorKind::StoreBusy)));
        assert_eq!(enter(&queue, 50).0, Entered::Alone);
    }

    #[tokio::test(start_paused = true)]
    async fn near_redis_a_batch_leaves_half_to_another_lane() {
        let queue = Queue::new(TWO);
        let fill = |waiting: usize| {
            let jobs: Vec<_> = (0..waiting).map(|_| enter(&queue, 500).1).collect();
            let mut batch = Vec::new();
            let opens_lane = queue.fill(&mut batch, late).opens_lane;
            (batch.len(), opens_lane, jobs)
        };
        assert_eq!(fill(8).0, 8, "decisions that come together once share a call");
        queue.record(8, Some(Duration::from_micros(30)));
        let again = [fill(8), fill(0)];
        assert_eq!(again.each_ref().map(|batch| batch.0), [4, 4], "each lane has half");
        assert!(again.iter().all(|batch| !batch.1), "another lane is open already");
        queue.record(4, Some(Duration::from_micros(30)));
        assert_eq!(fill(4).0, 4, "half of all are under way");
        for _ in 0..200 {
            queue.record(2, Some(Duration::from_micros(300)));
        }
        assert_eq!(fill(6).0, 6, "Redis is not near");
    }

    #[tokio::test(start_paused = true)]
    async fn more_lanes_are_open_where_redis_is_far_and_close_where_it_is_near() {
        let queue = Queue::new(TWO);
        let opens = || {
            let (entered, job) = enter(&queue, 500);
            // Kept, or it would not count.
            mem::forget(job);
            opens_lane(entered)
        };
        assert_eq!([opens(), opens(), opens()], [true, true, false], "nothing is known yet");
        let record = |micros| {
            queue.record(0, Some(Duration::from_micros(micros)));
            queue.lock().ready_lanes = 0;
        };
        (0..200).for_each(|_| record(900));
        assert_eq!([opens(), opens(), opens()], [true, true, false], "that is far");
        assert!(!queue.close_lane(), "decisions wait");
        record(200);
        assert!(!opens(), "that is near");
        assert_eq!([queue.close_lane(), queue.close_lane()], [true, true], "the others take what waits");
        assert!(!queue.close_lane(), "two lanes are open");
    }

    /// A waker that uses the queue, as one does that polls its task where it is woken.
    struct Uses(Arc<Queue>, AtomicUsize);

    impl Wake for Uses {
        fn wake(self: Arc<Self>) {
            assert!(self.0.state.try_lock().is_ok(), "it is woken under the lock");
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn no_caller_is_woken_under_the_lock() {
        let queue = Arc::new(Queue::new(Lanes { usual: 1, if_far: 1 }));
        let uses = Arc::new(Uses(queue.clone(), AtomicUsize::new(0)));
        let waker = Waker::from(uses.clone());
        let waits = |millis| {
            let (_, job) = enter(&queue, millis);
            assert!(job.poll_fate(Some(&waker)).is_pending());
            job
        };
        let woken = |count| assert_eq!(uses.1.load(Ordering::Relaxed), count);
        let withdrawn = waits(1_000);
        assert!(queue.withdraw(&withdrawn).is_some());
        woken(1);
        drop(waits(1_000));
        let late = waits(0);
        woken(2);
        queue.fill(&mut Vec::new(), |_| queue_full());
        woken(3);
        drop(late);
        drop(waits(1_000));
        queue.close_lane();
        woken(4);
    }
}
