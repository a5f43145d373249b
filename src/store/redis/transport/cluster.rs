//! A link to a Redis Cluster, through redis-rs' cluster client. The client knows which node has a key, follows
//! migrating slots, and keeps one connection to each node. Calls to one node are pipelined on its connection. Batches
//! would help little, because all keys of a script call must be in one of the 16 384 slots.
//!
//! A decision over several identities is made slot by slot. If one slot denies or fails, the charges before it are
//! refunded. So never more is admitted than by one script call; until the refund, less may be.

use std::{
    any::TypeId,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{
    Cmd, ConnectionInfo, RedisError, RedisResult, RetryMethod, Value,
    cluster::{ClusterClient, ClusterClientBuilder},
    cluster_async::ClusterConnection,
    cluster_routing::{MultipleNodeRoutingInfo, ResponsePolicy, RoutingInfo},
};
use tokio::{
    sync::Semaphore,
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    background::{Exclusive, Finish},
    checkout::connection_until,
    deadline::{REPLY_TIMEOUT, deadline_in, queue_full, timed_out},
    health::Health,
    link::{Link, recorded},
    queue::MAX_WAITING,
    script::{is_no_script, with_text},
    server::settle,
    socket::tcp_settings,
};
use crate::{
    answer::Answer,
    decision::{Charge, Decision, Outcome},
    error::{Error, ErrorKind},
    store::{
        Action,
        redis::{
            error::{connection_info, from_redis, is_broken},
            script::Script,
            wire::{self, Encoded, Job, Reply},
        },
    },
};

pub(crate) struct Clustered<M: ManageConnection> {
    default_pool: ClusterPool<M>,
    /// For jobs that must not be repeated if their connection breaks. `None` for a user's own pool.
    single_attempt: Option<ClusterPool<ClusterClient>>,
    health: Arc<Health>,
    /// Limits the decisions in flight.
    in_flight: Semaphore,
}

struct ClusterPool<M: ManageConnection> {
    pool: Pool<M>,
    /// Whether the connections are being replaced.
    replacing: Arc<AtomicBool>,
}

/// A client that retries when a connection breaks, and one that does not, which cannot follow a migrating slot.
pub(crate) struct Clients {
    pub(crate) retrying: ClusterClient,
    pub(crate) single_attempt: ClusterClient,
    /// The servers' addresses, without passwords.
    pub(crate) addresses: String,
}

impl<M> Link for Clustered<M>
where
    M: ManageConnection<Connection = ClusterConnection, Error = RedisError>,
{
    fn decide(self: Arc<Self>, job: Job) -> Answer<Decision> {
        recorded(self.health.clone(), async move { self.decision(job).await })
    }

    fn run(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        recorded(self.health.clone(), async move {
            let until = deadline_in(deadline);
            let mut connection = self.default_pool.connection(&self.health, until, deadline).await?;
            // The key is the first argument of every command.
            let key = || match command.args_iter().nth(1) {
                Some(redis::Arg::Simple(key)) => key.to_owned(),
                _ => Vec::new(),
            };
            self.default_pool.reply(until, deadline, key, command.query_async(&mut connection)).await
        })
    }

    fn commands(&self) -> &'static [&'static str] {
        // A node without the script gets its text: during a migration it is unknown which node needs it loaded.
        &["evalsha", "eval", "script|load", "ping", "asking", "cluster|slots"]
    }
}

/// The size of a pool. A cluster connection is one connection to each node, shared by all calls. Four of them made no
/// more decisions than one (`benches/cluster.rs`), and each would have to follow migrations itself.
pub(crate) const CONNECTIONS: u32 = 1;
/// An unresponsive node delays the search for other nodes by at most this.
const CONNECT: Duration = Duration::from_millis(250);
const RESPONSE: Duration = Duration::from_millis(500);
/// The pause before a retry on a migrating slot.
const MIGRATION_PAUSE: Duration = Duration::from_millis(1);
/// The pause between two replacements of the connections.
const REPLACE_PAUSE: Duration = Duration::from_secs(2);

