//! What is promised of the values that users compare, print and convert.

use std::{collections::HashSet, time::Duration};

use tower_ratelimit::{
    Charge, Decision, Error, ErrorKind, FailureMode, Key, Limiter, ManualClock, MemoryStore, Policy, Quota,
    Rejection, Rule, Verdict,
    algorithm::{Concurrency, FixedWindow, Gcra, SlidingLog},
    decision::Outcome,
    key::Constant,
};

#[test]
fn policies_are_equal_if_they_admit_the_same() {
    let policy = || Policy::new("p", Quota::per_second(5));
    let rows = [
        ("the same", policy(), true),
        ("the default said", policy().algorithm(Gcra::new()), true),
        ("another name", Policy::new("q", Quota::per_second(5)), false),
        ("another limit", Policy::new("p", Quota::per_second(6)), false),
        ("another period", Policy::new("p", Quota::per_minute(5)), false),
        ("another burst", Policy::new("p", Quota::per_second(5).burst(9)), false),
        ("another algorithm", policy().algorithm(FixedWindow::anchored()), false),
        ("another failure mode", policy().on_store_failure(FailureMode::Closed), false),
        ("leased", policy().leased(3), false),
    ];
    for (name, other, equal) in rows {
        assert_eq!(policy() == other, equal, "{name}");
        let (one, another) =
            (Charge::new(&policy(), &Key::new("a"), 1), Charge::new(&other, &Key::new("a"), 1));
        assert_eq!(one == another, equal, "{name}");
    }
    let charge = |key: &str, cost| Charge::new(&policy(), &Key::new(key), cost);
    assert_ne!(charge("a", 1), charge("b", 1));
    assert_ne!(charge("a", 1), charge("a", 2));
    // Each has a holder of its own, and asks for the same.
    let held = || Charge::new(&Policy::concurrency("held", 5), &Key::new("a"), 1);
    assert_eq!(held(), held());
}

#[test]
fn decisions_are_equal_if_they_say_the_same() {
    let charge = Charge::new(&Policy::new("p", Quota::per_second(5)), &Key::new("a"), 1);
    let outcome = |verdict, remaining, seconds| {
        Outcome::new(&charge, verdict, remaining, Duration::from_secs(seconds)).granting(1)
    };
    let decision = |outcome: Outcome| Decision::new([outcome]);
    let deny = Verdict::Deny { retry_after: None };
    assert_eq!(decision(outcome(Verdict::Allow, 4, 1)), decision(outcome(Verdict::Allow, 4, 1)));
    assert_ne!(decision(outcome(Verdict::Allow, 4, 1)), decision(outcome(deny, 4, 1)));
    assert_ne!(decision(outcome(Verdict::Allow, 4, 1)), decision(outcome(Verdict::Allow, 3, 1)));
    assert_ne!(decision(outcome(Verdict::Allow, 4, 1)), decision(outcome(Verdict::Allow, 4, 2)));
    assert_ne!(decision(outcome(Verdict::Allow, 4, 1)), Decision::new([]));
    assert_eq!(HashSet::from([Verdict::Allow, deny, deny]).len(), 2);
}

#[test]
fn a_failure_mode_prints_as_a_configuration_writes_it() {
    assert_eq!([FailureMode::Open, FailureMode::Closed].map(|mode| mode.to_string()), ["open", "closed"]);
}

#[test]
fn a_concurrency_policy_counts_units_in_use_and_names_wrong_limits() {
    assert_eq!(
        Policy::concurrency("exports", 5),
        Policy::new("exports", Quota::new(5, Duration::from_secs(30)).unwrap()).algorithm(Concurrency::new())
    );
    assert_eq!(
        Policy::try_concurrency("p", 0).unwrap_err().to_string(),
        "a quota's limit must be at least 1"
    );
    let error = Policy::try_concurrency("p", 1_000_001).unwrap_err();
    assert_eq!(error.to_string(), "a limit on concurrency must be at most 1 000 000");
}

#[tokio::test]
async fn a_denied_decision_and_an_error_become_the_rejection_they_stand_for() {
    let limiter = Limiter::new(MemoryStore::new());
    let (policy, key) = (Policy::new("p", Quota::per_hour(1)), Key::new("a"));
    let admitted = limiter.check(&policy, &key, 1).await.unwrap();
    assert_eq!(admitted.clone().into_result().unwrap(), admitted);
    let denied = limiter.check(&policy, &key, 1).await.unwrap();
    assert!(matches!(denied.into_result(), Err(Rejection::Denied(_))));

    let rows = [
        (ErrorKind::MissingIdentity, 400),
        (ErrorKind::InvalidIdentity, 400),
        (ErrorKind::MissingSetup, 500),
        (ErrorKind::IdentityUnavailable, 500),
        (ErrorKind::InvalidConfig, 500),
        (ErrorKind::StoreTimeout, 503),
        (ErrorKind::StoreBusy, 503),
        (ErrorKind::StoreUnreachable, 503),
        (ErrorKind::StoreFailed, 503),
        (ErrorKind::StoreReply, 503),
    ];
    for (kind, status) in rows {
        assert_eq!(Rejection::from(Error::new(kind, "why")).status(), status, "{kind:?}");
    }
}

#[test]
fn a_rule_shows_its_policy_and_nothing_of_a_key() {
    let rule = Rule::new(Policy::new("uploads", Quota::per_hour(1)), Constant::new("secret"));
    let shown = format!("{rule:?}");
    assert!(shown.contains("uploads") && !shown.contains("secret"), "{shown}");
}

/// What the README says of a login limit.
#[tokio::test]
async fn five_a_minute_admits_nine_in_the_first_minute_under_gcra_and_five_under_a_log() {
    for (policy, expected) in [
        (Policy::new("gcra", Quota::per_minute(5)), 9),
        (Policy::new("log", Quota::per_minute(5)).algorithm(SlidingLog::new()), 5),
    ] {
        let clock = ManualClock::new();
        let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
        let mut admitted = 0;
        for _ in 0..60 {
            while limiter.check(&policy, &Key::new("alice"), 1).await.unwrap().is_allowed() {
                admitted += 1;
            }
            clock.advance(Duration::from_secs(1));
        }
        assert_eq!(admitted, expected, "{}", policy.name());
    }
}
