//! Sends batches to the nodes.
//!
//! A batch is sent once, as one call. If the call fails because its slot migrates or its connection had been
//! closed before, each of its decisions is sent again alone: while a slot migrates, its keys are on two
//! nodes, and Redis rejects a call over keys of both. If its connection breaks, its decisions fail, because
//! they may have been made. A decision of another window of a calendar, which Redis did not make, is sent again
//! alone too.

use std::{
    sync::{self, Arc},
    time::Duration,
};

use bb8_redis::bb8::Pool;
use futures_util::future::{BoxFuture, FutureExt as _, TryFutureExt as _};
use redis::{
    RedisError, RedisResult, RetryMethod, Value,
    cluster_async::ClusterConnection,
    cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo, SingleNodeRoutingInfo},
};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    clients::{Clients, ClusterManager},
    node::{NodeConnection, check, usual, was_not_sent},
};
use crate::{
    base::{Error, ErrorKind, Fault, sync::lock},
    decision::Charge,
    store::redis::{
        error::{from_redis, is_broken},
        job::Job,
        transport::{
            breaker::is_silence,
            connections::{connection, connection_until, reply_to},
            deadline::{PROBE_TIMEOUT, REPLY_TIMEOUT, deadline_in, not_answered, or_late},
            health::Health,
            link::{Found, Scan},
            silence::{LastUse, Silence},
            target::Sender,
        },
        wire::{self, Call},
    },
};

/// The nodes of a Cluster. Each shard sends its batches to them.
pub(super) struct Nodes {
    /// Its calls are sent again if a slot migrates. Commands other than script calls are sent again if a
    /// connection breaks too.
    retrying: Pool<ClusterManager>,
    /// For the first attempt.
    single_attempt: Pool<ClusterManager>,
    /// Held while the connections are replaced.
    replacing: Arc<Mutex<()>>,
    health: Arc<Health>,
    silence: Silence,
    /// Held during a scan: several at a time would keep decisions waiting.
    scans: Mutex<()>,
}

/// The nodes, for the decisions of one shard.
pub(super) struct ShardNodes {
    nodes: Arc<Nodes>,
    /// A key of the shard's slot.
    key: String,
    /// When a decision of the shard was answered last. Its node may have answered others since.
    used: sync::Mutex<LastUse>,
}

/// The pause between two replacements of the connections.
const REPLACE_PAUSE: Duration = Duration::from_secs(2);
/// The pause before a retry on a migrating slot.
const MIGRATION_PAUSE: Duration = Duration::from_millis(1);

impl ShardNodes {
    pub(super) fn new(nodes: Arc<Nodes>, key: String) -> Self {
        Self { nodes, key, used: sync::Mutex::new(LastUse::now()) }
    }
}

impl Sender for ShardNodes {
    type Connection = ClusterConnection<NodeConnection>;

    async fn ping(&self, key: &str) -> Result<(), Error> {
        // A command with a key goes to the node of the shard.
        let mut exists = redis::cmd("EXISTS");
        exists.arg(key);
        let reply = self.nodes.attempt(&Call::of(exists, PROBE_TIMEOUT), deadline_in(PROBE_TIMEOUT)).await;
        reply.map(drop).map_err(|error| match error.fault() {
            // Another node has answered.
            Some(Fault::Moved | Fault::Ask) => Error::new(ErrorKind::StoreUnreachable, error.to_string()),
            _ => error,
        })
    }

