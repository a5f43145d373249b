//! The way to a Redis Cluster: redis-rs' cluster client, which knows which node has a key, follows it when it
//! moves, and keeps one connection to each node. Calls of one node share its connection without waiting for
//! each other's replies. A call of several decisions, as a single server gets it, would do little here, since
//! all keys of a call must be in one slot of the 16 384.
//!
//! A decision over several identities is made slot by slot. Where one refuses, or fails, what the ones
//! before it took is given back: so never more is admitted than by one call, and for a moment less may be.

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
    background::{Finish, Turn},
    checkout::connection_until,
    deadline::{GIVE_UP, in_time, too_late, too_many},
    health::Health,
    link::{Link, noted},
    queue::MOST_WAITING,
    script::{is_no_script, with_text},
    single::settle,
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
            wire::{self, Job, Reply},
        },
    },
};

pub(crate) struct Clustered<M: ManageConnection> {
    way: Way<M>,
    /// For what must not be asked again when its connection breaks. Where the pool is the user's own there is none.
    once: Option<Way<ClusterClient>>,
    health: Arc<Health>,
    /// As many decisions as may be under way.
    places: Semaphore,
}

struct Way<M: ManageConnection> {
    pool: Pool<M>,
    /// Whether all connections are being made anew.
    renewing: Arc<AtomicBool>,
}

/// One that asks again when a connection breaks, and one that does not, which cannot follow a slot on the move.
pub(crate) struct Clients {
    pub(crate) usual: ClusterClient,
    pub(crate) once: ClusterClient,
    /// Where they connect to, without the passwords.
    pub(crate) addresses: String,
}

impl<M> Link for Clustered<M>
where
    M: ManageConnection<Connection = ClusterConnection, Error = RedisError>,
{
    fn decide(self: Arc<Self>, job: Job) -> Answer<Decision> {
        noted(self.health.clone(), async move { self.decision(job).await })
    }

    fn run(self: Arc<Self>, command: Cmd, deadline: Duration) -> Answer<Value> {
        noted(self.health.clone(), async move {
            let until = in_time(deadline);
            let mut connection = self.way.connection(&self.health, until, deadline).await?;
            // The key is the first argument of them all.
            let key = || match command.args_iter().nth(1) {
                Some(redis::Arg::Simple(key)) => key.to_owned(),
                _ => Vec::new(),
            };
            self.way.reply(until, deadline, key, command.query_async(&mut connection)).await
        })
    }

    fn commands(&self) -> &'static [&'static str] {
        // A node that does not know the script gets its text: where a slot moves there is no telling which node
        // would have to load it.
        &["evalsha", "eval", "script|load", "ping", "asking", "cluster|slots"]
    }
}

/// In a pool. A cluster connection is one connection to each node, which all calls share. Four of them made no more
/// decisions than one (`benches/cluster.rs`), and each would have to find out for itself where a slot went.
pub(crate) const CONNECTIONS: u32 = 1;
/// A node that does not answer holds up what looks for the others no longer than this.
const CONNECT: Duration = Duration::from_millis(250);
const RESPONSE: Duration = Duration::from_millis(500);
/// Before a slot that moves is asked for again.
const AGAIN: Duration = Duration::from_millis(1);
/// Between two times that all connections are made anew.
const RENEWAL: Duration = Duration::from_secs(2);

