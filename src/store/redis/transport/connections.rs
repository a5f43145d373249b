//! Connections that carry one batch at a time. They are replaced when they break, and return to the pool only
//! after their reply is read.

use std::{
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use bb8_redis::bb8::{ManageConnection, Pool, PooledConnection, RunError};
use futures_util::future::BoxFuture;
use redis::{Cmd, RedisError, RedisResult, Value, aio::ConnectionLike};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    deadline::{
        PROBE_TIMEOUT, REPLY_TIMEOUT, TICK, TimeLeft, deadline_in, not_answered, or_late, run_for,
        while_ticking,
    },
    health::Health,
    queue::Wait,
    runtimes::in_task,
    target::Sender,
};
use crate::{
    base::{Error, Fault, box_in_place, sync::lock},
    store::redis::{
        error::{from_redis, is_broken, not_connected},
        job::Job,
        wire::{self, Call},
    },
};

/// Opens connections to Redis.
pub(crate) trait ConnectionManager:
    ManageConnection<Error = RedisError, Connection: ConnectionLike + Sync>
{
}

impl<M: ManageConnection<Error = RedisError, Connection: ConnectionLike + Sync>> ConnectionManager for M {}

/// The connections of a pool.
pub(super) struct Connections<M: ConnectionManager> {
    pool: Pool<M>,
    health: Arc<Health>,
    /// Held while the idle connections are checked.
    checking: tokio::sync::Mutex<()>,
    /// When a connection was last replaced although it works.
    replaced: Mutex<Option<Instant>>,
    /// Held during a scan: several at a time would keep decisions waiting.
    pub(super) scans: tokio::sync::Mutex<()>,
}

/// A place for a connection that one lane or one command uses.
type Slot<M> = Option<PooledConnection<'static, M>>;

/// The error of an exchange without a reply.
struct ExchangeError {
    error: Error,
    /// Whether the connection had been closed while it was idle: almost certainly nothing was sent.
    was_closed: bool,
}

/// How often a part of a call is sent again: for a connection that was closed, and for the server's time.
const REPEATS: u8 = 3;
/// The pause between attempts to replace a connection: first this one, then up to the longer one.
const BACKOFF: Duration = Duration::from_millis(25);
pub(super) const MAX_BACKOFF: Duration = Duration::from_millis(250);

impl<M: ConnectionManager> Connections<M> {
    pub(super) fn new(pool: Pool<M>, health: Arc<Health>) -> Self {
        let (checking, replaced, scans) = Default::default();
        Self { pool, health, checking, replaced, scans }
    }

    /// The reply to a command.
    pub(super) async fn reply(self: &Arc<Self>, command: Cmd, allowed: Duration) -> Result<Value, Error> {
        let connections = self.clone();
        // In a task, also while it waits for a connection: the pool would offer one to a caller that is not
        // polled.
        in_task(async move {
            let deadline = deadline_in(allowed);
            let mut slot = Some(connection_until(&connections.pool, &connections.health, deadline).await?);
            let exchange = in_task(async move {
                let call = Call::of(command, allowed);
                let exchange = pin!(connections.exchange(&mut slot, &call));
                while_ticking(exchange, || {}).await.map_err(|failed| failed.error)
            });
            timeout_at(deadline, exchange).await.unwrap_or_else(|_| Err(not_answered()))?
        })
        .await?
    }

    /// Sends `jobs` as one call, and answers them. Sends a part of them again, up to `repeats` times, if the
    /// connection was closed while it was idle, or if the server's time is in none of the call's windows.
    async fn send(self: &Arc<Self>, slot: &mut Slot<M>, jobs: &[&Job], repeats: u8) -> Result<(), Error> {
        let Some(call) = wire::encode(jobs, &self.health.clock) else { return Ok(()) };
        let (ended, again) = match self.exchange(slot, &call).await {
            Ok(reply) => {
                let failed = wire::answer(reply, jobs, call.clock_to_set(&self.health.clock));
                if failed.is_empty() {
                    return Ok(());
                }
                (wire::ended(&failed, jobs.len()), failed_in_reply(failed, repeats))
            }
            Err(failed) => {
                let again = failed_again(&failed, &call, jobs, repeats);
                (Err(failed.error), again)
            }
        };
        if again.is_empty() {
            return ended;
        }
        let sent = Box::pin(self.send(slot, &again, repeats - 1)).await;
        // An error only if no decision was made.
        ended.or(sent)
    }