    /// A connection for the first attempt.
    fn connection(&self) -> BoxFuture<'_, RedisResult<Self::Connection>> {
        // A clone is used, and the pooled connection is free for others immediately.
        connection(&self.nodes.single_attempt, &self.nodes.health)
            .map_ok(|connection| connection.clone())
            .boxed()
    }

    /// The keys of `jobs` are in one slot.
    async fn send_batch(&self, slot: &mut Option<Self::Connection>, jobs: &[&Job]) -> Result<(), Error> {
        // Leased units must not be lost if the reply is late.
        let least = if jobs.iter().any(|job| job.lease.is_some()) { REPLY_TIMEOUT } else { Duration::ZERO };
        let until = deadline_in(jobs.iter().map(|job| job.deadline).fold(least, Duration::max));
        let nodes = &*self.nodes;
        let clock = &*nodes.health.clock;
        let Some(call) = wire::encode(jobs, clock) else { return Ok(()) };
        let mut is_checked = !nodes.silence.is_long(*lock(&self.used), LastUse::now());
        let attempt = async {
            let connection = match slot {
                Some(connection) => connection,
                None => slot.insert(self.connection().await?),
            };
            if !is_checked {
                // Boxed because it is rare.
                let check = check(self.key.as_bytes(), nodes.silence);
                let _: Value = Box::pin(check.query_async(connection)).await?;
                is_checked = true;
            }
            reply_to(connection, &call).await
        };
        let error = match or_late(timeout_at(until, attempt).await.ok()) {
            Ok(reply) => {
                *lock(&self.used) = LastUse::now();
                let failed = wire::answer(reply, jobs, call.clock_to_set(clock));
                let mut ended = Some(wire::ended(&failed, jobs.len()));
                for (job, error) in failed {
                    let sent = if wire::is_of_another_window(&error) {
                        nodes.send_alone(job, false, until).await
                    } else {
                        Err(error)
                    };
                    answer(job, sent, &mut ended);
                }
                return ended.unwrap_or(Ok(()));
            }
            Err(error) => error,
        };
        *slot = None;
        let (was_not_sent, migrates) = (was_not_sent(&error), is_of_migration(&error));
        let error = usual(error);
        if is_broken(&error) {
            nodes.start_replacing(&call);
        }
        let nothing_done = !is_checked || may_succeed_elsewhere(&error);
        let error = if error.is_timeout() { nodes.health.late() } else { from_redis(&error) };
        let mut ended = None;
        for job in jobs {
            // One after the other: redis-rs sends `ASKING` apart from its command, so concurrent ones disturb
            // each other. A repeated permit request would be counted beside the first.
            let may_be_repeated = job.may_be_repeated() && !job.charges.iter().any(Charge::needs_permit);
            let sent = if nothing_done || was_not_sent && may_be_repeated {
                nodes.send_alone(job, migrates, until).await
            } else {
                Err(error.clone())
            };
            answer(job, sent, &mut ended);
            // Its caller does not wait for the others.
            job.end();
        }
        ended.unwrap_or(Ok(()))
    }
}

impl Nodes {
    /// With the connections of one runtime, in a `pool` for each client.
    pub(super) fn new(
        clients: &Clients,
        pool: impl Fn(ClusterManager) -> Pool<ClusterManager>,
        health: Arc<Health>,
        silence: Silence,
    ) -> Self {
        let (retrying, single_attempt) =
            (pool(clients.retrying.clone()), pool(clients.single_attempt.clone()));
        Self { retrying, single_attempt, replacing: Arc::default(), health, silence, scans: Mutex::default() }
    }

