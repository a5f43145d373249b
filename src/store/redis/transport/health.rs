//! Tracks whether Redis is available, for logs and errors.

use std::{
    mem,
    sync::{
        Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bb8_redis::bb8::ErrorSink;
use redis::RedisError;

use crate::{
    error::{Error, ErrorKind},
    util::sync::lock,
};

/// Shared by all clones of a store.
#[derive(Debug)]
pub(crate) struct Health {
    /// The address of the server, as the log names it.
    server: String,
    failing: AtomicBool,
    /// The outage; `None` while Redis is available.
    outage: Mutex<Option<Outage>>,
    /// The error of the last attempt to connect; `None` once an attempt succeeds.
    unreachable: Mutex<Option<RedisError>>,
    /// The attempts to connect that failed.
    failed_attempts: AtomicU64,
}

/// An outage ends with the first success after this time without a failure: during an outage, some decisions succeed.
const RECOVERY: Duration = Duration::from_secs(5);
/// The pause between two lines about an outage whose cause does not change.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// The pause before a line about another cause: two causes may alternate.
const SETTLED: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Outage {
    began: Instant,
    last_failure: Instant,
    /// Decisions that failed.
    failed: u64,
    cause: String,
    /// The time of the last line in the log.
    reported: Instant,
}

impl Default for Health {
    fn default() -> Self {
        Self::of("Redis".to_owned())
    }
}

impl Health {
    /// The health of the servers at `server`.
    pub(crate) fn of(server: String) -> Self {
        Self {
            server,
            failing: AtomicBool::default(),
            outage: Mutex::default(),
            unreachable: Mutex::default(),
            failed_attempts: AtomicU64::default(),
        }
    }

    /// Records the result of a decision or a command. Logs the start, the causes and the end of an outage.
    pub(crate) fn record<T>(&self, result: &Result<T, Error>) {
        match result {
            Ok(_) => {
                // Outside an outage this is one load.
                if self.failing.load(Ordering::Relaxed) {
                    self.succeeded(Instant::now());
                }
            }
            Err(error) => self.failed(error, 1, Instant::now()),
        }
    }

    /// Records that a probe failed, which may have another cause than the decisions before it.
    pub(super) fn failed_again(&self, cause: &Error) {
        self.failed(cause, 0, Instant::now());
    }

    fn failed(&self, error: &Error, decisions: u64, now: Instant) {
        let mut slot = lock(&self.outage);
        let Some(outage) = &mut *slot else {
            let cause = error.to_string();
            log!(
                warn,
                server = %self.server,
                cause = %cause,
                "outage: Redis is unavailable; the failure mode of each policy decides until it is back"
            );
            *slot = Some(Outage { began: now, last_failure: now, failed: decisions, cause, reported: now });
            self.failing.store(true, Ordering::Relaxed);
            return;
        };
        outage.failed += decisions;
        outage.last_failure = now;
        let since_report = now.duration_since(outage.reported);
        // A decision that was not sent repeats the cause of another one.
        let is_own = error.kind() != ErrorKind::StoreSuspended && since_report >= SETTLED;
        let changed = is_own.then(|| error.to_string()).filter(|cause| *cause != outage.cause);
        if changed.is_some() || since_report >= REPORT_EVERY {
            outage.reported = now;
            outage.cause = changed.unwrap_or_else(|| mem::take(&mut outage.cause));
            log!(
                warn,
                server = %self.server,
                cause = %outage.cause,
                failed = outage.failed,
                seconds = now.duration_since(outage.began).as_secs(),
                "the outage of Redis continues"
            );
        }
    }

    fn succeeded(&self, now: Instant) {
        let mut slot = lock(&self.outage);
        let is_over = |outage: &mut Outage| now.duration_since(outage.last_failure) > RECOVERY;
        if let Some(outage) = slot.take_if(is_over) {
            self.failing.store(false, Ordering::Relaxed);
            log!(
                info,
                server = %self.server,
                failed = outage.failed,
                seconds = outage.last_failure.duration_since(outage.began).as_secs(),
                "the outage of Redis is over"
            );
            // Unused without the feature `tracing`.
            let _ = (outage.began, &self.server);
        }
    }

    pub(crate) fn connected(&self) {
        self.connect_error_slot().take();
    }

    pub(crate) fn connect_failed(&self, error: RedisError) {
        *self.connect_error_slot() = Some(error);
        self.failed_attempts.fetch_add(1, Ordering::Release);
    }

    /// The attempts to connect that fail from now on.
    pub(super) fn attempts(&self) -> Attempts<'_> {
        Attempts { health: self, seen: self.failed_attempts.load(Ordering::Acquire) }
    }

    pub(crate) fn connect_error(&self) -> Option<RedisError> {
        self.connect_error_slot().clone()
    }

    fn connect_error_slot(&self) -> MutexGuard<'_, Option<RedisError>> {
        lock(&self.unreachable)
    }
}

/// The attempts to connect of all tasks, as one sees them that waits for a connection.
pub(super) struct Attempts<'a> {
    health: &'a Health,
    seen: u64,
}

impl Attempts<'_> {
    /// The error of an attempt that failed since the last call.
    pub(super) fn failed(&mut self) -> Option<RedisError> {
        let failed = self.health.failed_attempts.load(Ordering::Acquire);
        if mem::replace(&mut self.seen, failed) == failed { None } else { self.health.connect_error() }
    }
}

/// Records the pool's own failed attempts to connect. The reference is weak, because the pool outlives the store while
/// a connection is replaced, and `replace` stops once the store's health is dropped.
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
