//! Tracks whether Redis is available, for logs and errors.

use std::{
    mem,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bb8_redis::bb8::ErrorSink;
use redis::RedisError;

use super::{deadline::timed_out, queue::Wait};
use crate::{
    base::{Error, ErrorKind, Fault, sync::lock},
    decision::Decision,
    store::{
        ServerClock,
        redis::{
            connect::is_closed,
            error::unreachable,
            job::{Fate, Job},
            wire,
        },
    },
};

/// Shared by all clones of a store.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// The address of the server, as the log names it.
    pub(crate) server: String,
    /// The store's setting.
    pub(super) deadline: Duration,
    /// The clock of the servers, for the windows of a calendar.
    pub(crate) clock: Arc<ServerClock>,
    failing: AtomicBool,
    /// The outage; `None` while Redis is available.
    outage: Mutex<Option<Outage>>,
    /// The decisions that failed for a reason that concerns only them.
    single: Mutex<Single>,
    attempts: Mutex<Attempts>,
    /// Whether the last attempt to connect failed and the server has answered no call since.
    is_unreachable: AtomicBool,
    /// Whether the log has the line about the start.
    introduced: AtomicBool,
}

/// The first success after this time without a failure is the end of an outage: during an outage, some
/// decisions succeed. A probe waits less, because all decisions failed before it.
const RECOVERY: Duration = Duration::from_secs(5);
/// The time without a failure after a probe that ends an outage.
pub(super) const RECOVERY_AFTER_PROBE: Duration = Duration::from_secs(1);
/// The pause between two lines about an outage whose cause does not change.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// How long a server may close all connections during their setup, and answer nothing, until it does not work. An
/// operator who kills connections closes several in a row, and a load balancer that replaces a server does too. Until
/// then, decisions wait for a connection until their deadlines, and those that are late count for the breaker.
const GRACE: Duration = Duration::from_secs(1);
/// The pause before a line about another cause: two causes may alternate.
const SETTLED: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Outage {
    began: Instant,
    last_failure: Instant,
    /// The first success since the last failure.
    recovered: Option<Instant>,
    /// Decisions that failed.
    failed: u64,
    cause: String,
    /// The time of the last line in the log. `None` until it has a line: a single answer that is late has
    /// none.
    reported: Option<Instant>,
}

/// A line in the log about an outage. Written once no lock is held, because a subscriber may make a decision.
enum Line {
    Begins { cause: String },
    Continues { cause: String, failed: u64, length: Duration },
}

#[derive(Debug, Default)]
struct Single {
    /// Since the last line in the log.
    failed: u64,
    reported: Option<Instant>,
}

/// The attempts to connect.
#[derive(Debug, Default)]
struct Attempts {
    /// Whether one ever succeeded.
    has_connected: bool,
    /// The error of the last one, if it failed.
    error: Option<RedisError>,
    /// Whether a breaker has counted that one.
    is_counted: bool,
    /// Whether the server may work nevertheless: it has answered since, or has accepted the connection and
    /// closed it while it was set up. If it closes further ones for [`GRACE`] and answers nothing, it does not work.
    is_refuted: bool,
    /// When the first of the attempts failed that have failed without an answer in between.
    failing_since: Option<Instant>,
    /// Whether the server has answered since that one.
    has_answered: bool,
}

impl Outage {
    fn new(began: Instant, cause: &Error) -> Self {
        let cause = cause.to_string();
        Self { began, last_failure: began, recovered: None, failed: 0, cause, reported: None }
    }

    /// Counts the `decisions` that failed with `error` at the time `now`. Returns the line to write.
    fn failed(&mut self, now: Instant, error: &Error, decisions: u64, is_certain: bool) -> Option<Line> {
        self.failed += decisions;
        self.last_failure = now;
        self.recovered = None;
        let Some(reported) = self.reported else {
            let begins = is_certain || now - self.began >= SETTLED;
            self.reported = begins.then_some(now);
            return begins.then(|| Line::Begins { cause: self.cause.clone() });
        };
        let since_report = now.duration_since(reported);
        // Only evidence replaces the first cause. Why a server is silent is a guess.
        let changes = error.is_evidence() && since_report >= SETTLED;
        let changed = changes.then(|| error.to_string()).filter(|cause| *cause != self.cause);
        if changed.is_none() && since_report < REPORT_EVERY {
            return None;
        }
        self.reported = Some(now);
        self.cause = changed.unwrap_or_else(|| mem::take(&mut self.cause));
        let (cause, failed) = (self.cause.clone(), self.failed);
        Some(Line::Continues { cause, failed, length: now.duration_since(self.began) })
    }
}

