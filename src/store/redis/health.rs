//! How the server has been lately: for the log, and for errors that say why.

use std::{
    sync::{
        LazyLock, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use bb8_redis::bb8::ErrorSink;
use redis::RedisError;

use crate::Error;

/// Shared by all clones of a store.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// When a decision failed last, in milliseconds of [`uptime`]; 0 where there is no trouble.
    failed: AtomicU64,
    /// Why the last attempt to connect failed, until one succeeds.
    unreachable: Mutex<Option<RedisError>>,
}

/// Some requests succeed while others fail, so trouble is over only after a while without it.
const CALM: u64 = 5_000;

impl Health {
    /// Logs the first failure of an episode, and the end of one.
    pub(super) fn note<T>(&self, result: &Result<T, Error>) {
        match result {
            Ok(_) => {
                let failed = self.failed.load(Ordering::Relaxed);
                // The usual case is one load.
                if failed != 0
                    && uptime().saturating_sub(failed) > CALM
                    && self.failed.compare_exchange(failed, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
                {
                    log!(info, "Redis decides again");
                }
            }
            Err(error) => {
                if self.failed.swap(uptime(), Ordering::Relaxed) == 0 {
                    log!(
                        warn,
                        error = %error,
                        "Redis gives no decision; as long as that is so, a policy's failure mode decides"
                    );
                }
                // Without the feature `tracing` it is not looked at.
                let _ = error;
            }
        }
    }

    pub(super) fn connected(&self) {
        self.last_error().take();
    }

    pub(super) fn not_connected(&self, error: RedisError) {
        *self.last_error() = Some(error);
    }

    pub(super) fn why_unreachable(&self) -> Option<RedisError> {
        self.last_error().clone()
    }

    fn last_error(&self) -> std::sync::MutexGuard<'_, Option<RedisError>> {
        self.unreachable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes note of the pool's own attempts to connect. The pool outlives the store while a connection of it
/// is being replaced, so it must not keep the store's health alive: that is how it is known to be gone.
#[derive(Clone, Debug)]
pub(super) struct ConnectErrors(pub(super) Weak<Health>);

impl ErrorSink<RedisError> for ConnectErrors {
    fn sink(&self, error: RedisError) {
        if let Some(health) = self.0.upgrade() {
            health.not_connected(error);
        }
    }

    fn boxed_clone(&self) -> Box<dyn ErrorSink<RedisError>> {
        Box::new(self.clone())
    }
}

/// Milliseconds since this was first asked, and never 0.
fn uptime() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
}
