//! A Redis that hangs: how many requests wait for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use support::{RedisServer, certificates::Authority, eventually, fake_server};
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};
use tower_ratelimit::{
    Error, ErrorKind, FailureMode, Key, Limiter, Policy, Quota, RedisStore,
    store::{RedisStoreBuilder, Servers},
};

fn closed() -> Policy {
    Policy::new("closed", Quota::per_day(1_000_000)).failure_mode(FailureMode::Closed)
}

/// A deadline in which a busy machine answers.
fn settings() -> RedisStoreBuilder {
    RedisStore::builder().deadline(Duration::from_millis(300))
}

fn was_made_to_wait(error: &Error) -> bool {
    error.kind() != ErrorKind::StoreSuspended
}

async fn check(limiter: &Limiter) -> Result<(), Error> {
    limiter.check(&closed(), &Key::new("alice"), 1).await.map(drop)
}

/// Makes decisions about one key, one after the other, and returns the kinds of errors of those that waited.
async fn waited(limiter: &Limiter, decisions: usize) -> Vec<ErrorKind> {
    waited_for(limiter, decisions, 1).await
}

async fn waited_for(limiter: &Limiter, decisions: usize, keys: usize) -> Vec<ErrorKind> {
    let mut waited = Vec::new();
    for decision in 0..decisions {
        let key = Key::new((decision % keys).to_string());
        let error = limiter.check(&closed(), &key, 1).await.unwrap_err();
        waited.extend(was_made_to_wait(&error).then_some(error.kind()));
        sleep(Duration::from_millis(1)).await;
    }
    waited
}

/// Accepts connections and never answers.
async fn silent() -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((client, _)) = listener.accept().await {
            kept.push(client);
        }
    });
    address.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn three_decisions_wait_for_a_server_that_accepts_connections_and_never_answers() {
    let authority = Authority::new();
    let tls = settings().tls_ca_certificate(authority.ca.clone());
    let hangs_in_auth = fake_server::start(|words| match words[0].as_str() {
        "HELLO" | "AUTH" => String::new(),
        _ => "+OK\r\n".to_owned(),
    });
    let with_password = hangs_in_auth.await.replace("redis://", "redis://:secret@");
    let rows = [
        ("a connection", settings(), format!("redis://{}", silent().await)),
        ("a TLS handshake", tls, format!("rediss://{}", silent().await)),
        ("AUTH", settings(), with_password),
    ];
    for (name, settings, url) in rows {
        let limiter = Limiter::new(settings.connect_lazy(url).unwrap());
        let waited = waited(&limiter, 100).await;
        assert_eq!(waited, [ErrorKind::StoreUnreachable; 3], "{name}");
    }
}

/// Decisions begin while others wait, as in a service.
#[tokio::test(flavor = "multi_thread")]
async fn no_decision_waits_after_the_third_failure_of_a_stopped_server() {
    for connections in [1, 8] {
        let server = RedisServer::start();
        let store = settings().pool_size(connections).connect(&server.url()).await.unwrap();
        let limiter = Limiter::new(store);
        check(&limiter).await.unwrap();
        server.signal("STOP");
        let failed = Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut running = JoinSet::new();
        let mut tick = interval(Duration::from_millis(25));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for _ in 0..80 {
            tick.tick().await;
            let (limiter, failed) = (limiter.clone(), failed.clone());
            running.spawn(async move {
                let failed_before = failed.lock().unwrap().len();
                let error = check(&limiter).await.unwrap_err();
                failed.lock().unwrap().push(error.kind());
                (failed_before, error)
            });
        }
        let late: Vec<_> = running
            .join_all()
            .await
            .into_iter()
            .filter(|(before, error)| *before >= 3 && was_made_to_wait(error))
            .collect();
        assert!(late.is_empty(), "{connections} connections: {late:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_decisions_of_a_shard_wait_for_a_cluster_that_never_answers() {
    let url = format!("redis://{}", silent().await);
    // Shorter than an attempt to connect to a node, which would otherwise fail before the decisions do.
    let settings = RedisStore::builder().deadline(Duration::from_millis(50));
    let limiter = || Limiter::new(settings.clone().connect_lazy(Servers::cluster([url.clone()])).unwrap());
    let of_one = waited(&limiter(), 100).await;
    assert!((1..=3).contains(&of_one.len()), "{of_one:?}");
    // By default there are eight shards.
    let of_all = waited_for(&limiter(), 400, 100).await;
    assert!((9..=24).contains(&of_all.len()), "{of_all:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_go_on_without_traffic() {
    let pings = Arc::new(AtomicUsize::new(0));
    let counted = pings.clone();
    let url = fake_server::start(move |words| match words[0].as_str() {
        "PING" => {
            counted.fetch_add(1, Ordering::Relaxed);
            String::new()
        }
        "EVALSHA" | "EVAL" => String::new(),
        _ => "+OK\r\n".to_owned(),
    });
    let limiter = Limiter::new(settings().connect_lazy(url.await).unwrap());
    let is_suspended = async || check(&limiter).await.is_err_and(|error| !was_made_to_wait(&error));
    assert!(eventually(is_suspended).await, "the breaker does not open");
    // Each probe of a silent server is one PING. A few come from the decisions, and from checks of idle connections.
    let go_on = eventually(async || pings.load(Ordering::Relaxed) >= 12).await;
    assert!(go_on, "{pings:?}");
}