impl Health {
    /// The health of the servers at `server`. Decisions have this `deadline`.
    pub(crate) fn new(server: String, deadline: Duration) -> Self {
        Self { server, deadline, ..Self::default() }
    }

    /// Records the result of a decision or a command. Logs the start, the causes and the end of an outage.
    pub(crate) fn record<T>(&self, result: &Result<T, Error>) {
        match result {
            // Outside an outage this is one load.
            Ok(_) if self.failing.load(Ordering::Relaxed) => {
                self.succeeded();
                self.end_after(RECOVERY);
            }
            Ok(_) => {}
            Err(error) if error.fault().is_some_and(Fault::is_of_one_decision) => self.failed_alone(error),
            Err(error) => self.failed(error, 1),
        }
    }

    /// Ends the wait of a caller: decodes and records the decision in the reply to its `job`.
    pub(super) fn finish(&self, job: &Job, fate: Fate) -> Result<Decision, Error> {
        let decision = match fate {
            Fate::Replied(reply) => reply.and_then(|reply| wire::decision(job, reply)),
            // The decision may have been made.
            Fate::Lost => Err(self.late()),
        };
        #[cfg(feature = "metrics")]
        {
            // Not under the lock, because a recorder runs here.
            let entered = *lock(&job.entered);
            if let Some(entered) = entered {
                metric!(waited(entered.elapsed()));
            }
        }
        if !job.is_patient {
            self.record(&decision);
        }
        decision
    }

    /// Whether no call has succeeded since the last one that failed.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Records that this number of `decisions` failed; none if a probe did, which may have another cause than
    /// they, or if the breaker opens.
    ///
    /// The log has a line about an outage once it is one: if the server states a reason, the breaker is open,
    /// or failures go on for a second. A single answer that is late is not.
    pub(super) fn failed(&self, error: &Error, decisions: u64) {
        let now = Instant::now();
        let is_certain = error.is_evidence() || error.kind() == ErrorKind::StoreSuspended || decisions == 0;
        let (is_new, line) = {
            let mut slot = lock(&self.outage);
            let (outage, is_new) = match &mut *slot {
                Some(outage)
                    if outage.reported.is_some() || now - outage.last_failure <= RECOVERY_AFTER_PROBE =>
                {
                    (outage, false)
                }
                slot => {
                    self.failing.store(true, Ordering::Relaxed);
                    (slot.insert(Outage::new(now, error)), true)
                }
            };
            (is_new, outage.failed(now, error, decisions, is_certain))
        };
        if is_new {
            log!(debug, server = %self.server, cause = %error, "a decision of Redis failed");
        }
        match line {
            Some(Line::Begins { cause }) => log!(
                warn,
                server = %self.server,
                cause = %cause,
                "outage: Redis is unavailable; the failure mode of each policy decides until it is back"
            ),
            Some(Line::Continues { cause, failed, length }) => log!(
                warn,
                server = %self.server,
                cause = %cause,
                failed = failed,
                seconds = seconds(length),
                "the outage of Redis continues"
            ),
            None => {}
        }
    }

    /// Records a failure that says nothing about other decisions.
    fn failed_alone(&self, error: &Error) {
        let failed = {
            let mut single = lock(&self.single);
            single.failed += 1;
            if single.reported.is_some_and(|reported| reported.elapsed() < REPORT_EVERY) {
                return;
            }
            mem::replace(&mut *single, Single { failed: 0, reported: Some(Instant::now()) }).failed
        };
        log!(
            warn,
            server = %self.server,
            cause = %error,
            failed = failed,
            "decisions on a key or of an algorithm fail; the failure mode of their policy decides"
        );
    }

