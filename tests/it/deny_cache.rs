//! A denied key is denied in process until units are available again.

use std::{
    future::{Future as _, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use support::{RedisServer, on_redis, on_redis_with_clock, redis_store, settings, store};
use tokio::time::sleep;
use tower_ratelimit::{
    Charge, Key, Limiter, Policy, Quota, RedisStore,
    algorithm::{Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    store::Store as _,
};

#[tokio::test]
async fn a_denied_key_is_checked_in_redis_once_a_second_and_its_wait_runs_down() {
    let (server, clock, limiter) = on_redis_with_clock().await;
    let key = Key::new("alice");
    let quota = Quota::per_minute(2);
    let policies = [
        Policy::new("gcra", quota).algorithm(Gcra::new()),
        Policy::new("tokens", quota).algorithm(TokenBucket::new()),
        Policy::new("meter", quota).algorithm(LeakyBucket::meter()),
        Policy::new("anchored", quota).algorithm(FixedWindow::anchored()),
        Policy::new("aligned", quota).algorithm(FixedWindow::aligned()),
        Policy::new("log", quota).algorithm(SlidingLog::new()),
        Policy::new("cells", quota).algorithm(SlidingWindow::new()),
    ];
    for policy in policies {
        let name = policy.name().to_owned();
        for _ in 0..2 {
            assert!(limiter.check(&policy, &key, 1).await.unwrap().is_admitted(), "{name}");
        }
        let denied = limiter.check(&policy, &key, 1).await.unwrap();
        let before = server.script_calls();
        for _ in 0..9 {
            clock.advance(Duration::from_millis(100));
            let again = limiter.check(&policy, &key, 1).await.unwrap();
            let asked = limiter.peek(&policy, &key, 1).await.unwrap();
            assert_eq!(again.verdict(), asked.verdict(), "{name}");
            assert_eq!(again.outcomes()[0].remaining(), 0, "{name}");
            assert_eq!(again.outcomes()[0].reset_after(), asked.outcomes()[0].reset_after(), "{name}");
        }
        // The script calls of the peeks.
        assert_eq!(server.script_calls() - before, 9, "{name}");
        clock.advance(Duration::from_millis(100));
        assert!(!limiter.check(&policy, &key, 1).await.unwrap().is_admitted(), "{name}");
        assert_eq!(server.script_calls() - before, 10, "{name}");
        // The wait is exact to the microsecond.
        clock.advance(denied.retry_after().unwrap() - Duration::from_secs(1));
        assert!(limiter.check(&policy, &key, 1).await.unwrap().is_admitted(), "{name}");
    }
}

#[tokio::test]
async fn a_wait_of_less_than_the_bound_ends_it() {
    let (_server, clock, limiter) = on_redis_with_clock().await;
    let (policy, key) = (Policy::new("p", Quota::per_second(4)), Key::new("alice"));
    limiter.check(&policy, &key, 4).await.unwrap();
    for _ in 0..10 {
        let denied = limiter.check(&policy, &key, 1).await.unwrap();
        clock.advance(denied.retry_after().unwrap() - Duration::from_micros(1));
        assert!(!limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
        clock.advance(Duration::from_micros(1));
        assert!(limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
    }
}

#[tokio::test]
async fn refunds_and_resets_through_the_same_store_take_effect_immediately() {
    let (_server, store) = redis_store().await;
    let (here, there) = (Limiter::new(store.clone()), Limiter::new(store));
    let (policy, key) = (Policy::new("p", Quota::per_day(1)), Key::new("alice"));
    let full = async || {
        assert!(here.check(&policy, &key, 1).await.unwrap().is_admitted());
        for _ in 0..2 {
            assert!(!here.check(&policy, &key, 1).await.unwrap().is_admitted());
        }
    };
    full().await;
    there.operator().reset(&policy, &key).await.unwrap();
    full().await;
    there.operator().refund_latest(&policy, &key, 1).await.unwrap();
    full().await;
    let raised = Policy::new("p", Quota::per_day(2));
    assert!(here.check(&raised, &key, 1).await.unwrap().is_admitted());
    // A remembered denial does not affect other keys or policies.
    assert!(here.check(&policy, &Key::new("bob"), 1).await.unwrap().is_admitted());
    assert!(here.check(&Policy::new("q", Quota::per_day(1)), &key, 1).await.unwrap().is_admitted());
}

#[tokio::test]
async fn refunds_and_resets_by_another_instance_take_effect_within_the_bound() {
    let server = RedisServer::start();
    let here =
        Limiter::new(settings().deny_cache(Duration::from_millis(200)).connect(&server.url()).await.unwrap());
    let there = Limiter::new(store(&server).await);
    let (policy, key) = (Policy::new("p", Quota::per_day(1)), Key::new("alice"));
    for refund in [true, false] {
        here.check(&policy, &key, 1).await.unwrap();
        assert!(!here.check(&policy, &key, 1).await.unwrap().is_admitted());
        if refund {
            there.operator().refund_latest(&policy, &key, 1).await.unwrap();
        } else {
            there.operator().reset(&policy, &key).await.unwrap();
        }
        sleep(Duration::from_millis(201)).await;
        assert!(here.check(&policy, &key, 1).await.unwrap().is_admitted());
    }
}

/// A denial is not final if units may become available before its wait is over: permits are released at any
/// time, and a smaller cost may be admitted earlier.
#[tokio::test]
async fn only_denials_that_cannot_end_early_are_remembered() {
    let (server, limiter) = on_redis().await;
    let key = Key::new("alice");
    let (slots, dear) = (
        Policy::new("slots", Quota::per_day(1)).algorithm(Concurrency::new()),
        Policy::new("dear", Quota::per_day(5)),
    );

    // The permit of another instance. Its release is not visible to this store.
    let held = Limiter::new(store(&server).await).check(&slots, &key, 1).await.unwrap();
    assert!(!limiter.check(&slots, &key, 1).await.unwrap().is_admitted());
    drop(held);
    let freed = async {
        while !limiter.check(&slots, &key, 1).await.unwrap().is_admitted() {
            tokio::task::yield_now().await;
        }
    };
    // Much shorter than a remembered denial.
    tokio::time::timeout(Duration::from_millis(500), freed).await.unwrap();

    limiter.check(&dear, &key, 4).await.unwrap();
    assert!(!limiter.check(&dear, &key, 2).await.unwrap().is_admitted());
    let before = server.script_calls();
    assert!(!limiter.check(&dear, &key, 2).await.unwrap().is_admitted());
    assert_eq!(server.script_calls() - before, 1);
    assert!(limiter.check(&dear, &key, 1).await.unwrap().is_admitted());
    assert!(!limiter.check(&dear, &key, 1).await.unwrap().is_admitted());
    let before = server.script_calls();
    let larger = limiter.check(&dear, &key, 2).await.unwrap();
    assert_eq!(server.script_calls() - before, 1);
    // Five units a day, so the wait for two is longer than for one.
    assert!(larger.retry_after() > Some(Duration::from_secs(86_400 / 5 + 1)));
    assert!(!limiter.check(&dear, &key, 2).await.unwrap().is_admitted());
    assert_eq!(server.script_calls() - before, 2);
}

#[tokio::test]
async fn a_denial_of_several_policies_is_remembered() {
    let (server, limiter) = on_redis().await;
    let (a, b) = (Policy::new("a", Quota::per_day(9)), Policy::new("b", Quota::per_day(1)));
    let both = [Charge::new(&a, &Key::new("alice"), 1), Charge::new(&b, &Key::new("all"), 1)];
    assert!(limiter.check_all(&both).await.unwrap().is_admitted());
    let denied = limiter.check_all(&both).await.unwrap();
    let before = server.script_calls();
    let again = limiter.check_all(&both).await.unwrap();
    assert_eq!(server.script_calls(), before);
    for decision in [denied, again] {
        let said: Vec<_> =
            decision.outcomes().iter().map(|of| (!of.verdict().is_denied(), of.remaining())).collect();
        assert_eq!(said, [(true, 8), (false, 0)]);
    }
    // Other charges need their own decision, even if the outcome is the same.
    let other = [Charge::new(&a, &Key::new("bob"), 1), both[1].clone()];
    assert!(!limiter.check_all(&other).await.unwrap().is_admitted());
    assert_eq!(server.script_calls(), before + 1);
}

/// Redis restarts the state at the earlier time, so the wait that is stored is too long.
#[tokio::test]
async fn a_denial_from_before_the_clock_stepped_back_ends_with_any_decision_on_its_key() {
    let (_server, clock, limiter) = on_redis_with_clock().await;
    let (policy, key) = (Policy::new("api", Quota::per_minute(1)), Key::new("alice"));
    let step = Duration::from_millis(10);
    assert!(limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
    assert!(!limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
    clock.step_back(step);
    assert!(!limiter.check_up_to(&policy, &key, 1).await.unwrap().is_admitted());
    clock.advance(step);
    let denied = limiter.check(&policy, &key, 1).await.unwrap();
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(60) - step));
}

#[tokio::test]
async fn the_deny_cache_can_be_turned_off() {
    let server = RedisServer::start();
    let limiter = Limiter::new(settings().deny_cache(Duration::ZERO).connect(&server.url()).await.unwrap());
    let (policy, key) = (Policy::new("p", Quota::per_day(1)), Key::new("alice"));
    limiter.check(&policy, &key, 1).await.unwrap();
    let before = server.script_calls();
    for _ in 0..5 {
        assert!(!limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
    }
    assert_eq!(server.script_calls() - before, 5);
}

/// A denial that is evicted from the cache costs one call to Redis. The decision stays the same.
#[tokio::test(flavor = "multi_thread")]
async fn more_denied_keys_than_the_cache_holds_are_still_denied() {
    let server = RedisServer::start();
    let store: RedisStore = store(&server).await;
    let limiter = Limiter::new(store);
    let policy = Policy::new("p", Quota::per_day(1));
    for round in 0..3 {
        for some in 0..20 {
            let ask = (0..1_000).map(|i| limiter.check(&policy, &Key::new(format!("{some}:{i}")), 1));
            for decision in futures_util::future::join_all(ask).await {
                assert_eq!(decision.unwrap().is_admitted(), round == 0);
            }
        }
    }
}

#[tokio::test]
async fn a_denial_whose_reply_was_slow_ends_when_its_wait_does() {
    let (_server, clock, limiter) = on_redis_with_clock().await;
    let policy = Policy::new("p", Quota::new(1, Duration::from_millis(500)));
    let key = Key::new("alice");
    assert!(limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
    let mut slow = limiter.check(&policy, &key, 1);
    assert!(poll_fn(|cx| Poll::Ready(Pin::new(&mut slow).poll(cx).is_pending())).await);
    clock.advance(Duration::from_millis(400));
    assert!(!slow.await.unwrap().is_admitted());
    clock.advance(Duration::from_millis(100));
    assert!(limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
}

#[tokio::test]
async fn a_denial_that_arrives_during_a_reset_ends_with_it() {
    let (_server, store) = redis_store().await;
    let limiter = Limiter::new(store.clone());
    let (policy, key) = (Policy::new("p", Quota::per_day(1)), Key::new("alice"));
    assert!(limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
    // Begun, and not sent before it is polled.
    let reset = store.reset(&policy, &key);
    assert!(!limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
    reset.await.unwrap();
    assert!(limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
}

#[tokio::test]
async fn a_debit_ends_a_denial_only_if_it_becomes_debt() {
    let (server, _clock, limiter) = on_redis_with_clock().await;
    for (debt, calls) in [(0, 0), (5, 1)] {
        let policy = Policy::new("p", Quota::per_day(1)).max_debt(debt);
        let key = Key::new(format!("{debt}"));
        let charged = limiter.check(&policy, &key, 1).await.unwrap();
        assert!(charged.is_admitted() && !limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
        limiter.debit(&charged, 1).await.unwrap();
        limiter.check_up_to(&policy, &key, 1).await.unwrap();
        let before = server.script_calls();
        let denied = limiter.check(&policy, &key, 1).await.unwrap();
        assert_eq!(server.script_calls() - before, calls, "{debt}");
        // A debt makes the wait longer.
        let asked = limiter.peek(&policy, &key, 1).await.unwrap();
        assert_eq!(denied.verdict(), asked.verdict(), "{debt}");
    }
}