    /// Sends a call and reads its reply, on the connection in `slot` or, if it is empty, on one of the pool.
    /// Leaves the connection in `slot` if it can be used again, and replaces it otherwise. Poll it at each
    /// tick.
    async fn exchange(self: &Arc<Self>, slot: &mut Slot<M>, call: &Call) -> Result<Value, ExchangeError> {
        // No caller waits for what is sent later.
        let send_until = deadline_in(call.deadline);
        loop {
            let connection = match slot {
                Some(connection) => connection,
                None => {
                    // Boxed because it is rare, and larger than all others.
                    let connection = Box::pin(self.replacement(send_until)).await;
                    slot.insert(connection.map_err(|error| ExchangeError { error, was_closed: false })?)
                }
            };
            // The connection is broken if the reply takes longer. Only time in which the runtime runs counts.
            let mut time = TimeLeft::new(call.deadline.max(REPLY_TIMEOUT));
            let (reply, immediate) = time.spend_ticks_on(pin!(reply_to(&mut **connection, call))).await;
            let reply = or_late(reply);
            // No reply can arrive before the first poll, so an immediate error means that the connection was
            // closed while it was idle, and nothing was sent. So the command is sent on another connection
            // without a second charge. In rare cases the thread was paused between the two, redis-rs sent the
            // command and the socket broke. So a command that must not be repeated is not.
            let is_broken = reply.as_ref().is_err_and(is_broken);
            let was_closed = immediate && is_broken;
            if is_broken {
                slot.take().into_iter().for_each(|connection| self.replace(connection));
                self.check_idle();
            } else if (wire::has_fault(&reply, Fault::ReadOnly) || wants_login(&reply)) && self.may_replace()
            {
                slot.take().into_iter().for_each(|connection| self.replace(connection));
            }
            if was_closed && call.may_repeat && Instant::now() < send_until {
                continue;
            }
            return reply.map_err(|error| ExchangeError { error: from_redis(&error), was_closed });
        }
    }

    /// Whether a connection may be replaced whose server was demoted or asks for a login, so that it finds
    /// the new primary or logs in. One after the other, all within [`MAX_BACKOFF`]: until there is a new
    /// primary, decisions fail immediately on the others.
    fn may_replace(&self) -> bool {
        let (mut last, now) = (lock(&self.replaced), Instant::now());
        let pause = MAX_BACKOFF / self.pool.state().connections.max(1);
        let may_replace = last.is_none_or(|last| now - last >= pause);
        if may_replace {
            *last = Some(now);
        }
        may_replace
    }

    /// A connection in the place of one that was closed. If an attempt to connect fails in the meantime, the
    /// server has probably stopped, so the callers do not wait any longer.
    async fn replacement(&self, deadline: Instant) -> Result<PooledConnection<'static, M>, Error> {
        let mut connection = pin!(connection(&self.pool, &self.health));
        loop {
            if let Some(connection) = run_for(TICK, connection.as_mut()).await {
                return connection.map_err(|error| not_connected(&error));
            }
            if let Some(error) = self.health.connect_error() {
                return Err(not_connected(&error));
            }
            if Instant::now() >= deadline {
                return Err(self.health.not_sent(Wait::InSilence));
            }
        }
    }

    /// Replaces a broken connection before the pool can use it again. A manager need not detect broken ones;
    /// the stock ones do not.
    fn replace(&self, mut broken: PooledConnection<'static, M>) {
        let mut backoff = BACKOFF / 4;
        let pool = self.pool.clone();
        let health = Arc::downgrade(&self.health);
        tokio::spawn(async move {
            loop {
                sleep(backoff).await;
                backoff = (backoff * 2).min(MAX_BACKOFF);
                // The store was dropped.
                let Some(health) = health.upgrade() else { return };
                match or_late(timeout(REPLY_TIMEOUT, pool.dedicated_connection()).await.ok()) {
                    Ok(connection) => {
                        health.connected();
                        *broken = connection;
                        return;
                    }
                    Err(error) => health.connect_failed(error),
                }
            }
        });
    }

    /// If one connection broke, others may have. Pings the idle ones once, so that they do not each fail a
    /// batch.
    fn check_idle(self: &Arc<Self>) {
        let link = self.clone();
        tokio::spawn(async move {
            let Ok(_alone) = link.checking.try_lock() else { return };
            // Checks out all of them first, or a pool that reuses the latest one would return it again and
            // again.
            let mut idle = Vec::new();
            for _ in 0..link.pool.state().idle_connections {
                match timeout(BACKOFF, link.pool.get_owned()).await {
                    Ok(Ok(connection)) => idle.push(connection),
                    _ => break,
                }
            }
            for mut connection in idle {
                let pong = timeout(REPLY_TIMEOUT, redis::cmd("PING").exec_async(&mut *connection)).await;
                if or_late(pong.ok()).is_err_and(|error| is_broken(&error)) {
                    link.replace(connection);
                }
            }
        });
    }
}

