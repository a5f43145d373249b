//! Debits, on each store.

use tower_ratelimit::{Charge, Key, Reservation};

use support::day;

use crate::stores::stores;

#[tokio::test]
async fn one_policy_of_a_decision_is_debited_on_each_store() {
    let (requests, tokens, total) =
        (day("requests", 10), day("tokens", 100), day("total", 1_000).max_debt(50));
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
        for remaining in [0, 30] {
            let refunded = limiter.refund(&debited.for_policy("total").unwrap(), 40).await.unwrap();
            assert_eq!(refunded.remaining(), Some(remaining), "{name}");
        }
    }
}

#[tokio::test]
async fn a_reservation_ends_at_its_last_total_on_each_store() {
    let (tokens, total) = (day("tokens", 150), day("total", 1_000).max_debt(50));
    for (name, limiter) in stores("totals").await {
        let keys = [Key::new("alice"), Key::new("all")];
        let charges = [Charge::new(&tokens, &keys[0], 100), Charge::new(&total, &keys[1], 100)];
        let decision = limiter.check_all(&charges).await.unwrap();
        let reservation = Reservation::new(&limiter, &decision);
        // What remains of the limits, without the debt.
        let totals = [(400, [0, 600]), (50, [100, 950]), (5_000, [0, 0]), (1_020, [0, 0]), (120, [30, 880])];
        for (units, expected) in totals {
            reservation.settle(units).await.unwrap();
            let mut remaining = Vec::new();
            for (policy, key) in [&tokens, &total].into_iter().zip(&keys) {
                remaining.extend(limiter.peek(policy, key, 0).await.unwrap().remaining());
            }
            assert_eq!(remaining, expected, "{name}, {units}");
        }
    }
}
