//! Shadow policies, on each store.

use tower_ratelimit::{Charge, Decision, Key, Policy, Quota, algorithm::SlidingLog};

use support::day;

use crate::stores::stores;

fn remaining(decision: &Decision) -> (Vec<u64>, Vec<u64>) {
    let of = |outcomes: &[tower_ratelimit::decision::Outcome]| {
        outcomes.iter().map(|one| one.remaining()).collect()
    };
    (of(decision.outcomes()), of(decision.shadows()))
}

#[tokio::test]
async fn a_shadow_counts_and_denies_nothing() {
    for (name, limiter) in stores("shadow-alone").await {
        let (policy, key) = (day("new", 2).shadow(), Key::new("alice"));
        for left in [1, 0] {
            let decision = limiter.check(&policy, &key, 1).await.unwrap();
            assert_eq!(remaining(&decision), (vec![], vec![left]), "{name}");
            let shadow = &decision.shadows()[0];
            assert!(!shadow.verdict().is_denied() && shadow.is_shadow(), "{name}");
        }
        for _ in 0..3 {
            let decision = limiter.check(&policy, &key, 1).await.unwrap();
            assert!(decision.is_admitted() && decision.binding().is_none(), "{name}");
            let [shadow] = decision.shadows() else { panic!("{name}: {decision:?}") };
            let verdict = shadow.verdict();
            assert!(verdict.is_denied() && verdict.retry_after().is_some(), "{name}: {shadow:?}");
        }
        // Enforced, it continues with these counts.
        assert!(!limiter.check(&day("new", 2), &key, 1).await.unwrap().is_admitted(), "{name}");
        assert!(limiter.check(&day("new", 3), &key, 1).await.unwrap().is_admitted(), "{name}");
    }
}

#[tokio::test]
async fn other_policies_are_enforced_as_always() {
    let (alice, all) = (Key::new("alice"), Key::new("all"));
    for (name, limiter) in stores("shadow-others").await {
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
            assert!(decision.is_admitted(), "{name}: {decision:?}");
            assert_eq!(remaining(&decision), left, "{name}");
        }
        let denied = limiter.check_all(&charges).await.unwrap();
        assert!(!denied.is_admitted(), "{name}");
        assert_eq!(denied.binding().unwrap().policy().name(), "window", "{name}");
        assert_eq!(remaining(&denied), (vec![0, 1], vec![0]), "{name}");
        // What is denied is not charged to a shadow that has room.
        let roomy = [Charge::new(&day("roomy", 9).shadow(), &all, 1), charges[1].clone()];
        assert!(!limiter.check_all(&roomy).await.unwrap().is_admitted(), "{name}");
        let left = limiter.peek(&day("roomy", 9), &all, 0).await.unwrap().remaining();
        assert_eq!(left, Some(9), "{name}");
        // A refund is one of the shadow too.
        let refundable = [Charge::new(&day("roomy", 9).shadow(), &all, 4), Charge::new(&log, &alice, 1)];
        let decision = limiter.check_all(&refundable).await.unwrap();
        limiter.refund(&decision, 3).await.unwrap();
        assert_eq!(limiter.peek(&day("roomy", 9), &all, 0).await.unwrap().remaining(), Some(8), "{name}");
    }
}