impl<M: ConnectionManager> Sender for Arc<Connections<M>> {
    type Connection = PooledConnection<'static, M>;

    async fn ping(&self, _: &str) -> Result<(), Error> {
        self.reply(redis::cmd("PING"), PROBE_TIMEOUT).await.map(drop)
    }

    fn connection(&self) -> BoxFuture<'_, RedisResult<Self::Connection>> {
        box_in_place(|| connection(&self.pool, &self.health))
    }

    async fn send_batch(&self, slot: &mut Slot<M>, jobs: &[&Job]) -> Result<(), Error> {
        self.send(slot, jobs, REPEATS).await
    }
}

/// Whether the server asks for a login although the connection has one, as a proxy may.
fn wants_login(reply: &RedisResult<Value>) -> bool {
    reply.as_ref().is_err_and(|error| from_redis(error).fault() == Some(Fault::NoAuth))
}

/// The jobs of a call with a reply to send again, of those that have `failed`: none without `repeats`. Answers the
/// others.
#[cold]
fn failed_in_reply(failed: Vec<(&Job, Error)>, repeats: u8) -> Vec<&Job> {
    let mut again = Vec::new();
    for (job, error) in failed {
        if repeats > 0 && wire::is_of_another_window(&error) {
            again.push(job);
        } else {
            job.answer(Err(error));
        }
    }
    again
}

/// The jobs of a call without a reply to send again: none without `repeats`. Answers the others.
fn failed_again<'a>(failed: &ExchangeError, call: &Call, jobs: &[&'a Job], repeats: u8) -> Vec<&'a Job> {
    // Only jobs that must not be repeated fail, and their callers do not wait for the others.
    let is_repeated =
        |job: &&&Job| repeats > 0 && failed.was_closed && !call.may_repeat && job.may_be_repeated();
    jobs.iter().filter(|job| !is_repeated(job)).for_each(|job| {
        job.answer(Err(failed.error.clone()));
        job.end();
    });
    jobs.iter().filter(is_repeated).copied().collect()
}

/// A connection of `pool`. Waits without a limit; the caller sets one.
pub(super) async fn connection<M: ConnectionManager>(
    pool: &Pool<M>,
    health: &Health,
) -> RedisResult<PooledConnection<'static, M>> {
    loop {
        match pool.get_owned().await {
            Ok(connection) => {
                health.connected();
                return Ok(connection);
            }
            Err(RunError::User(error)) => return Err(error),
            // The pool's own timeout, which may be shorter than the caller's.
            Err(RunError::TimedOut) => {}
        }
    }
}

pub(super) async fn connection_until<M: ConnectionManager>(
    pool: &Pool<M>,
    health: &Health,
    deadline: Instant,
) -> Result<PooledConnection<'static, M>, Error> {
    let connection = timeout_at(deadline, connection(pool, health)).await.map_err(|_| {
        // Without an established connection, the pool is not busy: its attempts to connect hang. Nor is it if
        // the last call failed: then others wait on its connections for a server that does not answer.
        let is_busy = pool.state().connections > 0 && !health.is_failing();
        health.not_sent(if is_busy { Wait::ForOthers } else { Wait::InSilence })
    })?;
    connection.map_err(|error| not_connected(&error))
}

/// The reply to `call`. A script that the server does not have is sent with the call, so no `SCRIPT FLUSH`
/// comes between.
pub(super) async fn reply_to(connection: &mut impl ConnectionLike, call: &Call) -> RedisResult<Value> {
    // Boxed because it is rare, and without the reply, so that a lane is smaller.
    let evaluation = {
        let reply = call.command.query_async(&mut *connection).await;
        let Some(evaluation) = call.evaluation_after(&reply) else { return reply };
        Box::pin(async move { evaluation.query_async(connection).await })
    };
    evaluation.await
}
