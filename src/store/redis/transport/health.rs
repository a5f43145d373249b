//! Tracks whether Redis is available, for logs and errors.

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
    /// The error of the last attempt to connect; `None` once an attempt succeeds.
    unreachable: Mutex<Option<RedisError>>,
}

/// An outage ends after this time without a failed decision.
const RECOVERY: Duration = Duration::from_secs(5);

impl Default for Health {
    fn default() -> Self {
        Self { outage: Outage::until_success(RECOVERY), unreachable: Mutex::default() }
    }
}

impl Health {
    /// Records the result of a request. Logs the start and the end of an outage.
    pub(crate) fn record<T>(&self, result: &Result<T, Error>) {
        match result {
            Ok(_) => {
                if self.outage.succeeded() {
                    log!(info, "the outage of Redis is over");
                }
            }
            Err(error) => {
                if self.outage.failed() {
                    log!(
                        warn,
                        error = %error,
                        "outage: Redis is unavailable; each policy's failure mode applies until it is over"
                    );
                }
                // Unused without the feature `tracing`.
                let _ = error;
            }
        }
    }

    pub(crate) fn connected(&self) {
        self.connect_error_slot().take();
    }

    pub(crate) fn connect_failed(&self, error: RedisError) {
        *self.connect_error_slot() = Some(error);
    }

    pub(crate) fn connect_error(&self) -> Option<RedisError> {
        self.connect_error_slot().clone()
    }

    fn connect_error_slot(&self) -> MutexGuard<'_, Option<RedisError>> {
        lock(&self.unreachable)
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
