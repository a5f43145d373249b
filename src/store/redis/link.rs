//! The way to Redis: a pool whose connections are used one decision at a time, replaced when they
//! break, and never left with a reply that somebody else could read.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bb8_redis::bb8::{ManageConnection, Pool, PooledConnection, RunError};
use redis::{Cmd, RedisError, RedisResult, ServerErrorKind, Value, aio::ConnectionLike};
use tokio::{
    runtime::Handle,
    sync::Mutex,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::health::Health;
use crate::{Error, ErrorKind, script::Script};

/// One command, and the script it needs on the server.
pub(super) struct Job {
    pub(super) command: Cmd,
    pub(super) script: Option<Arc<Script>>,
    pub(super) deadline: Duration,
}

pub(super) type Reply = Pin<Box<dyn Future<Output = Result<Value, Error>> + Send>>;

/// A [`Pooled`] whatever its manager is.
pub(super) trait Link: Send + Sync {
    fn run(&self, job: Job) -> Reply;
}

pub(super) struct Pooled<M: ManageConnection> {
    pool: Pool<M>,
    health: Arc<Health>,
    loads: Arc<Loads>,
    /// Whether the idle connections are being checked.
    checking: Arc<AtomicBool>,
}

/// Keeps a hundred callers that miss the same script from loading it a hundred times.
#[derive(Default)]
struct Loads {
    turn: Mutex<()>,
    done: AtomicU64,
}

/// How often a script that vanishes right after it was loaded is loaded again.
const ATTEMPTS: usize = 5;
/// How long an unanswered connection is kept out of the pool before it counts as broken.
const GIVE_UP: Duration = Duration::from_secs(1);
/// As long as anybody waits.
const LONG: Duration = Duration::from_secs(86_400);
/// Between attempts to replace a connection: this at first, then up to the longer one.
const BACKOFF: Duration = Duration::from_millis(25);
const MAX_BACKOFF: Duration = Duration::from_millis(250);

impl<M> Link for Pooled<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    fn run(&self, job: Job) -> Reply {
        let link = self.clone();
        Box::pin(async move {
            let reply = link.clone().reply(job).await;
            link.health.note(&reply);
            reply
        })
    }
}

impl<M> Pooled<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    pub(super) fn new(pool: Pool<M>, health: Arc<Health>) -> Self {
        Self { pool, health, loads: Arc::default(), checking: Arc::default() }
    }

    async fn reply(self, job: Job) -> Result<Value, Error> {
        let allowed = job.deadline;
        let now = Instant::now();
        let deadline = now.checked_add(allowed).unwrap_or(now + LONG);
        let connection = match timeout_at(deadline, self.connection()).await {
            Ok(connection) => connection.map_err(from_redis)?,
            Err(_) => return Err(self.no_connection(allowed)),
        };
        self.health.connected();
        match timeout_at(deadline, Finish(Some(Box::pin(self.exchange(connection, job))))).await {
            Ok(reply) => reply.map_err(from_redis),
            Err(_) => {
                Err(Error::new(ErrorKind::StoreTimeout, format!("Redis did not answer within {allowed:?}")))
            }
        }
    }

    fn no_connection(&self, allowed: Duration) -> Error {
        match self.health.why_unreachable() {
            Some(error) => {
                Error::new(ErrorKind::StoreUnreachable, format!("cannot connect to Redis: {error}"))
                    .with_source(error)
            }
            None => Error::new(
                ErrorKind::StoreBusy,
                format!(
                    "no connection to Redis was free within {allowed:?}; give the store a larger pool or more time"
                ),
            ),
        }
    }

    /// A connection that nobody else uses. Waits as long as it is let.
    async fn connection(&self) -> RedisResult<PooledConnection<'static, M>> {
        loop {
            match self.pool.get_owned().await {
                Ok(connection) => return Ok(connection),
                Err(RunError::User(error)) => return Err(error),
                // The pool's own patience, which may be shorter than ours.
                Err(RunError::TimedOut) => {}
            }
        }
    }

    /// One command and its reply. The connection returns to the pool when both are done.
    async fn exchange(self, mut connection: PooledConnection<'static, M>, job: Job) -> RedisResult<Value> {
        let patience = job.deadline.max(GIVE_UP);
        let reply = match &job.script {
            Some(script) => timeout(patience, self.evaluate(&mut *connection, &job.command, script)).await,
            None => timeout(patience, job.command.query_async(&mut *connection)).await,
        };
        let reply = reply.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()));
        match &reply {
            Err(error) if is_broken(error) => {
                self.replace(connection, BACKOFF / 4);
                self.check_idle();
            }
            // A primary that was demoted. Where its name leads now is found out by connecting again, and
            // not more often than it can be.
            Err(error) if error.kind() == redis::ErrorKind::Server(ServerErrorKind::ReadOnly) => {
                self.replace(connection, MAX_BACKOFF);
            }
            _ => {}
        }
        reply
    }

    /// `EVALSHA`; where the server does not know the script, whoever notices first loads it and the others
    /// try again. Where it is gone once more by then, each loads it for itself, in one write with its
    /// `EVALSHA`, so that next to nothing can come between the two.
    async fn evaluate(
        &self,
        connection: &mut M::Connection,
        command: &Cmd,
        script: &Script,
    ) -> RedisResult<Value> {
        let seen = self.loads.done.load(Ordering::Acquire);
        let reply = command.query_async(connection).await;
        if !is_no_script(&reply) {
            return reply;
        }
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
    /// not fail a decision of its own.
    fn check_idle(&self) {
        if self.checking.swap(true, Ordering::AcqRel) {
            return;
        }
        let link = self.clone();
        tokio::spawn(async move {
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
            link.checking.store(false, Ordering::Release);
        });
    }
}