    /// Records that Redis has answered.
    pub(super) fn succeeded(&self) {
        if let Some(outage) = &mut *lock(&self.outage) {
            outage.recovered.get_or_insert_with(Instant::now);
        }
    }

    /// Ends the outage if nothing has failed for longer than `time`.
    pub(super) fn end_after(&self, time: Duration) {
        let outage = {
            let mut slot = lock(&self.outage);
            let Some(outage) = slot.take_if(|outage| outage.last_failure.elapsed() > time) else { return };
            self.failing.store(false, Ordering::Relaxed);
            outage
        };
        if outage.reported.is_some() {
            log!(
                info,
                server = %self.server,
                failed = outage.failed,
                seconds = seconds(outage.recovered.unwrap_or(outage.last_failure).duration_since(outage.began)),
                "the outage of Redis is over"
            );
        }
    }

    /// Whether this is the first call, so that a line about the start is logged once.
    pub(crate) fn introduce(&self) -> bool {
        !self.introduced.swap(true, Ordering::Relaxed)
    }

    /// The error of a decision that was sent and not answered, even if the deadline was for a part of it.
    pub(super) fn late(&self) -> Error {
        timed_out(self.deadline)
    }

    /// The error of a request that was not sent before its deadline.
    pub(super) fn not_sent(&self, wait: Wait) -> Error {
        let attempts = lock(&self.attempts);
        if let Some(error) = &attempts.error {
            return unreachable("", error);
        }
        let (kind, text) = match wait {
            Wait::ForOthers => (
                ErrorKind::StoreBusy,
                "Redis or its connection pool was busy for longer than the deadline; reduce the load, or raise \
                 RedisStoreBuilder::deadline",
            ),
            Wait::InSilence if attempts.has_connected => (
                ErrorKind::StoreUnreachable,
                "Redis does not answer: it did not accept a connection or answer a call before the deadline; check the \
                 server and the network, or raise RedisStoreBuilder::deadline",
            ),
            Wait::InSilence => (
                ErrorKind::StoreUnreachable,
                "Redis does not answer: the first connection is not open yet; if it never is, check the address, firewalls, \
                 and whether the server expects TLS: write rediss:// if it does, and write redis:// if it does not",
            ),
        };
        Error::new(kind, text)
    }

    pub(super) fn connected(&self) {
        let mut attempts = lock(&self.attempts);
        (attempts.has_connected, attempts.error) = (true, None);
        self.is_unreachable.store(false, Ordering::Relaxed);
    }

    pub(super) fn connect_failed(&self, error: RedisError) {
        self.connect_failed_at(Instant::now(), error);
    }

    fn connect_failed_at(&self, now: Instant, error: RedisError) {
        let mut attempts = lock(&self.attempts);
        if attempts.error.is_none() || attempts.has_answered {
            attempts.failing_since = None;
        }
        let since = *attempts.failing_since.get_or_insert(now);
        attempts.is_refuted = is_closed(&error) && now - since < GRACE;
        (attempts.error, attempts.is_counted, attempts.has_answered) = (Some(error), false, false);
        self.is_unreachable.store(true, Ordering::Relaxed);
    }

    /// Records that the server has answered a call. If an attempt to connect has failed, that says nothing about the
    /// server.
    pub(super) fn answered(&self) {
        if self.is_unreachable.load(Ordering::Relaxed) {
            self.refute();
        }
    }

    #[cold]
    fn refute(&self) {
        let mut attempts = lock(&self.attempts);
        (attempts.is_refuted, attempts.has_answered) = (true, true);
        self.is_unreachable.store(false, Ordering::Relaxed);
    }

    /// The error of the last attempt to connect, if it has failed because the server does not work, and is not
    /// counted yet. It is counted now.
    pub(super) fn count_failed_attempt(&self) -> Option<Error> {
        let mut attempts = lock(&self.attempts);
        if attempts.is_refuted {
            return None;
        }
        let error = attempts.error.as_ref().map(|error| unreachable("", error))?;
        (!mem::replace(&mut attempts.is_counted, true)).then_some(error)
    }

