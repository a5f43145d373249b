//! Connections that carry one call at a time, are replaced when they break, and are never left with a reply that
//! another caller could read.

use std::{
    future::{Future, poll_fn},
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bb8_redis::bb8::{ManageConnection, Pool, PooledConnection};
use redis::{Cmd, RedisError, RedisResult, ServerErrorKind, Value, aio::ConnectionLike};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout},
};

use super::{
    background::Turn,
    checkout::{connection, connection_until},
    deadline::{GIVE_UP, in_patience},
    health::Health,
    script::{is_no_script, load_and, with_text},
};
use crate::{
    error::Error,
    store::redis::{
        error::{is_broken, is_read_only},
        script::Script,
        wire,
    },
};

/// The connections of a pool.
pub(super) struct Connections<M: ManageConnection> {
    pool: Pool<M>,
    health: Arc<Health>,
    loads: Loads,
    /// Whether the idle connections are being checked.
    checking: Arc<AtomicBool>,
}

/// Why there was no reply.
pub(super) struct Failed {
    pub(super) cause: RedisError,
    /// Whether the connection had been closed while it was idle: almost surely nothing was sent.
    pub(super) closed_before: bool,
}

/// Keeps a hundred callers that miss the same script from loading it a hundred times.
#[derive(Default)]
struct Loads {
    turn: Mutex<()>,
    done: AtomicU64,
}

/// How often a script that vanishes right after it was loaded is loaded again.
const ATTEMPTS: usize = 5;
/// How many connections that turn out to be dead a call tries.
const DEAD: usize = 64;
/// Between attempts to replace a connection: this at first, then up to the longer one.
const BACKOFF: Duration = Duration::from_millis(25);
pub(super) const MAX_BACKOFF: Duration = Duration::from_millis(250);

