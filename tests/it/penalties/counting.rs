//! Which denials count, and how bans grow.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tower_ratelimit::{
    ErrorKind, FailureMode,
    decision::Verdict,
    store::{Action, ManualClock},
};

use super::*;
use support::{Down, Fake, eventually, on_redis};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_instances_count_together_exactly() {
    let server = RedisServer::start();
    let instances = [Limiter::new(store(&server).await), Limiter::new(store(&server).await)];
    let policy = day("p", 10).penalty(Penalty::after(100, HOUR).ban(DAY));
    let counts: Arc<[AtomicUsize; 2]> = Arc::default();
    let tasks: Vec<_> = (0..64)
        .map(|number| {
            let (limiter, policy) = (instances[number % 2].clone(), policy.clone());
            let counts = counts.clone();
            tokio::spawn(async move {
                let key = Key::new("alice");
                for _ in 0..20 {
                    match ask(&limiter, &policy, &key).await {
                        decision if decision.banned_for().is_some() => {}
                        decision => {
                            counts[usize::from(decision.is_admitted())].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let [denied, admitted] = [0, 1].map(|place: usize| counts[place].load(Ordering::Relaxed));
    assert_eq!((admitted, denied), (10, 99));
}

#[tokio::test]
async fn a_ban_grows_ends_and_is_forgotten() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let redis = settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap();
    let stores =
        [("memory", Limiter::new(MemoryStore::with_clock(clock.clone()))), ("redis", Limiter::new(redis))];
    let policy = Policy::new("p", Quota::per_minute(1))
        .algorithm(FixedWindow::anchored())
        .penalty(Penalty::after(2, MINUTE).ban(HOUR).up_to(4 * HOUR));
    let alice = Key::new("alice");
    for (name, limiter) in stores {
        let mut bans = Vec::new();
        for pause in [0, 1, 1, 4 * 3_600 - 1, 4 * 3_600] {
            clock.advance(Duration::from_secs(pause));
            assert_eq!(provoke(&limiter, &policy, &alice).await, (1, 1), "{name}, {bans:?}");
            let rest = ask(&limiter, &policy, &alice).await.banned_for().unwrap();
            bans.push(rest.as_secs() / 3_600);
            clock.advance(rest - Duration::from_micros(1));
            assert!(ask(&limiter, &policy, &alice).await.banned_for().is_some(), "{name}");
            clock.advance(Duration::from_micros(1));
        }
        assert_eq!(bans, [1, 2, 4, 4, 1], "{name}");
        // Denials that are too far apart do not ban.
        clock.advance(9 * HOUR);
        for _ in 0..9 {
            assert!(ask(&limiter, &policy, &alice).await.is_admitted(), "{name}");
            assert_eq!(ask(&limiter, &policy, &alice).await.banned_for(), None, "{name}");
            clock.advance(MINUTE);
        }
    }
}

#[tokio::test]
async fn the_denials_are_counted_in_process_while_the_store_fails() {
    let limiter = Limiter::new(Down);
    let alice = Key::new("alice");
    for mode in [FailureMode::Local { instances: 1 }, FailureMode::Local { instances: 2 }] {
        let policy = day(&format!("{mode:?}"), 4).penalty(three()).failure_mode(mode);
        let admitted = if mode == (FailureMode::Local { instances: 2 }) { 2 } else { 4 };
        assert_eq!(provoke(&limiter, &policy, &alice).await, (admitted, 2), "{mode:?}");
        let banned = ask(&limiter, &policy, &alice).await;
        assert!(banned.failure().is_some() && banned.banned_for().is_some(), "{banned:?}");
        assert!(banned.banned_for() <= Some(HOUR), "{banned:?}");
        assert!(matches!(banned.verdict(), Verdict::Deny { .. }));
    }
    let open = day("open", 1).penalty(three()).failure_mode(FailureMode::Open);
    for _ in 0..9 {
        assert!(ask(&limiter, &open, &alice).await.is_admitted());
    }
}

#[tokio::test]
async fn reconciliation_after_an_outage_is_not_a_denial() {
    let store = Fake::default();
    let limiter = Limiter::new(store.clone());
    let (policy, alice) = (day("p", 2).penalty(Penalty::after(1, HOUR)), Key::new("alice"));
    for _ in 0..2 {
        assert!(ask(&limiter, &policy, &alice).await.is_admitted());
    }
    store.fail(ErrorKind::StoreSuspended);
    assert!(ask(&limiter, &policy, &alice).await.is_admitted());
    store.fail(None);
    assert!(ask(&limiter, &policy, &Key::new("bob")).await.is_admitted());
    // Nothing remains for what is reconciled.
    assert!(eventually(async || !store.asked(Action::ChargeUpTo).is_empty()).await);
    let peeked = limiter.peek(&policy, &alice, 1).await.unwrap();
    assert!(!peeked.is_admitted() && peeked.banned_for().is_none(), "{peeked:?}");
    assert!(ask(&limiter, &policy, &alice).await.banned_for().is_some());
}

#[tokio::test]
async fn every_key_of_a_penalty_has_a_ttl_as_long_as_it_matters() {
    let (server, limiter) = on_redis().await;
    let rows = [
        ("no growth", Penalty::after(2, MINUTE).ban(HOUR), [MINUTE, HOUR]),
        ("growth", Penalty::after(2, MINUTE).ban(HOUR).up_to(DAY), [MINUTE, HOUR + DAY]),
        // The ban ends before the TTL of the denials, which the key keeps.
        ("long denials", Penalty::after(2, DAY).ban(MINUTE), [DAY, DAY]),
    ];
    for (name, penalty, lifetimes) in rows {
        let (policy, alice) = (day(name, 1).penalty(penalty), Key::new("alice"));
        ask(&limiter, &policy, &alice).await;
        let key = format!("rl:{}:penalty:{{alice}}", name.replace(' ', "%20"));
        assert_eq!(server.command::<i64>(&["EXISTS", &key]), 0, "{name}: nothing is denied yet");
        for lifetime in lifetimes {
            ask(&limiter, &policy, &alice).await;
            // A TTL is twice as long as the state matters.
            let (ttl, lifetime) = (server.command::<i64>(&["PTTL", &key]), 2 * lifetime.as_millis() as i64);
            assert!((lifetime - 60_000..=lifetime + 2).contains(&ttl), "{name}: {ttl} of {lifetime}");
        }
    }
}

#[tokio::test]
async fn a_ban_of_an_outage_applies_in_the_next_one_unless_an_operator_ends_it() {
    let store = Fake::default();
    let limiter = Limiter::new(store.clone());
    let (alice, bob) = (Key::new("alice"), Key::new("bob"));
    let policy = day("p", 2).penalty(Penalty::after(1, HOUR));
    let fail = |is_down: bool| store.fail(is_down.then_some(ErrorKind::StoreSuspended));
    let is_banned = async |key| limiter.peek(&policy, key, 1).await.unwrap().banned_for().is_some();
    // Nothing is counted in this process yet, so this is a ban in the store only.
    limiter.operator().ban(&policy, &bob, HOUR).await.unwrap();
    fail(true);
    assert!(!is_banned(&bob).await);
    assert_eq!(provoke(&limiter, &policy, &alice).await, (2, 0));
    fail(false);
    assert!(!is_banned(&alice).await && is_banned(&bob).await);
    fail(true);
    assert!(is_banned(&alice).await && !is_banned(&bob).await);

    // The store fails, so the ban ends only here.
    assert!(limiter.operator().unban(&policy, &alice).await.is_err());
    assert!(!is_banned(&alice).await);
    assert!(limiter.operator().ban(&policy, &alice, HOUR).await.is_err());
    assert!(is_banned(&alice).await);

    // Both in the store and here.
    fail(false);
    assert!(!is_banned(&alice).await);
    for (key, time) in [(&alice, Duration::ZERO), (&bob, HOUR)] {
        match time {
            Duration::ZERO => limiter.operator().unban(&policy, key).await.unwrap(),
            time => limiter.operator().ban(&policy, key, time).await.unwrap(),
        }
        let expected = !time.is_zero();
        for is_down in [false, true] {
            fail(is_down);
            assert_eq!(is_banned(key).await, expected, "{time:?}, {is_down}");
        }
        fail(false);
    }
    // A policy that is not counted here is not banned here.
    let closed = policy.clone().failure_mode(FailureMode::Closed);
    limiter.operator().unban(&closed, &bob).await.unwrap();
    fail(true);
    assert!(is_banned(&bob).await);
}
