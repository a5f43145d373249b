//! Sends batches to the nodes.
//!
//! A batch is sent once, as one call. If the call fails because its slot migrates or its connection had been closed
//! before, each of its decisions is sent again alone: while a slot migrates, its keys are on two nodes, and Redis rejects
//! a call over keys of both. If its connection breaks, its decisions fail, because they may have been made.

use std::{sync::Arc, time::Duration};

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout_at},
};

use super::{
    evaluate::{evaluate, in_transaction, may_succeed_elsewhere},
    node::{usual, was_not_sent},
    pool::{ClusterPool, ToCluster},
};
use crate::{
    base::Error,
    decision::Charge,
    store::redis::{
        error::{from_redis, is_broken},
        job::Job,
        transport::{
            breaker::is_silence,
            connections::reply_to,
            deadline::{REPLY_TIMEOUT, deadline_in, not_answered},
            health::Health,
            link::{Found, Scan, page},
        },
        wire::{self, Call},
    },
};

pub(super) struct Nodes<M: ManageConnection> {
    /// Its calls are sent again if a slot migrates. Commands other than script calls, and all calls of a user's pool,
    /// are sent again if a connection breaks too.
    retrying: ClusterPool<M>,
    /// For the first attempt. `None` for a user's own pool.
    single_attempt: Option<ClusterPool<M>>,
    pub(super) health: Arc<Health>,
    /// Held during a scan: several at a time would keep decisions waiting.
    scans: Mutex<()>,
}

/// The connections of a runtime: those that send calls again, and those that do not, except in a user's own pool.
pub(crate) type Pools<M> = (Pool<M>, Option<Pool<M>>);

