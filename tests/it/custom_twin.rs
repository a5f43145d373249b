//! Custom algorithms on `MemoryStore`: with a twin, without one, and with one that makes a mistake.

use std::time::Duration;

use crate::custom_algorithm::reports;
use support::inner;
use tower_ratelimit::{
    Charge, Error, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, PolicySource, Quota,
    RateLimitLayer, Rule,
    algorithm::{Algorithm, Evaluation, Input, KeyState, Receipt, Twin, Update},
    keyed::KeyedRateLimitLayer,
    store::ManualClock,
};

/// The algorithm of the example without its twin.
fn without_twin() -> Policy {
    #[derive(Debug)]
    struct WithoutTwin;

    impl Algorithm for WithoutTwin {
        fn name(&self) -> &str {
            "day-and-night"
        }
        fn lua(&self) -> &str {
            include_str!("../../examples/custom_algorithm.lua")
        }
        fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
            Ok(vec![quota.limit(), 20])
        }
    }
    Policy::new("reports", Quota::per_hour(5)).algorithm(WithoutTwin)
}

#[tokio::test]
#[should_panic(expected = "cannot decide the algorithm day-and-night, which has no twin in Rust")]
async fn a_memory_store_panics_for_an_algorithm_without_a_twin_when_the_layer_is_built() {
    let _ = RateLimitLayer::new(MemoryStore::new(), without_twin(), Key::new("all"));
}

#[test]
fn a_memory_store_panics_for_an_algorithm_without_a_twin_of_a_further_rule() {
    let plain = || Policy::new("plain", Quota::per_hour(5));
    let layer = || {
        let _ = RateLimitLayer::new(MemoryStore::new(), plain(), Key::new("all"))
            .rule(Rule::new(without_twin(), Key::new("all")));
    };
    let keyed = || {
        let _ = KeyedRateLimitLayer::new(MemoryStore::new(), without_twin(), |_: &u8| "all");
    };
    assert!(std::panic::catch_unwind(layer).is_err());
    assert!(std::panic::catch_unwind(keyed).is_err());
}

#[tokio::test]
async fn a_memory_store_fails_the_request_that_chooses_an_algorithm_without_a_twin() {
    let source = PolicySource::per_request(|_, _| without_twin());
    let layer = RateLimitLayer::new(MemoryStore::new(), source, Key::new("all"));
    assert_eq!(inner::ask(&layer, inner::get()).await.status(), 500);
}

#[tokio::test]
async fn a_layer_over_a_memory_store_decides_a_custom_algorithm_with_a_twin() {
    let clock = ManualClock::new(); // midnight
    clock.advance(Duration::from_secs(12 * 3_600));
    let store = MemoryStore::with_clock(clock.clone());
    let other = Policy::new("other", Quota::per_hour(9));
    let layer =
        RateLimitLayer::new(store, reports(), Key::new("all")).rule(Rule::new(other, Key::new("all")));
    for _ in 0..5 {
        assert_eq!(inner::ask(&layer, inner::get()).await.status(), 200);
    }
    let rejection = inner::ask(&layer, inner::get()).await;
    assert_eq!(rejection.status(), 429);
    assert_eq!(rejection.headers()["retry-after"], "3600");
    clock.advance(Duration::from_secs(3_600));
    assert_eq!(inner::ask(&layer, inner::get()).await.status(), 200);
}

/// An algorithm whose twin returns what it has; its cost of 0 is valid unless `zero`.
#[derive(Clone, Debug)]
struct Mistaken {
    zero: bool,
    returned: Evaluation,
    update: Option<Update>,
}

impl Algorithm for Mistaken {
    fn name(&self) -> &str {
        "mistaken"
    }
    fn lua(&self) -> &str {
        ""
    }
    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        Ok(vec![quota.limit()])
    }
    fn twin(&self) -> Option<&dyn Twin> {
        Some(self)
    }
}

impl Twin for Mistaken {
    fn decide(&self, _: &Input<'_>, cost: u64) -> Evaluation {
        if cost == 0 && !self.zero { Evaluation::admit(9, 0) } else { self.returned.clone() }
    }
    fn refund(&self, _: &Input<'_>, _: u64, _: Option<Receipt>) -> Option<Update> {
        self.update.clone()
    }
}

