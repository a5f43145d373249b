//! Deadlines, and the errors of missed ones.
//!
//! The deadline of a decision counts the time in which its runtime runs. A process that gets no CPU for 100
//! ms, or that polls a thousand other tasks first, has not waited for Redis for 100 ms: the reply may have
//! arrived in that time and not be read yet. So time is counted in steps, each with a separate timer, and a
//! timer that fires late does not count as more than its step. Otherwise a service that starts under load
//! would fail decisions that Redis answers in time.
//!
//! For the same reason a step ends only after the tasks have run that became ready before its timer did. A
//! worker of Tokio runs the task that was woken last first, which is the one with the timer, and the one that
//! reads the reply after all others that are ready. With a thousand of them, a deadline would pass while the
//! reply is there.

use std::{
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use redis::RedisResult;
use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

use crate::base::{Error, ErrorKind, Fault};

/// How long a connection without a reply is kept out of the pool before it counts as broken.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout of each step of connecting. No decision waits for it. A handshake of TLS takes half a second
/// on a busy machine, and an attempt that ends too early never succeeds there.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The timeout of a command that only asks how the server is. bb8 waits at most half of it between two
/// attempts to connect.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// Replaces a deadline that overflows.
const FAR_FUTURE: Duration = Duration::from_secs(86_400);

/// The timers of a runtime that is not busy are late by less than this.
pub(super) const TOLERANCE: Duration = Duration::from_millis(2);
/// How often a task that waits looks at what else has happened: decisions that are late, attempts to connect
/// that failed.
pub(super) const TICK: Duration = Duration::from_millis(2);
/// Steps in which time is counted.
const STEPS: u32 = 8;

/// The time that is left of a deadline.
pub(super) struct TimeLeft {
    pub(super) left: Duration,
    step: Duration,
}

impl TimeLeft {
    pub(super) fn new(allowed: Duration) -> Self {
        Self { left: allowed, step: (allowed / STEPS).max(TOLERANCE) }
    }

    /// In steps so small that what is left shows how long work took.
    pub(super) const fn in_ticks(allowed: Duration) -> Self {
        Self { left: allowed, step: TICK }
    }

    /// The output of `work`, or `None` if no time is left before, or no runtime that counts it.
    // The functions of this module take futures pinned: an async function has room for each argument twice,
    // and a lane is four of them deep. Allocators are slow above 1 KB, so a lane is smaller.
    pub(super) async fn spend_on<T>(&mut self, mut work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        loop {
            Handle::try_current().ok()?;
            let (step, started) = (self.step.min(self.left), Instant::now());
            let done = run_for(step, work.as_mut()).await;
            self.left = self.left.saturating_sub(started.elapsed().min(step + TOLERANCE));
            if done.is_some() || self.left.is_zero() {
                return done;
            }
        }
    }

    /// As [`spend_on`](Self::spend_on), without a timer, for work that is polled at each tick: see
    /// [`while_ticking`]. Returns also whether the first poll gave the output.
    pub(super) fn spend_ticks_on<T>(
        &mut self,
        mut work: Pin<&mut impl Future<Output = T>>,
    ) -> impl Future<Output = (Option<T>, bool)> {
        let mut last = None;
        poll_fn(move |cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready((Some(done), last.is_none()));
            }
            if self.left.is_zero() {
                // All ready tasks have run since the time was up.
                return Poll::Ready((None, false));
            }
            let now = Instant::now();
            if let Some(last) = last.replace(now) {
                self.left = self.left.saturating_sub((now - last).min(self.step + TOLERANCE));
            }
            Poll::Pending
        })
    }
}