/// The clients for `urls`.
pub(crate) fn clients<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Clients, Error> {
    let infos: Result<Vec<ConnectionInfo>, _> =
        urls.into_iter().map(|url| connection_info(url.as_ref())).collect();
    let infos = infos?;
    let addresses: Vec<_> = infos.iter().map(|info| info.addr().to_string()).collect();
    let client = || {
        ClusterClientBuilder::new(infos.clone())
            .connection_timeout(CONNECT)
            .response_timeout(RESPONSE)
            // What a slot on the move answers to two keys, or a cluster without this slot's primary: 2 ms, 4 ms...
            .min_retry_wait(1)
            .retry_wait_formula(1, 2)
            .max_retry_wait(25)
    };
    let invalid = |problem: &str| {
        Error::new(
            ErrorKind::InvalidConfig,
            format!("no Redis Cluster can be found by these URLs: {problem}"),
        )
    };
    // redis-rs takes what the first one says, and does not look at all of it in the others.
    let said = |info: &ConnectionInfo| {
        let settings = info.redis_settings();
        let [user, password] =
            [settings.username(), settings.password()].map(|text| text.map(ToOwned::to_owned));
        (user, password, settings.db())
    };
    if infos.windows(2).any(|pair| said(&pair[0]) != said(&pair[1])) {
        return Err(invalid("they must have the same user, password and database"));
    }
    let unusable = |_: RedisError| invalid("none of them can be used; check the hosts and the ports");
    Ok(Clients {
        usual: client().build().map_err(unusable)?,
        once: client().retries(0).build().map_err(unusable)?,
        addresses: addresses.join(", "),
    })
}

/// Whether its connections are to a Cluster.
pub(crate) fn is_clustered<M: ManageConnection>(_: &Pool<M>) -> bool {
    TypeId::of::<M::Connection>() == TypeId::of::<ClusterConnection>()
}