    /// The error of the last attempt to connect, if it failed because the server does not work.
    pub(super) fn connect_error(&self) -> Option<RedisError> {
        let attempts = lock(&self.attempts);
        attempts.error.clone().filter(|_| !attempts.is_refuted)
    }
}

/// A length of an outage, to the millisecond. One division rounds it to the number with the fewest digits.
fn seconds(length: Duration) -> f64 {
    f64::from(u32::try_from(length.as_millis()).unwrap_or(u32::MAX)) / 1e3
}

/// Records the pool's own failed attempts to connect. The reference is weak, because the pool outlives the
/// store while a connection is replaced, and `replace` stops once the store's health is dropped.
#[derive(Clone, Debug)]
pub(crate) struct ConnectErrors(pub(crate) Weak<Health>);

impl ErrorSink<RedisError> for ConnectErrors {
    fn sink(&self, error: RedisError) {
        if let Some(health) = self.0.upgrade() {
            health.connect_failed(error);
        }
    }

    fn boxed_clone(&self) -> Box<dyn ErrorSink<RedisError>> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_an_outage_has_three_decimals_at_most() {
        assert_eq!(format!("{:?}", seconds(Duration::from_micros(10_694_900))), "10.694");
    }

    /// Whether each attempt counts for the breaker, by what happened before, each at a time in milliseconds.
    #[test]
    fn connections_that_are_closed_during_their_setup_count_if_that_goes_on_and_nothing_is_answered() {
        use std::io::ErrorKind::{ConnectionRefused, ConnectionReset, TimedOut, UnexpectedEof};
        type Event = (u64, Option<std::io::ErrorKind>);
        let rows: [(&str, &[Event], &[bool]); 8] = [
            ("no server listens", &[(0, Some(ConnectionRefused))], &[true]),
            ("it hangs", &[(0, Some(TimedOut))], &[true]),
            ("closed once", &[(0, Some(ConnectionReset))], &[false]),
            (
                "closed for less than a second",
                &[(0, Some(ConnectionReset)), (25, Some(UnexpectedEof)), (999, Some(ConnectionReset))],
                &[false, false, false],
            ),
            (
                "closed for a second",
                &[(0, Some(ConnectionReset)), (999, Some(UnexpectedEof)), (1_000, Some(ConnectionReset))],
                &[false, false, true],
            ),
            (
                "answered in between",
                &[
                    (0, Some(ConnectionReset)),
                    (900, None),
                    (1_800, Some(ConnectionReset)),
                    (2_799, Some(ConnectionReset)),
                ],
                &[false, false, false, false],
            ),
            (
                "closed, then not listening",
                &[(0, Some(ConnectionReset)), (25, Some(ConnectionRefused))],
                &[false, true],
            ),
            ("answered since", &[(0, Some(ConnectionRefused)), (1, None)], &[true, false]),
        ];
        let start = Instant::now();
        for (name, events, expected) in rows {
            let health = Health::new(String::new(), Duration::from_millis(50));
            let counts = events.iter().map(|(millis, event)| {
                match event {
                    Some(kind) => {
                        let now = start + Duration::from_millis(*millis);
                        health.connect_failed_at(now, std::io::Error::from(*kind).into());
                    }
                    None => health.answered(),
                }
                let is_unreachable = health.connect_error().is_some();
                assert_eq!(health.count_failed_attempt().is_some(), is_unreachable, "{name}");
                assert!(health.count_failed_attempt().is_none(), "{name}: each counts once");
                is_unreachable
            });
            assert_eq!(counts.collect::<Vec<_>>(), expected, "{name}");
            assert!(health.not_sent(Wait::InSilence).to_string().starts_with("cannot connect"), "{name}");
        }
    }

    #[test]
    fn a_request_without_a_connection_fails_with_the_cause_of_the_last_attempt() {
        let health = Health::new("10.0.0.1:6379".to_owned(), Duration::from_millis(50));
        health.connect_failed(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into());
        let error = health.not_sent(Wait::InSilence).to_string();
        assert!(error.starts_with("cannot connect to Redis: connection refused"), "{error}");
    }
}