impl<M: ManageConnection> Clone for Pooled<M> {
    fn clone(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            health: self.health.clone(),
            loads: self.loads.clone(),
            checking: self.checking.clone(),
        }
    }
}

/// An exchange that, when nobody waits for it any more, is finished in the background: its connection
/// stays out of the pool until the reply is read, so it never comes back out of step.
struct Finish<F>(Option<Pin<Box<F>>>)
where
    F: Future<Output = RedisResult<Value>> + Send + 'static;

impl<F> Future for Finish<F>
where
    F: Future<Output = RedisResult<Value>> + Send + 'static,
{
    type Output = RedisResult<Value>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(exchange) = &mut self.0 else {
            panic!("Finish polled after completion");
        };
        let reply = ready!(exchange.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(reply)
    }
}

impl<F> Drop for Finish<F>
where
    F: Future<Output = RedisResult<Value>> + Send + 'static,
{
    fn drop(&mut self) {
        // Outside a runtime there is nobody left to use the connection either.
        if let (Some(exchange), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(exchange);
        }
    }
}

/// `SCRIPT LOAD` and `command`, in one write.
async fn load_and(
    connection: &mut impl ConnectionLike,
    command: &Cmd,
    script: &Script,
) -> RedisResult<Value> {
    let mut both = redis::pipe();
    both.cmd("SCRIPT").arg("LOAD").arg(script.text()).ignore();
    both.add_command(command.clone());
    match both.query_async(connection).await {
        Ok((reply,)) => Ok(reply),
        // Of a pipeline's errors the first one is the cause: a script that does not compile is not there
        // to be called either.
        Err(error) => match error.clone().into_server_errors().as_deref() {
            Some([(_, first), ..]) => Err(first.clone().into()),
            _ => Err(error),
        },
    }
}

fn is_no_script(reply: &RedisResult<Value>) -> bool {
    let no_script = redis::ErrorKind::Server(ServerErrorKind::NoScript);
    reply.as_ref().is_err_and(|error| error.kind() == no_script)
}

fn is_broken(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_io_error()
}

fn from_redis(error: RedisError) -> Error {
    let (kind, problem) = if error.is_timeout() {
        (ErrorKind::StoreTimeout, "Redis did not answer in time")
    } else if is_broken(&error) {
        (ErrorKind::StoreUnreachable, "the connection to Redis broke")
    } else if matches!(error.kind(), redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType) {
        (ErrorKind::StoreReply, "the reply of Redis makes no sense")
    } else {
        (ErrorKind::StoreRefused, "Redis refused the command")
    };
    Error::new(kind, format!("{problem}: {error}")).with_source(error)
}