impl<M> Connections<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    pub(super) fn new(pool: Pool<M>, health: Arc<Health>) -> Self {
        Self { pool, health, loads: Loads::default(), checking: Arc::default() }
    }

    pub(super) async fn connection_until(
        &self,
        deadline: Instant,
        allowed: Duration,
    ) -> Result<PooledConnection<'static, M>, Error> {
        connection_until(&self.pool, &self.health, deadline, allowed).await
    }

    pub(super) async fn connection(&self) -> RedisResult<PooledConnection<'static, M>> {
        connection(&self.pool).await
    }

    /// One command and its reply. The connection returns to the pool when both are done.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        mut connection: PooledConnection<'static, M>,
        command: &Cmd,
        script: Option<&Script>,
        again: bool,
        deadline: Duration,
    ) -> Result<Value, Failed> {
        let patience = deadline.max(GIVE_UP);
        let (mut dead, mut closed_before) = (0, false);
        let reply = loop {
            let seen = self.loads.done.load(Ordering::Acquire);
            let (reply, at_once) = {
                let mut query = pin!(timeout(patience, command.query_async(&mut *connection)));
                match poll_fn(|cx| Poll::Ready(query.as_mut().poll(cx))).await {
                    Poll::Ready(reply) => (in_patience(reply), true),
                    Poll::Pending => (in_patience(query.await), false),
                }
            };
            match script {
                // No reply comes before the first wait for one: this connection had been closed while it was
                // idle, and nothing went out on it. So it is no second charge to ask on another one. But the thread
                // may have been stopped between the two, while redis-rs' task sent it and the socket broke: so what
                // must not happen twice is not asked twice.
                _ if again && at_once && dead < DEAD && reply.as_ref().is_err_and(is_broken) => {
                    dead += 1;
                    self.replace(connection, BACKOFF / 4);
                    self.check_idle();
                    let other = timeout(patience, self.connection()).await;
                    connection =
                        in_patience(other).map_err(|cause| Failed { cause, closed_before: false })?;
                }
                Some(script) if is_no_script(&reply) => {
                    break in_patience(
                        timeout(patience, self.load(&mut *connection, command, script, seen)).await,
                    );
                }
                _ => {
                    closed_before = at_once && reply.as_ref().is_err_and(is_broken);
                    break reply;
                }
            }
        };
        match &reply {
            Err(error) if is_broken(error) => {
                self.replace(connection, BACKOFF / 4);
                self.check_idle();
            }
            // A primary that was demoted. Where its name leads now is found out by connecting again, and
            // not more often than it can be.
            Err(error) if is_read_only(error) => self.replace(connection, MAX_BACKOFF),
            Ok(reply) if wire::is_read_only(reply) => self.replace(connection, MAX_BACKOFF),
            _ => {}
        }
        reply.map_err(|cause| Failed { cause, closed_before })
    }

    /// The server does not know the script: whoever notices first loads it and the others try again. `seen` is
    /// how often it had been loaded before it was missed.
    async fn load(
        &self,
        connection: &mut M::Connection,
        command: &Cmd,
        script: &Script,
        seen: u64,
    ) -> RedisResult<Value> {
        {
            let _turn = self.loads.turn.lock().await;
            if self.loads.done.load(Ordering::Acquire) == seen {
                let reply = load_and(connection, command, script).await;
                self.loads.done.fetch_add(1, Ordering::Release);
                if !is_no_script(&reply) {
                    return reply;
                }
            }
        }
        let mut reply = command.query_async(connection).await;
        if is_no_script(&reply) {
            // Somebody flushes scripts all the time. The text sent along cannot be missed; a user that was
            // not granted EVAL has to be lucky.
            let evaluated = with_text(command, script).query_async(connection).await;
            let forbidden = redis::ErrorKind::Server(ServerErrorKind::NoPerm);
            if !evaluated.as_ref().is_err_and(|error: &RedisError| error.kind() == forbidden) {
                return evaluated;
            }
        }
        for _ in 0..ATTEMPTS {
            if !is_no_script(&reply) {
                break;
            }
            reply = load_and(connection, command, script).await;
        }
        reply
    }

    /// Puts a new connection in the place of a broken one and only then gives the place back to the
    /// pool, so that nobody else meets the broken one. Managers need not notice: the stock ones do not.
    fn replace(&self, mut broken: PooledConnection<'static, M>, mut backoff: Duration) {
        let pool = self.pool.clone();
        let health = Arc::downgrade(&self.health);
        tokio::spawn(async move {
            loop {
                sleep(backoff).await;
                backoff = (backoff * 2).min(MAX_BACKOFF);
                // Nobody has the store any more.
                let Some(health) = health.upgrade() else { return };
                match timeout(GIVE_UP, pool.dedicated_connection()).await {
                    Ok(Ok(connection)) => {
                        health.connected();
                        *broken = connection;
                        return;
                    }
                    Ok(Err(error)) => health.not_connected(error),
                    Err(_) => health.not_connected(io::Error::from(io::ErrorKind::TimedOut).into()),
                }
            }
        });
    }

    /// Where one connection broke, others may have. Asks those that are idle, once, so that each need
    /// not fail a call of its own.
    fn check_idle(self: &Arc<Self>) {
        let Some(turn) = Turn::take(&self.checking) else { return };
        let link = self.clone();
        tokio::spawn(async move {
            let _turn = turn;
            // All of them are taken out first, or a pool that gives out the latest one first would give the
            // same one again and again.
            let mut idle = Vec::new();
            for _ in 0..link.pool.state().idle_connections {
                match timeout(BACKOFF, link.pool.get_owned()).await {
                    Ok(Ok(connection)) => idle.push(connection),
                    _ => break,
                }
            }
            for mut connection in idle {
                let ping: Result<RedisResult<Value>, _> =
                    timeout(GIVE_UP, redis::cmd("PING").query_async(&mut *connection)).await;
                if ping.map_or(true, |pong| pong.as_ref().is_err_and(is_broken)) {
                    link.replace(connection, BACKOFF / 4);
                }
            }
        });
    }
}
