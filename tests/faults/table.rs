//! The fault table: each fault under load, and what the requests saw of it.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{task::block_in_place, time::sleep};
use tower_ratelimit::{Limiter, Policy, Quota, RedisStore, store::Servers};

use crate::{
    DEADLINE, RATE,
    faults::{Blocked, Commands, Cut, Fault, Frozen, Killed, Node, NodeFault, OverTls, Promotion, Repeated},
    load::{Load, Sample, layers, millis, quantile},
    promises::Promises,
};
use support::{
    RedisServer,
    certificates::Authority,
    proxy::{Network, Proxy},
    redis_cluster::RedisCluster,
    redis_sentinel::{PRIMARY, SentinelGroup},
};

/// How long a fault lasts.
const DURATION: Duration = Duration::from_secs(3);
/// After the fault. A Sentinel needs a second or two for a promotion.
const AFTERWARDS: Duration = Duration::from_secs(3);
const KEYS: u64 = 96;

struct Row {
    name: &'static str,
    store: RedisStore,
    fault: Box<dyn Fault>,
    promise: Promise,
}

enum Promise {
    /// Some decisions are made without the store, and none later than this after the end of the fault.
    NormalWithin(Duration),
    /// Every decision is made by the store.
    NoFailure,
    /// Once the fault has lasted for this time, one request in twenty waits for the deadline at most. Mostly none does. Once
    /// in 256 probes, all PINGs are answered in time, and about 80 more wait until the breaker is open again.
    FewWaitAfter(Duration),
    /// Some decisions about these keys are made without the store, and none about others.
    OnlyTheseFail(Arc<Mutex<HashSet<u64>>>),
}

pub(crate) async fn print(promises: &mut Promises) {
    println!("## Faults under load\n");
    println!(
        "{RATE} requests a second of {KEYS} clients through one layer, deadline {} ms. Each fault lasts {} s.\n",
        DEADLINE.as_millis(),
        DURATION.as_secs()
    );
    println!(
        "| fault | requests during it | decided without the store | p50, ms | p99.9, ms | max, ms \
         | normal after its end, ms |"
    );
    println!("|---|---|---|---|---|---|---|");
    let chosen = std::env::var("ROWS").ok();
    for number in 0..ROWS {
        if chosen.as_ref().is_some_and(|rows| !rows.split(',').any(|row| row == number.to_string())) {
            continue;
        }
        let row = row(number).await;
        measure(row, promises).await;
    }
}

async fn measure(mut row: Row, promises: &mut Promises) {
    // Clients ask more often than units are replenished, so that each has a key.
    let policy = Policy::new("p", Quota::per_day(1_000_000));
    let load = Load::start(layers(&[Limiter::new(row.store.clone())], &policy), RATE, KEYS);
    sleep(Duration::from_secs(1)).await;
    let begin = load.now();
    block_in_place(|| row.fault.begin());
    sleep(DURATION).await;
    block_in_place(|| row.fault.end());
    let end = load.now();
    sleep(AFTERWARDS).await;
    let samples = load.stop().await;

    let early = samples.iter().filter(|sample| sample.at + sample.took < begin && sample.failed).count();
    let during: Vec<Sample> =
        samples.iter().filter(|sample| begin <= sample.at && sample.at <= end).copied().collect();
    let failed: Vec<&Sample> =
        samples.iter().filter(|sample| sample.failed && sample.at + sample.took >= begin).collect();
    let normal = failed.last().map_or(Duration::ZERO, |last| last.at.saturating_sub(end));
    let [usual, slow, longest] = [0.5, 0.999, 1.0].map(|share| quantile(&during, share));
    // The machine is too busy to measure anything.
    let mut others = if early > 0 { format!(", and {early} before it") } else { String::new() };
    let kept = match &row.promise {
        Promise::NormalWithin(bound) => normal <= *bound,
        Promise::NoFailure => failed.is_empty(),
        Promise::FewWaitAfter(pause) => {
            let later = during.iter().filter(|sample| sample.at > begin + *pause);
            let waited = later.clone().filter(|sample| sample.failed && sample.took > DEADLINE / 2).count();
            others += &format!(", {waited} of {} after a deadline", later.clone().count());
            waited * 20 < later.count()
        }
        Promise::OnlyTheseFail(keys) => {
            let keys = keys.lock().unwrap();
            let wrong = failed.iter().filter(|sample| !keys.contains(&sample.key)).count();
            others += &format!(", {wrong} of other nodes' keys");
            wrong == 0 && !failed.is_empty()
        }
    };
    let name = row.name;
    let unkept = promises.check(kept, || format!("{name}: {} failed, normal after {normal:?}", failed.len()));
    let late = promises.check(slow < DEADLINE + Duration::from_millis(10), || {
        format!("{name}: 99.9 % of the requests took up to {slow:?}")
    });
    println!(
        "| {name} | {} | {}{others}{unkept} | {} | {}{late} | {} | {} |",
        during.len(),
        failed.len(),
        millis(usual),
        millis(slow),
        millis(longest),
        millis(normal)
    );
}

const SECOND: Promise = Promise::NormalWithin(Duration::from_secs(1));
const ROWS: usize = 20;

