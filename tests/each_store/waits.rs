//! Waiting until a request is admitted, on each store.

use std::time::Duration;

use tokio::time::timeout;
use tower_ratelimit::{Charge, Key, Policy, Quota, algorithm::LeakyBucket, store::ManualClock};

use crate::stores::{on_a_clock, stores};

const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn each_wait_ends_with_an_admission_on_each_store() {
    // A unit every 5 ms.
    let policies = [
        Policy::new("bucket", Quota::per_second(200).burst(1)),
        Policy::new("queue", Quota::per_second(200)).algorithm(LeakyBucket::queue(LONG)),
    ];
    for (name, limiter) in stores("waits").await {
        for policy in &policies {
            let waits = (0..5).map(|_| async {
                let decision = limiter.wait(policy, &Key::new("all"), 1, LONG).await.unwrap();
                assert!(decision.is_admitted() && decision.delay().is_none(), "{name}: {decision:?}");
            });
            futures_util::future::join_all(waits).await;
        }
    }
}

#[tokio::test]
async fn a_wait_for_several_policies_charges_all_or_nothing_on_each_store() {
    let quick = Policy::new("quick", Quota::per_second(200).burst(1));
    let slow = Policy::new("slow", Quota::per_day(4));
    // The second unit has its turn in a minute.
    let hour = Duration::from_secs(3_600);
    let queue = Policy::new("queue", Quota::per_hour(60)).algorithm(LeakyBucket::queue(hour));
    let slots = Policy::concurrency("slots", 1);
    for (name, limiter) in stores("waits-for-all").await {
        let key = Key::new("partner");
        let all = [&quick, &slow].map(|policy| Charge::new(policy, &key, 1));
        let left = async |policy| limiter.peek(policy, &key, 0).await.unwrap().remaining();
        let waits = (0..4).map(|_| async {
            let decision = limiter.wait_all(&all, LONG).await.unwrap();
            assert!(decision.is_admitted() && decision.outcomes().len() == 2, "{name}: {decision:?}");
        });
        futures_util::future::join_all(waits).await;
        assert!(limiter.wait(&quick, &key, 0, LONG).await.unwrap().is_admitted(), "{name}");

        // The day is used up, and its next unit is further away than the patience.
        let denied = limiter.wait_all(&all, Duration::from_secs(5)).await.unwrap();
        assert!(denied.is_denied() && denied.retry_after() > Some(LONG), "{name}: {denied:?}");
        assert!(limiter.wait(&quick, &key, 1, LONG).await.unwrap().is_admitted(), "{name}");

        // A turn of the queue that is too late is refunded under all policies, and releases the permit.
        limiter.operator().reset(&slow, &key).await.unwrap();
        let charges = [&queue, &slow, &slots].map(|policy| Charge::new(policy, &key, 1));
        assert!(limiter.wait(&queue, &key, 1, LONG).await.unwrap().is_admitted(), "{name}");
        let denied = limiter.wait_all(&charges, Duration::ZERO).await.unwrap();
        assert!(denied.is_denied() && !denied.is_admitted(), "{name}: {denied:?}");
        let by: Vec<_> = denied.outcomes().iter().map(|one| one.verdict().is_denied()).collect();
        assert_eq!(by, [true, false, false], "{name}: {denied:?}");
        assert!(denied.outcomes().iter().all(|one| one.granted() == 0), "{name}: {denied:?}");
        assert_eq!(left(&slow).await, Some(4), "{name}");
        limiter.operator().reset(&queue, &key).await.unwrap();
        let waited = limiter.wait_all(&charges, LONG).await.unwrap();
        assert!(waited.is_admitted() && waited.delay().is_none(), "{name}: {waited:?}");
        assert_eq!((left(&slow).await, left(&slots).await), (Some(3), Some(0)), "{name}");
    }
}

#[tokio::test]
async fn a_permit_that_is_released_ends_a_wait_on_each_store() {
    let policy = Policy::concurrency("in-use", 1);
    for (name, limiter) in stores("wait-for-permits").await {
        let key = Key::new("all");
        let held = limiter.check(&policy, &key, 1).await.unwrap();
        let denied = limiter.wait(&policy, &key, 1, Duration::ZERO).await.unwrap();
        assert!(denied.verdict().is_denied(), "{name}");
        let (waited, ()) = tokio::join!(limiter.wait(&policy, &key, 1, LONG), async {
            tokio::task::yield_now().await;
            drop(held);
        });
        assert!(waited.unwrap().is_admitted(), "{name}");
    }
}

#[tokio::test]
async fn a_wait_that_ends_without_an_admission_charges_nothing_on_each_store() {
    let quota = Quota::per_second(10);
    let bucket = Policy::new("bucket", quota);
    let queue = Policy::new("queue", quota).algorithm(LeakyBucket::queue(Duration::from_secs(1)));
    for (name, _, limiter) in on_a_clock("waits-in-vain") {
        let clock = ManualClock::new();
        let (limiter, key) = (limiter(clock.clone()), Key::new("alice"));
        let left = async |policy| limiter.peek(policy, &key, 0).await.unwrap().remaining();
        assert!(limiter.wait(&bucket, &key, 10, Duration::ZERO).await.unwrap().is_admitted(), "{name}");

        // Longer than the patience, and impossible.
        let unit = Duration::from_millis(100);
        let denied = limiter.wait(&bucket, &key, 2, unit).await.unwrap();
        assert_eq!((denied.verdict().is_denied(), denied.retry_after()), (true, Some(unit * 2)), "{name}");
        let never = limiter.wait(&bucket, &key, 11, LONG).await.unwrap();
        assert_eq!((never.verdict().is_denied(), never.retry_after()), (true, None), "{name}");

        // Dropped.
        let dropped = timeout(Duration::from_millis(20), limiter.wait(&bucket, &key, 10, LONG)).await;
        assert!(dropped.is_err(), "{name}");
        assert_eq!(left(&bucket).await, Some(0), "{name}");
        clock.advance(Duration::from_secs(1));
        assert_eq!(left(&bucket).await, Some(10), "{name}");

        // A delay that is too long is refunded.
        assert!(limiter.wait(&queue, &key, 1, Duration::ZERO).await.unwrap().is_admitted(), "{name}");
        let before = left(&queue).await;
        for _ in 0..3 {
            let denied = limiter.wait(&queue, &key, 1, Duration::ZERO).await.unwrap();
            let seen = (denied.verdict().is_denied(), denied.retry_after());
            assert_eq!(seen, (true, Some(unit)), "{name}: {denied:?}");
            assert_eq!((denied.outcomes()[0].granted(), denied.remaining()), (0, before), "{name}");
        }
        assert_eq!(left(&queue).await, before, "{name}");
    }
}