    /// Sends one decision, which redis-rs sends again if its slot migrates. Sets it unless it fails.
    async fn send_alone(&self, job: &Job, migrates: bool, until: Instant) -> Result<(), Error> {
        let clock = &*self.health.clock;
        let call = if migrates { wire::encode_in_migration(job, clock) } else { wire::encode(&[job], clock) };
        let call = call.ok_or_else(wire::unexpected)?;
        let reply = self.reply(&call, until).await?;
        match wire::answer(reply, &[job], call.clock_to_set(clock)).pop() {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    /// The reply to a call, which is sent again until its slot does not move.
    pub(super) async fn reply(&self, call: &Call, until: Instant) -> Result<Value, Error> {
        loop {
            match self.attempt(call, until).await {
                // redis-rs follows redirects only a few times. It sends `ASKING` apart from the command, so
                // another command may come between, and the node redirects again. Nothing was carried out.
                Err(error) if matches!(error.fault(), Some(Fault::Moved | Fault::Ask)) => {
                    sleep(MIGRATION_PAUSE).await;
                }
                reply => return reply,
            }
        }
    }

    /// The reply to a call, or the redirect if redis-rs has followed too many.
    async fn attempt(&self, call: &Call, until: Instant) -> Result<Value, Error> {
        let mut connection = self.retrying_connection(until).await?;
        let reply = async {
            let key = first_key(call);
            if !key.is_empty() {
                let _: Value = check(&key, self.silence).query_async(&mut connection).await?;
            }
            reply_to(&mut connection, call).await
        };
        let reply = within(until, async { reply.await.map_err(usual) }).await;
        if reply.as_ref().is_err_and(is_silence) {
            self.start_replacing(call);
        }
        reply
    }

    async fn retrying_connection(&self, until: Instant) -> Result<ClusterConnection<NodeConnection>, Error> {
        connection_until(&self.retrying, &self.health, until).await.map(|connection| connection.clone())
    }

    /// Replaces the connections, so the nodes are looked up again. redis-rs does that if a node has lost a
    /// slot or closes its connection, but not if a node hangs, as the one that has the keys of `call` may.
    fn start_replacing(&self, call: &Call) {
        let Ok(alone) = self.replacing.clone().try_lock_owned() else { return };
        let (alone, key) = (Arc::new(alone), first_key(call));
        for pool in [&self.retrying, &self.single_attempt] {
            let (alone, pool, key) = (alone.clone(), pool.clone(), key.clone());
            tokio::spawn(async move {
                let _alone = alone;
                let _ = timeout(REPLACE_PAUSE, replace(pool, key)).await;
                sleep(REPLACE_PAUSE).await;
            });
        }
    }

    /// The keys of all primaries that `scan` wants. Each step may take as long as `allowed`.
    pub(super) async fn scan(&self, scan: &Scan, allowed: Duration) -> Result<Found, Error> {
        let _alone = self.scans.lock().await;
        let mut connection = self.retrying_connection(deadline_in(allowed)).await?;
        let primaries = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let pongs =
            within(deadline_in(allowed), connection.route_command(redis::cmd("PING"), primaries)).await?;
        let Value::Map(pongs) = pongs else { return Err(wire::unexpected()) };
        let mut found = Found::default();
        for (node, _) in pongs {
            let node = RoutingInfo::SingleNode(address(&node).ok_or_else(wire::unexpected)?);
            let step = |command| {
                let (mut connection, node) = (connection.clone(), node.clone());
                async move { within(deadline_in(allowed), connection.route_command(command, node)).await }
            };
            scan.list(&mut found, step).await?;
        }
        Ok(found)
    }
}

/// Answers a job of a call if it was `sent` alone and has failed. The call has `ended` without an error if one
/// decision is made, and otherwise with an error that is an answer of Redis, if there is one.
fn answer(job: &Job, sent: Result<(), Error>, ended: &mut Option<Result<(), Error>>) {
    if let Err(error) = &sent {
        job.answer(Err(error.clone()));
    }
    if sent.is_ok() || ended.as_ref().is_none_or(|ended| ended.as_ref().is_err_and(is_silence)) {
        *ended = Some(sent);
    }
}

/// Replaces the connection of `pool` if a new one finds the node that serves `key`. Until then the old one is
/// better: redis-rs searches for a missing node before every call that needs it, and makes no other call
/// during the search.
async fn replace(pool: Pool<ClusterManager>, key: Vec<u8>) -> RedisResult<()> {
    if pool.state().connections == 0 {
        return Ok(());
    }
    let mut new = pool.dedicated_connection().await?;
    let reply: RedisResult<Value> = redis::cmd("GET").arg(key).query_async(&mut new).await;
    match reply {
        // The value may be of another type.
        Err(error) if !matches!(error.retry_method(), RetryMethod::NoRetry) => return Err(error),
        _ => {}
    }
    if let Ok(mut old) = pool.get_owned().await {
        *old = new;
    }
    Ok(())
}

/// The reply, if it comes in time.
async fn within(until: Instant, reply: impl Future<Output = RedisResult<Value>>) -> Result<Value, Error> {
    let reply = timeout_at(until, reply).await;
    reply.map_err(|_| not_answered())?.map_err(|error| from_redis(&error))
}

/// The way to a node, as replies of all nodes name it.
fn address(node: &Value) -> Option<SingleNodeRoutingInfo> {
    let Value::BulkString(name) = node else { return None };
    let (host, port) = str::from_utf8(name).ok()?.rsplit_once(':')?;
    Some(SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port: port.parse().ok()? })
}

/// The first key of a call: after its name, and if it calls a script, the script's hash or text and the number of
/// keys.
fn first_key(call: &Call) -> Vec<u8> {
    let mut arguments = call.command.args_iter();
    let is_script = matches!(arguments.next(), Some(redis::Arg::Simple(name)) if name.starts_with(b"EVAL"));
    match arguments.nth(if is_script { 2 } else { 0 }) {
        Some(redis::Arg::Simple(key)) => key.to_owned(),
        _ => Vec::new(),
    }
}

/// Whether the slot of the keys migrates.
fn is_of_migration(error: &RedisError) -> bool {
    use redis::ServerErrorKind::{Ask, TryAgain};
    matches!(error.kind(), redis::ErrorKind::Server(Ask | TryAgain))
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
