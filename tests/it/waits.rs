//! `Limiter::wait`: when it asks the store, and how long it waits.

use std::{sync::atomic::Ordering, time::Duration};

use support::Down;
use tokio::time::Instant;
use tower_ratelimit::{
    Answer, Charge, Decision, Error, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, Quota,
    Verdict,
    decision::Outcome,
    policy::Penalty,
    store::{Action, Store},
};

use crate::keyed_layer::{deny, store_that};

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
    let never = Verdict::Deny { retry_after: None };
    let row = |name, says, patience, expected, asked, seconds| Row {
        name,
        says,
        patience,
        expected,
        asked,
        seconds,
    };
    let (now, then_now, then_delayed): (fn(usize) -> _, fn(usize) -> _, fn(usize) -> _) = (
        |_| Verdict::Allow,
        |asked| if asked == 0 { deny(2) } else { Verdict::Allow },
        |asked| if asked == 0 { deny(2) } else { delay(3) },
    );
    let rows = [
        row("no wait needed", now, 0, Verdict::Allow, 1, 0),
        row("after one wait", then_now, 2, Verdict::Allow, 2, 2),
        row("too late", then_now, 1, deny(2), 1, 0),
        row("two seconds each time", |_| deny(2), 5, deny(2), 3, 4),
        row("no patience", |_| deny(0), 0, deny(0), 1, 0),
        row("never", |_| Verdict::Deny { retry_after: None }, 9, never, 1, 0),
        row("delayed", |_| delay(3), 3, Verdict::Allow, 1, 3),
        row("denied and delayed", then_delayed, 6, Verdict::Allow, 2, 5),
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
        assert_eq!(decision.is_allowed(), expected == Verdict::Allow, "{name}");
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

/// Delays charges by ten seconds, and fails to refund them.
struct NoRefunds;

impl Store for NoRefunds {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        if action == Action::Refund {
            return Answer::ready(Err(Error::new(ErrorKind::StoreTimeout, "late")));
        }
        let delayed = |charge| Outcome::new(charge, delay(10), 0, Duration::ZERO);
        Answer::ready(Ok(Decision::new(charges.iter().map(delayed))))
    }

    fn reset(&self, _: &Policy, _: &Key) -> Answer<()> {
        Answer::ready(Ok(()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_too_late_is_not_admitted_if_its_refund_fails() {
    let policy = Policy::new("p", Quota::per_hour(1)).on_store_failure(FailureMode::Open);
    let decided = Limiter::new(NoRefunds).wait(&policy, &Key::new("all"), 1, Duration::from_secs(1)).await;
    let denied = decided.unwrap();
    assert!(denied.verdict().is_denied() && denied.failure().is_some());
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(9)));
}

#[tokio::test]
async fn a_wait_for_a_store_that_failed_ends_immediately() {
    for (mode, admitted) in [(FailureMode::Open, true), (FailureMode::Closed, false)] {
        let policy = Policy::new("p", Quota::per_hour(1)).on_store_failure(mode);
        let decided = Limiter::new(Down).wait(&policy, &Key::new("all"), 1, Duration::MAX).await;
        match decided {
            Ok(decision) => assert!(admitted && decision.is_allowed() && decision.failure().is_some()),
            Err(error) => assert_eq!((admitted, error.kind()), (false, ErrorKind::StoreUnreachable)),
        }
    }
}

#[tokio::test]
async fn a_delayed_decision_is_neither_allowed_nor_denied_and_no_handler_goes_on_with_it() {
    let (store, _) = store_that(|_| delay(3));
    let policy = Policy::new("p", Quota::per_hour(1));
    let decision = Limiter::new(store).check(&policy, &Key::new("all"), 1).await.unwrap();
    assert!(!decision.is_allowed() && !decision.verdict().is_denied());
    assert_eq!((decision.delay(), decision.retry_after()), (Some(Duration::from_secs(3)), None));
    let rejection = decision.into_result().unwrap_err();
    let cause = std::error::Error::source(&rejection).unwrap().to_string();
    assert!(rejection.status() == 500 && cause.contains("Limiter::wait"), "{cause}");
}