/// Makes the clients for `urls`.
pub(crate) fn clients<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Clients, Error> {
    let infos: Result<Vec<ConnectionInfo>, _> =
        urls.into_iter().map(|url| connection_info(url.as_ref())).collect();
    let infos = infos?;
    let addresses: Vec<_> = infos.iter().map(|info| info.addr().to_string()).collect();
    let client = || {
        ClusterClientBuilder::new(infos.clone())
            .connection_timeout(CONNECT)
            .response_timeout(RESPONSE)
            .tcp_settings(tcp_settings())
            // The waits after a multi-key command on a migrating slot, or on a slot without a primary: 2 ms, 4 ms...
            .min_retry_wait(1)
            .retry_wait_formula(1, 2)
            .max_retry_wait(25)
    };
    let invalid = |first_error: &str| {
        Error::new(
            ErrorKind::InvalidConfig,
            format!("the URLs of the Redis Cluster are invalid: {first_error}"),
        )
    };
    // redis-rs uses the credentials of the first URL, and checks only some of those in the others.
    let credentials = |info: &ConnectionInfo| {
        let settings = info.redis_settings();
        let [user, password] =
            [settings.username(), settings.password()].map(|text| text.map(ToOwned::to_owned));
        (user, password, settings.db())
    };
    if infos.windows(2).any(|pair| credentials(&pair[0]) != credentials(&pair[1])) {
        return Err(invalid("they must have the same user, password and database"));
    }
    let unusable = |_: RedisError| invalid("none of them can be used; check the hosts and the ports");
    Ok(Clients {
        retrying: client().build().map_err(unusable)?,
        single_attempt: client().retries(0).build().map_err(unusable)?,
        addresses: addresses.join(", "),
    })
}

/// Whether the pool's connections are to a Cluster.
pub(crate) fn is_clustered<M: ManageConnection>(_: &Pool<M>) -> bool {
    TypeId::of::<M::Connection>() == TypeId::of::<ClusterConnection>()
}

