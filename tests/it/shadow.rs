//! Shadow policies and gradual enforcement.

use std::sync::{Arc, Mutex};

use crate::support::{Down, RedisServer, inner::ask_for, redis_cluster::RedisCluster, settings, store};
use http::{Request, Response, StatusCode};
use tower_ratelimit::{
    Charge, Decision, FailureMode, Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, RedisStore,
    Rule,
    algorithm::{FixedWindow, SlidingLog},
    key::Constant,
};

fn day(name: &str, limit: u64) -> Policy {
    Policy::new(name, Quota::per_day(limit)).algorithm(FixedWindow::anchored())
}

async fn stores(server: &RedisServer, prefix: &str) -> [(&'static str, Limiter); 3] {
    let cluster = settings().prefix(prefix).connect_cluster(RedisCluster::shared().urls()).await.unwrap();
    [
        ("memory", Limiter::new(MemoryStore::new())),
        ("redis", Limiter::new(store(server).await)),
        ("cluster", Limiter::new(cluster)),
    ]
}

fn remaining(decision: &Decision) -> (Vec<u64>, Vec<u64>) {
    let of = |outcomes: &[tower_ratelimit::decision::Outcome]| {
        outcomes.iter().map(|one| one.remaining()).collect()
    };
    (of(decision.outcomes()), of(decision.shadows()))
}

#[tokio::test]
async fn a_shadow_counts_and_denies_nothing() {
    let server = RedisServer::start();
    for (name, limiter) in stores(&server, "shadow-alone").await {
        let (policy, key) = (day("new", 2).shadow(), Key::new("alice"));
        for left in [1, 0] {
            let decision = limiter.check(&policy, &key, 1).await.unwrap();
            assert_eq!(remaining(&decision), (vec![], vec![left]), "{name}");
            assert!(decision.shadows()[0].is_allowed() && decision.shadows()[0].is_shadow(), "{name}");
        }
        for _ in 0..3 {
            let decision = limiter.check(&policy, &key, 1).await.unwrap();
            assert!(decision.is_allowed() && decision.binding().is_none(), "{name}");
            let [shadow] = decision.shadows() else { panic!("{name}: {decision:?}") };
            assert!(!shadow.is_allowed() && shadow.retry_after().is_some(), "{name}: {shadow:?}");
        }
        // Enforced, it continues with these counts.
        assert!(!limiter.check(&day("new", 2), &key, 1).await.unwrap().is_allowed(), "{name}");
        assert!(limiter.check(&day("new", 3), &key, 1).await.unwrap().is_allowed(), "{name}");
    }
}

#[tokio::test]
async fn other_policies_are_enforced_as_always() {
    let server = RedisServer::start();
    let (alice, all) = (Key::new("alice"), Key::new("all"));
    for (name, limiter) in stores(&server, "shadow-others").await {
        // The shadow is the first, and has another key than the second.
        let shadow = day("shadow", 2).shadow();
        let log = Policy::new("log", Quota::per_day(4)).algorithm(SlidingLog::new());
        let charges = [
            Charge::new(&shadow, &all, 1),
            Charge::new(&day("window", 3), &alice, 1),
            Charge::new(&log, &alice, 1),
        ];
        for left in [(vec![2, 3], vec![1]), (vec![1, 2], vec![0]), (vec![0, 1], vec![0])] {
            let decision = limiter.check_all(&charges).await.unwrap();
            assert!(decision.is_allowed(), "{name}: {decision:?}");
            assert_eq!(remaining(&decision), left, "{name}");
        }
        let denied = limiter.check_all(&charges).await.unwrap();
        assert!(!denied.is_allowed(), "{name}");
        assert_eq!(denied.binding().unwrap().policy().name(), "window", "{name}");
        assert_eq!(remaining(&denied), (vec![0, 1], vec![0]), "{name}");
        // What is denied is not charged to a shadow that has room.
        let roomy = [Charge::new(&day("roomy", 9).shadow(), &all, 1), charges[1].clone()];
        assert!(!limiter.check_all(&roomy).await.unwrap().is_allowed(), "{name}");
        let left = limiter.peek(&day("roomy", 9), &all, 0).await.unwrap().remaining();
        assert_eq!(left, Some(9), "{name}");
        // A refund is one of the shadow too.
        let refundable = [Charge::new(&day("roomy", 9).shadow(), &all, 4), Charge::new(&log, &alice, 1)];
        let decision = limiter.check_all(&refundable).await.unwrap();
        limiter.refund(&decision, 3).await.unwrap();
        assert_eq!(limiter.peek(&day("roomy", 9), &all, 0).await.unwrap().remaining(), Some(8), "{name}");
    }
}

#[tokio::test]
async fn a_share_of_the_keys_is_denied_the_same_ones_on_every_instance() {
    let server = RedisServer::start();
    let keys: Vec<Key> = (0..300).map(|i| Key::new(format!("user-{i}"))).collect();
    let mut before: Vec<usize> = Vec::new();
    for share in [0.0, 0.3, 0.7, 1.0] {
        let policy = day(&format!("at-{share}"), 1).enforced_for(share);
        let renamed = day("same", 1).enforced_for(share);
        let mut denied: Vec<Vec<usize>> = Vec::new();
        for limiter in [Limiter::new(store(&server).await), Limiter::new(store(&server).await)] {
            let mut own = Vec::new();
            for (number, key) in keys.iter().enumerate() {
                limiter.check(&policy, key, 1).await.unwrap();
                let decision = limiter.check(&policy, key, 1).await.unwrap();
                assert_eq!(decision.outcomes().len() + decision.shadows().len(), 1);
                if !decision.is_allowed() {
                    own.push(number);
                }
            }
            denied.push(own);
        }
        assert_eq!(denied[0], denied[1], "{share}");
        let expected = 300.0 * share;
        assert!((denied[0].len() as f64 - expected).abs() <= 40.0, "{share}: {}", denied[0].len());
        // With one name, a larger share has the keys of a smaller one.
        let limiter = Limiter::new(MemoryStore::new());
        let mut enforced = Vec::new();
        for (number, key) in keys.iter().enumerate() {
            if limiter.peek(&renamed, key, 1).await.unwrap().shadows().is_empty() {
                enforced.push(number);
            }
        }
        assert!(before.iter().all(|number| enforced.contains(number)), "{share}");
        before = enforced;
    }
}

#[tokio::test]
async fn clients_see_nothing_of_a_shadow_and_on_decision_does() {
    for (name, status) in [("admitted", StatusCode::OK), ("denied", StatusCode::TOO_MANY_REQUESTS)] {
        let denials = Arc::new(Mutex::new(Vec::new()));
        let seen = denials.clone();
        let limit = if name == "admitted" { 100 } else { 1 };
        let layer = RateLimitLayer::new(MemoryStore::new(), day("enforced", limit), Constant::new("all"))
            .and(Rule::new(day("hidden", 1).shadow(), Constant::new("all")))
            .on_decision(move |event| {
                let shadows = event.decision().unwrap().shadows();
                let denied = shadows.iter().filter(|shadow| !shadow.is_allowed());
                seen.lock().unwrap().extend(denied.map(|shadow| shadow.policy().name().to_owned()));
            });
        for expected in [StatusCode::OK, status] {
            let response =
                ask_for(&layer, Request::get("/").body(String::new()).unwrap(), Response::default).await;
            assert_eq!(response.status(), expected, "{name}");
            for (header, value) in response.headers() {
                assert!(!value.to_str().unwrap().contains("hidden"), "{name}: {header}: {value:?}");
            }
        }
        assert_eq!(*denials.lock().unwrap(), ["hidden"], "{name}");
    }
}

#[tokio::test]
async fn a_shadow_has_no_say_while_the_store_fails() {
    let limiter = Limiter::new(Down);
    let alice = Key::new("alice");
    for mode in [FailureMode::Closed, FailureMode::Local { instances: 1 }, FailureMode::Open] {
        let shadow = day("shadow", 1).on_store_failure(mode).shadow();
        for _ in 0..3 {
            let alone = limiter.check(&shadow, &alice, 1).await.unwrap();
            assert!(alone.is_allowed() && alone.failure().is_some(), "{mode:?}");
        }
        let local = day(&format!("local-{mode:?}"), 2);
        let both = [Charge::new(&shadow, &alice, 1), Charge::new(&local, &alice, 1)];
        let mut admitted = 0;
        for _ in 0..5 {
            admitted += u64::from(limiter.check_all(&both).await.unwrap().is_allowed());
        }
        assert_eq!(admitted, 2, "{mode:?}");
    }
}

#[tokio::test]
async fn a_hot_key_of_a_shadow_is_not_leased_and_its_denials_are_not_cached() {
    let server = RedisServer::start();
    let redis: RedisStore = store(&server).await;
    let limiter = Limiter::new(redis.clone());
    let policy = Policy::new("hot", Quota::per_day(50)).leased(1_000).shadow();
    for _ in 0..500 {
        let decision = limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
        assert!(decision.is_allowed());
    }
    assert_eq!(redis.lease_status().units(), 0);
    assert!(server.script_calls() >= 500, "{}", server.script_calls());
}
