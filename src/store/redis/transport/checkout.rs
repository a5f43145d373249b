//! Checks out connections from a pool.

use bb8_redis::bb8::{ManageConnection, Pool, PooledConnection, RunError};
use redis::{RedisError, RedisResult};
use tokio::time::{Instant, timeout_at};

use super::health::Health;
use crate::{base::Error, store::redis::error::not_connected};

/// A connection of `pool`. Waits without a limit; the caller sets one.
pub(super) async fn connection<M>(pool: &Pool<M>) -> RedisResult<PooledConnection<'static, M>>
where
    M: ManageConnection<Error = RedisError>,
{
    loop {
        match pool.get_owned().await {
            Ok(connection) => return Ok(connection),
            Err(RunError::User(error)) => return Err(error),
            // The pool's own timeout, which may be shorter than the caller's.
            Err(RunError::TimedOut) => {}
        }
    }
}

pub(crate) async fn connection_until<M>(
    pool: &Pool<M>,
    health: &Health,
    deadline: Instant,
) -> Result<PooledConnection<'static, M>, Error>
where
    M: ManageConnection<Error = RedisError>,
{
    match timeout_at(deadline, connection(pool)).await {
        Ok(Ok(connection)) => {
            health.connected();
            Ok(connection)
        }
        Ok(Err(error)) => Err(not_connected(&error)),
        Err(_) => Err(health.no_connection()),
    }
}
