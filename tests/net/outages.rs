//! Outages of Redis under `FailureMode::Local`: what several of them admit together, and that what was refunded is not
//! charged.

use std::{convert::Infallible, future::pending, time::Duration};

use http::{Request, Response, StatusCode};
use support::{RedisServer, eventually, settings, within};
use tokio::time::timeout;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    Decision, ErrorKind, FailureMode, Key, Limiter, Policy, Quota, RateLimitLayer, Reservation, Rule,
    algorithm::{FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
};

const LIMIT: u64 = 30;
const OUTAGES: usize = 4;

/// A policy of each algorithm. Nothing is replenished during a test.
fn policies(mode: FailureMode) -> Vec<Policy> {
    let quota = Quota::per_day(LIMIT);
    let all = [
        Policy::new("gcra", quota).algorithm(Gcra::new()),
        Policy::new("token-bucket", quota).algorithm(TokenBucket::new()),
        Policy::new("leaky-bucket", quota).algorithm(LeakyBucket::meter()),
        Policy::new("fixed-window", quota).algorithm(FixedWindow::anchored()),
        Policy::new("sliding-window", quota).algorithm(SlidingWindow::new()),
        Policy::new("sliding-log", quota).algorithm(SlidingLog::new()),
    ];
    all.into_iter().map(|policy| policy.failure_mode(mode)).collect()
}

async fn limiters(server: &RedisServer, count: usize) -> Vec<Limiter> {
    let mut limiters = Vec::new();
    for _ in 0..count {
        // Without the deny cache, which would deny in an outage what was exhausted before.
        let settings = settings().deadline(Duration::from_millis(300)).deny_cache(Duration::ZERO);
        limiters.push(Limiter::new(settings.connect(&server.url()).await.unwrap()));
    }
    limiters
}

/// Asks each limiter until it denies.
async fn exhaust(limiters: &[Limiter], policy: &Policy, key: &Key) -> u64 {
    let mut admitted = 0;
    for limiter in limiters {
        while limiter.check(policy, key, 1).await.unwrap().is_admitted() {
            admitted += 1;
        }
    }
    admitted
}

/// Waits until no limiter asks the store.
async fn suspended(limiters: &[Limiter], policy: &Policy) {
    for limiter in limiters {
        let is_suspended = async || {
            let decision = limiter.peek(policy, &Key::new("bob"), 1).await.unwrap();
            decision.failure().is_some_and(|failure| failure.kind() == ErrorKind::StoreSuspended)
        };
        assert!(eventually(is_suspended).await, "the breaker does not open");
    }
}

