//! Debits, on each store.

use tower_ratelimit::{Charge, Key};

use crate::{each_store::penalties::day, stores::stores};

#[tokio::test]
async fn one_policy_of_a_decision_is_debited_on_each_store() {
    let (requests, tokens, total) = (day("requests", 10), day("tokens", 100), day("total", 1_000).debt(50));
    for (name, limiter) in stores("debits").await {
        let alice = Key::new("alice");
        let charges = [
            Charge::new(&requests, &alice, 1),
            Charge::new(&tokens, &alice, 20),
            Charge::new(&total, &Key::new("all"), 20),
        ];
        let decision = limiter.check_all(&charges).await.unwrap();
        limiter.debit(&decision.for_policy("tokens").unwrap(), 30).await.unwrap();
        let debited = limiter.debit(&decision, 5_000).await.unwrap();
        let granted: Vec<_> = debited.outcomes().iter().map(|outcome| outcome.granted()).collect();
        assert_eq!(granted, [9, 50, 1_030], "{name}");
        assert!(decision.for_policy("other").is_none());
        assert_eq!(
            limiter.refund(&debited.for_policy("total").unwrap(), 40).await.unwrap().remaining(),
            Some(0)
        );
        assert_eq!(
            limiter.refund(&debited.for_policy("total").unwrap(), 40).await.unwrap().remaining(),
            Some(30)
        );
    }
}
