//! Sends batches to the nodes.
//!
//! A batch is sent once, as one call. If the call fails because its slot migrates or its connection had been closed
//! before, each of its decisions is sent again alone: while a slot migrates, its keys are on two nodes, and Redis rejects
//! a call over keys of both. If its connection breaks, its decisions fail, because they may have been made.

use std::{sync::Arc, time::Duration};

use bb8_redis::bb8::Pool;
use redis::{
    Cmd, RedisError, RedisResult, RetryMethod, Value,
    aio::ConnectionLike,
    cluster_async::ClusterConnection,
    cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo, SingleNodeRoutingInfo},
};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout_at},
};

use super::{
    node::{NodeConnection, usual, was_not_sent},
    pool::{ClusterManager, ClusterPool},
};
use crate::{
    base::{Error, ErrorKind, Fault},
    decision::Charge,
    store::redis::{
        error::{from_redis, is_broken},
        job::Job,
        transport::{
            breaker::is_silence,
            connections::reply_to,
            deadline::{PROBE_TIMEOUT, REPLY_TIMEOUT, TimeLeft, deadline_in, not_answered},
            health::Health,
            link::{Found, Scan},
            target::Sender,
        },
        wire::{self, Call},
    },
};

/// The nodes of a Cluster. Each shard sends its batches to them.
pub(super) struct Nodes {
    /// Its calls are sent again if a slot migrates. Commands other than script calls are sent again if a connection breaks
    /// too.
    retrying: ClusterPool,
    /// For the first attempt.
    single_attempt: ClusterPool,
    pub(super) health: Arc<Health>,
    /// Held during a scan: several at a time would keep decisions waiting.
    scans: Mutex<()>,
}

/// The connections of a runtime: those that send calls again, and those that do not.
pub(crate) type Pools = (Pool<ClusterManager>, Pool<ClusterManager>);

/// The pause before a retry on a migrating slot.
const MIGRATION_PAUSE: Duration = Duration::from_millis(1);

impl Sender for Arc<Nodes> {
    type Connection = ClusterConnection<NodeConnection>;

    async fn ping(&self, _: &mut Option<Self::Connection>, key: &str) -> Result<Duration, Error> {
        // A command with a key goes to the node of the shard.
        let mut exists = redis::cmd("EXISTS");
        exists.arg(key);
        let mut time = TimeLeft::in_ticks(PROBE_TIMEOUT);
        let reply = time.spend_on(self.run(exists, PROBE_TIMEOUT)).await;
        match reply.unwrap_or_else(|| Err(not_answered())) {
            Ok(_) => Ok(PROBE_TIMEOUT - time.left()),
            // Another node has answered.
            Err(error) if matches!(error.fault(), Some(Fault::Moved | Fault::Ask)) => {
                Err(Error::new(ErrorKind::StoreUnreachable, error.to_string()))
            }
            Err(error) => Err(error),
        }
    }

    /// A connection for the first attempt.
    async fn connection(&self) -> RedisResult<Self::Connection> {
        self.single_attempt.connection().await
    }

