//! The way to Redis: a pool whose connections carry one call at a time, are replaced when they break, and
//! are never left with a reply that somebody else could read.

use std::{
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
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
    task::yield_now,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    call::{self, Job},
    error::{self, from_redis, is_broken, is_read_only},
    health::Health,
    queue::{Entry, Queue, Ticket},
    reply,
};
use crate::{Decision, Error, ErrorKind, script::Script};

pub(super) type Reply<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// A [`Pooled`] whatever its manager is.
pub(super) trait Link: Send + Sync {
    /// Makes a decision, alone or together with others that are asked for meanwhile.
    fn decide(self: Arc<Self>, job: Job) -> Reply<Decision>;

    /// Runs a command that needs no script.
    fn run(self: Arc<Self>, command: Cmd, deadline: Duration) -> Reply<Value>;

    /// The commands it sends, in the words of an ACL.
    fn commands(&self) -> &'static [&'static str];
}

/// `reply`, and what it says of the server's health.
pub(super) fn noted<T>(
    health: Arc<Health>,
    reply: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Reply<T> {
    Box::pin(async move {
        let reply = reply.await;
        health.note(&reply);
        reply
    })
}

pub(super) struct Pooled<M: ManageConnection> {
    pool: Pool<M>,
    queue: Queue,
    health: Arc<Health>,
    loads: Loads,
    /// Whether the idle connections are being checked.
    checking: Arc<AtomicBool>,
}

/// Why there was no reply.
struct Failed {
    cause: RedisError,
    /// Whether the connection had been closed while it was idle: almost surely nothing was sent.
    closed_before: bool,
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
/// How long an unanswered connection is kept out of the pool before it counts as broken.
pub(super) const GIVE_UP: Duration = Duration::from_secs(1);
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
    fn decide(self: Arc<Self>, job: Job) -> Reply<Decision> {
        noted(self.health.clone(), async move { self.decision(job).await })
    }

    fn run(self: Arc<Self>, command: Cmd, deadline: Duration) -> Reply<Value> {
        noted(self.health.clone(), async move { self.reply(command, deadline).await })
    }

    fn commands(&self) -> &'static [&'static str] {
        &["evalsha", "script|load", "ping"]
    }
}

