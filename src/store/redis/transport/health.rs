//! Whether Redis is available: for the log, and for errors that say why it is not.

use std::{
    sync::{Mutex, MutexGuard, Weak},
    time::Duration,
};

use bb8_redis::bb8::ErrorSink;
use redis::RedisError;

use crate::{
    error::Error,
    util::{outage::Outage, sync::lock},
};

/// Shared by all clones of a store.
#[derive(Debug)]
pub(crate) struct Health {
    outage: Outage,
    /// Why the last attempt to connect failed, until one succeeds.
    unreachable: Mutex<Option<RedisError>>,
}

/// An outage is over only when no decision failed for so long.
const CALM: Duration = Duration::from_secs(5);

impl Default for Health {
    fn default() -> Self {
        Self { outage: Outage::until_success(CALM), unreachable: Mutex::default() }
    }
}

impl Health {
    /// Logs the first failure of an outage, and its end.
    pub(crate) fn note<T>(&self, result: &Result<T, Error>) {
        match result {
            Ok(_) => {
                if self.outage.succeeded() {
                    log!(info, "Redis decides again");
                }
            }
            Err(error) => {
                if self.outage.failed() {
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

    pub(crate) fn connected(&self) {
        self.last_error().take();
    }

    pub(crate) fn not_connected(&self, error: RedisError) {
        *self.last_error() = Some(error);
    }

    pub(crate) fn why_unreachable(&self) -> Option<RedisError> {
        self.last_error().clone()
    }

    fn last_error(&self) -> MutexGuard<'_, Option<RedisError>> {
        lock(&self.unreachable)
    }
}

/// Takes note of the pool's own attempts to connect. The pool outlives the store while a connection of it
/// is being replaced, so it must not keep the store's health alive: that is how it is known to be gone.
#[derive(Clone, Debug)]
pub(crate) struct ConnectErrors(pub(crate) Weak<Health>);

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