    /// The keys of `jobs` are in one slot.
    async fn send_batch(&self, slot: &mut Option<Self::Connection>, jobs: &[&Job]) -> Result<(), Error> {
        jobs.iter().for_each(|job| job.sending());
        let until = deadline_in(jobs.iter().map(|job| time_for(job)).max().unwrap_or_default());
        let Some(call) = wire::encode(jobs) else { return Ok(()) };
        let attempt = async {
            let connection = match slot {
                Some(connection) => connection,
                None => slot.insert(self.connection().await?),
            };
            reply_to(connection, &call).await
        };
        let error = match timeout_at(until, attempt).await {
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
            self.single_attempt.start_replacing(|| first_key(jobs));
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
}

impl Nodes {
    pub(super) fn new((retrying, single_attempt): Pools, health: Arc<Health>) -> Self {
        let [retrying, single_attempt] =
            [retrying, single_attempt].map(|pool| ClusterPool::new(pool, health.clone()));
        Self { retrying, single_attempt, health, scans: Mutex::default() }
    }

    /// Sends one decision, which redis-rs sends again if its slot migrates, and sets it.
    async fn send_alone(&self, job: &Job, until: Instant) -> Result<(), Error> {
        let call = wire::encode(&[job]).ok_or_else(wire::unexpected)?;
        let mut connection = self.retrying.connection_until(until).await?;
        let evaluation = evaluate(&mut connection, &call);
        let reply = self.retrying.reply(until, || first_key(&[job]), evaluation).await?;
        wire::decode(&reply, &[job], Job::answer);
        Ok(())
    }

    /// Runs a command whose first argument is its key.
    pub(super) async fn run(&self, command: Cmd, allowed: Duration) -> Result<Value, Error> {
        let until = deadline_in(allowed);
        let mut connection = self.retrying.connection_until(until).await?;
        let key = || match command.args_iter().nth(1) {
            Some(redis::Arg::Simple(key)) => key.to_owned(),
            _ => Vec::new(),
        };
        self.retrying.reply(until, key, command.query_async(&mut connection)).await
    }

    /// The keys of all primaries that `scan` wants. Each step may take as long as `allowed`.
    pub(super) async fn scan(&self, scan: &Scan, allowed: Duration) -> Result<Found, Error> {
        let _alone = self.scans.lock().await;
        let mut connection = self.retrying.connection_until(deadline_in(allowed)).await?;
        let primaries = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let pongs = within(allowed, connection.route_command(redis::cmd("PING"), primaries)).await?;
        let Value::Map(pongs) = pongs else { return Err(wire::unexpected()) };
        let mut found = Found::default();
        for (node, _) in pongs {
            let node = RoutingInfo::SingleNode(address(&node).ok_or_else(wire::unexpected)?);
            let step = |command| {
                let (mut connection, node) = (connection.clone(), node.clone());
                async move { within(allowed, connection.route_command(command, node)).await }
            };
            scan.list(&mut found, step).await?;
        }
        Ok(found)
    }
}

/// The reply, if it comes in time.
async fn within(allowed: Duration, reply: impl Future<Output = RedisResult<Value>>) -> Result<Value, Error> {
    let reply = timeout_at(deadline_in(allowed), reply).await;
    reply.map_err(|_| not_answered())?.map_err(|error| from_redis(&error))
}

/// The way to a node, as replies of all nodes name it.
fn address(node: &Value) -> Option<SingleNodeRoutingInfo> {
    let Value::BulkString(name) = node else { return None };
    let (host, port) = str::from_utf8(name).ok()?.rsplit_once(':')?;
    Some(SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port: port.parse().ok()? })
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

/// Runs the script, and retries until the reply is not a redirect.
async fn evaluate(connection: &mut impl ConnectionLike, call: &Call) -> RedisResult<Value> {
    loop {
        let reply = reply_to(connection, call).await;
        // redis-rs follows redirects only a few times. It sends `ASKING` apart from the command, so another command may
        // come between, and the node redirects again. Nothing was carried out.
        let redirect = reply.as_ref().err().map(RedisError::retry_method);
        if !matches!(redirect, Some(RetryMethod::AskRedirect | RetryMethod::MovedRedirect)) {
            return reply;
        }
        sleep(MIGRATION_PAUSE).await;
    }
}

/// Whether nothing was carried out, and another node or a later attempt may succeed.
fn may_succeed_elsewhere(error: &RedisError) -> bool {
    matches!(
        error.retry_method(),
        RetryMethod::AskRedirect
            | RetryMethod::MovedRedirect
            | RetryMethod::WaitAndRetry
            | RetryMethod::RefreshSlotsAndRetry
            | RetryMethod::ReconnectFromInitialConnections
    )
}
