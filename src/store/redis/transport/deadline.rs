//! Deadlines, and the errors of missed ones.

use std::{io, time::Duration};

use redis::RedisResult;
use tokio::time::Instant;

use super::health::Health;
use crate::{
    error::{Error, ErrorKind},
    store::redis::error,
};

/// How long a connection without a reply is kept out of the pool before it counts as broken.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout of each step of connecting. bb8 waits at most half of it between two attempts.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Replaces a deadline that overflows.
const FAR_FUTURE: Duration = Duration::from_secs(86_400);

pub(crate) fn deadline_in(allowed: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(allowed).unwrap_or(now + FAR_FUTURE)
}

/// The error of a request that was sent. It may have been carried out.
pub(crate) fn timed_out(allowed: Duration) -> Error {
    Error::new(ErrorKind::StoreTimeout, format!("Redis did not answer within {allowed:?}"))
}

/// The error of a request that was not sent.
pub(super) fn no_connection(health: &Health, allowed: Duration) -> Error {
    match health.connect_error() {
        Some(error) => error::unreachable("", &error),
        None => Error::new(
            ErrorKind::StoreBusy,
            format!(
                "Redis or its connection pool was busy for {allowed:?}; reduce the load, or raise the store's deadline"
            ),
        ),
    }
}

pub(super) fn queue_full() -> Error {
    Error::new(
        ErrorKind::StoreBusy,
        "too many decisions wait for Redis; reduce the load, or spread the keys over more servers",
    )
}

/// A reply that times out counts as a broken connection.
pub(super) fn timeout_as_error<T, E>(reply: Result<RedisResult<T>, E>) -> RedisResult<T> {
    reply.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}
