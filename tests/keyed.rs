//! The layer for requests that are not HTTP.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    mem,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    task::{JoinSet, yield_now},
    time::Instant,
};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::{
    Answer, Concurrency, Error, ErrorKind, Key, KeyedRateLimitLayer, LeakyBucket, Limiter, MemoryStore,
    Policy, Quota, Rejection,
};

fn policy(limit: u64) -> Policy {
    Policy::new("p", Quota::per_hour(limit))
}

async fn length(text: &'static str) -> Result<usize, Infallible> {
    Ok(text.len())
}

fn rejection(error: &BoxError) -> &Rejection {
    error.downcast_ref().unwrap()
}

#[tokio::test]
async fn a_refusal_is_a_typed_error_with_its_wait() {
    let layer = KeyedRateLimitLayer::new(MemoryStore::new(), policy(2), |text: &&'static str| *text);
    let service = layer.layer(service_fn(length));
    for _ in 0..2 {
        assert_eq!(service.clone().oneshot("abc").await.unwrap(), 3);
    }
    let error = service.clone().oneshot("abc").await.unwrap_err();
    assert_eq!(rejection(&error).retry_after_seconds(), Some(1_800));
    assert!(error.to_string().starts_with("over the rate limit; try again in "), "{error}");
    assert_eq!(service.oneshot("other").await.unwrap(), 5);
}

#[tokio::test]
async fn a_request_without_a_key_is_an_error_of_its_own_and_reaches_nobody() {
    let missing = || Error::new(ErrorKind::MissingIdentity, "no tenant");
    let at_once = KeyedRateLimitLayer::new(MemoryStore::new(), policy(2), |_: &&'static str| None::<Key>);
    let later = KeyedRateLimitLayer::new(MemoryStore::new(), policy(2), move |_: &&'static str| {
        Answer::<Key>::pending(async move { Err(missing()) })
    });
    for layer in [at_once, later] {
        let service =
            layer.layer(service_fn(|_: &'static str| async { panic!("called") as Result<(), Infallible> }));
        let error = service.oneshot("abc").await.unwrap_err();
        assert!(matches!(rejection(&error), Rejection::Unidentified(_)), "{error:?}");
    }
}

#[tokio::test]
async fn several_policies_are_charged_together_at_their_costs_or_not_at_all() {
    let limiter = Limiter::new(MemoryStore::new());
    let wide = Policy::new("wide", Quota::per_hour(100));
    let layer = KeyedRateLimitLayer::new(limiter.clone(), policy(5), |_: &&'static str| "all")
        .cost(|text| text.len() as u64)
        .and(wide.clone(), |_: &&'static str| {
            Answer::pending(async {
                yield_now().await;
                Ok(Key::new("later"))
            })
        });
    let service = layer.layer(service_fn(length));
    assert_eq!(service.clone().oneshot("abc").await.unwrap(), 3);
    assert!(service.oneshot("abc").await.is_err());
    let left = limiter.peek(&wide, &Key::new("later"), 0).await.unwrap().remaining();
    assert_eq!(left, Some(99));
}

// The stores take their time from the machine's clock and the waits from Tokio's, so none of these can be
// paused; each wait is a few milliseconds.

#[tokio::test]
async fn a_patient_caller_waits_for_its_turn_and_nobody_is_refused() {
    let policy = Policy::new("p", Quota::new(1, Duration::from_millis(20)).unwrap());
    let layer = KeyedRateLimitLayer::new(MemoryStore::new(), policy, |_: &&'static str| "all")
        .wait(Duration::from_secs(30));
    let service = layer.layer(service_fn(length));
    let started = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..6 {
        calls.spawn(service.clone().oneshot("abc"));
    }
    let answers = calls.join_all().await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    // The first at once and five turns.
    assert!(started.elapsed() >= Duration::from_millis(99), "{:?}", started.elapsed());
}

#[tokio::test]
async fn who_cannot_come_in_time_is_refused_at_once() {
    let layer = KeyedRateLimitLayer::new(MemoryStore::new(), policy(1), |_: &&'static str| "all")
        .wait(Duration::from_secs(60));
    let service = layer.layer(service_fn(length));
    service.clone().oneshot("abc").await.unwrap();
    let started = Instant::now();
    let error = service.oneshot("abc").await.unwrap_err();
    assert!(matches!(rejection(&error), Rejection::Limited(_)));
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn a_queue_delays_and_a_slot_is_held_until_the_answer() {
    let queue = Policy::new("q", Quota::new(1, Duration::from_millis(10)).unwrap())
        .algorithm(LeakyBucket::queue(Duration::from_secs(1)));
    let layer = KeyedRateLimitLayer::new(MemoryStore::new(), queue, |_: &&'static str| "all");
    assert_eq!(layer.layer(service_fn(length)).oneshot("abc").await.unwrap(), 3);

    let limiter = Limiter::new(MemoryStore::new());
    let slots = Policy::new("slots", Quota::concurrent(1)).algorithm(Concurrency);
    let layer = KeyedRateLimitLayer::new(limiter.clone(), slots.clone(), |_: &&'static str| "all");
    let inner = limiter.clone();
    let service =
        layer.layer(service_fn(move |_: &'static str| {
            let (limiter, slots) = (inner.clone(), slots.clone());
            async move {
                Ok::<_, Infallible>(limiter.peek(&slots, &Key::new("all"), 1).await.unwrap().is_allowed())
            }
        }));
    // Inside, the one slot is taken; afterwards it is free.
    assert!(!service.clone().oneshot("abc").await.unwrap());
    assert!(!service.oneshot("abc").await.unwrap());
}

/// Ready once for each `poll_ready`, and only itself: a clone starts unready.
struct Strict(bool, Arc<AtomicUsize>);

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self(false, self.1.clone())
    }
}

impl Service<u8> for Strict {
    type Response = u8;
    type Error = Infallible;
    type Future = Ready<Result<u8, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0 = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u8) -> Self::Future {
        assert!(mem::take(&mut self.0), "called without being ready");
        self.1.fetch_add(1, Ordering::Relaxed);
        ready(Ok(request))
    }
}

#[tokio::test]
async fn the_service_that_was_ready_is_called_and_only_for_what_is_admitted() {
    let calls = Arc::new(AtomicUsize::new(0));
    let mut service = ServiceBuilder::new()
        .layer(KeyedRateLimitLayer::new(MemoryStore::new(), policy(3), |_: &u8| "all"))
        .service(Strict(false, calls.clone()));
    let mut admitted = 0;
    for request in 0..5 {
        admitted += usize::from(service.ready().await.unwrap().call(request).await.is_ok());
    }
    assert_eq!((admitted, calls.load(Ordering::Relaxed)), (3, 3));
}

#[test]
#[should_panic(expected = "two policies named \"p\"")]
fn two_policies_of_one_name_are_refused_when_the_layer_is_built() {
    let _ = KeyedRateLimitLayer::new(MemoryStore::new(), policy(1), |_: &u8| "a").and(policy(2), |_| "b");
}
