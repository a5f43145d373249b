//! What a ban does to a request and to other policies.

use support::{on_redis, on_redis_with_clock};
use tower_ratelimit::{Charge, ErrorKind, FailureMode, decision::DecisionSource, store::ManualClock};

use super::*;

#[tokio::test]
async fn a_banned_key_is_denied_without_redis_and_other_denials_are_not() {
    let (server, clock, limiter) = on_redis_with_clock().await;
    let (policy, alice) = (day("p", 1).penalty(three()), Key::new("alice"));
    ask(&limiter, &policy, &alice).await;
    let before = server.script_calls();
    for _ in 0..2 {
        assert_eq!(ask(&limiter, &policy, &alice).await.source(), DecisionSource::Store);
    }
    assert_eq!(server.script_calls() - before, 2, "each denial is counted");
    let first = ask(&limiter, &policy, &alice).await;
    assert!(first.banned_for().is_some());
    let before = server.script_calls();
    for step in 1..10_u32 {
        clock.advance(Duration::from_millis(100));
        let again = ask(&limiter, &policy, &alice).await;
        assert_eq!(again.source(), DecisionSource::DenyCache);
        let passed = step * Duration::from_millis(100);
        assert_eq!(again.banned_for(), Some(HOUR - passed));
        assert_eq!(again.retry_after(), first.retry_after().map(|wait| wait - passed));
        assert_eq!((again.remaining(), again.banned_for().is_some()), (Some(0), true));
    }
    assert_eq!(server.script_calls(), before);
    // The store decides again after a second: the ban may have been ended.
    clock.advance(Duration::from_millis(100));
    let asked = ask(&limiter, &policy, &alice).await;
    assert_eq!(
        (asked.source(), asked.banned_for()),
        (DecisionSource::Store, Some(HOUR - Duration::from_secs(1)))
    );
    // The end of the ban is exact.
    clock.advance(HOUR - Duration::from_secs(1) - Duration::from_micros(1));
    assert!(ask(&limiter, &policy, &alice).await.banned_for().is_some());
    clock.advance(Duration::from_micros(1));
    assert!(ask(&limiter, &policy, &alice).await.banned_for().is_none());
}

#[tokio::test]
async fn a_denial_by_another_policy_is_not_cached_if_one_has_a_penalty() {
    let (server, limiter) = on_redis().await;
    let alice = Key::new("alice");
    let charges =
        [Charge::new(&day("a", 1), &alice, 1), Charge::new(&day("b", 9).penalty(three()), &alice, 1)];
    limiter.check_all(&charges).await.unwrap();
    let before = server.script_calls();
    for _ in 0..5 {
        assert!(!limiter.check_all(&charges).await.unwrap().is_admitted());
    }
    assert_eq!(server.script_calls() - before, 5);
}

#[tokio::test]
async fn a_value_of_another_program_is_kept_and_fails_the_decision() {
    let server = RedisServer::start();
    let limiter = Limiter::new(settings().deny_cache(Duration::ZERO).connect(&server.url()).await.unwrap());
    let policy = day("p", 1).penalty(three()).failure_mode(FailureMode::Closed);
    let of_text = |text| Some(state(1_767_225_600_000_000.0, 3.0, text));
    for (kind, value) in [
        ("a hash", None),
        ("a text", Some(b"hello".to_vec())),
        ("a state of another form", of_text("1;2;3")),
        ("a number too large", of_text("1;99999999999999999999")),
    ] {
        let () = server.command(&["FLUSHALL"]);
        match value {
            Some(value) => server.set("rl:p:penalty:{alice}", &value),
            None => server.command(&["HSET", "rl:p:penalty:{alice}", "a", "b"]),
        }
        for _ in 0..3 {
            let error = limiter.check(&policy, &Key::new("alice"), 1).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ForeignValue, "{kind}");
        }
        let charges: i64 = server.command(&["EXISTS", "rl:p:fixed-window:{alice}"]);
        assert_eq!(charges, 0, "{kind}: nothing is charged");
        assert_eq!(server.command::<i64>(&["EXISTS", "rl:p:penalty:{alice}"]), 1, "{kind}");
    }
}

