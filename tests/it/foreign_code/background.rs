//! Work in the background goes on after a call that panics: settlements, releases, renewals, what an outage left.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use futures_util::FutureExt as _;
use support::{Fake, RedisServer, current_thread, day, eventually, store};
use tokio::runtime::{Builder, Runtime};
use tower_ratelimit::{
    ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, Quota, Reservation,
    algorithm::Concurrency,
    store::{Action, ManualClock},
};

use super::{Panics, left};

const PATIENT: Duration = Duration::from_secs(60);

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A limiter on each store, whose first calls for `action` panic.
async fn panicking(server: &RedisServer, action: Action, last: usize) -> Vec<(String, Limiter, Panics)> {
    let mut all = Vec::new();
    for is_late in [false, true] {
        let memory = Panics::new(MemoryStore::new(), action, last, is_late);
        all.push((format!("memory, late: {is_late}"), Limiter::new(memory.clone()), memory));
        let redis = Panics::new(store(server).await, action, last, is_late);
        all.push((format!("redis, late: {is_late}"), Limiter::new(redis.clone()), redis));
    }
    all
}

/// In one runtime, which drops the reservations, and in two, of which another one drains.
#[test]
fn a_settlement_that_panics_loses_no_other_one_and_drain_ends() {
    let server = RedisServer::start();
    for (runtimes, of_drain) in [("one", None), ("two", Some(current_thread()))] {
        for action in [Action::Debit, Action::Refund] {
            let runtime = multi_thread();
            let limiters = runtime.block_on(panicking(&server, action, 1));
            for (name, limiter, panics) in limiters {
                let name = format!("{name}, {runtimes} runtimes, {action:?}");
                // So the keys are new.
                let policy = day(&format!("p{}", name.replace([' ', ',', ':'], "-")), 1_000);
                let keys: Vec<Key> = (0..10).map(|number| Key::new(number.to_string())).collect();
                let (units, expected) = if action == Action::Debit { (300, 700) } else { (10, 990) };
                runtime.block_on(async {
                    let mut streams = Vec::new();
                    for key in &keys {
                        let decision = limiter.check(&policy, key, 100).await.unwrap();
                        streams.push(Reservation::new(&limiter, &decision));
                    }
                    streams.iter().for_each(|stream| stream.record(units));
                    drop(streams);
                });
                let drained = async {
                    limiter.drain(PATIENT).await.unwrap();
                    let mut wrong = 0;
                    for key in &keys {
                        wrong += usize::from(left(&limiter, &policy, key).await.unwrap() != expected);
                    }
                    assert_eq!(wrong, 1, "{name}: the one that panicked may be charged or not");
                };
                match &of_drain {
                    Some(other) => other.block_on(drained),
                    None => runtime.block_on(drained),
                }
                assert!(panics.calls.made() > 9, "{name}");
            }
        }
    }
}

/// A later settlement of the same reservation goes on after one that panicked.
#[tokio::test]
async fn a_reservation_whose_settlement_panicked_is_settled_by_the_next_one() {
    let server = RedisServer::start();
    for (name, limiter, _) in panicking(&server, Action::Debit, 1).await {
        let (policy, key) =
            (day(&format!("p{}", name.replace([' ', ',', ':'], "-")), 1_000), Key::new("all"));
        let decision = limiter.check(&policy, &key, 100).await.unwrap();
        let reservation = Reservation::new(&limiter, &decision);
        let failure = reservation.extend_to(200).await;
        let failed = match failure {
            Ok(decision) => decision.failure().map(|error| error.kind()),
            Err(error) => Some(error.kind()),
        };
        assert!(failed.is_some_and(ErrorKind::may_have_charged), "{name}: {failed:?}");
        // The units that may be charged are not charged again.
        reservation.extend_to(500).await.unwrap();
        drop(reservation);
        limiter.drain(PATIENT).await.unwrap();
        assert_eq!(left(&limiter, &policy, &key).await.unwrap(), 600, "{name}");
    }
}

/// A destructor may run while its thread unwinds, and must not panic.
#[tokio::test]
async fn a_permit_whose_release_panics_is_released_by_a_further_attempt() {
    let server = RedisServer::start();
    for (name, limiter, panics) in panicking(&server, Action::Refund, 2).await {
        let policy = Policy::concurrency("jobs", 1);
        let held = limiter.check(&policy, &Key::new(&name), 1).await.unwrap();
        let handler = catch_unwind(AssertUnwindSafe(|| {
            let _held = held;
            panic!("the handler panics on purpose");
        }));
        assert!(handler.is_err());
        limiter.drain(PATIENT).await.unwrap();
        assert_eq!(left(&limiter, &policy, &Key::new(&name)).await.unwrap(), 1, "{name}");
        assert!(panics.calls.made() > 2, "{name}");
    }
}

/// A permit in use stays renewed.
#[tokio::test(start_paused = true)]
async fn a_permit_is_renewed_although_another_call_or_its_renewal_panicked() {
    for is_late in [false, true] {
        let memory = MemoryStore::with_clock(ManualClock::new());
        let store = Panics::new(memory, Action::Renew, 2, is_late);
        let limiter = Limiter::new(store.clone());
        let policy = Policy::new("jobs", Quota::new(1, Duration::from_secs(3))).algorithm(Concurrency::new());
        let _held = limiter.check(&policy, &Key::new("all"), 1).await.unwrap();
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(store.calls.made() > 25, "{} renewals", store.calls.made());
    }
}

/// What was admitted in an outage is charged afterwards.
#[tokio::test(start_paused = true)]
async fn units_of_an_outage_are_charged_although_one_call_panics() {
    for is_late in [false, true] {
        let clock = ManualClock::new();
        let memory = MemoryStore::with_clock(clock.clone());
        let panics = Panics::new(memory.clone(), Action::ChargeUpTo, 1, is_late);
        let store = Fake::over(panics.clone());
        let limiter = Limiter::new(store.clone());
        let policy = day("p", 1_000).failure_mode(FailureMode::Local { instances: 1 });
        store.fail(ErrorKind::StoreUnreachable);
        for number in 0..10 {
            let decision = limiter.check(&policy, &Key::new(number.to_string()), 7).await.unwrap();
            assert!(decision.is_admitted() && decision.failure().is_some());
        }
        store.fail(None);
        limiter.drain(PATIENT).await.unwrap();
        let mut charged = 0;
        for number in 0..10 {
            let key = Key::new(number.to_string());
            charged += u64::from(left(&Limiter::new(memory.clone()), &policy, &key).await.unwrap() == 993);
        }
        assert_eq!((charged, panics.calls.made()), (9, 10), "the call that panicked is not repeated");
    }
}

/// A caller that leaves, of a store that panics later.
#[tokio::test]
async fn a_charge_that_panics_after_its_caller_has_left_ends_in_the_background() {
    let server = RedisServer::start();
    for (name, limiter, _) in panicking(&server, Action::Charge, 1).await {
        let policy = Policy::concurrency("left", 1);
        // The store panics now, or once nothing awaits its answer.
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let mut answer = limiter.check(&policy, &Key::new(&name), 1);
            (&mut answer).now_or_never().is_none()
        }));
        assert_eq!(polled.ok(), name.ends_with("true").then_some(true), "{name}");
        limiter.drain(PATIENT).await.unwrap();
        assert!(
            eventually(async || left(&limiter, &policy, &Key::new(&name)).await.is_ok_and(|left| left == 1))
                .await
        );
    }
}
