//! Opens the connections of a pool to one server, and names them.

use std::{
    future::{Future, ready},
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use bb8_redis::bb8::ManageConnection;
use redis::{
    Cmd, ConnectionInfo, Pipeline, RedisError, RedisFuture, RedisResult, Value, aio::ConnectionLike,
};
use tokio::time::Instant;

#[cfg(feature = "sentinel")]
use super::primary::{Followed, Primary};
use super::{
    opener::{Opened, Opener},
    stream::or_once_more,
};
use crate::{
    base::{UnderWay, sync::lock},
    store::redis::{
        credentials::Session,
        error::is_broken,
        transport::{COMMANDS, LastUse, Silence, answered},
    },
};

/// How the server is found.
#[derive(Clone)]
pub(super) enum Source {
    /// At the address of a URL.
    Url(Arc<ConnectionInfo>, Opener),
    /// At the address that the sentinels report.
    #[cfg(feature = "sentinel")]
    Primary(Arc<Primary>),
}

/// The name of the connections in `CLIENT LIST`.
const NAME: &str = "tower-ratelimit";

/// Connects to the server of a `Source`.
pub(super) struct Manager {
    pub(super) source: Source,
    gate: Gate,
    silence: Silence,
}

/// A connection to a server. Boxed, because the pool moves it a dozen times at each checkout and return.
pub(super) struct Connection(Box<Connected>);

struct Connected {
    opened: Opened,
    /// When it was opened or taken from the pool. No call takes long enough to make a difference, and no lane holds
    /// a connection for long.
    used: LastUse,
    /// Whether a check of it has begun and not ended. It may have been forgotten.
    is_in_doubt: bool,
    /// The primary that it leads to, if sentinels named the server.
    #[cfg(feature = "sentinel")]
    followed: Option<Followed>,
}

impl Manager {
    pub(super) fn new(source: Source, silence: Silence) -> Self {
        Self { source, gate: Gate::default(), silence }
    }

    /// A manager of the same server for another pool. The attempts of the two to connect do not wait for each
    /// other.
    pub(super) fn for_another_pool(&self) -> Self {
        Self::new(self.source.clone(), self.silence)
    }

    /// The commands that the connections send, as in an ACL.
    pub(super) fn commands(&self) -> Vec<&'static str> {
        let (database, role) = match &self.source {
            Source::Url(info, _) => (info.redis_settings().db(), None),
            #[cfg(feature = "sentinel")]
            Source::Primary(primary) => (primary.database(), Some("role")),
        };
        let select = (database != 0).then_some("select");
        COMMANDS.into_iter().chain(role).chain(select).collect()
    }

    async fn open(&self) -> RedisResult<Connection> {
        let (used, is_in_doubt) = (LastUse::now(), false);
        let connected = match &self.source {
            Source::Url(info, opener) => Connected {
                opened: opener.open(info).await?,
                used,
                is_in_doubt,
                #[cfg(feature = "sentinel")]
                followed: None,
            },
            #[cfg(feature = "sentinel")]
            Source::Primary(primary) => {
                let (opened, followed) = primary.connect().await?;
                Connected { opened, used, is_in_doubt, followed: Some(followed) }
            }
        };
        let mut connection = Connection(Box::new(connected));
        let mut set_name = redis::cmd("CLIENT");
        set_name.arg("SETNAME").arg(NAME);
        let named: RedisResult<()> = answered(set_name.query_async(&mut connection)).await;
        match named {
            Err(error) if is_broken(&error) => Err(error),
            // A user without the permission, or a proxy that does not support the command, needs no name.
            _ => Ok(connection),
        }
    }

    /// Checks a connection that was silent for long. Replaces it if it does not answer soon.
    async fn check(&self, connection: &mut Connection) -> RedisResult<()> {
        connection.0.is_in_doubt = true;
        let checked = self.silence.check(&mut connection.0.opened.connection, self.connect()).await?;
        match checked {
            Some(other) => *connection = other,
            None => connection.0.is_in_doubt = false,
        }
        Ok(())
    }
}

impl ManageConnection for Manager {
    type Connection = Connection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Self::Connection, Self::Error> {
        // Once is enough while attempts fail: others follow soon.
        if self.gate.is_failing() {
            return self.gate.pass(Box::pin(self.open())).await;
        }
        self.gate.pass(Box::pin(or_once_more(|| self.open()))).await
    }

    /// The pool asks this whenever it returns a connection.
    async fn is_valid(&self, connection: &mut Self::Connection) -> Result<(), Self::Error> {
        let last = mem::replace(&mut connection.0.used, LastUse::now());
        if !self.silence.is_long(last, connection.0.used) {
            return Ok(());
        }
        // Boxed because it is rare, and larger than all else in a checkout.
        Box::pin(self.check(connection)).await
    }