/// Waits until every limiter asks the store, and has charged what it owes.
async fn back(limiters: &[Limiter], policy: &Policy) {
    for limiter in limiters {
        let is_back = async || limiter.peek(policy, &Key::new("bob"), 1).await.unwrap().failure().is_none();
        assert!(eventually(is_back).await, "the store is not asked again");
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Repeats an outage, and returns what was admitted by policy: before, and during and after each one.
async fn repeat(
    server: &mut RedisServer,
    limiters: &[Limiter],
    policies: &[Policy],
    begin: impl Fn(&mut RedisServer),
    end: impl Fn(&mut RedisServer),
) -> Vec<Vec<u64>> {
    let alice = Key::new("alice");
    let mut admitted = vec![Vec::new(); policies.len()];
    for (policy, admitted) in policies.iter().zip(&mut admitted) {
        admitted.push(exhaust(limiters, policy, &alice).await);
    }
    for _ in 0..OUTAGES {
        begin(server);
        suspended(limiters, &policies[0]).await;
        for (policy, admitted) in policies.iter().zip(&mut admitted) {
            admitted.push(exhaust(limiters, policy, &alice).await);
        }
        end(server);
        back(limiters, &policies[0]).await;
        for (policy, admitted) in policies.iter().zip(&mut admitted) {
            admitted.push(exhaust(limiters, policy, &alice).await);
        }
    }
    admitted
}

fn assert_bounded(policies: &[Policy], admitted: &[Vec<u64>], bound: u64) {
    let totals: Vec<u64> = admitted.iter().map(|one| one.iter().sum()).collect();
    let rows: Vec<_> = policies.iter().map(Policy::name).zip(&totals).zip(admitted).collect();
    assert!(totals.iter().all(|total| *total <= bound), "at most {bound} of each: {rows:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_freezes_admit_the_share_of_each_instance_once() {
    for (instances, mode) in
        [(1, FailureMode::Local { instances: 1 }), (3, FailureMode::Local { instances: 3 })]
    {
        let mut server = RedisServer::start();
        let (limiters, policies) = (limiters(&server, instances).await, policies(mode));
        let freeze = |server: &mut RedisServer| server.signal("STOP");
        let thaw = |server: &mut RedisServer| server.signal("CONT");
        let admitted = repeat(&mut server, &limiters, &policies, freeze, thaw).await;
        assert_bounded(&policies, &admitted, 2 * LIMIT);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_crashes_with_persistence_admit_the_share_of_each_instance_once() {
    let mut server = RedisServer::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let limiters = limiters(&server, 3).await;
    let policies = policies(FailureMode::Local { instances: 3 });
    let (kill, restart) = (RedisServer::kill, RedisServer::restart);
    let admitted = repeat(&mut server, &limiters, &policies, kill, restart).await;
    assert_bounded(&policies, &admitted, 2 * LIMIT);
}

/// Waits until this many units remain in the store.
async fn remains(limiter: &Limiter, policy: &Policy, key: &Key, expected: u64) {
    let mut left = None;
    let does = async || {
        let decision = limiter.peek(policy, key, 0).await.unwrap();
        left = decision.failure().is_none().then(|| decision.remaining()).flatten();
        left == Some(expected)
    };
    assert!(eventually(does).await, "{}: {expected} must remain, {left:?} do", policy.name());
}

async fn charged(limiter: &Limiter, policy: &Policy, key: &Key, units: u64) -> Decision {
    let decision = limiter.check(policy, key, units).await.unwrap();
    assert!(decision.is_admitted(), "{}", policy.name());
    decision
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refunded_in_or_after_an_outage_is_not_charged() {
    let server = RedisServer::start();
    let limiters = limiters(&server, 1).await;
    let (limiter, policies, alice) =
        (&limiters[0], policies(FailureMode::Local { instances: 1 }), Key::new("alice"));
    let mut before = Vec::new();
    for policy in &policies {
        charged(limiter, policy, &alice, 2).await;
        before.push(charged(limiter, policy, &alice, 3).await);
    }
    server.signal("STOP");
    suspended(&limiters, &policies[0]).await;
    let mut after = Vec::new();
    for (policy, before) in policies.iter().zip(&before) {
        // What the store had charged.
        assert!(limiter.refund(before, u64::MAX).await.unwrap().failure().is_some());
        let kept = charged(limiter, policy, &alice, 1).await;
        let refunded = charged(limiter, policy, &alice, 5).await;
        assert_eq!(limiter.refund(&refunded, 5).await.unwrap().remaining(), Some(LIMIT - 1));
        let settled = charged(limiter, policy, &alice, 10).await;
        let reservation = Reservation::new(limiter, &settled);
        reservation.settle(4).await.unwrap();
        // A total that grows again.
        reservation.settle(6).await.unwrap();
        drop(Reservation::new(limiter, &charged(limiter, policy, &alice, 8).await).or_refund());
        let later = charged(limiter, policy, &alice, 7).await;
        assert_eq!(limiter.peek(policy, &alice, 0).await.unwrap().remaining(), Some(LIMIT - 14));
        after.push([kept, later]);
    }
    server.signal("CONT");
    back(&limiters, &policies[0]).await;
    for (policy, [kept, later]) in policies.iter().zip(&after) {
        remains(limiter, policy, &alice, LIMIT - 2 - 14).await;
        // The store charged this one when it was back.
        let refunded = limiter.refund(later, 5).await.unwrap();
        assert_eq!((refunded.failure().is_none(), refunded.remaining()), (true, Some(LIMIT - 11)));
        assert_eq!(limiter.refund(kept, 9).await.unwrap().remaining(), Some(LIMIT - 10));
        assert_eq!(limiter.refund(kept, 9).await.unwrap().remaining(), Some(LIMIT - 10));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_do_not_count_are_not_charged_for_an_outage() {
    let server = RedisServer::start();
    let limiters = limiters(&server, 2).await;
    let logins = Policy::new("logins", Quota::per_hour(10)).algorithm(SlidingLog::new());
    let rule = Rule::new(logins.clone(), Key::new("alice"))
        .count_if(|response| response.status == StatusCode::UNAUTHORIZED);
    let layer = RateLimitLayer::with_rules(limiters[0].clone(), rule).refund_cancelled();
    let login = layer.layer(service_fn(async |request: Request<String>| match request.body().as_str() {
        "hangs" => pending().await,
        status => Ok::<_, Infallible>(Response::builder().status(status).body(String::new()).unwrap()),
    }));
    let send =
        async |body: &str| login.clone().oneshot(Request::new(body.to_owned())).await.unwrap().status();
    server.signal("STOP");
    suspended(&limiters, &logins).await;
    for _ in 0..15 {
        assert_eq!(send("200").await, StatusCode::OK);
        let cancelled = timeout(Duration::from_millis(1), send("hangs")).await;
        assert!(cancelled.is_err(), "{cancelled:?}");
    }
    server.signal("CONT");
    back(&limiters, &logins).await;
    for limiter in &limiters {
        remains(limiter, &logins, &Key::new("all"), 10).await;
        remains(limiter, &logins, &Key::new("alice"), 10).await;
    }
    // Those that do are.
    server.signal("STOP");
    suspended(&limiters, &logins).await;
    for _ in 0..3 {
        assert_eq!(send("401").await, StatusCode::UNAUTHORIZED);
    }
    server.signal("CONT");
    back(&limiters, &logins).await;
    remains(&limiters[1], &logins, &Key::new("alice"), 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_forgets_what_the_store_had_no_room_for() {
    let server = RedisServer::start();
    let limiters = limiters(&server, 1).await;
    let (policy, alice) = (&policies(FailureMode::Local { instances: 1 })[0], Key::new("alice"));
    for expected in [2 * LIMIT, LIMIT] {
        let mut admitted = exhaust(&limiters, policy, &alice).await;
        server.signal("STOP");
        suspended(&limiters, policy).await;
        admitted += exhaust(&limiters, policy, &alice).await;
        server.signal("CONT");
        back(&limiters, policy).await;
        assert_eq!(admitted, expected);
        limiters[0].operator().reset(policy, &alice).await.unwrap();
        // Without a reset of what this process counts, it would deny in the next outage.
        server.signal("STOP");
        suspended(&limiters, policy).await;
        assert_eq!(exhaust(&limiters, policy, &alice).await, LIMIT);
        server.signal("CONT");
        back(&limiters, policy).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_that_announced_themselves_share_the_limit() {
    let server = RedisServer::start();
    let limiter = async || {
        let settings = settings().deadline(Duration::from_millis(300)).deny_cache(Duration::ZERO);
        let store = settings.connect(&server.url()).await.unwrap();
        (store.clone(), Limiter::new(store))
    };
    let instances = [limiter().await, limiter().await, limiter().await];
    // The first one has no other to see. One that charges nothing, as `ratelimit-admin`, does not count.
    assert!(instances.iter().all(|(store, _)| store.instances() == Some(1)));
    let (watcher, watching) = limiter().await;
    let traffic = Policy::new("traffic", Quota::per_day(1_000_000));
    let all_are_seen = async || {
        watching.peek(&traffic, &Key::new("all"), 1).await.unwrap();
        for (_, limiter) in &instances {
            limiter.check(&traffic, &Key::new("all"), 1).await.unwrap();
        }
        instances.iter().all(|(store, _)| store.instances() == Some(3))
    };
    assert!(
        within(Duration::from_secs(30), all_are_seen).await,
        "{:?}",
        instances.map(|(store, _)| store.instances())
    );
    assert_eq!(watcher.instances(), Some(1));
    // One that starts sees the others before it has any traffic.
    assert_eq!(limiter().await.0.instances(), Some(3));
    let names: Vec<String> = server.command(&["KEYS", "*instances*"]);
    assert_eq!(names, ["rl:%25instances:concurrency:{%25instances}"]);
    let time: i64 = server.command(&["PTTL", &names[0]]);
    assert!((1..=15_000).contains(&time), "{time}");

    let limiters: Vec<Limiter> = instances.iter().map(|(_, limiter)| limiter.clone()).collect();
    server.signal("STOP");
    suspended(&limiters, &traffic).await;
    let alice = Key::new("alice");
    for policy in &policies(FailureMode::default()) {
        assert_eq!(exhaust(&limiters, policy, &alice).await, LIMIT, "{}", policy.name());
        // Another limiter on the same store counts the same.
        let others: Vec<Limiter> = instances.iter().map(|(store, _)| Limiter::new(store.clone())).collect();
        assert_eq!(exhaust(&others, policy, &alice).await, 0, "{}", policy.name());
    }
    for policy in &policies(FailureMode::Local { instances: 1 }) {
        assert_eq!(exhaust(&limiters, policy, &Key::new("bob")).await, 3 * LIMIT, "{}", policy.name());
    }
    server.signal("CONT");
}
