//! A decision is sent immediately and alone if no other is under way; otherwise it shares a batch. Lanes send
//! the batches: a lane does so as long as decisions wait for it.
//!
//! A decision that finds too few lanes open, see [`queue`](super::queue), starts a task for another one. So
//! these callers only wait: one that polls its decision and then keeps it holds no connection and delays no
//! other. If no lane is open, the caller opens one and polls it itself; if it is kept, a task takes over, see
//! [`lone`](super::lone).
//!
//! A lane owns a connection of the pool while there is work. If it is the only one, it sends the first decision
//! immediately and alone. Otherwise it sends what waits as one batch, or half of it, answers it, lets the callers run that
//! it has just answered, and takes what they sent. When nothing waits any more, the lane closes, its connection
//! returns to the pool, and the task ends. So an idle store has no lanes.
//!
//! A busy lane returns its connection every [`MAX_HOLD`], for others who share the pool.
//!
//! A lane that is dropped was shut down with its runtime. If it was the last one, the waiting decisions fail.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use futures_util::future::{BoxFuture, FutureExt as _};
use tokio::{
    runtime::Handle,
    task::{coop::consume_budget, yield_now},
    time::{Instant, timeout},
};

use super::{
    breaker::is_silence,
    connections::MAX_BACKOFF,
    deadline::{TimeLeft, while_ticking},
    lone::STUCK,
    queue::{Entered, fail_all, late},
    span::CallSpan,
    target::{Sender, Target},
};
#[cfg(feature = "metrics")]
use crate::base::sync::lock;
use crate::{
    base::{Error, ErrorKind, box_in_place},
    decision::Decision,
    store::redis::{
        error::not_connected,
        job::{Fate, Job},
    },
};

/// How long a busy lane keeps its connection.
const MAX_HOLD: Duration = Duration::from_millis(5);

/// Makes a decision, alone or in a batch. Call it in a runtime.
#[cfg(any(feature = "cluster", test))]
pub(super) async fn decide<S: Sender>(target: &Arc<Target<S>>, job: Arc<Job>) -> Result<Decision, Error> {
    match begin(target.clone(), job.clone()) {
        Some(decision) => decision.await,
        None => target.health.finish(&job, fate_of(&job).await),
    }
}

/// Begins a decision, alone or in a batch. Call it in a runtime. Returns a future for its caller to poll;
/// `None` if lanes keep its deadline, so that the caller only waits for the job, and then calls
/// [`Health::finish`](super::health::Health::finish).
pub(super) fn begin<S: Sender>(
    target: Arc<Target<S>>,
    job: Arc<Job>,
) -> Option<BoxFuture<'static, Result<Decision, Error>>> {
    if let Some(error) = target.breaker.error() {
        target.probe();
        let failed = Err(error);
        target.health.record(&failed);
        return Some(Box::pin(async {
            // A caller in a loop would never let another task run, not even the probe.
            consume_budget().await;
            failed
        }));
    }
    let entered = Instant::now();
    #[cfg(feature = "metrics")]
    lock(&job.entered).get_or_insert(entered);
    match target.queue.enter(job.clone(), entered) {
        Ok(Entered::Alone) => {
            let lane = target.queue.lone.open(lane_of(&target, true));
            Some(Box::pin(async move { target.health.finish(&job, lane.fate_of(&job).await) }))
        }
        Ok(Entered::InQueue { opens_lane, is_watched }) => {
            if opens_lane {
                tokio::spawn(lane_of(&target, false));
            }
            (!is_watched).then(|| wait(target, job).boxed())
        }
        Err(full) => Some(Box::pin(async move { target.health.finish(&job, Fate::Replied(Err(full))) })),
    }
}

fn fate_of(job: &Job) -> impl Future<Output = Fate> {
    poll_fn(|cx| job.poll_fate(Some(cx.waker())))
}

/// Waits for a decision whose deadline the lanes may not keep.
async fn wait<S: Sender>(target: Arc<Target<S>>, job: Arc<Job>) -> Result<Decision, Error> {
    let (mut left, mut pause, mut fate) = (job.deadline, STUCK, None);
    while fate.is_none() && !left.is_zero() {
        let time = pause.min(left);
        fate = TimeLeft::new(time).spend_on(pin!(fate_of(&job))).await;
        (left, pause) = (left - time, pause * 2);
        if fate.is_none() && !left.is_zero() {
            open_another(&target);
        }
    }
    let withdraw = || match target.queue.withdraw(&job) {
        Some(wait) => {
            if !job.is_patient {
                target.record_wait(wait);
            }
            Fate::Replied(Err(target.health.not_sent(wait)))
        }
        None => Fate::Lost,
    };
    let fate = fate.unwrap_or_else(withdraw);
    target.health.finish(&job, fate)
}

/// A lane that was opened in the queue of `target`.
// Boxed because it is large, and the runtime moves its tasks more than once.
fn lane_of<S: Sender>(target: &Arc<Target<S>>, is_immediate: bool) -> BoxFuture<'static, ()> {
    box_in_place(|| Lane { target: target.clone(), closed: false }.carry(is_immediate))
}