fn mistaken(zero: bool, returned: Evaluation, update: Option<Update>) -> Policy {
    Policy::new("p", Quota::per_hour(5))
        .algorithm(Mistaken { zero, returned, update })
        .failure_mode(FailureMode::Closed)
}

#[tokio::test]
async fn a_mistake_of_a_twin_is_an_error_that_names_it_and_charges_nothing() {
    const TOO_LARGE: u64 = 1 << 53;
    let valid = || Evaluation::admit(9, 1).write(KeyState::new(1, 1), 1);
    let rows = [
        ("denies a cost of 0", true, Evaluation::deny(Some(9), 0, 9), "must admit a cost of 0"),
        ("without a state", false, Evaluation::admit(9, 1), "must write a state where it admits a cost"),
        ("a retry time of 0", false, Evaluation::deny(Some(0), 0, 9), "a retry time above 0"),
        ("a large retry time", false, Evaluation::deny(Some(TOO_LARGE), 0, 9), "numbers below 2^53"),
        ("a large delay", false, valid().delay(TOO_LARGE), "numbers below 2^53"),
        ("a large mark", false, valid().mark(TOO_LARGE), "numbers below 2^53"),
        ("a large reset", false, Evaluation::deny(None, 0, u64::MAX), "numbers below 2^53"),
        ("a large time", false, valid().write(KeyState::new(TOO_LARGE, 1), 1), "numbers below 2^53"),
        ("a large count", false, valid().write(KeyState::new(1, TOO_LARGE), 1), "numbers below 2^53"),
        ("a large lifetime", false, valid().write(KeyState::new(1, 1), TOO_LARGE), "numbers below 2^53"),
        ("no lifetime", false, valid().write(KeyState::new(1, 1), 0), "a lifetime above 0"),
    ];
    for (name, zero, returned, message) in rows {
        let store = MemoryStore::new();
        let (policy, key) = (mistaken(zero, returned, None), Key::new("alice"));
        let error = Limiter::new(store.clone()).supports(&policy).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{name}");
        assert!(error.to_string().contains(message), "{name}: {error}");

        let limiter = Limiter::new(store.clone());
        let other = Policy::new("other", Quota::per_hour(5));
        let cost = u64::from(!zero);
        let both = [Charge::new(&other, &key, 1), Charge::new(&policy, &key, cost)];
        for decided in [limiter.check(&policy, &key, cost).await, limiter.check_all(&both).await] {
            let error = decided.expect_err(name);
            assert_eq!(error.kind(), ErrorKind::StoreFailed, "{name}");
            assert!(error.to_string().contains("the twin of the algorithm mistaken"), "{name}: {error}");
            assert!(error.to_string().contains(message), "{name}: {error}");
        }
        assert!(store.key_count() == 0, "{name}");
    }
}

#[tokio::test]
async fn a_mistaken_refund_of_a_twin_is_an_error_and_leaves_the_state() {
    let keep = |count| Update::Keep(KeyState::new(1, count));
    let write = |count, lifetime| Update::Write { state: KeyState::new(1, count), lifetime };
    let rows = [
        ("a large count", keep(1 << 53), true, "numbers below 2^53"),
        ("no lifetime", write(1, 0), true, "a lifetime above 0"),
        ("a large lifetime", write(1, u64::MAX), true, "numbers below 2^53"),
        ("keeps the lifetime of no key", keep(1), false, "a key that does not exist"),
    ];
    for (name, update, exists, message) in rows {
        let store = MemoryStore::new();
        let limiter = Limiter::new(store.clone());
        let policy =
            mistaken(false, Evaluation::admit(4, 1).write(KeyState::new(7, 1), 1_000_000_000), Some(update));
        let key = Key::new("alice");
        if exists {
            limiter.check(&policy, &key, 1).await.unwrap();
        }
        let error = limiter.operator().refund_latest(&policy, &key, 1).await.expect_err(name);
        assert!(error.to_string().contains(message), "{name}: {error}");
        assert_eq!(store.key_count(), usize::from(exists), "{name}");
    }
}
