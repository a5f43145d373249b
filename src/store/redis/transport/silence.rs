//! Connections that were silent for long. A device between the service and Redis may have forgotten such a connection,
//! or the server's host may have been replaced: what is sent over it is lost, without an error. So it is checked
//! before its next use.
//!
//! The check is made then, and not in the background: an idle store sends nothing, and a process or a machine that was
//! suspended has made no check in that time. It costs the first decision after the silence one more round trip. If the
//! reply does not come soon, another connection is opened in the meantime, because a decision must not wait for its
//! deadline, and because one that was sent and not answered is never sent again.

use std::{
    future::Future,
    pin::pin,
    time::{Duration, SystemTime},
};

use futures_util::future::{Either, select};
use redis::{RedisResult, aio::ConnectionLike};

use super::deadline::run_for;
use crate::store::redis::error::is_broken;

/// When connections are checked, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    /// A connection that was silent for this time is checked before it is used.
    pub(crate) longest: Duration,
    /// How long the reply to the check may take until another connection is opened.
    pub(crate) patience: Duration,
}

/// The longest [`Silence::patience`]. A round trip within a region takes a few milliseconds.
const PATIENCE: Duration = Duration::from_millis(20);

/// When a connection was last used.
///
/// By the wall clock, because the monotonic one stands still while a machine is suspended, and a checkout reads
/// one clock only. A clock that is set forward causes a check too many, and so does one that is set back to
/// before the last use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastUse(SystemTime);

impl Silence {
    /// The settings of a store whose decisions have this `deadline`.
    pub(crate) fn new(longest: Duration, deadline: Duration) -> Self {
        Self { longest, patience: (deadline / 8).min(PATIENCE) }
    }

    /// Whether a connection was silent for long from its `last` use until `now`, or may have been.
    pub(crate) fn is_long(&self, last: LastUse, now: LastUse) -> bool {
        last.is_followed_by(self.longest, now.0)
    }

    /// Checks `connection`. Returns the one of `open` if it does not answer.
    ///
    /// # Errors
    ///
    /// The error of `open`, if the connection does not answer either.
    pub(crate) async fn check<T>(
        &self,
        connection: &mut impl ConnectionLike,
        open: impl Future<Output = RedisResult<T>>,
    ) -> RedisResult<Option<T>> {
        let ping = redis::cmd("PING");
        let pong = async {
            let reply = connection.req_packed_command(&ping).await;
            !reply.is_err_and(|error| is_broken(&error))
        };
        let (mut pong, open) = (pin!(pong), pin!(open));
        match run_for(self.patience, pong.as_mut()).await {
            Some(true) => Ok(None),
            Some(false) => open.await.map(Some),
            None => match select(pong, open).await {
                Either::Left((true, _)) => Ok(None),
                Either::Left((false, open)) => open.await.map(Some),
                Either::Right((Ok(other), _)) => Ok(Some(other)),
                Either::Right((Err(error), pong)) => {
                    if pong.await {
                        Ok(None)
                    } else {
                        Err(error)
                    }
                }
            },
        }
    }
}

impl LastUse {
    pub(crate) fn now() -> Self {
        Self(SystemTime::now())
    }

    /// Whether a silence of this length has followed until `now`, or may have.
    fn is_followed_by(self, silence: Duration, now: SystemTime) -> bool {
        now.duration_since(self.0).map_or(silence < Duration::MAX, |since| since >= silence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_causes_a_check() {
        let (last, seconds) = (LastUse::now(), Duration::from_secs);
        let longest = seconds(30);
        assert!(!last.is_followed_by(longest, last.0));
        assert!(!last.is_followed_by(longest, last.0 + seconds(29)));
        assert!(last.is_followed_by(longest, last.0 + seconds(30)));
        assert!(last.is_followed_by(longest, last.0 - seconds(1)));
        assert!(!last.is_followed_by(Duration::MAX, last.0 - seconds(1)), "the check is off");
        assert!(last.is_followed_by(Duration::ZERO, last.0));
    }
}