/// An open lane of the queue.
struct Lane<S: Sender> {
    target: Arc<Target<S>>,
    closed: bool,
}

impl<S: Sender> Lane<S> {
    /// Sends batches as long as decisions wait, the first one immediately if `is_immediate`, or after the
    /// ready tasks.
    async fn carry(mut self, mut is_immediate: bool) {
        // A lone decision needs no more room.
        let mut batch = Vec::with_capacity(1);
        let mut slot = None;
        let mut hold_until = None;
        loop {
            // Callers that were just answered may send their next decision, which then joins this batch.
            if !mem::take(&mut is_immediate) {
                yield_now().await;
                // If this task had to wait long for a thread.
                self.expire_waiting();
            }
            if self.target.queue.close_lane() {
                self.closed = true;
                return;
            }
            if slot.is_none() {
                match self.check_out().await {
                    Some(connection) => slot = Some(connection),
                    None => continue,
                }
                hold_until = None;
            }
            let filled = self.target.queue.fill(&mut batch, |wait| self.target.health.not_sent(wait));
            if filled.opens_lane {
                tokio::spawn(lane_of(&self.target, true));
            }
            if batch.is_empty() {
                // All were late, and nothing was sent.
                continue;
            }
            metric!(batch_sent(batch.len()));
            let hold_until = *hold_until.get_or_insert(filled.at + MAX_HOLD);
            let (one, several);
            let jobs = match &batch[..] {
                [only] => {
                    one = [&*only.job];
                    &one[..]
                }
                _ => {
                    several = batch.iter().map(|waiting| &*waiting.job).collect::<Vec<_>>();
                    &several
                }
            };
            jobs.iter().for_each(|job| job.sending());
            let mut span = CallSpan::begin(jobs, &self.target.health.server);
            // Its jobs are all patient or none is.
            let is_patient = jobs.iter().any(|job| job.is_patient);
            let (mut last_late, mut is_late) = (None, is_patient);
            // Pinned where it is made, since it is large.
            let ended = while_ticking(pin!(self.target.sender.send_batch(&mut slot, jobs)), || {
                let now = self.target.queue.tick();
                span.expire(late(&batch, now));
                last_late =
                    fail_all(late(&batch, now), || self.target.health.late()).or_else(|| last_late.take());
                // Decisions that waited for others are late soon after they are sent, all lanes' at the same
                // time. That says nothing about Redis, which may answer in time.
                if now - filled.counted >= self.target.health.deadline / 2
                    && let Some(late) = last_late.take()
                    && !mem::replace(&mut is_late, true)
                {
                    self.target.record::<()>(&Err(late));
                }
                self.expire_waiting();
                open_another(&self.target);
            })
            .await;
            span.end(&ended);
            let now = Instant::now();
            let taken = now - filled.at;
            // A call that was late is recorded already, unless it is patient. Its reply does not show that
            // Redis answers in time.
            if !is_late || taken <= self.target.health.deadline {
                self.target.record(&ended);
            }
            let is_answered = !ended.is_err_and(|error| is_silence(&error));
            let distance = is_answered.then(|| taken.saturating_sub(filled.redis_time));
            is_immediate = self.target.queue.record(batch.len(), distance);
            // Wakes the callers.
            batch.clear();
            if now > hold_until {
                slot = None;
            }
        }
    }

    /// A connection, unless the decisions that wait for it have failed.
    async fn check_out(&self) -> Option<S::Connection> {
        let mut connection = self.target.sender.connection();
        // An idle connection needs no timers.
        let connected = match poll_fn(|cx| Poll::Ready(connection.as_mut().poll(cx))).await {
            Poll::Ready(connected) => connected,
            Poll::Pending => self.wait_for(connection).await?,
        };
        let failed = |error| {
            let error = not_connected(&error);
            self.target.queue.fail(|| error.clone());
            self.target.record::<()>(&Err(error));
        };
        connected.map_err(failed).ok()
    }

    /// The output of an attempt to get a `connection`, unless it takes long.
    async fn wait_for<T>(&self, connection: impl Future<Output = T>) -> Option<T> {
        let connection = pin!(timeout(MAX_BACKOFF, connection));
        let connection = while_ticking(connection, || {
            // No call was sent, but none would be answered. If a connection is in use, its replies say
            // otherwise. Each attempt counts once, regardless of how many lanes wait for it.
            if let Some(failed) = self.target.health.count_failed_attempt()
                && self.target.breaker.record::<()>(&Err(failed.clone()))
            {
                // They fail for the cause, and not because of the breaker.
                self.target.queue.fail(|| failed.clone());
                self.target.opened(&failed);
            }
            self.expire_waiting();
        })
        .await;
        // If this task had to wait long for a thread.
        self.expire_waiting();
        connection.ok()
    }

    /// Fails the decisions that wait and are late.
    fn expire_waiting(&self) {
        if let Some(wait) = self.target.queue.expire(|wait| self.target.health.not_sent(wait)) {
            self.target.record_wait(wait);
        }
    }
}