impl<M> Clustered<M>
where
    M: ManageConnection<Connection = ClusterConnection, Error = RedisError>,
{
    pub(crate) fn new(
        pool: Pool<M>,
        single_attempt: Option<Pool<ClusterClient>>,
        health: Arc<Health>,
    ) -> Self {
        Self {
            default_pool: ClusterPool::new(pool),
            single_attempt: single_attempt.map(ClusterPool::new),
            health,
            in_flight: Semaphore::new(MAX_WAITING),
        }
    }

    /// Loads `script` on all nodes. Succeeds if at least one loads it.
    pub(crate) async fn load(self: &Arc<Self>, script: &Script) -> Result<(), Error> {
        let deadline = deadline_in(RESPONSE);
        let mut connection = self.default_pool.connection(&self.health, deadline, RESPONSE).await?;
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script.text());
        let routing =
            RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, Some(ResponsePolicy::OneSucceeded)));
        let reply = timeout_at(deadline, connection.route_command(load, routing)).await;
        reply.map_err(|_| timed_out(RESPONSE))?.map(|_| ()).map_err(|error| from_redis(&error))
    }

    async fn decision(self: &Arc<Self>, mut job: Job) -> Result<Decision, Error> {
        let (allowed, deadline) = (job.deadline, deadline_in(job.deadline));
        let Ok(_guard) = self.in_flight.try_acquire() else { return Err(queue_full()) };
        let one_slot = job
            .charges
            .iter()
            .all(|charge| job.charges.first().is_some_and(|first| first.key() == charge.key()));
        if one_slot && job.lease.is_none() {
            return self.decide_in_slot(&mut job, deadline, allowed).await;
        }
        // Finished in the background if the caller drops it: leased units, and units to refund, must not be lost.
        let link = self.clone();
        let finish = async move {
            let until = deadline.max(deadline_in(REPLY_TIMEOUT));
            if one_slot {
                link.decide_in_slot(&mut job, until, allowed).await
            } else {
                link.slot_by_slot(job, deadline, until).await
            }
        };
        timeout_at(deadline, Finish(Some(Box::pin(finish)))).await.unwrap_or_else(|_| Err(timed_out(allowed)))
    }

    /// Makes a decision whose keys are in one slot.
    async fn decide_in_slot(
        self: &Arc<Self>,
        job: &mut Job,
        deadline: Instant,
        allowed: Duration,
    ) -> Result<Decision, Error> {
        let mut connection = self.default_pool.connection(&self.health, deadline, allowed).await?;
        job.sending();
        let job = &*job;
        let Some(Encoded { command, script }) = wire::encode(&[job]) else { return Err(wire::unexpected()) };
        let evaluation = evaluate(&mut connection, &command, &script);
        let key = || first_key(job);
        let reply = match &self.single_attempt {
            // A repeated permit request would be counted beside the first.
            Some(single_attempt)
                if !job.may_be_repeated() || job.charges.iter().any(Charge::needs_permit) =>
            {
                let mut connection = single_attempt.connection(&self.health, deadline, allowed).await?;
                let reply = async {
                    let reply = with_text_if_missing(&mut connection, &command, &script).await;
                    if should_retry_elsewhere(&reply) { evaluation.await } else { reply }
                };
                single_attempt.reply(deadline, allowed, key, reply).await?
            }
            _ => self.default_pool.reply(deadline, allowed, key, evaluation).await?,
        };
        let replies = wire::decode(&reply, &[job]);
        settle(&[job], replies).pop().unwrap_or_else(|| Err(wire::unexpected()))
    }

    /// Makes a decision over several identities. The caller waits until `deadline`.
    async fn slot_by_slot(
        self: &Arc<Self>,
        job: Job,
        deadline: Instant,
        until: Instant,
    ) -> Result<Decision, Error> {
        let is_charge = matches!(job.action, Action::Charge | Action::ChargeUpTo);
        let mut outcomes: Vec<Option<Outcome>> = vec![None; job.charges.len()];
        let mut charged: Vec<Vec<usize>> = Vec::new();
        let mut first_error = None;
        let mut denied = false;
        for positions in by_identity(&job.charges) {
            let (action, until) = match job.action {
                _ if denied => (Action::Peek, halfway_to(deadline)),
                // Charges stop at the caller's deadline, because they are refunded after it.
                action if is_charge => (action, deadline),
                action => (action, until),
            };
            let mut part =
                job.part(action, positions.iter().map(|&position| job.charges[position].clone()).collect());
            match self.decide_in_slot(&mut part, until, job.deadline).await {
                Ok(decision) => {
                    for (&position, outcome) in positions.iter().zip(decision.outcomes()) {
                        outcomes[position] = Some(outcome.clone());
                    }
                    if !is_charge || denied {
                        continue;
                    }
                    if decision.is_allowed() {
                        charged.push(positions);
                        continue;
                    }
                    denied = true;
                    let refund = self.refund_charged(&job, &charged, &outcomes);
                    if let Ok(Ok(refunded)) = timeout_at(halfway_to(deadline), refund).await {
                        refunded
                            .into_iter()
                            .for_each(|(position, outcome)| outcomes[position] = Some(outcome));
                    }
                }
                // The request is denied anyway.
                Err(_) if denied => {}
                Err(error) if is_charge => {
                    self.refund_charged(&job, &charged, &outcomes);
                    return Err(error);
                }
                // Refund and renew as much as possible.
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        if let Some(first_error) = first_error {
            // Some units may have been refunded.
            job.settled(None);
            return Err(first_error);
        }
        let reply = Reply { decision: Decision::new(outcomes.into_iter().flatten()), leased: None };
        job.settled(Some(&reply));
        Ok(reply.decision)
    }

    /// Refunds the charges of a decision that is not admitted, even if the caller is dropped. Returns the new outcomes
    /// with the positions of their charges.
    fn refund_charged(
        self: &Arc<Self>,
        job: &Job,
        charged: &[Vec<usize>],
        outcomes: &[Option<Outcome>],
    ) -> JoinHandle<Vec<(usize, Outcome)>> {
        let charged = charged.iter().map(|positions| {
            let charged: Vec<_> = positions
                .iter()
                .filter_map(|&position| Some((position, outcomes[position].clone()?)))
                .collect();
            let charges = charged.iter().map(|(_, outcome)| outcome.undo());
            let mut part = job.part(Action::Refund, charges.collect());
            part.observer = job.observer.as_ref().and_then(|observer| observer.undoing());
            (part, charged)
        });
        let (charged, link): (Vec<_>, _) = (charged.collect(), self.clone());
        let allowed = job.deadline.max(REPLY_TIMEOUT);
        tokio::spawn(async move {
            let mut all = Vec::new();
            for (mut part, charged) in charged {
                // If a refund fails, that much less is admitted until the quota is replenished.
                let Ok(decision) = link.decide_in_slot(&mut part, deadline_in(allowed), allowed).await else {
                    continue;
                };
                let refunded = charged.into_iter().zip(decision.outcomes());
                all.extend(
                    refunded.map(|((position, outcome), now)| (position, with_values_of(&outcome, now))),
                );
            }
            all
        })
    }
}

impl<M> ClusterPool<M>
where
    M: ManageConnection<Connection = ClusterConnection, Error = RedisError>,
{
    fn new(pool: Pool<M>) -> Self {
        Self { pool, replacing: Arc::default() }
    }

    /// Waits for the reply of the node that serves `key`.
    async fn reply(
        &self,
        deadline: Instant,
        allowed: Duration,
        key: impl FnOnce() -> Vec<u8>,
        reply: impl Future<Output = RedisResult<Value>>,
    ) -> Result<Value, Error> {
        let reply = timeout_at(deadline, reply).await;
        if reply.as_ref().map_or(true, |reply| reply.as_ref().is_err_and(is_broken)) {
            start_replacing(&self.pool, &self.replacing, key);
        }
        reply.map_or_else(|_| Err(timed_out(allowed)), |reply| reply.map_err(|error| from_redis(&error)))
    }

    async fn connection(
        &self,
        health: &Health,
        deadline: Instant,
        allowed: Duration,
    ) -> Result<ClusterConnection, Error> {
        let connection = connection_until(&self.pool, health, deadline, allowed).await?;
        // A clone is used, and the pooled connection is free for others at once.
        Ok(connection.clone())
    }
}

/// Replaces the connections, so the nodes are looked up again. redis-rs does that if a node has lost a slot or closes
/// its connection, but not if a node hangs, or if the runtime of a connection was shut down.
fn start_replacing<M>(pool: &Pool<M>, replacing: &Arc<AtomicBool>, key: impl FnOnce() -> Vec<u8>)
where
    M: ManageConnection<Connection = ClusterConnection, Error = RedisError>,
{
    let Some(guard) = Exclusive::acquire(replacing) else { return };
    let (pool, key) = (pool.clone(), key());
    tokio::spawn(async move {
        let _guard = guard;
        let _ = timeout(REPLACE_PAUSE, replace(pool, key)).await;
        sleep(REPLACE_PAUSE).await;
    });
}

/// Replaces the connections of `pool` if a new one finds the node that serves `key`. Until then the old ones are
/// better: redis-rs searches for a missing node before every call that needs it, and makes no other call meanwhile.
async fn replace<M>(pool: Pool<M>, key: Vec<u8>) -> RedisResult<()>
where
    M: ManageConnection<Connection = ClusterConnection, Error = RedisError>,
{
    let mut new = Vec::new();
    for _ in 0..pool.state().connections {
        new.push(pool.dedicated_connection().await?);
    }
    let Some(mut first) = new.first().cloned() else { return Ok(()) };
    let reply: RedisResult<Value> = redis::cmd("GET").arg(key).query_async(&mut first).await;
    match reply {
        // The value may be of another type.
        Err(error) if !matches!(error.retry_method(), RetryMethod::NoRetry) => return Err(error),
        _ => {}
    }
    // Checks out all of them first, or a pool that reuses the latest one would return it again and again.
    let mut old = Vec::new();
    for _ in &new {
        old.extend(pool.get_owned().await.ok());
    }
    for (old, new) in old.iter_mut().zip(new) {
        **old = new;
    }
    Ok(())
}

fn first_key(job: &Job) -> Vec<u8> {
    let mut key = String::new();
    if let Some(charge) = job.charges.first() {
        wire::write_key(&mut key, &job.prefix, charge.policy(), charge.key());
    }
    key.into_bytes()
}

/// The positions of the charges of each identity, in the order of their first charges.
fn by_identity(charges: &[Charge]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (position, charge) in charges.iter().enumerate() {
        match groups.iter_mut().find(|group| charges[group[0]].key() == charge.key()) {
            Some(group) => group.push(position),
            None => groups.push(vec![position]),
        }
    }
    groups
}

/// Half of the remaining time, so there is time to answer.
fn halfway_to(deadline: Instant) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) / 2
}