/// The output of `work`, or `None` if it is not there when `time` has passed and all ready tasks have run.
pub(super) async fn run_for<T>(time: Duration, mut work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    if let Ok(done) = timeout(time, work.as_mut()).await {
        return Some(done);
    }
    let mut is_last = false;
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if is_last => Poll::Ready(None),
        Poll::Pending => {
            is_last = true;
            // A task that wakes itself runs after those that are ready. `yield_now` of Tokio may run it
            // before them.
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

/// Runs `work` to its end, and `tick` from time to time.
#[expect(clippy::manual_async_fn, reason = "an async function would have room for `tick` twice")]
pub(super) fn while_ticking<T>(
    mut work: Pin<&mut impl Future<Output = T>>,
    mut tick: impl FnMut(),
) -> impl Future<Output = T> {
    async move {
        loop {
            match run_for(TICK, work.as_mut()).await {
                Some(done) => return done,
                None => tick(),
            }
        }
    }
}

pub(crate) fn deadline_in(allowed: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(allowed).unwrap_or(now + FAR_FUTURE)
}

/// The error of a decision that was sent and not answered. It may have been made. `deadline` is the store's
/// setting.
pub(crate) fn timed_out(deadline: Duration) -> Error {
    Error::new(ErrorKind::StoreTimeout, format!("Redis did not answer within {deadline:?}"))
}

/// The error of a command that was sent and not answered. It may have been carried out. The time it may take
/// is not a setting, so the text does not include it.
pub(super) fn not_answered() -> Error {
    Error::new(ErrorKind::StoreTimeout, "Redis did not answer in time")
}

/// The error if a round trip takes longer than the deadline.
pub(super) fn slow(round_trip: Duration, deadline: Duration) -> Error {
    Error::new(ErrorKind::StoreTimeout, slow_text(round_trip, deadline)).with_fault(Fault::Slow)
}

pub(crate) fn slow_text(round_trip: Duration, deadline: Duration) -> String {
    format!(
        "a round trip to Redis takes {}ms: raise RedisStoreBuilder::deadline, which is {deadline:?}, or use a Redis that \
         is nearer",
        round_trip.as_millis()
    )
}

pub(super) fn queue_full() -> Error {
    Error::new(
        ErrorKind::StoreBusy,
        "too many decisions wait for Redis; reduce the load, or spread the keys over more servers",
    )
}

/// The reply to a step of connecting, if it comes in time.
pub(crate) async fn answered<T>(reply: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    or_late(TimeLeft::new(CONNECT_TIMEOUT).spend_on(pin!(reply)).await)
}

/// A reply that does not come in time counts as a broken connection.
pub(super) fn or_late<T>(reply: Option<RedisResult<T>>) -> RedisResult<T> {
    reply.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        io::{Read as _, Write as _},
        net::TcpListener,
    };

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
        sync::oneshot,
        task::JoinSet,
        time::advance,
    };

    use super::*;

    const ALLOWED: Duration = Duration::from_millis(50);

    #[tokio::test(start_paused = true)]
    async fn work_that_does_not_end_takes_the_time_that_is_left() {
        let (started, mut time) = (Instant::now(), TimeLeft::new(ALLOWED));
        assert_eq!(time.spend_on(pin!(tokio::time::sleep(ALLOWED / 2))).await, Some(()));
        assert_eq!(time.spend_on(pin!(pending::<()>())).await, None);
        let taken = started.elapsed();
        assert!(taken >= ALLOWED && taken < ALLOWED + STEPS * TOLERANCE, "{taken:?}");
        assert_eq!(time.spend_on(pin!(ready(1))).await, Some(1), "it needs no time");
    }

    #[tokio::test(start_paused = true)]
    async fn time_without_the_cpu_does_not_count() {
        let mut time = TimeLeft::new(ALLOWED);
        let reply = async {
            // The process stands still for a second, and then needs another timer to read the reply.
            advance(Duration::from_secs(1)).await;
            tokio::time::sleep(TOLERANCE).await;
        };
        assert_eq!(time.spend_on(pin!(reply)).await, Some(()));
        assert_eq!(time.spend_on(pin!(pending::<()>())).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_ticks_of_a_lane_count_the_same_time_as_a_timer() {
        let (started, mut time) = (Instant::now(), TimeLeft::new(ALLOWED));
        let work = pin!(pending::<()>());
        assert_eq!(while_ticking(pin!(time.spend_ticks_on(work)), || {}).await, (None, false));
        let taken = started.elapsed();
        assert!(taken >= ALLOWED && taken < ALLOWED + STEPS * TOLERANCE, "{taken:?}");
        let mut time = TimeLeft::new(ALLOWED);
        let reply = pin!(async {
            tokio::time::sleep(TICK).await;
            // The process stands still for a second, and then needs another timer to read the reply.
            advance(Duration::from_secs(1)).await;
            tokio::time::sleep(TOLERANCE).await;
        });
        assert_eq!(while_ticking(pin!(time.spend_ticks_on(reply)), || {}).await, (Some(()), false));
        let immediate = pin!(ready(1));
        assert_eq!(time.spend_ticks_on(immediate).await, (Some(1), true));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn time_in_which_other_tasks_run_first_does_not_count() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut client, _) = server.accept().unwrap();
            while let Ok(1) = client.read(&mut [0]) {
                client.write_all(&[1]).unwrap();
            }
        });
        let mut others = JoinSet::new();
        // As many as a worker's own queue holds.
        for _ in 0..240 {
            others.spawn(poll_fn(|cx| {
                let started = std::time::Instant::now();
                while started.elapsed() < Duration::from_micros(300) {}
                cx.waker().wake_by_ref();
                Poll::<()>::Pending
            }));
        }
        let asks = async move {
            let mut connection = TcpStream::connect(address).await.unwrap();
            let mut replies = Vec::new();
            for _ in 0..10 {
                connection.write_all(&[0]).await.unwrap();
                let (sender, reply) = oneshot::channel();
                let reads = tokio::spawn(async move {
                    connection.read_exact(&mut [0]).await.unwrap();
                    let _ = sender.send(());
                    connection
                });
                replies.push(TimeLeft::new(ALLOWED / 3).spend_on(pin!(reply)).await.is_some());
                connection = reads.await.unwrap();
            }
            replies
        };
        // As a task of the worker's, like a server's tasks.
        assert_eq!(tokio::spawn(asks).await.unwrap(), [true; 10]);
    }
}
