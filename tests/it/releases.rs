//! Permits are released, and reservations settled, by the end of the process, and if their runtime has ended or waits.

use std::{
    convert::Infallible,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures_util::FutureExt as _;
use http::{Request, Response};
use support::{Fake, PATIENT, RedisServer, current_thread, eventually, settings};
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_ratelimit::{
    Answer, Decision, Error, Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, RedisStore,
    Reservation,
    algorithm::Concurrency,
    store::{Action, ManualClock},
};

/// A permit that is not released is in use for two hours.
fn jobs(limit: u64) -> Policy {
    Policy::new("jobs", Quota::new(limit, Duration::from_secs(7_200))).algorithm(Concurrency::new())
}

fn key() -> Key {
    Key::new("all")
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A new connection and a new store, as in the next process.
async fn limiter(server: &RedisServer) -> Limiter {
    Limiter::new(settings().connect(&server.url()).await.unwrap())
}

async fn free(server: &RedisServer, policy: &Policy) -> Option<u64> {
    limiter(server).await.peek(policy, &key(), 0).await.unwrap().remaining()
}

#[test]
fn after_a_drain_no_permit_of_a_dropped_decision_is_in_use() {
    let server = RedisServer::start();
    let policy = jobs(5);
    for (name, build) in [("one thread", current_thread as fn() -> Runtime), ("two", multi_thread)] {
        for round in 0..20 {
            build().block_on(async {
                let limiter = limiter(&server).await;
                let held = limiter.check(&policy, &key(), 5).await.unwrap();
                assert!(held.is_admitted(), "{name}, {round}: a permit is still in use");
                drop(held);
                limiter.drain(PATIENT).await.unwrap();
            });
        }
        assert_eq!(current_thread().block_on(free(&server, &policy)), Some(5), "{name}");
    }
}

#[test]
fn after_a_drain_no_permit_of_a_cancelled_check_is_in_use() {
    let server = RedisServer::start();
    let policy = jobs(5);
    for (name, build) in [("one thread", current_thread as fn() -> Runtime), ("two", multi_thread)] {
        for round in 0..20 {
            build().block_on(async {
                let limiter = limiter(&server).await;
                for micros in [100, 200, 300, 500, 700] {
                    drop(timeout(Duration::from_micros(micros), limiter.check(&policy, &key(), 1)).await);
                }
                limiter.drain(PATIENT).await.unwrap();
            });
            assert_eq!(current_thread().block_on(free(&server, &policy)), Some(5), "{name}, {round}");
        }
    }
}

#[test]
fn a_permit_of_a_runtime_that_has_ended_is_released_by_the_next_one() {
    let server = RedisServer::start();
    let policy = jobs(1);
    for drains in [true, false] {
        let (first, second) = (current_thread(), current_thread());
        let limiter = first.block_on(limiter(&server));
        let held = first.block_on(limiter.check(&policy, &key(), 1)).unwrap();
        assert!(held.is_admitted());
        drop(first);
        // Outside of each runtime.
        drop(held);
        second.block_on(async {
            if drains {
                limiter.drain(PATIENT).await.unwrap();
                assert_eq!(free(&server, &policy).await, Some(1));
            }
            // The first decision may still be denied.
            assert!(
                eventually(async || limiter.check(&policy, &key(), 1).await.unwrap().is_admitted()).await
            );
            limiter.drain(PATIENT).await.unwrap();
        });
    }
}

/// A program that is not async, and awaits each call with `block_on`.
#[test]
fn a_permit_dropped_in_an_idle_runtime_is_released_with_the_next_decisions() {
    let server = RedisServer::start();
    let policy = jobs(1);
    let runtime = current_thread();
    let limiter = runtime.block_on(limiter(&server));
    for _ in 0..3 {
        let admitted = async || limiter.check(&policy, &key(), 1).await.ok().filter(Decision::is_admitted);
        let mut held = None;
        assert!(runtime.block_on(eventually(async || {
            held = admitted().await;
            held.is_some()
        })));
        drop(held);
    }
    // Each call in a runtime that ends with it.
    for _ in 0..3 {
        let mut held = None;
        let deadline = std::time::Instant::now() + PATIENT;
        while held.is_none() {
            assert!(std::time::Instant::now() < deadline, "no permit is released");
            held = current_thread()
                .block_on(limiter.check(&policy, &key(), 1))
                .ok()
                .filter(Decision::is_admitted);
        }
        drop(held);
    }
    current_thread().block_on(limiter.drain(PATIENT)).unwrap();
    assert_eq!(runtime.block_on(free(&server, &policy)), Some(1));
}

#[test]
fn a_permit_of_an_ended_runtime_is_renewed_by_one_that_makes_decisions() {
    let store = Fake::over(MemoryStore::with_clock(ManualClock::new()));
    let limiter = Limiter::new(store.clone());
    let policy = Policy::new("jobs", Quota::new(2, Duration::from_millis(30))).algorithm(Concurrency::new());
    let first = current_thread();
    let held = first.block_on(limiter.check(&policy, &key(), 1)).unwrap();
    assert!(held.is_admitted());
    drop(first);
    current_thread().block_on(async {
        let renewed = async || {
            limiter.peek(&policy, &key(), 0).await.unwrap();
            store.asked(Action::Renew).len() >= 3
        };
        assert!(eventually(renewed).await, "{:?}", store.asked(Action::Renew));
    });
    drop(held);
    assert!(current_thread().block_on(limiter.check(&policy, &key(), 2)).unwrap().is_admitted());
}

#[test]
fn what_a_reservation_refunds_is_refunded_although_its_runtime_has_ended() -> Result<(), Error> {
    let server = RedisServer::start();
    let tokens = Policy::new("tokens", Quota::per_day(100));
    let (first, second) = (current_thread(), current_thread());
    let limiter: Limiter = first.block_on(limiter(&server));
    let decision = first.block_on(limiter.check(&tokens, &key(), 60))?;
    let reservation = first.block_on(async { Reservation::new(&limiter, &decision).or_refund() });
    drop(first);
    drop(reservation);
    second.block_on(async {
        limiter.drain(PATIENT).await?;
        assert_eq!(limiter.peek(&tokens, &key(), 0).await?.remaining(), Some(100));
        Ok(())
    })
}

/// The store is a `RedisStore`, whose connections belong to a runtime.
#[test]
fn a_drain_waits_for_a_release_while_redis_is_unavailable_and_names_it() {
    let server = RedisServer::start();
    let policy = jobs(1);
    let runtime = current_thread();
    runtime.block_on(async {
        let store: RedisStore = settings().connect(&server.url()).await.unwrap();
        let limiter = Limiter::new(store);
        let held = limiter.check(&policy, &key(), 1).await.unwrap();
        server.signal("STOP");
        drop(held);
        let error = limiter.drain(Duration::from_millis(200)).await.unwrap_err();
        assert!(error.to_string().contains("releases of permits did not end"), "{error}");
        server.signal("CONT");
        limiter.drain(PATIENT).await.unwrap();
        assert!(eventually(async || free(&server, &policy).await == Some(1)).await);
    });
}

/// Does not answer calls of one kind in the first runtime. Counts those it answers in others.
fn silent_in(runtime: &Runtime, silent: Action) -> (Limiter, Arc<AtomicUsize>) {
    let (runtime, answered) = (runtime.handle().id(), Arc::<AtomicUsize>::default());
    let counted = answered.clone();
    let store = Fake::new(MemoryStore::new(), move |store, action, charges| {
        let (mut decided, counted) = (store.decide(action, charges), counted.clone());
        if action != silent {
            return decided;
        }
        Answer::pending(poll_fn(move |cx| {
            if tokio::runtime::Handle::current().id() == runtime {
                return Poll::Pending;
            }
            counted.fetch_add(1, Ordering::Relaxed);
            decided.poll_unpin(cx)
        }))
    });
    (Limiter::new(store), answered)
}

/// Makes work in the background that is not done in the current runtime.
async fn begin(work: &str, limiter: &Limiter) {
    let units = Policy::new("units", Quota::per_day(9));
    let reserved = async || Reservation::new(limiter, &limiter.check(&units, &key(), 5).await.unwrap());
    match work {
        "a release" => drop(limiter.check(&jobs(1), &key(), 1).await.unwrap()),
        "a refund" => drop(reserved().await.or_refund()),
        "a settlement" => drop(reserved().await.settle(2)),
        "a debit" => drop(reserved().await.settle(7)),
        _ => {
            let layer = RateLimitLayer::new(limiter.clone(), units, key()).refund_cancelled();
            let service =
                layer.layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(()))));
            assert!(service.oneshot(Request::new(())).now_or_never().is_none());
        }
    }
    tokio::task::yield_now().await;
}