impl<M> Nodes<M>
where
    M: ManageConnection<Connection: ToCluster, Error = RedisError>,
{
    pub(super) fn new((retrying, single_attempt): Pools<M>, health: Arc<Health>) -> Self {
        let single_attempt = single_attempt.map(ClusterPool::new);
        Self { retrying: ClusterPool::new(retrying), single_attempt, health, scans: Mutex::default() }
    }

    /// A connection for the first attempt. Waits without a limit; the caller sets one.
    pub(super) async fn connection(&self) -> RedisResult<M::Connection> {
        let connection = match &self.single_attempt {
            Some(single_attempt) => single_attempt.connection().await,
            None => self.retrying.connection().await,
        };
        connection.inspect(|_| self.health.connected())
    }

    /// Sends `jobs`, whose keys are in one slot, as one batch on the connection in `slot`. Sets their decisions, and returns
    /// how the call ended.
    pub(super) async fn send_batch(
        &self,
        slot: &mut Option<M::Connection>,
        jobs: &[&Job],
    ) -> Result<(), Error> {
        jobs.iter().for_each(|job| job.sending());
        let until = deadline_in(jobs.iter().map(|job| time_for(job)).max().unwrap_or_default());
        let Some(call) = wire::encode(jobs) else { return Ok(()) };
        let error = match timeout_at(until, self.attempt(slot, &call, jobs.len())).await {
            Ok(Ok(reply)) => {
                wire::decode(&reply, jobs, Job::answer);
                return Ok(());
            }
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        *slot = None;
        let was_not_sent = error.as_ref().is_some_and(was_not_sent);
        let error = error.map(usual);
        if error.as_ref().is_none_or(is_broken) {
            self.start_replacing(jobs);
        }
        let nothing_done = error.as_ref().is_some_and(may_succeed_elsewhere);
        let error = error.map_or_else(|| self.health.late(), |error| from_redis(&error));
        let mut ended = None;
        for job in jobs {
            // One after the other: redis-rs sends `ASKING` apart from its command, so concurrent ones disturb each other.
            let sent = if nothing_done || was_not_sent && may_be_sent_twice(job) {
                self.send_alone(job, until).await
            } else {
                Err(error.clone())
            };
            if let Err(error) = &sent {
                job.slot.set(Err(error.clone()));
            }
            if ended.as_ref().is_none_or(|ended: &Result<_, _>| ended.as_ref().is_err_and(is_silence)) {
                ended = Some(sent);
            }
        }
        ended.unwrap_or(Ok(()))
    }

    async fn attempt(
        &self,
        slot: &mut Option<M::Connection>,
        call: &Call,
        decisions: usize,
    ) -> RedisResult<Value> {
        let connection = match slot {
            Some(connection) => connection,
            None => slot.insert(self.connection().await?),
        };
        if self.single_attempt.is_none() && decisions > 1 {
            in_transaction(connection, call).await
        } else {
            reply_to(connection, call).await
        }
    }

    /// Sends one decision, which redis-rs sends again if its slot migrates, and sets it.
    async fn send_alone(&self, job: &Job, until: Instant) -> Result<(), Error> {
        let call = wire::encode(&[job]).ok_or_else(wire::unexpected)?;
        let mut connection = self.retrying.connection_until(&self.health, until).await?;
        let evaluation = evaluate(&mut connection, &call);
        let reply = self.retrying.reply(until, || first_key(&[job]), evaluation).await?;
        wire::decode(&reply, &[job], Job::answer);
        Ok(())
    }

    /// Runs a command whose first argument is its key.
    pub(super) async fn run(&self, command: Cmd, allowed: Duration) -> Result<Value, Error> {
        let until = deadline_in(allowed);
        let mut connection = self.retrying.connection_until(&self.health, until).await?;
        let key = || match command.args_iter().nth(1) {
            Some(redis::Arg::Simple(key)) => key.to_owned(),
            _ => Vec::new(),
        };
        self.retrying.reply(until, key, command.query_async(&mut connection)).await
    }

    /// The keys of all primaries that `scan` wants. Each step may take as long as `allowed`.
    pub(super) async fn scan(&self, scan: &Scan, allowed: Duration) -> Result<Found, Error> {
        let _alone = self.scans.lock().await;
        let until = deadline_in(allowed);
        let mut connection = self.retrying.connection_until(&self.health, until).await?;
        let first = connection.on_all_primaries(scan.command(0));
        let Value::Map(replies) = within(allowed, first).await? else { return Err(wire::unexpected()) };
        let mut found = Found::new();
        for (node, reply) in replies {
            let (cursor, keys) = page(reply)?;
            found.names.extend(keys);
            if cursor == 0 {
                continue;
            }
            if found.names.len() >= scan.most {
                found.is_complete = false;
                continue;
            }
            let Some((host, port)) = address(&node) else { return Err(wire::unexpected()) };
            let step = |command| {
                let (mut connection, host) = (connection.clone(), host.clone());
                async move { within(allowed, connection.on_node(command, host, port)).await }
            };
            scan.finish(cursor, scan.steps() - 1, &mut found, step).await?;
        }
        Ok(found)
    }

    /// Replaces the connections of the first attempt.
    fn start_replacing(&self, jobs: &[&Job]) {
        match &self.single_attempt {
            Some(single_attempt) => single_attempt.start_replacing(|| first_key(jobs)),
            None => self.retrying.start_replacing(|| first_key(jobs)),
        }
    }
}

/// The reply, if it comes in time.
async fn within(allowed: Duration, reply: impl Future<Output = RedisResult<Value>>) -> Result<Value, Error> {
    let reply = timeout_at(deadline_in(allowed), reply).await;
    reply.map_err(|_| not_answered())?.map_err(|error| from_redis(&error))
}

/// The host and the port of a node, as replies of all nodes name it.
fn address(node: &Value) -> Option<(String, u16)> {
    let Value::BulkString(name) = node else { return None };
    let (host, port) = str::from_utf8(name).ok()?.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?))
}

/// How long to wait for the reply. Leased units must not be lost if it is late.
fn time_for(job: &Job) -> Duration {
    if job.lease.is_some() { job.deadline.max(REPLY_TIMEOUT) } else { job.deadline }
}

/// A repeated permit request would be counted beside the first.
fn may_be_sent_twice(job: &Job) -> bool {
    job.may_be_repeated() && !job.charges.iter().any(Charge::needs_permit)
}

fn first_key(jobs: &[&Job]) -> Vec<u8> {
    jobs.first().map(|job| job.first_key().into_bytes()).unwrap_or_default()
}