impl<M> Pooled<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    pub(super) fn new(pool: Pool<M>, health: Arc<Health>) -> Self {
        Self { pool, queue: Queue::default(), health, loads: Loads::default(), checking: Arc::default() }
    }

    async fn decision(self: &Arc<Self>, job: Job) -> Result<Decision, Error> {
        let (allowed, deadline) = (job.deadline, in_time(job.deadline));
        match self.queue.enter(job) {
            // Boxed, because most wait and need no room for it.
            Entry::Lane(job) => {
                // Dropped wherever this ends, and then it is somebody else's.
                let lane = Lane { link: self.clone(), polled: true };
                Box::pin(lane.carry_alone(job, deadline)).await
            }
            Entry::Carry(ticket) => {
                let lane = Lane { link: self.clone(), polled: false };
                tokio::spawn(lane.carry());
                self.wait(ticket, deadline, allowed).await
            }
            Entry::Wait(ticket) => self.wait(ticket, deadline, allowed).await,
            Entry::Full => Err(too_many()),
        }
    }

    async fn wait(
        &self,
        mut ticket: Ticket,
        deadline: Instant,
        allowed: Duration,
    ) -> Result<Decision, Error> {
        match timeout_at(deadline, &mut ticket.reply).await {
            Ok(Ok(decision)) => decision,
            Ok(Err(_)) => Err(too_late(allowed)),
            Err(_) if self.queue.give_up(&ticket) => Err(no_turn(&self.health, allowed)),
            Err(_) => Err(too_late(allowed)),
        }
    }

    async fn reply(self: &Arc<Self>, command: Cmd, allowed: Duration) -> Result<Value, Error> {
        let deadline = in_time(allowed);
        let connection = self.connection_until(deadline, allowed).await?;
        let link = self.clone();
        let exchange = async move { link.exchange(connection, &command, None, true, allowed).await };
        match timeout_at(deadline, Finish(Some(Box::pin(exchange)))).await {
            Ok(reply) => reply.map_err(|error| from_redis(&error.cause)),
            Err(_) => Err(too_late(allowed)),
        }
    }

    async fn connection_until(
        &self,
        deadline: Instant,
        allowed: Duration,
    ) -> Result<PooledConnection<'static, M>, Error> {
        connection_until(&self.pool, &self.health, deadline, allowed).await
    }

    async fn connection(&self) -> RedisResult<PooledConnection<'static, M>> {
        connection(&self.pool).await
    }

    /// Makes `jobs` in one call. The connection returns to the pool when that is done.
    async fn call(
        self: &Arc<Self>,
        connection: PooledConnection<'static, M>,
        jobs: &[&Job],
    ) -> Vec<Result<Decision, Error>> {
        let Some(first) = jobs.first() else { return Vec::new() };
        let again = jobs.iter().all(|job| job.may_be_repeated());
        let reply = {
            let command = call::command(jobs);
            self.exchange(connection, &command, Some(&first.script), again, first.deadline).await
        };
        let error = match reply {
            Ok(reply) => return call::decode(&reply, jobs),
            Err(error) => error,
        };
        let failed = || Err(from_redis(&error.cause));
        let others: Vec<&Job> = jobs.iter().copied().filter(|job| job.may_be_repeated()).collect();
        if !error.closed_before || again || others.is_empty() {
            return jobs.iter().map(|_| failed()).collect();
        }
        // What must not be repeated fails by itself: the others may.
        let patience = first.deadline.max(GIVE_UP);
        let mut repeated = match timeout(patience, self.connection()).await {
            Ok(Ok(connection)) => Box::pin(self.call(connection, &others)).await.into_iter(),
            _ => Vec::new().into_iter(),
        };
        let next = |job: &&Job| job.may_be_repeated().then(|| repeated.next()).flatten();
        jobs.iter().map(next).map(|said| said.unwrap_or_else(failed)).collect()
    }

    /// One command and its reply. The connection returns to the pool when both are done.
    async fn exchange(
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
            Ok(reply) if call::is_read_only(reply) => self.replace(connection, MAX_BACKOFF),
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

/// A task of which there is one at a time. Its runtime may be shut down under it.
pub(super) struct Turn(Arc<AtomicBool>);

impl Turn {
    /// `None` where it is somebody else's.
    pub(super) fn take(taken: &Arc<AtomicBool>) -> Option<Self> {
        (!taken.swap(true, Ordering::AcqRel)).then(|| Self(taken.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// One of the [`Queue`]'s lanes. Whoever drops it hands it to those who wait.
struct Lane<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    link: Arc<Pooled<M>>,
    /// Whether a runtime has run it: one that drops new tasks at once would be handed the same lane for ever.
    polled: bool,
}

impl<M> Lane<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    /// Carries one decision that found it free.
    async fn carry_alone(self, job: Job, deadline: Instant) -> Result<Decision, Error> {
        let allowed = job.deadline;
        let connection = self.link.connection_until(deadline, allowed).await?;
        let call = async move {
            let mut decisions = self.link.call(connection, &[&job]).await;
            drop(self);
            decisions.pop()
        };
        match timeout_at(deadline, Finish(Some(Box::pin(call)))).await {
            Ok(decision) => decision.unwrap_or_else(|| Err(reply::unexpected())),
            Err(_) => Err(too_late(allowed)),
        }
    }

    /// Carries calls as long as anybody waits for one.
    async fn carry(mut self) {
        self.polled = true;
        while self.link.queue.is_waited_for() {
            // Who was answered just now may ask again, and can then go along: with 64 callers that makes half as
            // many calls, and a tenth more decisions.
            yield_now().await;
            let connection = match timeout(MAX_BACKOFF, self.link.connection()).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(error)) => {
                    self.link.queue.fail(|| from_redis(&error));
                    continue;
                }
                Err(_) => continue,
            };
            self.link.health.connected();
            let batch = self.link.queue.gather();
            let decisions = {
                let jobs: Vec<&Job> = batch.jobs.iter().collect();
                self.link.call(connection, &jobs).await
            };
            batch.answer(decisions);
        }
    }
}

impl<M> Drop for Lane<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Sync,
{
    fn drop(&mut self) {
        while self.link.queue.leave() {
            let lane = || Self { link: self.link.clone(), polled: false };
            match Handle::try_current() {
                Ok(runtime) if self.polled => {
                    runtime.spawn(lane().carry());
                    return;
                }
                // Nobody is left to carry anything.
                _ => self.link.queue.fail(|| {
                    Error::new(
                        ErrorKind::StoreUnreachable,
                        "the Tokio runtime that talks to Redis was shut down",
                    )
                }),
            }
        }
    }
}

/// An exchange that, when nobody waits for it any more, is finished in the background: its connection
/// stays out of the pool until the reply is read, so it never comes back out of step.
pub(super) struct Finish<F>(pub(super) Option<Pin<Box<F>>>)
where
    F: Future<Output: Send> + Send + 'static;

impl<F> Future for Finish<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    type Output = F::Output;

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
    F: Future<Output: Send> + Send + 'static,
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

/// `command`, an `EVALSHA`, as an `EVAL`.
pub(super) fn with_text(command: &Cmd, script: &Script) -> Cmd {
    let mut evaluation = redis::cmd("EVAL");
    evaluation.arg(script.text());
    for argument in command.args_iter().skip(2) {
        match argument {
            redis::Arg::Simple(bytes) => evaluation.arg(bytes),
            // Ours has no cursor, and the library may come to know more kinds.
            _ => &mut evaluation,
        };
    }
    evaluation
}

/// One of `pool`'s connections, that nobody else uses. Waits as long as it is let.
async fn connection<M>(pool: &Pool<M>) -> RedisResult<PooledConnection<'static, M>>
where
    M: ManageConnection<Error = RedisError>,
{
    loop {
        match pool.get_owned().await {
            Ok(connection) => return Ok(connection),
            Err(RunError::User(error)) => return Err(error),
            // The pool's own patience, which may be shorter than ours.
            Err(RunError::TimedOut) => {}
        }
    }
}

pub(super) async fn connection_until<M>(
    pool: &Pool<M>,
    health: &Health,
    deadline: Instant,
    allowed: Duration,
) -> Result<PooledConnection<'static, M>, Error>
where
    M: ManageConnection<Error = RedisError>,
{
    match timeout_at(deadline, connection(pool)).await {
        Ok(Ok(connection)) => {
            health.connected();
            Ok(connection)
        }
        Ok(Err(error)) => Err(from_redis(&error)),
        Err(_) => Err(no_turn(health, allowed)),
    }
}

/// Nothing was sent.
fn no_turn(health: &Health, allowed: Duration) -> Error {
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

pub(super) fn in_time(allowed: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(allowed).unwrap_or(now + LONG)
}

/// The server may have done what it was asked to.
pub(super) fn too_late(allowed: Duration) -> Error {
    Error::new(ErrorKind::StoreTimeout, format!("Redis did not answer within {allowed:?}"))
}

fn in_patience<T, E>(reply: Result<RedisResult<T>, E>) -> RedisResult<T> {
    reply.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}

pub(super) fn is_no_script(reply: &RedisResult<Value>) -> bool {
    let no_script = redis::ErrorKind::Server(ServerErrorKind::NoScript);
    reply.as_ref().is_err_and(|error| error.kind() == no_script)
}
