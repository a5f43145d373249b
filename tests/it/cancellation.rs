//! Requests that are dropped while they are decided.

use std::{convert::Infallible, time::Duration};

use futures_util::FutureExt as _;
use http::{Request, Response};
use support::{RedisServer, day, eventually, inner::text, settings};
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    Decision, FailureMode, Header, Key, Limiter, Policy, RateLimitLayer, RedisStore, Reservation,
};

fn policy() -> Policy {
    day("p", 1_000).failure_mode(FailureMode::Closed)
}

async fn store(server: &RedisServer) -> RedisStore {
    settings().deny_cache(Duration::ZERO).connect(&server.url()).await.unwrap()
}

/// Sends a request of `user` through `layer`. The service answers with the user and the remaining units of the decision
/// that it is given.
async fn ask(layer: RateLimitLayer, user: usize) -> String {
    let service = service_fn(|request: Request<String>| async move {
        let outcome = &Decision::from_extensions(request.extensions()).unwrap().outcomes()[0];
        let said = format!("{} {}", outcome.charge().key().as_str(), outcome.remaining());
        Ok::<_, Infallible>(Response::new(said))
    });
    let request = Request::builder().header("x-user", user.to_string()).body(String::new()).unwrap();
    let Ok(response) = layer.layer(service).oneshot(request).await;
    text(response).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_dropped_while_its_batch_is_under_way_gives_no_other_its_decision() {
    const USERS: usize = 24;
    let server = RedisServer::start();
    let store = store(&server).await;
    let limiter = Limiter::new(store.clone());
    let layer = RateLimitLayer::new(store, policy(), Header::new("x-user"));
    // Each user has another number of units left.
    for user in 0..USERS {
        let answer = ask(layer.clone(), user).await;
        let key = Key::new(answer.split(' ').next().unwrap());
        limiter.check(&policy(), &key, user as u64 + 1).await.unwrap();
    }
    for round in 1..=60 {
        let mut kept = JoinSet::new();
        let mut dropped = JoinSet::new();
        for user in 0..USERS {
            let request = ask(layer.clone(), user);
            if user % 2 == 0 {
                kept.spawn(async move { (user, request.await) });
            } else {
                dropped.spawn(tokio::time::timeout(Duration::from_micros(20 * round), request));
            }
        }
        // Those whose time is over are dropped wherever they are: before the call, during it and after it.
        dropped.join_all().await;
        for (user, answer) in kept.join_all().await {
            let left = 1_000 - 1 - (user as u64 + 1) - round;
            assert!(answer.ends_with(&format!("{user} {left}")), "user {user}, {left} left: {answer}");
        }
    }
}

/// Redis hangs, so no reply can arrive before the requests are dropped.
#[tokio::test]
async fn a_request_that_is_dropped_stays_charged_if_it_was_sent_and_is_not_sent_otherwise() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let limiter = Limiter::new(store.clone());
    let layer = RateLimitLayer::new(store, policy(), Key::new("all"));
    ask(layer.clone(), 0).await;
    server.signal("STOP");
    let mut sent = Box::pin(ask(layer.clone(), 0));
    assert!((&mut sent).now_or_never().is_none());
    // Its lane and its connection are tasks of this thread.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let mut requests: Vec<_> = (0..10).map(|user| Box::pin(ask(layer.clone(), user))).collect();
    // These wait for lanes, whose tasks have not run.
    requests.iter_mut().for_each(|request| assert!(request.now_or_never().is_none()));
    drop((sent, requests));
    server.signal("CONT");
    let left = async || limiter.peek(&policy(), &Key::new("all"), 0).await.ok()?.remaining();
    assert!(eventually(async || left().await == Some(1_000 - 2)).await, "{:?} left", left().await);
}

/// Redis hangs, so the calls of the first runtime are under way when it ends.
#[test]
fn a_runtime_that_ends_while_it_carries_calls_fails_only_its_own_decisions() {
    let server = RedisServer::start();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let (first, second) = (runtime().unwrap(), runtime().unwrap());
    let limiter = Limiter::new(second.block_on(store(&server)));
    let check = |user: &str| {
        let (limiter, key) = (limiter.clone(), Key::new(user));
        async move { limiter.check(&policy(), &key, 1).await.map(|decision| decision.remaining()) }
    };
    assert_eq!(second.block_on(check("kept")).unwrap(), Some(999));
    server.signal("STOP");
    let own: Vec<_> = (0..20).map(|_| first.spawn(check("own"))).collect();
    // Time to send them. If it is too short, there is less to fail.
    std::thread::sleep(Duration::from_millis(50));
    let others: Vec<_> = (0..20).map(|_| second.spawn(check("kept"))).collect();
    std::thread::sleep(Duration::from_millis(50));
    first.shutdown_background();
    server.signal("CONT");
    let mut left: Vec<_> =
        others.into_iter().map(|other| second.block_on(other).unwrap().unwrap().unwrap()).collect();
    left.sort_unstable();
    assert_eq!(left, (979..999).collect::<Vec<_>>());
    // What the first one sent may be charged.
    assert!(second.block_on(check("own")).unwrap() >= Some(979));
    drop(own);
}

/// The other callers keep all connections busy, so a settlement waits for a place in a batch.
#[tokio::test(flavor = "multi_thread")]
async fn settlements_that_are_cancelled_under_load_are_all_charged() {
    const RESERVATIONS: usize = 100;
    let server = RedisServer::start();
    let limiter = Limiter::new(store(&server).await);
    let tokens = day("tokens", 1_000_000);
    for callers in [0, 1, 16, 200] {
        let mut others = JoinSet::new();
        for caller in 0..callers {
            let limiter = limiter.clone();
            others.spawn(async move {
                loop {
                    limiter.check(&policy(), &Key::new(format!("other-{caller}")), 0).await.unwrap();
                }
            });
        }
        let key = Key::new(format!("beside-{callers}"));
        for _ in 0..RESERVATIONS {
            let decision = limiter.check(&tokens, &key, 100).await.unwrap();
            let reservation = Reservation::new(&limiter, &decision);
            drop(reservation.settle(5_000).now_or_never());
        }
        let left = async || limiter.peek(&tokens, &key, 0).await.unwrap().remaining().unwrap();
        let all = 1_000_000 - RESERVATIONS as u64 * 5_000;
        assert!(
            eventually(async || left().await == all).await,
            "beside {callers} callers, {} of {RESERVATIONS} settlements are charged",
            (1_000_000 - left().await - RESERVATIONS as u64 * 100) / 4_900
        );
        others.shutdown().await;
    }
}