/// `outcome` with the remaining units and the reset of `now`, after its refund.
fn with_values_of(outcome: &Outcome, now: &Outcome) -> Outcome {
    Outcome::new(outcome.charge(), outcome.verdict(), now.remaining(), now.reset_after())
        .granting(outcome.granted())
}

/// Runs the script, and retries until the reply is not a redirect.
async fn evaluate(connection: &mut ClusterConnection, command: &Cmd, script: &Script) -> RedisResult<Value> {
    loop {
        let reply = with_text_if_missing(connection, command, script).await;
        // redis-rs follows redirects only a few times. It sends `ASKING` apart from the command, so another command may
        // come between, and the node redirects again. Nothing was carried out.
        let redirect = reply.as_ref().err().map(|error: &RedisError| error.retry_method());
        if !matches!(redirect, Some(RetryMethod::AskRedirect | RetryMethod::MovedRedirect)) {
            return reply;
        }
        sleep(MIGRATION_PAUSE).await;
    }
}

async fn with_text_if_missing(
    connection: &mut ClusterConnection,
    command: &Cmd,
    script: &Script,
) -> RedisResult<Value> {
    let reply = command.query_async(connection).await;
    if is_no_script(&reply) { with_text(command, script).query_async(connection).await } else { reply }
}

/// Whether nothing was carried out, and another node or a later attempt may succeed.
fn should_retry_elsewhere(reply: &RedisResult<Value>) -> bool {
    let method = reply.as_ref().err().map(RedisError::retry_method);
    matches!(
        method,
        Some(
            RetryMethod::AskRedirect
                | RetryMethod::MovedRedirect
                | RetryMethod::WaitAndRetry
                | RetryMethod::RefreshSlotsAndRetry
                | RetryMethod::ReconnectFromInitialConnections
        )
    )
}