    /// The pool asks this whenever a connection comes back.
    fn has_broken(&self, connection: &mut Self::Connection) -> bool {
        let connection = &*connection.0;
        if connection.is_in_doubt {
            return true;
        }
        if connection.opened.session.as_ref().is_some_and(Session::is_over) {
            return true;
        }
        #[cfg(feature = "sentinel")]
        if let Some(followed) = &connection.followed {
            return followed.is_outdated();
        }
        false
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        if let Some(Err(closed)) = self.0.opened.session.as_ref().map(Session::check) {
            return Box::pin(ready(Err(closed)));
        }
        #[cfg(feature = "sentinel")]
        if let Some(followed) = &self.0.followed {
            return Box::pin(async {
                followed.before_command()?;
                let reply = self.0.opened.connection.req_packed_command(cmd).await;
                followed.observe(&reply);
                reply
            });
        }
        self.0.opened.connection.req_packed_command(cmd)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.0.opened.connection.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.opened.connection.get_db()
    }
}

/// The most attempts that are under way while attempts fail.
const MOST: usize = 2;
/// The pause after an attempt that failed. It doubles with each failure, up to `LONGEST_PAUSE`.
const PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Limits the attempts to connect to a server that does not accept them.
///
/// A pool, and each connection that is being replaced, tries again separately. So while attempts fail, at
/// most two are under way, with a pause after each failure. There are two so that an attempt that hangs does
/// not delay the first success. All other attempts fail immediately with the error of the last one, so no
/// caller waits for its turn.
#[derive(Default)]
struct Gate {
    under_way: UnderWay,
    failed: Mutex<Option<Failed>>,
}

/// The failure of the last attempt.
struct Failed {
    error: RedisError,
    pause: Duration,
    next: Instant,
}

impl Gate {
    fn is_failing(&self) -> bool {
        lock(&self.failed).is_some()
    }

    /// The output of `attempt`, if it may be made now.
    ///
    /// # Errors
    ///
    /// The error of `attempt`, or of the last attempt if this one may not be made.
    async fn pass<T>(&self, attempt: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        let _under_way = {
            let failed = lock(&self.failed);
            let is_full = self.under_way.count() >= MOST;
            match &*failed {
                Some(failed) if is_full || Instant::now() < failed.next => return Err(failed.error.clone()),
                _ => self.under_way.begin(),
            }
        };
        let ended = attempt.await;
        let mut failed = lock(&self.failed);
        *failed = ended.as_ref().err().map(|error| {
            let pause = failed.take().map_or(PAUSE, |failed| (failed.pause * 2).min(LONGEST_PAUSE));
            Failed { error: error.clone(), pause, next: Instant::now() + pause }
        });
        drop(failed);
        ended
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        io,
    };

    use tokio::time::timeout;

    use super::*;

    async fn attempt_fails(gate: &Gate) -> Option<bool> {
        let mut was_made = false;
        let attempt = async {
            was_made = true;
            Err::<(), _>(io::Error::from(io::ErrorKind::ConnectionRefused).into())
        };
        let error = gate.pass(attempt).await.unwrap_err();
        error.is_connection_refusal().then_some(was_made)
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_that_fail_have_pauses_that_grow_until_one_succeeds() {
        let (gate, started) = (Gate::default(), Instant::now());
        let mut made = Vec::new();
        while started.elapsed() < Duration::from_secs(1) {
            if attempt_fails(&gate).await.unwrap() {
                made.push(started.elapsed().as_millis());
            }
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(made, [0, 25, 75, 175, 375, 625, 875]);
        tokio::time::advance(LONGEST_PAUSE).await;
        gate.pass(ready(Ok(()))).await.unwrap();
        assert_eq!([attempt_fails(&gate).await, attempt_fails(&gate).await], [Some(true), Some(false)]);
        tokio::time::advance(PAUSE).await;
        assert_eq!(attempt_fails(&gate).await, Some(true), "the pause is short again");
    }

    #[tokio::test(start_paused = true)]
    async fn one_attempt_that_hangs_leaves_room_for_another() {
        let gate = Gate::default();
        assert_eq!(attempt_fails(&gate).await, Some(true));
        tokio::time::advance(PAUSE).await;
        let mut hangs = Box::pin(gate.pass(pending::<RedisResult<()>>()));
        assert!(timeout(Duration::ZERO, &mut hangs).await.is_err());
        assert_eq!(attempt_fails(&gate).await, Some(true), "another one is under way");
        tokio::time::advance(PAUSE * 2).await;
        let mut hangs_too = Box::pin(gate.pass(pending::<RedisResult<()>>()));
        assert!(timeout(Duration::ZERO, &mut hangs_too).await.is_err());
        assert_eq!(attempt_fails(&gate).await, Some(false), "two others are under way");
        drop((hangs, hangs_too));
        gate.pass(ready(Ok(()))).await.unwrap();
    }
}
