//! A manual clock that shows 1970-01-01T00:00:00Z, on which both stores decide alike.

use std::time::Duration;

use support::stores_with_clock;
use tower_ratelimit::{
    Key, Limiter, Policy, Quota,
    algorithm::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    policy::Penalty,
};

#[tokio::test]
async fn both_stores_decide_alike_at_the_beginning_of_time() {
    let (server, clock, redis, memory) = stores_with_clock().await;
    let quota = Quota::per_day(3);
    let day = Duration::from_secs(86_400);
    let policies = [
        Policy::new("gcra", quota),
        Policy::new("tokens", quota).algorithm(TokenBucket::new()),
        Policy::new("meter", quota).algorithm(LeakyBucket::meter()),
        Policy::new("anchored", quota).algorithm(FixedWindow::anchored()),
        Policy::new("aligned", quota).algorithm(FixedWindow::aligned()),
        Policy::new("month", Quota::per_month(3)),
        Policy::new("quarter", Quota::per_quarter(3)),
        Policy::new("year", Quota::per_year(3)),
        Policy::new("log", quota).algorithm(SlidingLog::new()),
        Policy::new("window", quota).algorithm(SlidingWindow::new()),
        Policy::new("segments", quota).algorithm(SlidingWindow::new().segments(4)),
        Policy::new("banning", quota).penalty(Penalty::after(1, day).up_to(2 * day)),
    ];
    let (redis, memory) = (Limiter::new(redis), Limiter::new(memory));
    for since_1970 in [Duration::ZERO, Duration::from_micros(1), Duration::ZERO] {
        clock.set(since_1970);
        for policy in &policies {
            let key = Key::new(format!("{since_1970:?}"));
            for step in 0..5 {
                let of = async |limiter: &Limiter| {
                    let decision = limiter.check(policy, &key, 1).await.unwrap();
                    assert!(decision.failure().is_none(), "{}: {decision:?}", policy.name());
                    let outcome = &decision.outcomes()[0];
                    let refunded = match step {
                        1 => limiter.refund(&decision, 1).await.unwrap().remaining(),
                        _ => None,
                    };
                    (outcome.verdict(), outcome.remaining(), outcome.reset_after(), refunded)
                };
                assert_eq!(
                    of(&redis).await,
                    of(&memory).await,
                    "{} at {since_1970:?}, {step}",
                    policy.name()
                );
            }
        }
    }
    // Such a key has the TTL of a manual clock.
    let ttl: i64 = server.command(&["PTTL", "rl:gcra:gcra:{0ns}"]);
    assert!((3_000_000..=3_600_000).contains(&ttl), "{ttl}");
}