#[test]
fn a_limiter_whose_work_no_runtime_can_finish_keeps_no_store() {
    let works = [
        ("a release", Action::Refund),
        ("a refund", Action::Refund),
        ("a settlement", Action::Refund),
        ("a debit", Action::Debit),
        ("a cancelled request", Action::Charge),
    ];
    for (work, silent) in works {
        for end in ["its runtime ends first", "it is dropped first", "it is dropped in another runtime"] {
            let case = format!("{work}, {end}");
            let (first, second) = (current_thread(), current_thread());
            let (limiter, answered) = silent_in(&first, silent);
            first.block_on(begin(work, &limiter));
            assert!(Arc::strong_count(&answered) > 1, "{case}");
            match end {
                "its runtime ends first" => {
                    drop(first);
                    drop(limiter);
                }
                "it is dropped first" => {
                    drop(limiter);
                    drop(first);
                }
                _ => {
                    drop(first);
                    second.block_on(async {
                        drop(limiter);
                        assert!(eventually(async || answered.load(Ordering::Relaxed) > 0).await, "{case}");
                        assert!(eventually(async || Arc::strong_count(&answered) == 1).await, "{case}");
                    });
                }
            }
            assert_eq!(Arc::strong_count(&answered), 1, "{case}: the store is kept");
        }
    }
}
