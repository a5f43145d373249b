//! Equality, printing, parsing and conversion of the public value types.

use std::{collections::HashSet, time::Duration};

use proptest::prelude::*;
use serde_json::json;
use tower_ratelimit::{
    Charge, Decision, Error, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, Quota, Rejection,
    Rule,
    algorithm::{Concurrency, FixedWindow, Gcra, SlidingLog},
    decision::{Outcome, Verdict},
    store::ManualClock,
};

#[test]
fn policies_are_equal_if_they_decide_the_same() {
    let policy = || Policy::new("p", Quota::per_second(5));
    let rows = [
        ("the same", policy(), true),
        ("the default said", policy().algorithm(Gcra::new()), true),
        ("another name", Policy::new("q", Quota::per_second(5)), false),
        ("another limit", Policy::new("p", Quota::per_second(6)), false),
        ("another period", Policy::new("p", Quota::per_minute(5)), false),
        ("another burst", Policy::new("p", Quota::per_second(5).burst(9)), false),
        ("another algorithm", policy().algorithm(FixedWindow::anchored()), false),
        ("another failure mode", policy().failure_mode(FailureMode::Closed), false),
        ("leased", policy().max_lease(3), false),
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
    // Each has its own holder and charges the same units.
    let held = || Charge::new(&Policy::concurrency("held", 5), &Key::new("a"), 1);
    assert_eq!(held(), held());
}

#[test]
fn decisions_are_equal_if_their_outcomes_are_equal() {
    let charge = Charge::new(&Policy::new("p", Quota::per_second(5)), &Key::new("a"), 1);
    let outcome = |verdict, remaining, seconds| {
        Outcome::new(&charge, verdict, remaining, Duration::from_secs(seconds)).with_granted(1)
    };
    let decision = |outcome: Outcome| Decision::new([outcome]);
    let deny = Verdict::deny(None);
    assert_eq!(decision(outcome(Verdict::Admit, 4, 1)), decision(outcome(Verdict::Admit, 4, 1)));
    assert_ne!(decision(outcome(Verdict::Admit, 4, 1)), decision(outcome(deny, 4, 1)));
    assert_ne!(decision(outcome(Verdict::Admit, 4, 1)), decision(outcome(Verdict::Admit, 3, 1)));
    assert_ne!(decision(outcome(Verdict::Admit, 4, 1)), decision(outcome(Verdict::Admit, 4, 2)));
    assert_ne!(decision(outcome(Verdict::Admit, 4, 1)), Decision::new([]));
    assert_eq!(HashSet::from([Verdict::Admit, deny, deny]).len(), 2);
}

const INVALID_MODE: &str = "invalid failure mode `shut`: write `local`, `local/4` with the number of instances, `open` or \
                            `closed`";

#[test]
fn a_failure_mode_parses_what_it_prints() {
    let rows = [
        (FailureMode::Local { instances: 0 }, "local"),
        (FailureMode::Local { instances: 1 }, "local/1"),
        (FailureMode::Local { instances: 4 }, "local/4"),
        (FailureMode::Open, "open"),
        (FailureMode::Closed, "closed"),
    ];
    for (mode, text) in rows {
        assert_eq!(mode.to_string(), text);
        assert_eq!(text.parse::<FailureMode>().unwrap(), mode);
        assert_eq!(serde_json::to_value(mode).unwrap(), json!(text));
        assert_eq!(serde_json::from_value::<FailureMode>(json!(text)).unwrap(), mode);
    }
    assert_eq!(" Closed ".parse::<FailureMode>().unwrap(), FailureMode::Closed);
    assert_eq!(FailureMode::default(), FailureMode::Local { instances: 0 });
    for text in ["shut", "local/0", "local/", "local/-1", "local 4", "open/2"] {
        let error = text.parse::<FailureMode>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert_eq!(error.to_string(), INVALID_MODE.replace("shut", text));
    }
}

#[test]
fn a_quota_parses_what_it_prints() {
    let units = prop_oneof![1..100_u64, 1..=1_000_000_000_000_u64];
    let exponents = 0..7_u32;
    let seconds = [1, 60, 3_600, 86_400].map(|unit: u64| (1..40_u64).prop_map(move |n| n * unit * 1_000_000));
    let [second, minute, hour, day] = seconds;
    let periods = prop_oneof![
        second,
        minute,
        hour,
        day,
        exponents.prop_map(|exponent| 1_000 * 10_u64.pow(exponent)),
        1_000..1_u64 << 44
    ];
    let bursts = proptest::option::of(units.clone());
    proptest!(|(limit in units, period in periods, burst in bursts)| {
        let quota = Quota::new(limit, Duration::from_micros(period));
        let quota = burst.and_then(|burst| quota.try_burst(burst).ok()).unwrap_or(quota);
        let text = quota.to_string();
        prop_assert_eq!(text.parse::<Quota>().unwrap(), quota, "{}", text);
        let json = serde_json::to_value(quota).unwrap();
        prop_assert_eq!(&json, &json!(text));
        prop_assert_eq!(serde_json::from_value::<Quota>(json).unwrap(), quota);
    });
}

#[test]
fn quotas_parse_the_usual_spellings_and_print_one_of_them() {
    let every = |limit, millis| Quota::new(limit, Duration::from_millis(millis));
    let rows = [
        ("100/min", Quota::per_minute(100), "100/min"),
        ("10/s burst 20", Quota::per_second(10).burst(20), "10/s burst 20"),
        ("10/s, burst 10", Quota::per_second(10).burst(10), "10/s burst 10"),
        ("1000/h", Quota::per_hour(1_000), "1000/h"),
        ("10_000/day", Quota::per_day(10_000), "10000/day"),
        ("5/90s", every(5, 90_000), "5/90s"),
        ("100/500ms", every(100, 500), "100/500ms"),
        ("1/1500us", Quota::new(1, Duration::from_micros(1_500)), "1/1500us"),
        ("7/1000ms", Quota::per_second(7), "7/s"),
        (" 10 / Second ", Quota::per_second(10), "10/s"),
        ("10 per 2 hours BURST 3", every(10, 7_200_000).burst(3), "10/2h burst 3"),
        ("3/m", Quota::per_minute(3), "3/min"),
        ("3/week", every(3, 7 * 86_400_000), "3/7d"),
        ("3/5000 µs", every(3, 5), "3/5ms"),
    ];
    for (text, quota, printed) in rows {
        assert_eq!(text.parse::<Quota>().unwrap(), quota, "{text}");
        assert_eq!(quota.to_string(), printed);
    }
}

#[test]
fn an_invalid_quota_text_is_an_error_that_names_it_and_shows_the_form() {
    let form =
        "write it as `<limit>/<period>`, such as `100/min`, `5/90s`, `10/s burst 20` or `100000/month`";
    let rows = [
        ("", form),
        ("100", form),
        ("/", form),
        ("100/", form),
        ("100/fortnight", form),
        ("100/M", form),
        ("-1/s", form),
        ("1.5/s", "numbers are whole: write `3/2s` for 1.5 a second, `100/90min` for an hour and a half"),
        ("100/1.5h", "numbers are whole: write `3/2s` for 1.5 a second, `100/90min` for an hour and a half"),
        ("600rpm", "write the period after a slash, such as `600/min`"),
        ("10 RPS", "write the period after a slash, such as `600/min`"),
        ("10/mo", "a calendar month is `month`, such as `10/month`"),
        ("10 / mon", "a calendar month is `month`, such as `10/month`"),
        ("10/molecule", form),
        ("_1/s", form),
        ("100/min burst", form),
        ("burst 5/s", form),
        ("10/s burst 20 burst 30", form),
        ("１/s", form),
        ("0/s", "a quota's limit must be at least 1"),
        ("99999999999999999999999/s", "a quota's limit must be at most 999,999,999,999,999"),
        ("1/0s", "a quota's period must be at least 1 millisecond"),
        ("1/99999999999999999999999d", "a quota's period must be at most 400 days"),
        ("1/s burst 0", "a quota's burst must be at least 1"),
    ];
    for (text, problem) in rows {
        let error = text.parse::<Quota>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{text}");
        assert_eq!(error.to_string(), format!("invalid quota `{text}`: {problem}"));
    }
    let error = serde_json::from_value::<Quota>(json!(5)).unwrap_err();
    assert!(error.to_string().contains("expected a quota such as \"100/min\""), "{error}");
}

#[test]
fn an_invalid_constant_panics_at_its_call_site() {
    let place = |build: fn()| {
        // Each thread has its own, because other tests may panic in the meantime.
        thread_local!(static PLACE: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) });
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(|panic| {
            PLACE.set(panic.location().map(|location| location.file().to_owned()).unwrap_or_default());
        }));
        let panicked = std::panic::catch_unwind(build).is_err();
        std::panic::set_hook(before);
        assert!(panicked);
        PLACE.take()
    };
    let rows: [fn(); 7] = [
        || assert_eq!(Quota::per_second(0).limit(), 0),
        || assert_eq!(Quota::per_second(1).burst(0).limit(), 1),
        || drop(Policy::new("", Quota::per_second(1))),
        || drop(Policy::new("p", Quota::per_second(1).burst(2)).algorithm(FixedWindow::anchored())),
        || drop(Policy::new("p", Quota::per_second(1)).max_lease(0)),
        || drop(Policy::concurrency("p", 0)),
        || drop(tower_ratelimit::RateLimitHeaders::default().partition_key("short")),
    ];
    for (row, build) in rows.into_iter().enumerate() {
        assert!(place(build).ends_with("values.rs"), "{row}");
    }
}