/// Starts another lane if decisions have waited for long: the others may be stuck.
fn open_another<S: Sender>(target: &Arc<Target<S>>) {
    if let Ok(runtime) = Handle::try_current()
        && target.queue.open_another()
    {
        runtime.spawn(lane_of(target, false));
    }
}

impl<S: Sender> Drop for Lane<S> {
    fn drop(&mut self) {
        if !self.closed {
            self.target.queue.abandon(|| {
                let message = "the Tokio runtime that sends to Redis was shut down";
                Error::new(ErrorKind::StoreUnreachable, message)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::future::join_all;
    use redis::RedisResult;
    use tokio::time::sleep;

    use super::*;
    use crate::{
        decision::{Charge, Charges},
        key::Key,
        policy::Policy,
        store::redis::{
            job::Reply,
            transport::{health::Health, queue::Lanes},
        },
    };

    const DEADLINE: Duration = Duration::from_millis(50);

    /// Has a connection only after the deadline.
    struct SlowToConnect;

    impl Sender for SlowToConnect {
        type Connection = ();

        async fn ping(&self, _: &str) -> Result<(), Error> {
            pending().await
        }

        fn connection(&self) -> BoxFuture<'_, RedisResult<()>> {
            Box::pin(sleep(2 * DEADLINE).map(Ok))
        }

        async fn send_batch(&self, _: &mut Option<()>, _: &[&Job]) -> Result<(), Error> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_of_late_decisions_does_not_count_as_an_answer() {
        let health = Arc::new(Health::new(String::new(), DEADLINE));
        let lanes = Lanes { usual: 1, if_far: 1 };
        let target = Arc::new(Target::new(lanes, &Arc::default(), &health, SlowToConnect, String::new()));
        let no_answer = || target.record::<()>(&Err(Error::new(ErrorKind::StoreTimeout, "no answer")));
        no_answer();
        // It waits in silence, and its batch is then empty.
        decide(&target, Arc::new(Job::for_tests(1, DEADLINE))).await.unwrap_err();
        sleep(4 * DEADLINE).await;
        assert!(target.breaker.error().is_none());
        no_answer();
        assert!(target.breaker.error().is_some(), "two calls and a decision had no answer");
    }

    /// A Redis that is this far, and takes as long for its decisions as is expected of it.
    struct At(Duration);

    impl Sender for At {
        type Connection = ();

        async fn ping(&self, _: &str) -> Result<(), Error> {
            Ok(())
        }

        fn connection(&self) -> BoxFuture<'_, RedisResult<()>> {
            Box::pin(ready(Ok(())))
        }

        async fn send_batch(&self, _: &mut Option<()>, jobs: &[&Job]) -> Result<(), Error> {
            let redis_time = jobs.iter().map(|job| job.redis_micros()).sum();
            sleep(self.0 + Duration::from_micros(redis_time)).await;
            jobs.iter().for_each(|job| job.answer(Ok(Reply::Decided(Decision::not_limited(), None))));
            Ok(())
        }
    }

    /// 20,000 decisions in one moment take longer than the deadline, and Redis answers all the time.
    #[tokio::test(start_paused = true)]
    async fn more_decisions_than_redis_can_make_in_time_open_no_breaker() {
        let health = Arc::new(Health::new(String::new(), DEADLINE));
        let (lanes, far) = (Lanes { usual: 3, if_far: 6 }, At(Duration::from_millis(5)));
        let target = Arc::new(Target::new(lanes, &Arc::default(), &health, far, String::new()));
        let job = || Arc::new(Job::for_tests(1, DEADLINE));
        let decisions = join_all((0..20_000).map(|_| {
            let target = target.clone();
            tokio::spawn(async move { decide(&target, job()).await })
        }));
        let (mut made, mut busy) = (0, 0);
        for decision in decisions.await {
            match decision.unwrap().map_err(|error| error.kind()) {
                Ok(_) => made += 1,
                Err(ErrorKind::StoreBusy) => busy += 1,
                // Sent, and answered a little late.
                Err(ErrorKind::StoreTimeout) => {}
                Err(kind) => panic!("{kind:?}"),
            }
        }
        assert!(made >= 1_000 && busy >= 1_000, "{made} are made, and {busy} are too many");
        assert!(target.breaker.error().is_none() && decide(&target, job()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_the_decisions_does_not_count_as_distance() {
        let policy = Policy::concurrency("exports", 2_000);
        let exports = |cost| {
            let charges = Charges::One(Charge::new(&policy, &Key::new("k"), cost));
            Arc::new(Job { charges, ..Job::for_tests(1, Duration::from_secs(5)) })
        };
        // A millisecond of Redis each, as precise as timers are. Two fill a batch.
        let cost = 1_000 - exports(0).redis_micros();
        for distance in [0, 1].map(Duration::from_millis) {
            let health = Arc::new(Health::new(String::new(), DEADLINE));
            let lanes = Lanes { usual: 1, if_far: 4 };
            let target = Arc::new(Target::new(lanes, &Arc::default(), &health, At(distance), String::new()));
            join_all((0..500).map(|_| decide(&target, exports(cost)))).await;
            assert_eq!(target.queue.distance(), distance);
        }
    }
}