#[tokio::test]
async fn under_a_manual_penalty_ordinary_denials_are_cached() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let connect = async || settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap();
    let [here, there] = [Limiter::new(connect().await), Limiter::new(connect().await)];
    let (policy, alice) = (day("p", 1).penalty(Penalty::manual()), Key::new("alice"));
    assert!(ask(&here, &policy, &alice).await.is_admitted());
    assert_eq!(ask(&here, &policy, &alice).await.source(), DecisionSource::Store);
    let cached = ask(&here, &policy, &alice).await;
    assert!(!cached.is_admitted() && cached.banned_for().is_none());
    assert_eq!(cached.source(), DecisionSource::DenyCache);
    // A ban by another instance is known when the denial is no longer cached, and a ban by this instance immediately.
    there.operator().ban(&policy, &alice, HOUR).await.unwrap();
    clock.advance(Duration::from_millis(999));
    assert!(ask(&here, &policy, &alice).await.banned_for().is_none());
    clock.advance(Duration::from_millis(1));
    assert!(ask(&here, &policy, &alice).await.banned_for().is_some());
    here.operator().unban(&policy, &alice).await.unwrap();
    for is_banned in [false, true] {
        let denied = ask(&here, &policy, &alice).await;
        assert_eq!((denied.banned_for().is_some(), denied.is_admitted()), (is_banned, false));
        here.operator().ban(&policy, &alice, HOUR).await.unwrap();
    }
    // Another policy of the decision may count.
    let both = [Charge::new(&policy, &alice, 1), Charge::new(&day("q", 9).penalty(three()), &alice, 1)];
    here.operator().unban(&policy, &alice).await.unwrap();
    for _ in 0..3 {
        assert_eq!(here.check_all(&both).await.unwrap().source(), DecisionSource::Store);
    }
}

#[tokio::test]
async fn a_number_of_bans_that_no_key_can_have_does_not_block_redis() {
    let (server, clock, limiter) = on_redis_with_clock().await;
    let policy =
        day("p", 1).penalty(Penalty::after(1, HOUR).ban(MINUTE).up_to(DAY)).failure_mode(FailureMode::Closed);
    let alice = Key::new("alice");
    assert!(ask(&limiter, &policy, &alice).await.is_admitted());
    let micros = clock.now().as_micros();
    // The latest ban has just ended.
    let value = state(micros as f64, 0.0, format!("9007199254740991;{}", micros - 1));
    server.set("rl:p:penalty:{alice}", &value);
    assert_eq!(ask(&limiter, &policy, &alice).await.banned_for(), Some(DAY));
    clock.advance(DAY);
    assert!(limiter.peek(&policy, &alice, 1).await.unwrap().banned_for().is_none());
}

