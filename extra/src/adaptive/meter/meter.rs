//! [`LoadMeter`]: the measurements of a service, and the requests that are in flight.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use tokio::time::Instant;

use super::{
    histogram::{Counts, Histogram},
    window::Window,
};
/// Measures a service: how long its requests take, how many fail, and how many are in flight.
///
/// It is a layer. Put it directly around the service, **inside** the rate limit, so that it measures only the
/// service. [`Aimd`](crate::adaptive::Aimd), [`Gradient`](crate::adaptive::Gradient) and
/// [`Vegas`](crate::adaptive::Vegas) read it. Any number of `Aimd`s can read one meter, but only one
/// `Gradient` or `Vegas`, because each empties the queue at times that the others do not know. Cloning gives
/// another handle on the same measurements.
///
/// * **Latency** lasts until the service returns the head of the response. The time in which the body is sent
///   depends on the client, so it does not count.
/// * **In flight**: until the body ends, as for a limit on the [requests in
///   flight](tower_ratelimit::Policy::concurrency).
/// * **Failed**: the service panics, returns an error or a status of 500 or above, except 501 and 505, or the
///   head of the response has a `grpc-status` caused by a server: `UNKNOWN`, `INTERNAL`, `UNAVAILABLE` or
///   `DATA_LOSS`. Its duration does not count as a latency, because failing can be fast.
/// * **Ended by the client**: the request is dropped, or the response is 4xx, 501, 505, or has another
///   `grpc-status` except `OK`. Such requests can be quick and frequent without saying anything about the
///   service, so one counts only if it took longer than the median of the others, with that time. If all
///   clients give up after a long time, the service is overloaded.
///
/// A request costs two readings of the clock and about six atomic operations, together about 0.13
/// microseconds. A meter takes 15 KB, regardless of the traffic.
///
/// For a service that does not speak HTTP, call [`begin`](Self::begin), and drop what it returns if the
/// client ends the request.
///
/// # Example
///
/// ```
/// use http::{Request, Response, StatusCode};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit_extra::adaptive::LoadMeter;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let meter = LoadMeter::new();
/// let service = meter.layer(tower::service_fn({
///     let meter = meter.clone();
///     move |_: Request<String>| {
///         assert_eq!(meter.in_flight(), 1);
///         async { Ok::<_, std::convert::Infallible>(Response::new(String::new())) }
///     }
/// }));
/// let response = service.oneshot(Request::new(String::new())).await?;
/// // Until the body has been sent.
/// assert_eq!((response.status(), meter.in_flight()), (StatusCode::OK, 1));
/// drop(response);
/// assert_eq!(meter.in_flight(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LoadMeter(Arc<Totals>);

/// Everything counts only up, but for the requests in flight.
struct Totals {
    in_flight: AtomicU64,
    /// The requests in flight when one began, itself included: one entry for each request.
    found: Histogram,
    answered: Histogram,
    unserved: Histogram,
    failed: Histogram,
}

/// A request that a [`LoadMeter`] measures, from [`LoadMeter::begin`] until it is dropped. If a panic drops
/// it, it failed.
///
/// # Example
///
/// A job that is not an HTTP request:
///
/// ```
/// use tower_ratelimit_extra::adaptive::LoadMeter;
///
/// fn run(meter: &LoadMeter, job: impl FnOnce() -> Result<(), String>) {
///     let measured = meter.begin();
///     assert_eq!(meter.in_flight(), 1);
///     match job() {
///         Ok(()) => measured.succeeded(),
///         Err(_) => measured.failed(),
///     }
///     assert_eq!(meter.in_flight(), 0);
/// }
///
/// run(&LoadMeter::new(), || Err("no space left".to_owned()));
/// ```
#[must_use = "a request ends when this is dropped"]
pub struct InFlight {
    totals: Arc<Totals>,
    began: Instant,
    is_answered: bool,
}

/// How a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Answered,
    Failed,
    /// The client gave up, or sent what the service does not carry out.
    Unserved,
}

/// The state of a meter at a moment.
#[derive(Debug)]
pub(crate) struct Mark {
    at: Instant,
    answered: Counts,
    unserved: Counts,
    failed: Counts,
    found: Counts,
    in_flight: u64,
}

impl Mark {
    /// The requests that wait for their answer.
    fn waiting(&self) -> u64 {
        let ended = self.answered.total() + self.unserved.total() + self.failed.total();
        self.found.total().saturating_sub(ended)
    }
}

impl LoadMeter {
    /// A meter that has measured nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Totals {
            in_flight: AtomicU64::new(0),
            found: Histogram::new(),
            answered: Histogram::new(),
            unserved: Histogram::new(),
            failed: Histogram::new(),
        }))
    }

    /// Begins to measure a request, until the value is dropped. See [`InFlight`] for an example.
    pub fn begin(&self) -> InFlight {
        let others = self.0.in_flight.fetch_add(1, Relaxed);
        self.0.found.record_number(others + 1);
        InFlight { totals: self.0.clone(), began: Instant::now(), is_answered: false }
    }

    /// The requests in flight now.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.0.in_flight.load(Relaxed)
    }

    /// The current state of the meter.
    pub(crate) fn mark(&self) -> Mark {
        let totals = &*self.0;
        Mark {
            at: Instant::now(),
            answered: totals.answered.counts(),
            unserved: totals.unserved.counts(),
            failed: totals.failed.counts(),
            // After what has ended: each request that has ended has begun.
            found: totals.found.counts(),
            in_flight: self.in_flight(),
        }
    }

    /// The measurements since `mark`, and the start of the next window.
    pub(crate) fn since(&self, mark: &Mark) -> (Window, Mark) {
        let now = self.mark();
        let found = now.found.since(&mark.found);
        let window = Window {
            elapsed: now.at - mark.at,
            answered: now.answered.since(&mark.answered),
            unserved: now.unserved.since(&mark.unserved),
            failed: now.failed.since(&mark.failed),
            waiting: mark.waiting(),
            left: now.waiting(),
            began: found.total(),
            peak: found.largest().max(mark.in_flight),
        };
        (window, now)
    }
}

