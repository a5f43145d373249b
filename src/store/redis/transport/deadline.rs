//! How long a decision may take, and the errors that say it took too long.

use std::{io, time::Duration};

use redis::RedisResult;
use tokio::time::Instant;

use super::health::Health;
use crate::{
    error::{Error, ErrorKind},
    store::redis::error,
};

/// How long an unanswered connection is kept out of the pool before it counts as broken.
pub(super) const GIVE_UP: Duration = Duration::from_secs(1);
/// How long a step of connecting may take. bb8 waits at most half of this between two attempts.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);
/// Longer than any caller waits.
const LONG: Duration = Duration::from_secs(86_400);

pub(crate) fn in_time(allowed: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(allowed).unwrap_or(now + LONG)
}

/// The server may have done what it was asked to.
pub(crate) fn too_late(allowed: Duration) -> Error {
    Error::new(ErrorKind::StoreTimeout, format!("Redis did not answer within {allowed:?}"))
}

/// Nothing was sent.
pub(super) fn no_turn(health: &Health, allowed: Duration) -> Error {
    match health.why_unreachable() {
        Some(error) => error::unreachable("", &error),
        None => Error::new(
            ErrorKind::StoreBusy,
            format!(
                "Redis or the pool of connections to it was busy for {allowed:?}; give it less to do, or the store \
                 more time"
            ),
        ),
    }
}

pub(super) fn too_many() -> Error {
    Error::new(
        ErrorKind::StoreBusy,
        "too many decisions wait for Redis; give it more connections, or spread the keys over more servers",
    )
}

/// A reply that did not come in time counts as a broken connection.
pub(super) fn in_patience<T, E>(reply: Result<RedisResult<T>, E>) -> RedisResult<T> {
    reply.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}
