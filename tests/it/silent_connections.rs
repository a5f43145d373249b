//! Connections that a device on the way has forgotten while they were silent.

use std::time::Duration;

use support::{
    RedisServer, day, let_others_run, proxy::Proxy, settings, sockets::keepalive_of_connections, within,
};
use tokio::time::sleep;
use tower_ratelimit::{ErrorKind, FailureMode, Key, Limiter, Policy, RedisStore};

fn closed() -> Policy {
    day("p", 1_000).failure_mode(FailureMode::Closed)
}

/// The units that the key "all" has used.
async fn used(limiter: &Limiter) -> u64 {
    1_000 - support::units_left(limiter, &closed()).await
}

#[tokio::test]
async fn the_first_decision_after_a_silence_is_made_by_redis_although_the_connections_are_forgotten() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port()).await;
    let silence = Duration::from_millis(50);
    let limiter = Limiter::new(settings().check_idle_after(silence).connect(&proxy.url()).await.unwrap());
    for round in 1..=4 {
        let decision = limiter.check(&closed(), &Key::new("all"), 1).await.unwrap();
        assert!(decision.failure().is_none(), "{round}: {:?}", decision.failure());
        proxy.forget();
        sleep(2 * silence).await;
    }
    assert_eq!(used(&limiter).await, 4, "nothing is charged twice");
}

/// A decision that finds all connections forgotten, while many others do too.
#[tokio::test]
async fn concurrent_decisions_after_a_silence_are_made_by_redis() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port()).await;
    // Each use is checked.
    let settings = settings().check_idle_after(Duration::ZERO);
    let limiter = Limiter::new(settings.connect(&proxy.url()).await.unwrap());
    for round in 0..3 {
        let decisions = (0..40).map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.check(&closed(), &Key::new("all"), 1).await })
        });
        for decision in decisions.collect::<Vec<_>>() {
            decision.await.unwrap().unwrap_or_else(|error| panic!("{round}: {error}"));
        }
        // The lanes return their connections.
        let_others_run().await;
        proxy.forget();
    }
    assert_eq!(used(&limiter).await, 120);
}

#[tokio::test]
async fn a_connection_is_checked_only_after_a_silence_and_then_once() {
    let server = RedisServer::start();
    let store = settings().check_idle_after(Duration::from_secs(3_600)).connect(&server.url()).await.unwrap();
    let limiter = Limiter::new(store);
    let pings = || {
        let stats: String = server.command(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_ping:calls="));
        line.map_or(0, |calls| calls.split(',').next().unwrap().parse::<u64>().unwrap())
    };
    let before = pings();
    for _ in 0..20 {
        limiter.check(&closed(), &Key::new("all"), 1).await.unwrap();
    }
    assert_eq!(pings(), before);
    let store = settings().check_idle_after(Duration::ZERO).connect(&server.url()).await.unwrap();
    let limiter = Limiter::new(store);
    let (before, connections) = (pings(), server.connections());
    for _ in 0..20 {
        limiter.check(&closed(), &Key::new("all"), 1).await.unwrap();
    }
    assert_eq!(pings(), before + 20);
    assert_eq!(connections, server.connections(), "those that answer are kept");
}

/// With a single decision under way, each attempt to connect counts as a call without an answer.
#[tokio::test]
async fn connections_that_are_closed_during_their_setup_are_opened_again() {
    use tower_ratelimit::bb8_redis::{RedisConnectionManager, bb8::Pool};
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port()).await;
    proxy.close_next(1);
    let store = settings().connect(&proxy.url()).await.unwrap();
    assert!(store.probe().await.unwrap().can_decide());
    for (name, closes) in [("connect", 1), ("connect_lazy", 3), ("a pool", 3)] {
        proxy.close_next(closes);
        let store = match name {
            "connect" => settings().connect(&proxy.url()).await.unwrap(),
            "connect_lazy" => settings().connect_lazy(proxy.url()).unwrap(),
            _ => {
                let manager = RedisConnectionManager::new(proxy.url()).unwrap();
                settings().build(Pool::builder().test_on_check_out(false).build_unchecked(manager)).unwrap()
            }
        };
        let limiter = Limiter::new(store);
        for _ in 0..3 {
            let decision = limiter.check(&closed(), &Key::new("all"), 1).await;
            decision.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

/// As if an operator killed each new connection.
#[tokio::test]
async fn a_server_that_works_is_not_unavailable_because_it_closes_connections_again_and_again() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port()).await;
    let limiter = Limiter::new(settings().connect(&proxy.url()).await.unwrap());
    for round in 0..5 {
        let decisions = (0..20).map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.check(&closed(), &Key::new("all"), 1).await })
        });
        for decision in decisions.collect::<Vec<_>>() {
            decision.await.unwrap().unwrap_or_else(|error| panic!("{round}: {error}"));
        }
        // Each attempt fails, until the third or fourth.
        proxy.close_next(4);
        proxy.close_all_and_wait().await;
    }
    // On a busy machine, a connection may not be made in time. The next call opens another one.
    let are_charged = async || {
        let left = limiter.peek(&closed(), &Key::new("all"), 0).await;
        left.is_ok_and(|left| left.remaining() == Some(closed().capacity() - 100))
    };
    assert!(within(support::PATIENT, are_charged).await);
}

/// It accepts no new connection, and answers nothing on those that are open.
#[tokio::test]
async fn a_server_that_answers_on_no_connection_is_unavailable_although_some_are_open() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port()).await;
    let store = RedisStore::builder().check_idle_after(Duration::MAX).connect(&proxy.url()).await.unwrap();
    let limiter = Limiter::new(store);
    limiter.check(&closed(), &Key::new("all"), 1).await.unwrap();
    proxy.forget();
    proxy.close_next(u64::MAX);
    let is_suspended = async || {
        let decision = limiter.check(&closed(), &Key::new("all"), 1).await;
        decision.is_err_and(|error| error.kind() == ErrorKind::StoreSuspended)
    };
    assert!(within(support::PATIENT, is_suspended).await);
}

#[tokio::test]
async fn a_server_that_closes_all_connections_is_unavailable_and_its_return_is_noticed() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port()).await;
    let limiter = Limiter::new(RedisStore::builder().connect(&proxy.url()).await.unwrap());
    proxy.close_next(u64::MAX);
    let () = server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    let fails = async || limiter.check(&closed(), &Key::new("all"), 1).await.is_err();
    assert!(within(support::PATIENT, fails).await);
    proxy.close_next(0);
    assert!(within(support::PATIENT, async || !fails().await).await);
}

#[tokio::test]
async fn sockets_have_tcp_keepalive() {
    let server = RedisServer::start();
    let limiter = Limiter::new(settings().connect(&server.url()).await.unwrap());
    limiter.check(&closed(), &Key::new("all"), 1).await.unwrap();
    // Until all that was sent is acknowledged, another timer runs.
    let all_have_it = async || {
        let connections = keepalive_of_connections(server.port());
        !connections.is_empty() && connections.iter().all(|has_it| *has_it)
    };
    assert!(support::eventually(all_have_it).await);
}