impl InFlight {
    /// Ends the request: it was answered as it should be.
    pub fn succeeded(mut self) {
        self.answer(Ended::Answered);
    }

    /// Ends the request: it failed.
    pub fn failed(mut self) {
        self.answer(Ended::Failed);
    }

    /// Records the latency. The request stays in flight until this is dropped.
    pub(super) fn answer(&mut self, ended: Ended) {
        let (totals, took) = (&*self.totals, self.began.elapsed());
        match ended {
            Ended::Answered => totals.answered.record(took),
            Ended::Unserved => totals.unserved.record(took),
            Ended::Failed => totals.failed.record(took),
        }
        self.is_answered = true;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.is_answered {
            self.answer(if thread::panicking() { Ended::Failed } else { Ended::Unserved });
        }
        self.totals.in_flight.fetch_sub(1, Relaxed);
    }
}

impl Default for LoadMeter {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for LoadMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadMeter").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").field("began", &self.began).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_window_has_what_ended_in_it() {
        let meter = LoadMeter::new();
        let first = meter.begin();
        let mark = meter.mark();
        advance(SECOND).await;
        let (window, _) = meter.since(&mark);
        assert_eq!((window.ended(), window.stuck(), window.is_idle()), (0, 1, false));
        assert_eq!(window.typical(), None);

        first.succeeded();
        let others = [(); 3].map(|()| meter.begin());
        advance(SECOND).await;
        others.into_iter().for_each(InFlight::failed);
        let (window, next) = meter.since(&mark);
        assert_eq!((window.ended(), window.stuck(), window.elapsed()), (4, 0, SECOND * 2));
        assert!((window.failed_share() - 0.75).abs() < 1e-9);
        // One for a second, in two; failures are not counted.
        assert!((window.in_flight() - 0.5).abs() < 0.02);
        let typical = window.typical().unwrap().as_secs_f64();
        assert!((0.97..1.03).contains(&typical), "{typical}");
        assert!((window.late_share(SECOND / 2) - 1.0).abs() < 1e-9);
        assert_eq!(window.late_share(SECOND * 2), 0.0);
        assert_eq!(window.peak(), 3.0);
        assert!(meter.since(&next).0.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn the_peak_is_momentary_and_counts_what_is_answered_and_not_sent() {
        let meter = LoadMeter::new();
        let mark = meter.mark();
        let mut burst: Vec<_> = (0..20).map(|_| meter.begin()).collect();
        advance(SECOND / 100).await;
        burst.iter_mut().for_each(|request| request.answer(Ended::Answered));
        let (window, mark) = meter.since(&mark);
        // Nothing waits for its answer, and all are in flight.
        assert_eq!((window.ended(), window.left, window.peak(), meter.in_flight()), (20, 0, 20.0, 20));
        burst.truncate(5);
        advance(SECOND).await;
        let (window, mark) = meter.since(&mark);
        assert_eq!((window.peak(), window.stuck(), window.is_idle()), (20.0, 0, true));
        drop(burst);
        let (window, mark) = meter.since(&mark);
        assert_eq!((window.ended(), window.peak()), (0, 5.0));
        assert_eq!((meter.since(&mark).0.peak(), meter.in_flight()), (0.0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_a_few_clients_hold_or_fail_change_neither_the_number_in_flight_nor_the_failed_share()
     {
        let meter = LoadMeter::new();
        let held = [(); 10].map(|()| meter.begin());
        let broken = [(); 10].map(|()| meter.begin());
        advance(SECOND * 600).await;
        let mark = meter.mark();
        // 20 at a time, for a second.
        for _ in 0..10 {
            let others = [(); 20].map(|()| meter.begin());
            advance(SECOND / 10).await;
            others.into_iter().for_each(InFlight::succeeded);
        }
        let (before, _) = meter.since(&mark);
        held.into_iter().for_each(InFlight::succeeded);
        let (window, _) = meter.since(&mark);
        assert!((before.in_flight() - 20.0).abs() < 1.0, "{}", before.in_flight());
        assert!(window.in_flight() < 1.06 * before.in_flight(), "{}", window.in_flight());

        // A few that are slow, or many that are quick.
        broken.into_iter().for_each(InFlight::failed);
        let slow = meter.since(&mark).0.failed_share();
        assert!(slow < 0.05, "{slow}");
        (0..1_000).for_each(|_| meter.begin().failed());
        let quick = meter.since(&mark).0.failed_share();
        assert!(quick < 0.05, "{quick}");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_clients_give_up_count_if_they_took_long() {
        let meter = LoadMeter::new();
        let mark = meter.mark();
        let answered = [(); 3].map(|()| meter.begin());
        let hasty = [(); 20].map(|()| meter.begin());
        let patient = [(); 9].map(|()| meter.begin());
        advance(SECOND / 100).await;
        drop(hasty);
        advance(SECOND / 10).await;
        answered.into_iter().for_each(InFlight::succeeded);
        advance(SECOND * 2).await;
        drop(patient);
        let (window, _) = meter.since(&mark);
        assert!(window.typical().unwrap() > SECOND);
        assert!((window.late_share(SECOND) - 0.75).abs() < 1e-9, "{}", window.late_share(SECOND));
    }
}