#[tokio::test]
async fn a_full_redis_denies_and_does_not_count_the_denial() {
    let (server, limiter) = on_redis().await;
    let (alice, bob) = (Key::new("alice"), Key::new("bob"));
    let memory = |bytes| server.command::<()>(&["CONFIG", "SET", "maxmemory", bytes]);
    for mode in [FailureMode::Open, FailureMode::Closed, FailureMode::Local { instances: 1 }] {
        let policy = |after| {
            day(&format!("{mode}-{after}"), 1).penalty(Penalty::after(after, HOUR)).failure_mode(mode)
        };
        for policy in [policy(1), policy(3)] {
            let name = policy.name();
            assert!(ask(&limiter, &policy, &alice).await.is_admitted(), "{name}");
            limiter.operator().ban(&policy, &bob, HOUR).await.unwrap();
            memory("1");
            // Alone, in one batch, and beside a policy that admits.
            let beside = [
                Charge::new(&day("beside", 9).failure_mode(mode), &alice, 1),
                Charge::new(&policy, &alice, 1),
            ];
            let asked = (0..20).map(|_| limiter.check(&policy, &alice, 1));
            let mut denied: Vec<Decision> =
                futures_util::future::join_all(asked).await.into_iter().map(Result::unwrap).collect();
            denied.push(ask(&limiter, &policy, &alice).await);
            denied.push(limiter.check_all(&beside).await.unwrap());
            denied.push(limiter.check_up_to(&policy, &alice, 1).await.unwrap());
            for decision in denied {
                assert!(!decision.is_admitted() && decision.banned_for().is_none(), "{name}: {decision:?}");
                assert!(decision.failure().is_none(), "{name}: {decision:?}");
                assert!(decision.retry_after() > Some(23 * HOUR), "{name}: {decision:?}");
            }
            // What is written already holds, and what cannot be written fails.
            assert!(ask(&limiter, &policy, &bob).await.banned_for().is_some(), "{name}");
            let error = limiter.operator().ban(&policy, &alice, HOUR).await.unwrap_err();
            assert!(
                error.kind() == ErrorKind::StoreFailed && error.to_string().ends_with("(OOM)"),
                "{error}"
            );
            match limiter.check(&policy, &Key::new("carol"), 1).await {
                Ok(decision) => assert!(decision.failure().is_some(), "{name}: {decision:?}"),
                Err(error) => assert_eq!((error.kind(), mode), (ErrorKind::StoreFailed, FailureMode::Closed)),
            }
            memory("0");
            let denials = if name.ends_with('1') { 0 } else { 2 };
            assert_eq!(provoke(&limiter, &policy, &alice).await, (0, denials), "{name}");
        }
    }
}

/// A denial of a shadow does not make it one without the ban.
#[tokio::test]
async fn a_full_redis_fails_a_request_that_only_an_unwritten_ban_denies() {
    let (server, limiter) = on_redis().await;
    let closed = |name: &str, limit| day(name, limit).failure_mode(FailureMode::Closed);
    let (policy, shadow) = (closed("p", 3).penalty(Penalty::after(1, HOUR)), closed("shadow", 1).shadow());
    let (alice, other) = (Key::new("alice"), Key::new("other"));
    limiter.check(&policy, &alice, 2).await.unwrap();
    assert!(ask(&limiter, &shadow, &alice).await.is_admitted());
    let () = server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let charges = [
        // The first one is sent alone.
        vec![Charge::new(&policy, &other, 0)],
        vec![Charge::new(&policy, &alice, 2)],
        vec![Charge::new(&policy, &alice, 1)],
        vec![Charge::new(&policy, &alice, 1), Charge::new(&shadow, &alice, 1)],
    ];
    let decided =
        futures_util::future::join_all(charges.iter().map(|charges| limiter.check_all(charges))).await;
    let [_, banning, banned, beside] = decided.try_into().unwrap();
    assert!(banning.is_ok_and(|denied| denied.is_denied() && denied.banned_for().is_none()));
    for failed in [banned, beside] {
        let error = failed.unwrap_err();
        assert!(error.to_string().ends_with("(OOM)"), "{error}");
    }
}

#[tokio::test]
async fn a_read_only_server_fails_a_denial_that_must_be_counted() {
    let (server, limiter) = on_redis().await;
    let policy = day("p", 1).penalty(three()).failure_mode(FailureMode::Closed);
    let alice = Key::new("alice");
    assert!(ask(&limiter, &policy, &alice).await.is_admitted());
    let () = server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let error = limiter.check(&policy, &alice, 1).await.unwrap_err();
    assert!(error.to_string().contains("READONLY"), "{error}");
    let () = server.command(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(provoke(&limiter, &policy, &alice).await, (0, 2));
}

#[tokio::test]
async fn a_server_with_too_few_replicas_denies_and_does_not_count_the_denial() {
    let (server, limiter) = on_redis().await;
    let policy = day("p", 1).penalty(three()).failure_mode(FailureMode::Closed);
    let alice = Key::new("alice");
    assert!(ask(&limiter, &policy, &alice).await.is_admitted());
    let () = server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let denied = ask(&limiter, &policy, &alice).await;
    assert!(denied.is_denied() && denied.banned_for().is_none() && denied.failure().is_none(), "{denied:?}");
    let () = server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    assert_eq!(provoke(&limiter, &policy, &alice).await, (0, 2));
}
