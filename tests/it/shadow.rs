//! Shadow policies and gradual enforcement.

use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use support::{Down, RedisServer, day, inner::ask_for, memory_and_redis, store};
use tower_ratelimit::{
    Charge, FailureMode, Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, RedisStore, Rule,
};

#[tokio::test]
async fn a_share_of_the_keys_is_denied_the_same_ones_on_every_instance() {
    let server = RedisServer::start();
    let keys: Vec<Key> = (0..300).map(|i| Key::new(format!("user-{i}"))).collect();
    let mut before: Vec<usize> = Vec::new();
    for share in [0.0, 0.3, 0.7, 1.0] {
        let policy = day(&format!("at-{share}"), 1).rollout(share);
        let renamed = day("same", 1).rollout(share);
        let mut denied: Vec<Vec<usize>> = Vec::new();
        for limiter in [Limiter::new(store(&server).await), Limiter::new(store(&server).await)] {
            let mut own = Vec::new();
            for (number, key) in keys.iter().enumerate() {
                limiter.check(&policy, key, 1).await.unwrap();
                let decision = limiter.check(&policy, key, 1).await.unwrap();
                assert_eq!(decision.outcomes().len() + decision.shadows().len(), 1);
                if !decision.is_admitted() {
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
async fn requests_in_one_batch_are_enforced_or_not_by_their_own_keys() {
    let server = RedisServer::start();
    let keys: Vec<Key> = (0..60).map(|i| Key::new(format!("user-{i}"))).collect();
    let (rolled_out, other) = (day("rolled-out", 1).rollout(0.5), day("other", 9));
    for (name, limiter) in memory_and_redis(&server).await {
        for _ in 0..2 {
            let checks = keys.iter().map(|key| {
                limiter.check_all(&[&rolled_out, &other].map(|policy| Charge::new(policy, key, 1)))
            });
            for decision in join_all(checks).await {
                decision.unwrap();
            }
        }
        for key in &keys {
            // A denial charges nothing under the other policy.
            let is_enforced = limiter.peek(&rolled_out, key, 0).await.unwrap().shadows().is_empty();
            let left = limiter.peek(&other, key, 0).await.unwrap().remaining();
            assert_eq!(left, Some(if is_enforced { 8 } else { 7 }), "{name}, {}", key.as_str());
        }
    }
}

#[tokio::test]
async fn clients_see_nothing_of_a_shadow_and_on_decision_does() {
    for (name, status) in [("admitted", StatusCode::OK), ("denied", StatusCode::TOO_MANY_REQUESTS)] {
        let denials = Arc::new(Mutex::new(Vec::new()));
        let seen = denials.clone();
        let limit = if name == "admitted" { 100 } else { 1 };
        let layer = RateLimitLayer::new(MemoryStore::new(), day("enforced", limit), Key::new("all"))
            .rule(Rule::new(day("hidden", 1).shadow(), Key::new("all")))
            .on_decision(move |event| {
                let shadows = event.decision.unwrap().shadows();
                let denied = shadows.iter().filter(|shadow| shadow.verdict().is_denied());
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
        let shadow = day("shadow", 1).failure_mode(mode).shadow();
        for _ in 0..3 {
            let alone = limiter.check(&shadow, &alice, 1).await.unwrap();
            assert!(alone.is_admitted() && alone.failure().is_some(), "{mode:?}");
        }
        let local = day(&format!("local-{mode:?}"), 2);
        let both = [Charge::new(&shadow, &alice, 1), Charge::new(&local, &alice, 1)];
        let mut admitted = 0;
        for _ in 0..5 {
            admitted += u64::from(limiter.check_all(&both).await.unwrap().is_admitted());
        }
        assert_eq!(admitted, 2, "{mode:?}");
    }
}

#[tokio::test]
async fn a_hot_key_of_a_shadow_is_not_leased_and_its_denials_are_not_cached() {
    let server = RedisServer::start();
    let redis: RedisStore = store(&server).await;
    let limiter = Limiter::new(redis.clone());
    let policy = Policy::new("hot", Quota::per_day(50)).max_lease(1_000).shadow();
    for _ in 0..500 {
        let decision = limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
        assert!(decision.is_admitted());
    }
    assert_eq!(redis.lease_status().units, 0);
    assert!(server.script_calls() >= 500, "{}", server.script_calls());
}