#[test]
fn a_concurrency_policy_counts_permits_and_names_invalid_limits() {
    assert_eq!(
        Policy::concurrency("exports", 5),
        Policy::new("exports", Quota::new(5, Duration::from_secs(30))).algorithm(Concurrency::new())
    );
    let panics = |limit| {
        let panic = std::panic::catch_unwind(|| Policy::concurrency("p", limit)).unwrap_err();
        *panic.downcast::<String>().unwrap()
    };
    assert_eq!(panics(0), "a quota's limit must be at least 1");
    assert_eq!(panics(1_000_001), "a limit on concurrency must be at most 1,000,000");
}

#[tokio::test]
async fn a_denied_decision_and_an_error_convert_to_their_rejection() {
    let limiter = Limiter::new(MemoryStore::new());
    let (policy, key) = (Policy::new("p", Quota::per_hour(1)), Key::new("a"));
    let admitted = limiter.check(&policy, &key, 1).await.unwrap();
    assert_eq!(admitted.clone().into_result().unwrap(), admitted);
    let denied = limiter.check(&policy, &key, 1).await.unwrap();
    assert!(matches!(denied.into_result(), Err(Rejection::Denied(_))));

    let rows = [
        (ErrorKind::MissingIdentity, 400),
        (ErrorKind::InvalidIdentity, 400),
        (ErrorKind::UnknownIdentity, 401),
        (ErrorKind::MissingSetup, 500),
        (ErrorKind::IdentityUnavailable, 500),
        (ErrorKind::InvalidConfig, 500),
        (ErrorKind::InvalidToken, 500),
        (ErrorKind::ExpiredToken, 500),
        (ErrorKind::StoreTimeout, 503),
        (ErrorKind::StoreBusy, 503),
        (ErrorKind::StoreUnreachable, 503),
        (ErrorKind::StoreFailed, 503),
        (ErrorKind::ForeignValue, 503),
        (ErrorKind::StoreReply, 503),
    ];
    for (kind, status) in rows {
        assert_eq!(Rejection::from(Error::new(kind, "why")).status(), status, "{kind:?}");
    }
}

#[test]
fn debug_of_a_rule_shows_its_policy_and_no_key() {
    let rule = Rule::new(Policy::new("uploads", Quota::per_hour(1)), Key::new("secret"));
    let shown = format!("{rule:?}");
    assert!(shown.contains("uploads") && !shown.contains("secret"), "{shown}");
}

/// The README describes a login limit this way.
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
            while !limiter.check(&policy, &Key::new("alice"), 1).await.unwrap().verdict().is_denied() {
                admitted += 1;
            }
            clock.advance(Duration::from_secs(1));
        }
        assert_eq!(admitted, expected, "{}", policy.name());
    }
}