impl<M> Clustered<M>
where
    M: ManageConnection<Connection = ClusterConnection, Error = RedisError>,
{
    pub(crate) fn new(pool: Pool<M>, once: Option<Pool<ClusterClient>>, health: Arc<Health>) -> Self {
        Self { way: Way::new(pool), once: once.map(Way::new), health, places: Semaphore::new(MOST_WAITING) }
    }

    /// Loads `script` where it can be, which is on one node at least.
    pub(crate) async fn load(self: &Arc<Self>, script: &Script) -> Result<(), Error> {
        let deadline = in_time(RESPONSE);
        let mut connection = self.way.connection(&self.health, deadline, RESPONSE).await?;
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script.text());
        let anywhere =
            RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, Some(ResponsePolicy::OneSucceeded)));
        let reply = timeout_at(deadline, connection.route_command(load, anywhere)).await;
        reply.map_err(|_| too_late(RESPONSE))?.map(|_| ()).map_err(|error| from_redis(&error))
    }

    async fn decision(self: &Arc<Self>, mut job: Job) -> Result<Decision, Error> {
        let (allowed, deadline) = (job.deadline, in_time(job.deadline));
        let Ok(_place) = self.places.try_acquire() else { return Err(too_many()) };
        let one_slot = job
            .charges
            .iter()
            .all(|charge| job.charges.first().is_some_and(|first| first.key() == charge.key()));
        if one_slot && job.lease.is_none() {
            return self.ask(&mut job, deadline, allowed).await;
        }
        // Units that were leased, or that have to be given back, must not be lost with whoever asked for them.
        let link = self.clone();
        let finish = async move {
            let until = deadline.max(in_time(GIVE_UP));
            if one_slot {
                link.ask(&mut job, until, allowed).await
            } else {
                link.slot_by_slot(job, deadline, until).await
            }
        };
        timeout_at(deadline, Finish(Some(Box::pin(finish)))).await.unwrap_or_else(|_| Err(too_late(allowed)))
    }

    /// Makes a decision whose keys are all in one slot.
    async fn ask(
        self: &Arc<Self>,
        job: &mut Job,
        deadline: Instant,
        allowed: Duration,
    ) -> Result<Decision, Error> {
        let mut connection = self.way.connection(&self.health, deadline, allowed).await?;
        job.sending();
        let job = &*job;
        let command = wire::encode(&[job]);
        let usual = evaluate(&mut connection, &command, &job.script);
        let key = || first_key(job);
        let reply = match &self.once {
            // Units that are held and taken again would be in their own way.
            Some(once) if !job.may_be_repeated() || job.charges.iter().any(Charge::needs_permit) => {
                let mut connection = once.connection(&self.health, deadline, allowed).await?;
                let reply = async {
                    let reply = with_text_if_missed(&mut connection, &command, &job.script).await;
                    if is_to_be_asked_elsewhere(&reply) { usual.await } else { reply }
                };
                once.reply(deadline, allowed, key, reply).await?
            }
            _ => self.way.reply(deadline, allowed, key, usual).await?,
        };
        let replies = wire::decode(&reply, &[job]);
        settle(&[job], replies).pop().unwrap_or_else(|| Err(wire::unexpected()))
    }

    /// Makes a decision over several identities, for somebody who waits until `deadline`.
    async fn slot_by_slot(
        self: &Arc<Self>,
        job: Job,
        deadline: Instant,
        until: Instant,
    ) -> Result<Decision, Error> {
        let takes = matches!(job.action, Action::Charge | Action::ChargeUpTo);
        let mut outcomes: Vec<Option<Outcome>> = vec![None; job.charges.len()];
        let mut taken: Vec<Vec<usize>> = Vec::new();
        let mut problem = None;
        let mut refused = false;
        for places in by_identity(&job.charges) {
            let (action, until) = match job.action {
                _ if refused => (Action::Peek, half_way_to(deadline)),
                // What was taken is others' again as soon as nobody waits for it.
                action if takes => (action, deadline),
                action => (action, until),
            };
            let mut part = job.part(action, places.iter().map(|&place| job.charges[place].clone()).collect());
            match self.ask(&mut part, until, job.deadline).await {
                Ok(decision) => {
                    for (&place, outcome) in places.iter().zip(decision.outcomes()) {
                        outcomes[place] = Some(outcome.clone());
                    }
                    if !takes || refused {
                        continue;
                    }
                    if decision.is_allowed() {
                        taken.push(places);
                        continue;
                    }
                    refused = true;
                    let back = self.give_back(&job, &taken, &outcomes);
                    if let Ok(Ok(given)) = timeout_at(half_way_to(deadline), back).await {
                        given.into_iter().for_each(|(place, outcome)| outcomes[place] = Some(outcome));
                    }
                }
                // It is refused, whatever else could be said.
                Err(_) if refused => {}
                Err(error) if takes => {
                    self.give_back(&job, &taken, &outcomes);
                    return Err(error);
                }
                // To give back and to renew what can be is better than nothing.
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        if let Some(problem) = problem {
            // Some may have been given back.
            job.settled(None);
            return Err(problem);
        }
        let reply = Reply { decision: Decision::new(outcomes.into_iter().flatten()), leased: None };
        job.settled(Some(&reply));
        Ok(reply.decision)
    }

    /// Gives back what a decision took that is not admitted after all, whether anybody waits for that or not. What
    /// is there then, by the charges' places.
    fn give_back(
        self: &Arc<Self>,
        job: &Job,
        taken: &[Vec<usize>],
        outcomes: &[Option<Outcome>],
    ) -> JoinHandle<Vec<(usize, Outcome)>> {
        let taken = taken.iter().map(|places| {
            let taken: Vec<_> =
                places.iter().filter_map(|&place| Some((place, outcomes[place].clone()?))).collect();
            let charges = taken.iter().map(|(_, outcome)| outcome.undo());
            let mut part = job.part(Action::Refund, charges.collect());
            part.observer = job.observer.as_ref().and_then(|observer| observer.undoing());
            (part, taken)
        });
        let (taken, link): (Vec<_>, _) = (taken.collect(), self.clone());
        let allowed = job.deadline.max(GIVE_UP);
        tokio::spawn(async move {
            let mut all = Vec::new();
            for (mut part, taken) in taken {
                // Where this fails, that much less is admitted until it would have been free again.
                let Ok(decision) = link.ask(&mut part, in_time(allowed), allowed).await else { continue };
                let given = taken.into_iter().zip(decision.outcomes());
                all.extend(given.map(|((place, outcome), now)| (place, with_numbers_of(&outcome, now))));
            }
            all
        })
    }
}

impl<M> Way<M>
where
    M: ManageConnection<Connection = ClusterConnection, Error = RedisError>,
{
    fn new(pool: Pool<M>) -> Self {
        Self { pool, renewing: Arc::default() }
    }

    /// Waits for the reply of the node that has `key`.
    async fn reply(
        &self,
        deadline: Instant,
        allowed: Duration,
        key: impl FnOnce() -> Vec<u8>,
        reply: impl Future<Output = RedisResult<Value>>,
    ) -> Result<Value, Error> {
        let reply = timeout_at(deadline, reply).await;
        if reply.as_ref().map_or(true, |reply| reply.as_ref().is_err_and(is_broken)) {
            renew(&self.pool, &self.renewing, key);
        }
        reply.map_or_else(|_| Err(too_late(allowed)), |reply| reply.map_err(|error| from_redis(&error)))
    }

    async fn connection(
        &self,
        health: &Health,
        deadline: Instant,
        allowed: Duration,
    ) -> Result<ClusterConnection, Error> {
        let connection = connection_until(&self.pool, health, deadline, allowed).await?;
        // The connection returns to the pool at once: its clone can be used beside it.
        Ok(connection.clone())
    }
}

/// Connects anew, so that the nodes are looked for again. redis-rs does so when a node answers that it has
/// lost a slot, or cuts its connection; one that hangs does neither, nor does a connection whose runtime was shut
/// down.
fn renew<M>(pool: &Pool<M>, renewing: &Arc<AtomicBool>, key: impl FnOnce() -> Vec<u8>)
where
    M: ManageConnection<Connection = ClusterConnection, Error = RedisError>,
{
    let Some(turn) = Turn::take(renewing) else { return };
    let (pool, key) = (pool.clone(), key());
    tokio::spawn(async move {
        let _turn = turn;
        let _ = timeout(RENEWAL, replace(pool, key)).await;
        sleep(RENEWAL).await;
    });
}

/// Puts new connections in the place of those of `pool`, if they find who answers for `key`. As long as nobody
/// does, the old ones are better: redis-rs answers no other call while it looks for a node, which it does for each
/// call that should go to one that it has no connection to.
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
        // What is there may be something else than a text.
        Err(error) if !matches!(error.retry_method(), RetryMethod::NoRetry) => return Err(error),
        _ => {}
    }
    // All of them are taken out first, or a pool that gives out the latest one first would give the same one
    // again and again.
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

