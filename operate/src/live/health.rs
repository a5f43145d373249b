//! Whether an origin can be read, and how often: what policies, prices and blocklists have in common.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tower_ratelimit::{Error, ErrorKind};

/// The time between two reads of the origin, unless the handle sets another one.
const INTERVAL: Duration = Duration::from_millis(500);
/// A shorter pause would only keep a core busy.
const MIN_INTERVAL: Duration = Duration::from_millis(10);
/// No clock counts a much longer one from now.
const MAX_INTERVAL: Duration = Duration::from_secs(86_400);
/// After this time an error that came and went is logged again.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// The number of errors that are remembered for that.
const MOST_LOGGED: usize = 8;

/// The errors of the reads of an origin, and the time between them.
#[derive(Debug)]
pub(crate) struct Health {
    /// The name of the origin in errors and logs.
    origin: String,
    /// What it has: "policies".
    what: &'static str,
    /// The log line of an error.
    #[cfg_attr(not(feature = "tracing"), expect(dead_code, reason = "only logs have it"))]
    stays: &'static str,
    /// Whether an error of the content may name a client.
    has_clients: bool,
    errors: Mutex<Errors>,
    interval: Mutex<Duration>,
}

#[derive(Debug, Default)]
struct Errors {
    /// Why the latest read changed nothing.
    latest: Option<Error>,
    /// The latest errors in the log, the last one first. Several may alternate during an outage.
    logged: Vec<(Box<str>, Instant)>,
}

impl Health {
    pub(crate) fn new(origin: String, what: &'static str, stays: &'static str) -> Self {
        let (errors, interval) = (Mutex::default(), Mutex::new(INTERVAL));
        Self { origin, what, stays, has_clients: false, errors, interval }
    }

    /// Keeps errors of the content out of the log, because they may name a client.
    pub(crate) fn with_clients(mut self) -> Self {
        self.has_clients = true;
        self
    }

    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    pub(crate) fn error(&self) -> Option<Error> {
        self.errors.lock().latest.clone()
    }

    pub(crate) fn interval(&self) -> Duration {
        *self.interval.lock()
    }

    pub(crate) fn set_interval(&self, interval: Duration) {
        *self.interval.lock() = interval.clamp(MIN_INTERVAL, MAX_INTERVAL);
    }

    /// Records that the origin was read and nothing is wrong.
    pub(super) fn succeeded(&self) {
        let _failed = self.errors.lock().latest.take().is_some();
        #[cfg(feature = "metrics")]
        failed_sources_changed(-i64::from(_failed));
    }

    /// Records that the origin is not read again, because reading it panicked or its runtime ended. Not
    /// logged, because this is also how a service ends that does not drop its layers before its runtime.
    pub(super) fn stopped(&self, has_panicked: bool) {
        let cause = if has_panicked {
            "reading it panicked".to_owned()
        } else {
            let what = self.what;
            format!(
                "its Tokio runtime was shut down; make live {what} in a runtime that runs as long as the service"
            )
        };
        let message = format!("{} is not read any more: {cause}", self.origin);
        Self::record(&mut self.errors.lock(), Error::new(ErrorKind::MissingSetup, message));
    }

    /// Records `error`. Returns the one before.
    fn record(errors: &mut Errors, error: Error) -> Option<Error> {
        let before = errors.latest.replace(error);
        #[cfg(feature = "metrics")]
        failed_sources_changed(i64::from(before.is_none()));
        before
    }

    /// Records that `error` keeps the old content. Logs it unless it is the one of the latest read.
    pub(super) fn failed(&self, error: Error) {
        let (text, _kind) = (error.to_string(), error.kind());
        {
            let mut errors = self.errors.lock();
            let before = Self::record(&mut errors, error);
            let continues = before.is_some_and(|before| before.to_string() == text);
            errors.logged.retain(|(_, at)| at.elapsed() < REPORT_EVERY);
            if continues || errors.logged.iter().any(|(logged, _)| **logged == *text) {
                return;
            }
            errors.logged.truncate(MOST_LOGGED - 1);
            errors.logged.insert(0, (text.as_str().into(), Instant::now()));
        }
        // The lock is free here, because a subscriber may ask for the error.
        let _is_hidden = self.has_clients && _kind == ErrorKind::InvalidConfig;
        log!(
            warn,
            error = %if _is_hidden { "a field is invalid, which `last_error` names" } else { &*text },
            "{}",
            self.stays
        );
    }
}

/// The number of sources that failed changes by `change`. Called without a change too, because a recorder may
/// be installed later.
#[cfg(feature = "metrics")]
fn failed_sources_changed(change: i64) {
    use std::sync::atomic::{AtomicI64, Ordering};

    static FAILED: AtomicI64 = AtomicI64::new(0);
    let failed = FAILED.fetch_add(change, Ordering::Relaxed) + change;
    crate::panics::caught(|| {
        metrics::gauge!("ratelimit_failed_policy_sources").set(failed as f64);
    });
}

#[cfg(feature = "metrics")]
impl Drop for Health {
    fn drop(&mut self) {
        self.succeeded();
    }
}
