//! Finds out at startup whether a server can make decisions, and what an operator should change.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::probe_report::ProbeReport;
use crate::{
    algorithm::SlidingLog,
    base::{Error, ErrorKind, Fault, Quota},
    decision::{Charge, Charges},
    key::Key,
    policy::Policy,
    store::{
        Action,
        redis::{job::Job, store::RedisStore, transport::PROBE_TIMEOUT, wire},
    },
};

/// See [`RedisStore::probe`].
pub(crate) async fn probe(store: &RedisStore) -> Result<ProbeReport, Error> {
    let mut report = ProbeReport::default();
    if !store.link.is_cluster() {
        // A server that requires a password closes the connection of a client that sends a long script
        // without one. Its reply to PING names the cause.
        ask(store, redis::cmd("PING")).await?;
        if let Some(hello) = answered(store, redis::cmd("HELLO")).await? {
            report.read_hello(&hello);
        }
        report.error = wrong_topology(&report).map(ToOwned::to_owned);
        if !report.can_decide() {
            return Ok(report);
        }
    }
    try_decisions(store, &mut report).await?;
    let mut info = redis::cmd("INFO");
    if !store.link.is_cluster() {
        info.arg("memory");
    }
    if let Some(info) = answered(store, info).await? {
        report.read_info(&info);
    }
    report.round_trip = round_trip(store).await;
    report.warn(store.deadline);
    let health = store.link.health();
    if health.introduce() {
        log!(
            info,
            server = %health.server,
            version = report.version.as_deref().unwrap_or("unknown"),
            round_trip = %report.round_trip_text(),
            eviction_policy = report.eviction_text(),
            prefix = store.names.prefix(),
            "connected to Redis"
        );
    }
    Ok(report)
}

/// The least round trip of three commands, because the first may have to wait for a connection, and each for
/// a thread.
async fn round_trip(store: &RedisStore) -> Option<Duration> {
    let mut command = redis::cmd("PING");
    if store.link.is_cluster() {
        // A PING goes to all nodes.
        command = redis::cmd("EXISTS");
        command.arg(format!("{}:{{%probe}}", store.names.prefix()));
    }
    let mut least = None;
    for _ in 0..PINGS {
        let asked = Instant::now();
        let reply = store.link.clone().ask(command.clone(), PROBE_TIMEOUT).await;
        if reply.map_or_else(|error| is_answer(&error), |_| true) {
            least = least.into_iter().chain([asked.elapsed()]).min();
        }
    }
    least
}

/// Makes a decision with each kind of state.
///
/// # Errors
///
/// The error of the first decision, if the server did not answer it.
async fn try_decisions(store: &RedisStore, report: &mut ProbeReport) -> Result<(), Error> {
    let quota = Quota::per_minute(10);
    if let Err(error) = decide_once(store, &Policy::new("%probe", quota)).await {
        let answered = is_answer(&error);
        // The other nodes of a Redis Cluster may be available.
        if error.fault().is_some_and(Fault::is_temporary) || !answered && store.link.is_cluster() {
            report.warnings.push(format!("no decision can be made at the moment: {error}"));
        } else if answered {
            report.error = Some(with_rule(store, "decisions fail", &error));
        } else {
            return Err(error);
        }
        return Ok(());
    }
    let others = [
        ("SlidingLog", Policy::new("%probe", quota).algorithm(SlidingLog::new())),
        ("Concurrency", Policy::concurrency("%probe", 10)),
    ];
    for (algorithm, policy) in others {
        if let Err(error) = decide_once(store, &policy).await {
            let what = format!("decisions of the algorithm {algorithm} fail");
            report.warnings.push(with_rule(store, &what, &error));
        }
    }
    Ok(())
}

/// Describes `error`, with the permissions that the Redis user needs if it lacks one.
fn with_rule(store: &RedisStore, what: &str, error: &Error) -> String {
    if error.fault() == Some(Fault::NoPermission) {
        format!("{what}: {error}; run ACL SETUSER <user> {}", store.acl_rule())
    } else {
        format!("{what}: {error}")
    }
}

/// Makes one decision on an unused key, without leases and the deny cache, and removes the key.
pub(crate) async fn decide_once(store: &RedisStore, policy: &Policy) -> Result<(), Error> {
    static PROBES: AtomicU64 = AtomicU64::new(0);
    let unique = format!("%probe:{}:{}", std::process::id(), PROBES.fetch_add(1, Ordering::Relaxed));
    let key = Key::new(unique);
    let charges = Charges::One(Charge::new(policy, &key, 1));
    let script = store.scripts.script_for(&charges)?;
    let job = Job { deadline: PROBE_TIMEOUT, ..store.job(Action::Charge, charges, script) };
    let clock = &store.link.health().clock;
    let call = wire::encode(&[&job], clock).ok_or_else(wire::unexpected)?;
    let (evaluation, clock) = (call.evaluation().ok_or_else(wire::unexpected)?, call.clock_to_set(clock));
    // EVAL comes first: EVALSHA would not show that the user may not send EVAL, if the server has the script.
    let reply = ask(store, evaluation).await?;
    match ask(store, call.command).await {
        Err(error) if error.fault() != Some(Fault::NoScript) => return Err(error),
        // The script may be missing: the key may be on another node by now, or scripts were flushed.
        _ => {}
    }
    let mut decided = Err(wire::unexpected());
    wire::decode(reply, &[&job], clock, |job, reply| {
        decided = reply.and_then(|reply| wire::decision(job, reply))
    });
    let decided = match decided {
        // The next decision has the right windows.
        Err(error) if wire::is_of_another_window(&error) => Ok(()),
        decided => decided.map(drop),
    };
    let deleted = ask(store, store.delete(policy, &key)).await;
    decided?;
    deleted.map(drop)
}

/// The reply, or `None` if the server does not allow or know the command, or if a node of a Redis Cluster is
/// down.
async fn answered(store: &RedisStore, command: Cmd) -> Result<Option<Value>, Error> {
    match ask(store, command).await {
        Ok(reply) => Ok(Some(reply)),
        Err(error) if is_answer(&error) || store.link.is_cluster() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Runs a command, up to three times if the reply is late, because a busy server must not keep a service from
/// starting. A failure is not noted as an outage.
async fn ask(store: &RedisStore, command: Cmd) -> Result<Value, Error> {
    let mut tries = 1..TRIES;
    loop {
        match store.link.clone().ask(command.clone(), PROBE_TIMEOUT).await {
            Err(error)
                if matches!(error.kind(), ErrorKind::StoreTimeout | ErrorKind::StoreBusy)
                    && tries.next().is_some() => {}
            reply => return reply,
        }
    }
}

const PINGS: usize = 3;
/// How often a command is sent if its reply is late.
const TRIES: usize = 3;

/// Whether the server answered, with an error.
fn is_answer(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::StoreFailed | ErrorKind::ForeignValue)
}

fn wrong_topology(report: &ProbeReport) -> Option<&'static str> {
    // A replica that accepts writes loses them when it synchronizes again, and counts apart from the primary.
    if report.is_replica {
        return Some(
            "the server is a replica, which must not count, even if it accepts writes (replica-read-only no); connect to an \
             address that leads to the primary",
        );
    }
    match report.mode.as_deref()? {
        "cluster" => Some(
            "the server is one node of a Redis Cluster: connect to the nodes with Servers::cluster and the feature `cluster`",
        ),
        "sentinel" => Some(
            "the server is a sentinel, which has no data: connect with Servers::sentinel and the feature `sentinel`",
        ),
        _ => None,
    }
}