/// The rows, by their numbers, because each starts its own servers.
async fn row(number: usize) -> Row {
    let server = RedisServer::start;
    match number {
        0 => on(server(), "Redis is killed, and starts again without data and scripts", SECOND, Killed).await,
        1 => on(server(), "Redis is frozen (SIGSTOP), and continues", SECOND, Frozen).await,
        2 => {
            let words = &["CLIENT", "KILL", "TYPE", "normal"];
            let repeated = |server| Repeated::new(server, words, Duration::from_millis(100));
            on(server(), "all connections are killed, every 100 ms", SECOND, repeated).await
        }
        3 => {
            let repeated = |server| Repeated::new(server, &["SCRIPT", "FLUSH"], Duration::ZERO);
            on(server(), "`SCRIPT FLUSH` in a loop", Promise::NoFailure, repeated).await
        }
        4 => {
            let commands = |server| Commands {
                server,
                begin: &[&["CONFIG", "SET", "maxmemory", "1"]],
                end: &[&["CONFIG", "SET", "maxmemory", "0"]],
            };
            on(server(), "Redis is out of memory, `noeviction`", SECOND, commands).await
        }
        5 => {
            let commands = |server| Commands {
                server,
                begin: &[&["REPLICAOF", "127.0.0.1", "1"]],
                end: &[&["REPLICAOF", "NO", "ONE"]],
            };
            on(server(), "Redis is demoted to a replica, and is primary again", SECOND, commands).await
        }
        6 => {
            let commands = |server| Commands {
                server,
                begin: &[
                    &["CONFIG", "SET", "requirepass", "changed"],
                    &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
                ],
                end: &[&["CONFIG", "SET", "requirepass", ""]],
            };
            on(
                server(),
                "the password is changed, connections are closed, and it is changed back",
                SECOND,
                commands,
            )
            .await
        }
        7 => {
            let commands = |server| Commands {
                server,
                begin: &[&["ACL", "SETUSER", "default", "-evalsha"]],
                end: &[&["ACL", "SETUSER", "default", "+@all"]],
            };
            on(server(), "the user loses the permission for scripts, and gets it again", SECOND, commands)
                .await
        }
        8 => on(server(), "a script of another client blocks Redis", SECOND, Blocked).await,
        9 => through_proxy("the network drops every packet", Network::DropsAll).await,
        10 => through_proxy("the network needs 5 ms longer, in each direction", Network::SlowBy5).await,
        11 => {
            let group = block_in_place(SentinelGroup::start);
            let store = RedisStore::connect(Servers::sentinel(group.urls(), PRIMARY)).await.unwrap();
            let name = "the primary is killed, and sentinels promote its replica";
            Row { name, store, fault: Box::new(Promotion(group)), promise: SECOND }
        }
        12 => {
            of_cluster("a node of a Cluster is killed, and starts again without data", NodeFault::Killed)
                .await
        }
        13 => of_cluster("a node of a Cluster is frozen, and continues", NodeFault::Frozen).await,
        14 => of_cluster("the slots of a node of a Cluster move to another one", NodeFault::SlotsMove).await,
        15 => {
            through_proxy("a round trip takes 30 to 70 ms, with a deadline of 50 ms", Network::SlowBy30To70)
                .await
        }
        16 => over_tls("TLS: Redis is killed, and starts again without data and scripts", Killed).await,
        17 => over_tls("TLS: Redis is frozen, and continues", Frozen).await,
        18 => {
            let words = &["CLIENT", "KILL", "TYPE", "normal"];
            let repeated = |server| Repeated::new(server, words, Duration::from_millis(100));
            over_tls("TLS: all connections are killed, every 100 ms", repeated).await
        }
        _ => {
            let authority = Authority::new();
            let (server, url) = authority.serve(&["--tls-auth-clients", "no"]);
            let proxy = Proxy::to(url.rsplit(':').next().unwrap().parse().unwrap()).await;
            let store = with_tls(&authority, &proxy.url().replace("redis://", "rediss://")).await;
            let fault = Cut { _server: server, proxy, during: Network::DropsAll };
            let name = "TLS: the network drops every packet";
            Row { name, store, fault: Box::new(OverTls { fault, _authority: authority }), promise: SECOND }
        }
    }
}

async fn with_tls(authority: &Authority, url: &str) -> RedisStore {
    RedisStore::builder().tls_ca_certificate(authority.ca.clone()).connect(url).await.unwrap()
}

async fn over_tls<F: Fault + 'static>(name: &'static str, fault: impl FnOnce(RedisServer) -> F) -> Row {
    let authority = Authority::new();
    let (server, url) = authority.serve(&["--tls-auth-clients", "no"]);
    let store = with_tls(&authority, &url).await;
    let fault = OverTls { fault: fault(server), _authority: authority };
    Row { name, store, fault: Box::new(fault), promise: SECOND }
}

async fn on<F: Fault + 'static>(
    server: RedisServer,
    name: &'static str,
    promise: Promise,
    fault: impl FnOnce(RedisServer) -> F,
) -> Row {
    let store = RedisStore::connect(&server.url()).await.unwrap();
    Row { name, store, fault: Box::new(fault(server)), promise }
}

async fn through_proxy(name: &'static str, during: Network) -> Row {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port()).await;
    let store = RedisStore::connect(&proxy.url()).await.unwrap();
    let promise = match during {
        Network::SlowBy5 => Promise::NoFailure,
        Network::SlowBy30To70 => Promise::FewWaitAfter(Duration::from_secs(1)),
        _ => Promise::NormalWithin(Duration::from_secs(1)),
    };
    Row { name, store, fault: Box::new(Cut { _server: server, proxy, during }), promise }
}

async fn of_cluster(name: &'static str, fault: NodeFault) -> Row {
    let cluster = block_in_place(|| RedisCluster::start(3));
    let store = RedisStore::connect(Servers::cluster(cluster.urls())).await.unwrap();
    let keys = Arc::new(Mutex::new(HashSet::new()));
    let promise = match fault {
        NodeFault::SlotsMove => Promise::NoFailure,
        _ => Promise::OnlyTheseFail(keys.clone()),
    };
    Row { name, store, fault: Box::new(Node { cluster, fault, keys }), promise }
}
