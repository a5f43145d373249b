//! `Limiter::wait`: when it asks the store, and how long it waits.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use support::{Counted, Down, Fake, RedisServer, day, deny, fails, fails_after, settings, store_that};
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt as _};
use tower_ratelimit::{
    Answer, Charge, Decision, Error, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, Quota,
    algorithm::{LeakyBucket, SlidingLog},
    decision::{Outcome, Verdict},
    keyed::KeyedRateLimitLayer,
    policy::Penalty,
    store::{Action, Store},
};

const fn delay(seconds: u64) -> Verdict {
    Verdict::Delay(Duration::from_secs(seconds))
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_as_long_as_needed_and_never_longer_than_the_patience() {
    struct Row {
        name: &'static str,
        says: fn(usize) -> Verdict,
        patience: u64,
        expected: Verdict,
        asked: usize,
        seconds: u64,
    }
    let never = Verdict::deny(None);
    let row = |name, says, patience, expected, asked, seconds| Row {
        name,
        says,
        patience,
        expected,
        asked,
        seconds,
    };
    let (now, then_now, then_delayed): (fn(usize) -> _, fn(usize) -> _, fn(usize) -> _) = (
        |_| Verdict::Admit,
        |asked| if asked == 0 { deny(2) } else { Verdict::Admit },
        |asked| if asked == 0 { deny(2) } else { delay(3) },
    );
    let rows = [
        row("no wait needed", now, 0, Verdict::Admit, 1, 0),
        row("after one wait", then_now, 2, Verdict::Admit, 2, 2),
        row("too late", then_now, 1, deny(2), 1, 0),
        row("two seconds each time", |_| deny(2), 5, deny(2), 3, 4),
        row("no patience", |_| deny(0), 0, deny(0), 1, 0),
        row("never", |_| Verdict::deny(None), 9, never, 1, 0),
        row("delayed", |_| delay(3), 3, Verdict::Admit, 1, 3),
        row("denied and delayed", then_delayed, 6, Verdict::Admit, 2, 5),
        // The last question is the refund.
        row("the delay is too long", |_| delay(3), 1, deny(2), 2, 0),
        row("the delay is too long after a wait", then_delayed, 4, deny(1), 3, 2),
    ];
    for Row { name, says, patience, expected, asked, seconds } in rows {
        let (store, questions) = store_that(says);
        let policy = Policy::new("p", Quota::per_hour(1));
        let started = Instant::now();
        let patience = Duration::from_secs(patience);
        let decision = Limiter::new(store).wait(&policy, &Key::new("all"), 1, patience).await.unwrap();
        assert_eq!(decision.is_admitted(), expected == Verdict::Admit, "{name}");
        // A timer of tokio's is up to a millisecond late.
        let rounded = |wait: Duration| Duration::from_secs(wait.as_secs_f64().round() as u64);
        assert_eq!(decision.retry_after().map(rounded), expected.retry_after(), "{name}");
        assert_eq!(questions.load(Ordering::Relaxed), asked, "{name}");
        assert_eq!(started.elapsed().as_secs(), seconds, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_permit_ends_immediately_if_the_key_is_banned() {
    let limiter = Limiter::new(MemoryStore::new());
    let jobs = Policy::concurrency("jobs", 2).penalty(Penalty::manual());
    let (key, hour) = (Key::new("alice"), Duration::from_secs(3_600));
    limiter.operator().ban(&jobs, &key, hour).await.unwrap();
    let started = Instant::now();
    let denied = limiter.wait(&jobs, &key, 1, Duration::from_secs(30)).await.unwrap();
    assert!(denied.verdict().is_denied() && denied.outcomes()[0].banned_for().is_some());
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_too_late_is_not_admitted_if_its_refund_fails() {
    let policy = Policy::new("p", Quota::per_hour(1)).failure_mode(FailureMode::Open);
    // Delays charges by ten seconds, and fails to refund them.
    let store = Fake::new(Down, |_, action, charges| match action {
        Action::Refund => fails(ErrorKind::StoreTimeout),
        _ => Answer::ready(Ok(Decision::new(
            charges.iter().map(|charge| Outcome::new(charge, delay(10), 0, Duration::ZERO)),
        ))),
    });
    let decided = Limiter::new(store).wait(&policy, &Key::new("all"), 1, Duration::from_secs(1)).await;
    let denied = decided.unwrap();
    assert!(denied.verdict().is_denied() && denied.failure().is_some());
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(9)));
}

/// Every tenth answer of the store is late, although it has charged.
fn often_late(store: impl Store) -> Limiter {
    let asked = AtomicUsize::new(0);
    Limiter::new(Fake::new(store, move |store, action, charges| {
        let answer = store.decide(action, charges);
        if asked.fetch_add(1, Ordering::Relaxed) % 10 != 9 {
            return answer;
        }
        fails_after(async { drop(answer.await) }, ErrorKind::StoreTimeout)
    }))
}

/// Every failure mode, and a queue whose calls a partner counts that admits a little more.
#[tokio::test(start_paused = true)]
async fn answers_that_are_late_let_no_call_through_that_the_partner_denies() {
    const WORKERS: usize = 10;
    let patience = Duration::from_secs(600);
    for mode in [FailureMode::default(), FailureMode::Open, FailureMode::Closed] {
        let queue = LeakyBucket::queue(patience);
        let pace = Policy::new("pace", Quota::per_minute(99)).algorithm(queue).failure_mode(mode);
        let limiter = often_late(MemoryStore::new());
        let limit = Policy::new("limit", Quota::per_minute(100)).algorithm(SlidingLog::new());
        let (partner, key) = (Limiter::new(MemoryStore::new()), Key::new("partner"));
        let work = || async {
            let mut denied = 0;
            for _ in 0..1_000 / WORKERS {
                let turn = limiter.wait(&pace, &key, 1, patience).await.unwrap();
                assert!(turn.is_admitted() && turn.failure().is_none(), "{mode}: {turn:?}");
                denied += usize::from(!partner.check(&limit, &key, 1).await.unwrap().is_admitted());
            }
            denied
        };
        let denied: usize = join_all((0..WORKERS).map(|_| work())).await.iter().sum();
        assert_eq!(denied, 0, "{mode}");
    }
}

/// Of several units, under several policies, on each store, and in a service that waits.
#[tokio::test]
async fn waits_over_late_answers_admit_no_more_than_the_limit_on_each_store() {
    let server = RedisServer::start();
    let redis = settings().connect(&server.url()).await.unwrap();
    let limiters = [("memory", often_late(MemoryStore::new())), ("redis", often_late(redis))];
    for (name, limiter) in limiters {
        let daily = |name| day(name, 200);
        let patience = Duration::from_secs(60);
        let mut units = 0;
        for _ in 0..100 {
            let decision = limiter.wait(&daily("units"), &Key::new("all"), 3, patience).await.unwrap();
            assert!(decision.failure().is_none(), "{name}: {decision:?}");
            units += decision.outcomes()[0].granted();
        }
        assert!((150..=200).contains(&units), "{name}: {units} units");

        let policies = [daily("calls"), daily("tenant").penalty(Penalty::after(1_000, patience))];
        let charges = move |_: &()| {
            policies.iter().map(|one| Charge::new(one, &Key::new("all"), 1)).collect::<Vec<_>>()
        };
        let layer = KeyedRateLimitLayer::with_charges(limiter, charges).wait(patience);
        let service = ServiceBuilder::new().layer(layer).service_fn(async |()| Ok::<_, Error>(()));
        let mut calls = 0;
        for _ in 0..300 {
            calls += usize::from(service.clone().oneshot(()).await.is_ok());
        }
        assert!((150..=200).contains(&calls), "{name}: {calls} calls");
    }
}

#[tokio::test(start_paused = true)]
async fn the_failure_mode_decides_when_the_patience_ends_or_the_store_stays_unavailable() {
    let passes = [
        ErrorKind::StoreTimeout,
        ErrorKind::StoreBusy,
        ErrorKind::StoreUnreachable,
        ErrorKind::StoreDisconnected,
    ];
    let stays =
        [ErrorKind::StoreSuspended, ErrorKind::StoreFailed, ErrorKind::ForeignValue, ErrorKind::StoreReply];
    let patience = Duration::from_secs(10);
    for (kinds, waited) in [(passes, patience), (stays, Duration::ZERO)] {
        for kind in kinds {
            for (mode, admitted) in [(FailureMode::Open, true), (FailureMode::Closed, false)] {
                let store = Counted::new(Fake::failing(kind));
                let policy = Policy::new("p", Quota::per_hour(1)).failure_mode(mode);
                let started = Instant::now();
                let decided = Limiter::new(store.clone()).wait(&policy, &Key::new("all"), 1, patience).await;
                match decided {
                    Ok(decision) => {
                        assert!(admitted && decision.is_admitted() && decision.failure().is_some())
                    }
                    Err(error) => assert_eq!((admitted, error.kind()), (false, kind)),
                }
                assert_eq!(started.elapsed().as_secs(), waited.as_secs(), "{kind:?}");
                // After 10, 20, .. and then every 125 to 250 ms.
                let asked = store.asked();
                assert!(
                    if waited.is_zero() { asked == 1 } else { (40..90).contains(&asked) },
                    "{kind:?}: {asked}"
                );
            }
        }
    }
}

/// Units of the share, and then its wait.
#[tokio::test(start_paused = true)]
async fn a_wait_in_an_outage_is_as_long_as_the_share_of_the_instance_requires() {
    let limiter = Limiter::new(Fake::failing(ErrorKind::StoreSuspended));
    let policy = Policy::new("p", Quota::per_minute(60).burst(1));
    let started = Instant::now();
    for _ in 0..3 {
        let turn = limiter.wait(&policy, &Key::new("all"), 1, Duration::from_secs(5)).await.unwrap();
        assert!(turn.is_admitted() && turn.failure().is_some());
    }
    assert_eq!(started.elapsed().as_secs(), 2);
}

#[tokio::test]
async fn the_outcome_of_a_wait_has_the_policy_with_its_penalty() {
    let policy =
        Policy::new("logins", Quota::per_hour(1)).penalty(Penalty::after(2, Duration::from_secs(60)));
    let limiter = Limiter::new(MemoryStore::new());
    let admitted = limiter.wait(&policy, &Key::new("alice"), 1, Duration::from_secs(1)).await.unwrap();
    assert!(admitted.is_admitted());
    assert_eq!(admitted.outcomes()[0].policy(), &policy);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_an_outage_denies_counts_towards_a_ban() {
    let limiter = Limiter::new(Fake::failing(ErrorKind::StoreSuspended));
    let hour = Duration::from_secs(3_600);
    let policy = Policy::new("logins", Quota::per_hour(1)).penalty(Penalty::after(2, hour));
    let key = Key::new("alice");
    assert!(limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
    for _ in 0..2 {
        let denied = limiter.wait(&policy, &key, 1, Duration::from_secs(1)).await.unwrap();
        assert!(denied.verdict().is_denied() && denied.failure().is_some());
    }
    let banned = limiter.peek(&policy, &key, 1).await.unwrap();
    assert_eq!(banned.outcomes()[0].banned_for(), Some(hour));
}

#[tokio::test]
async fn a_delayed_decision_is_neither_allowed_nor_denied_and_no_handler_goes_on_with_it() {
    let (store, _) = store_that(|_| delay(3));
    let policy = Policy::new("p", Quota::per_hour(1));
    let decision = Limiter::new(store).check(&policy, &Key::new("all"), 1).await.unwrap();
    assert!(!decision.is_admitted() && !decision.verdict().is_denied());
    assert_eq!((decision.delay(), decision.retry_after()), (Some(Duration::from_secs(3)), None));
    let rejection = decision.into_result().unwrap_err();
    let cause = std::error::Error::source(&rejection).unwrap().to_string();
    assert!(rejection.status() == 500 && cause.contains("Limiter::wait"), "{cause}");
}