/// The places of the charges on each identity, in the order in which they come first.
fn by_identity(charges: &[Charge]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (place, charge) in charges.iter().enumerate() {
        match groups.iter_mut().find(|group| charges[group[0]].key() == charge.key()) {
            Some(group) => group.push(place),
            None => groups.push(vec![place]),
        }
    }
    groups
}

/// Leaves time for the answer.
fn half_way_to(deadline: Instant) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) / 2
}

/// What `outcome` says, with what is there now that it was given back.
fn with_numbers_of(outcome: &Outcome, now: &Outcome) -> Outcome {
    Outcome::new(outcome.charge(), outcome.verdict(), now.remaining(), now.reset_after())
        .granting(outcome.granted())
}

/// Nothing else than a reply that a node gave for good, or no reply.
async fn evaluate(connection: &mut ClusterConnection, command: &Cmd, script: &Script) -> RedisResult<Value> {
    loop {
        let reply = with_text_if_missed(connection, command, script).await;
        // redis-rs follows these itself, so many times. It sends the word that lets a node answer for a slot that is
        // on its way there apart from the command, and another one's may come between. Nothing was carried out.
        let moved = reply.as_ref().err().map(|error: &RedisError| error.retry_method());
        if !matches!(moved, Some(RetryMethod::AskRedirect | RetryMethod::MovedRedirect)) {
            return reply;
        }
        sleep(AGAIN).await;
    }
}

async fn with_text_if_missed(
    connection: &mut ClusterConnection,
    command: &Cmd,
    script: &Script,
) -> RedisResult<Value> {
    let reply = command.query_async(connection).await;
    if is_no_script(&reply) { with_text(command, script).query_async(connection).await } else { reply }
}

/// Whether nothing was carried out, and may be at another node or another time.
fn is_to_be_asked_elsewhere(reply: &RedisResult<Value>) -> bool {
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
