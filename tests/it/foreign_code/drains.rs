//! What `drain` says after an attempt that was cut off, or a store that panics.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use support::{Fake, RedisServer, eventually, settings};
use tower_ratelimit::{
    Answer, Charge, Decision, FailureMode, Key, Limiter, MemoryStore, Policy, Quota,
    store::{Action, Store},
};

/// No lease lives longer.
const MAX_LEASE: Duration = Duration::from_secs(2);

/// Drains a store whose server has stopped, with this deadline, until its leases have ended.
async fn drain_without_a_server(milliseconds: u64) {
    let server = RedisServer::start();
    let store = settings().connect(&server.url()).await.unwrap();
    let limiter = Limiter::new(store.clone());
    let policy =
        Policy::new("p", Quota::per_day(1_000_000)).max_lease(1_000).failure_mode(FailureMode::Closed);
    let is_leased = async || {
        for number in 0..20 {
            for _ in 0..30 {
                limiter.check(&policy, &Key::new(number.to_string()), 1).await.unwrap();
            }
        }
        store.lease_status().units > 0
    };
    assert!(eventually(is_leased).await, "{milliseconds} ms");
    let deadline = Duration::from_millis(milliseconds);
    server.signal("STOP");
    limiter.drain(deadline).await.unwrap_err();
    for attempt in 2..4 {
        let before = Instant::now();
        let drained = limiter.drain(deadline).await;
        // Afterwards the leases have ended, and their units count as used.
        if before.elapsed() < MAX_LEASE {
            assert!(drained.is_err(), "{milliseconds} ms: attempt {attempt} is Ok");
        }
    }
    server.signal("CONT");
    let ended = Instant::now();
    while limiter.drain(Duration::from_secs(30)).await.is_err() {
        assert!(ended.elapsed() < Duration::from_secs(60), "the leases have ended");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_drain_that_was_cut_off_is_not_a_success_of_the_next_one() {
    join_all([50, 200, 550, 700, 1_000].map(drain_without_a_server)).await;
}

/// As at the end of a process with several limiters on one store.
#[tokio::test]
async fn drains_that_run_at_the_same_time_are_not_failures_of_each_other() {
    let server = RedisServer::start();
    let store = settings().connect(&server.url()).await.unwrap();
    let limiters = [0; 3].map(|_| Limiter::new(store.clone()));
    let policy = Policy::new("p", Quota::per_day(1_000_000)).max_lease(1_000);
    let is_leased = async || {
        for _ in 0..30 {
            limiters[0].check(&policy, &Key::new("all"), 1).await.unwrap();
        }
        store.lease_status().units > 0
    };
    assert!(eventually(is_leased).await);
    let drained = join_all(limiters.iter().map(|limiter| limiter.drain(Duration::from_secs(30)))).await;
    assert!(drained.iter().all(Result::is_ok), "{drained:?}");
}

/// A store whose `drain` panics, as no part of the process.
#[tokio::test]
async fn a_store_that_panics_in_drain_is_an_error_of_the_drain() {
    struct Panicking(MemoryStore);
    impl Store for Panicking {
        fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
            self.0.decide(action, charges)
        }
        fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
            self.0.reset(policy, key)
        }
        fn drain(&self) -> Answer<()> {
            panic!("foreign code panics on purpose")
        }
    }
    let limiter = Limiter::new(Panicking(MemoryStore::new()));
    let error = limiter.drain(Duration::from_secs(30)).await.unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
    assert!(Limiter::new(Fake::default()).drain(Duration::from_secs(30)).await.is_ok());
}
