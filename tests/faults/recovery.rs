//! How many requests wait for a Redis that hangs, and how soon it decides again, with and without traffic.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    task::{JoinSet, block_in_place},
    time::{Instant, sleep},
};
use tower_ratelimit::{
    Error, ErrorKind, FailureMode, Key, Limiter, Policy, Quota, RedisStore, store::Servers,
};

use crate::{
    faults::{Cut, Fault, Frozen, Killed},
    promises::Promises,
    proxy::{Network, Proxy},
};
use support::{RedisServer, redis_cluster::RedisCluster};

const OUTAGE: Duration = Duration::from_secs(3);
/// Redis decides again after this time.
const BACK: Duration = Duration::from_millis(300);
/// 40 requests a second.
const PAUSE: Duration = Duration::from_millis(25);

pub(crate) async fn print(promises: &mut Promises) {
    println!("## Waits for a Redis that hangs, and its return\n");
    println!(
        "40 requests a second or none, an outage of {} s. The row without traffic has one decision {} ms after its end.\n",
        OUTAGE.as_secs(),
        BACK.as_millis()
    );
    println!(
        "| fault | traffic | waited, of those that began after the third failure | Redis decides after, ms |"
    );
    println!("|---|---|---|---|");
    for has_traffic in [true, false] {
        for kind in ["killed", "frozen", "packets are dropped", "all nodes of a Cluster are frozen"] {
            row(kind, has_traffic, promises).await;
        }
    }
}

/// The servers of a Cluster, which freeze together.
struct AllNodes(RedisCluster);

impl Fault for AllNodes {
    fn begin(&mut self) {
        self.0.nodes.iter().for_each(|node| node.signal("STOP"));
    }

    fn end(&mut self) {
        self.0.nodes.iter().for_each(|node| node.signal("CONT"));
    }
}

async fn check(limiter: &Limiter) -> Result<(), Error> {
    let policy = Policy::new("p", Quota::per_day(1_000_000)).on_store_failure(FailureMode::Closed);
    limiter.check(&policy, &Key::new("alice"), 1).await.map(drop)
}

async fn fault(kind: &str) -> (Box<dyn Fault>, RedisStore) {
    if kind.contains("Cluster") {
        let cluster = block_in_place(|| RedisCluster::start(3));
        let store = RedisStore::connect(Servers::cluster(cluster.urls())).await.unwrap();
        return (Box::new(AllNodes(cluster)), store);
    }
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port()).await;
    let url = if kind == "packets are dropped" { proxy.url() } else { server.url() };
    let store = RedisStore::connect(&url).await.unwrap();
    let fault: Box<dyn Fault> = match kind {
        "killed" => Box::new(Killed(server)),
        "frozen" => Box::new(Frozen(server)),
        _ => Box::new(Cut { _server: server, proxy, during: Network::DropsAll }),
    };
    (fault, store)
}

async fn row(kind: &str, has_traffic: bool, promises: &mut Promises) {
    let (mut fault, store) = fault(kind).await;
    let limiter = Limiter::new(store);
    for _ in 0..20 {
        check(&limiter).await.unwrap();
    }
    block_in_place(|| fault.begin());
    let failed = Arc::new(Mutex::new(0));
    let mut running = JoinSet::new();
    let request = |running: &mut JoinSet<bool>| {
        let (limiter, failed) = (limiter.clone(), failed.clone());
        running.spawn(async move {
            let failed_before = *failed.lock().unwrap();
            let error = check(&limiter).await.err();
            *failed.lock().unwrap() += u32::from(error.is_some());
            let waited = error.is_some_and(|error| error.kind() != ErrorKind::StoreSuspended);
            failed_before >= 3 && waited
        });
    };
    let began = Instant::now();
    // Without traffic, until the breaker is open.
    while began.elapsed() < if has_traffic { OUTAGE } else { Duration::from_secs(1) } {
        request(&mut running);
        sleep(PAUSE).await;
    }
    sleep(OUTAGE.saturating_sub(began.elapsed())).await;
    block_in_place(|| fault.end());
    let ended = Instant::now();
    if !has_traffic {
        sleep(BACK).await;
    }
    while check(&limiter).await.is_err() && ended.elapsed() < Duration::from_secs(20) {
        sleep(Duration::from_millis(5)).await;
    }
    let back = ended.elapsed();
    let waited = running.join_all().await.into_iter().filter(|waited| *waited).count();
    let traffic = if has_traffic { "40 a second" } else { "none" };
    let wait = promises.check(waited == 0, || format!("{kind}, {traffic}: {waited} waited"));
    let late = promises.check(back < BACK + Duration::from_millis(100), || {
        format!("{kind}, {traffic}: Redis decided after {back:?}")
    });
    println!("| {kind} | {traffic} | {waited}{wait} | {}{late} |", back.as_millis());
}
