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

use support::{Down, deny, store_that};
use tokio::{
    task::{JoinSet, yield_now},
    time::{Instant, timeout},
};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::{
    Answer, Charge, Error, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, Quota, Rejection,
    algorithm::LeakyBucket, decision::Verdict, keyed::KeyedRateLimitLayer,
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
async fn a_denial_is_a_typed_error_with_its_wait() {
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
async fn a_request_without_a_key_is_rejected_and_never_reaches_the_service() {
    let missing = || Error::new(ErrorKind::MissingIdentity, "no tenant");
    let immediate = KeyedRateLimitLayer::new(MemoryStore::new(), policy(2), |_: &&'static str| None::<Key>);
    let later = KeyedRateLimitLayer::new(MemoryStore::new(), policy(2), move |_: &&'static str| {
        Answer::<Key>::pending(async move { Err(missing()) })
    });
    for layer in [immediate, later] {
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
    let charged = wide.clone();
    let layer = KeyedRateLimitLayer::with_charges(limiter.clone(), move |text: &&'static str| {
        let narrow = Charge::new(&policy(5), &Key::new("all"), text.len() as u64);
        let wide = charged.clone();
        Answer::pending(async move {
            yield_now().await;
            Ok(vec![narrow, Charge::new(&wide, &Key::new("later"), 1)])
        })
    });
    let service = layer.layer(service_fn(length));
    assert_eq!(service.clone().oneshot("abc").await.unwrap(), 3);
    assert!(service.oneshot("abc").await.is_err());
    let left = limiter.peek(&wide, &Key::new("later"), 0).await.unwrap().remaining();
    assert_eq!(left, Some(99));
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_store_rejects_requests_only_under_a_closed_policy() {
    for (mode, admitted) in [(FailureMode::Open, true), (FailureMode::Closed, false)] {
        let policy = policy(1).failure_mode(mode);
        let layer =
            KeyedRateLimitLayer::new(Down, policy, |_: &&'static str| "all").wait(Duration::from_secs(9));
        match layer.layer(service_fn(length)).oneshot("abc").await {
            Ok(_) => assert!(admitted),
            Err(error) => {
                assert!(!admitted && matches!(rejection(&error), Rejection::Unavailable(_)), "{error:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_longest_wait_bounds_all_waits_together_and_ignores_delays() {
    // The longest wait, whether the request is admitted, the questions to the store, and the seconds that it takes.
    type Row = (&'static str, fn(usize) -> Verdict, u64, (bool, usize, u64));
    let rows: [Row; 6] = [
        ("two more seconds each time", |_| deny(2), 5, (false, 3, 4)),
        (
            "admitted at the end of the wait",
            |asked| if asked == 0 { deny(1) } else { Verdict::Admit },
            1,
            (true, 2, 1),
        ),
        ("too late", |_| deny(2), 1, (false, 1, 0)),
        ("no wait allowed and none needed", |_| deny(0), 0, (false, 1, 0)),
        ("never", |_| Verdict::deny(None), 9, (false, 1, 0)),
        ("delayed", |_| Verdict::Delay(Duration::from_secs(3)), 0, (true, 1, 3)),
    ];
    for (name, says, patience, expected) in rows {
        let (store, questions) = store_that(says);
        let layer = KeyedRateLimitLayer::new(store, policy(1), |_: &&'static str| "all")
            .wait(Duration::from_secs(patience));
        let started = Instant::now();
        let call = layer.layer(service_fn(length)).oneshot("abc");
        let answer = timeout(Duration::from_secs(60), call).await.expect(name);
        // A timer of tokio's is up to a millisecond late.
        let seen = (answer.is_ok(), questions.load(Ordering::Relaxed), started.elapsed().as_secs());
        assert_eq!(seen, expected, "{name}");
    }
}

// The stores use the system clock and the waits use Tokio's, so these tests cannot pause the clock. Each wait is a
// few milliseconds.

#[tokio::test]
async fn callers_that_may_wait_are_all_admitted_in_turn() {
    let policy = Policy::new("p", Quota::new(1, Duration::from_millis(20)));
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
    // The first call is admitted immediately, and five more after 20 ms each.
    assert!(started.elapsed() >= Duration::from_millis(99), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_waiting_caller_is_admitted_soon_after_a_permit_is_released() {
    let slots = || Policy::concurrency("slots", 1);
    // A second policy in the same decision sets its own wait.
    let rate = Policy::new("rate", Quota::new(1, Duration::from_millis(20)));
    let store = MemoryStore::new();
    let layers = [
        KeyedRateLimitLayer::new(store.clone(), slots(), |_: &&'static str| "a"),
        KeyedRateLimitLayer::with_charges(store, move |_: &&'static str| {
            [slots(), rate.clone()].map(|policy| Charge::new(&policy, &Key::new("b"), 1)).to_vec()
        }),
    ];
    for layer in layers {
        let service =
            layer.wait(Duration::from_secs(20)).layer(service_fn(|text: &'static str| async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                length(text).await
            }));
        let calls: JoinSet<_> = (0..4).map(|_| service.clone().oneshot("abc")).collect();
        let answers = calls.join_all().await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
}

// The clock can be paused here, because no lease expires during the test.
#[tokio::test(start_paused = true)]
async fn the_wait_for_a_permit_is_bounded_and_impossible_costs_do_not_wait() {
    let slots = Policy::concurrency("slots", 2);
    let layer = KeyedRateLimitLayer::with_charges(MemoryStore::new(), move |text: &&'static str| {
        vec![Charge::new(&slots, &Key::new("all"), text.len() as u64)]
    })
    .wait(Duration::from_secs(1));
    let service = layer.layer(service_fn(length));
    let stuck = layer
        .layer(service_fn(async |_: &'static str| std::future::pending::<Result<usize, Infallible>>().await));
    let holder = tokio::spawn(stuck.oneshot("ab"));
    yield_now().await;
    for (text, least, most) in [("a", 1_000, 1_010), ("abc", 0, 0)] {
        let started = Instant::now();
        let error = service.clone().oneshot(text).await.unwrap_err();
        assert!(matches!(rejection(&error), Rejection::Denied(_)), "{text}");
        let waited = started.elapsed().as_millis();
        assert!((least..=most).contains(&waited), "{text}: {waited} ms");
    }
    // Aborting the call that never ends releases its permits.
    holder.abort();
    assert!(holder.await.unwrap_err().is_cancelled());
    assert_eq!(service.oneshot("ab").await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_leaves_the_inner_service_to_others() {
    let waits = |asked: usize| match asked {
        0 | 1 => deny(3_600),
        _ => Verdict::Admit,
    };
    let delays = |asked: usize| match asked {
        0 | 1 => Verdict::Delay(Duration::from_secs(3_600)),
        _ => Verdict::Admit,
    };
    for (name, says) in [("wait", waits as fn(usize) -> Verdict), ("delay", delays)] {
        let layer = KeyedRateLimitLayer::new(store_that(says).0, policy(1), |_: &u8| "all")
            .wait(Duration::from_secs(7_200));
        let counts: Arc<[AtomicUsize; 2]> = Arc::default();
        let mut service =
            ServiceBuilder::new().layer(layer).concurrency_limit(2).service(Strict(false, counts.clone()));
        let waiting: JoinSet<_> =
            [service.ready().await.unwrap().call(0), service.ready().await.unwrap().call(1)]
                .into_iter()
                .collect();
        yield_now().await;
        assert_eq!(counts[0].load(Ordering::Relaxed), 0, "{name}");

        let other = async { service.ready().await.unwrap().call(2).await };
        let other = timeout(Duration::from_secs(10), other).await;
        assert_eq!(other.expect(name).unwrap(), 2, "{name}");

        // They reach the service after their wait, when it is ready again.
        assert!(waiting.join_all().await.iter().all(Result::is_ok), "{name}");
        assert_eq!(counts[0].load(Ordering::Relaxed), 3, "{name}");
    }
}

#[tokio::test]
async fn a_request_that_cannot_be_admitted_in_time_is_denied_immediately() {
    let layer = KeyedRateLimitLayer::new(MemoryStore::new(), policy(1), |_: &&'static str| "all")
        .wait(Duration::from_secs(60));
    let service = layer.layer(service_fn(length));
    service.clone().oneshot("abc").await.unwrap();
    let started = Instant::now();
    let error = service.oneshot("abc").await.unwrap_err();
    assert!(matches!(rejection(&error), Rejection::Denied(_)));
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn a_queue_delays_and_a_permit_is_held_until_the_response() {
    let queue = Policy::new("q", Quota::new(1, Duration::from_millis(10)))
        .algorithm(LeakyBucket::queue(Duration::from_secs(1)));
    let layer = KeyedRateLimitLayer::new(MemoryStore::new(), queue, |_: &&'static str| "all");
    assert_eq!(layer.layer(service_fn(length)).oneshot("abc").await.unwrap(), 3);

    let limiter = Limiter::new(MemoryStore::new());
    let slots = Policy::concurrency("slots", 1);
    let layer = KeyedRateLimitLayer::new(limiter.clone(), slots.clone(), |_: &&'static str| "all");
    let inner = limiter.clone();
    let service =
        layer.layer(service_fn(move |_: &'static str| {
            let (limiter, slots) = (inner.clone(), slots.clone());
            async move {
                Ok::<_, Infallible>(limiter.peek(&slots, &Key::new("all"), 1).await.unwrap().is_admitted())
            }
        }));
    // The only permit is in use during the call, and free after it.
    assert!(!service.clone().oneshot("abc").await.unwrap());
    assert!(!service.oneshot("abc").await.unwrap());
}

#[tokio::test]
async fn a_permit_is_released_with_the_response_even_if_the_future_is_kept() {
    let limiter = Limiter::new(MemoryStore::new());
    let slots = Policy::concurrency("slots", 1);
    let layer = KeyedRateLimitLayer::new(limiter.clone(), slots.clone(), |_: &&'static str| "all");
    let mut service = layer.layer(service_fn(length));
    let mut call = Box::pin(service.ready().await.unwrap().call("abc"));
    assert_eq!(call.as_mut().await.unwrap(), 3);
    assert!(limiter.peek(&slots, &Key::new("all"), 1).await.unwrap().is_admitted());
    drop(call);
}

/// A service that is ready for one call after each `poll_ready`. A clone starts unready. It counts its calls and the polls.
struct Strict(bool, Arc<[AtomicUsize; 2]>);

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
        self.1[1].fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u8) -> Self::Future {
        assert!(mem::take(&mut self.0), "called without being ready");
        self.1[0].fetch_add(1, Ordering::Relaxed);
        ready(Ok(request))
    }
}

#[tokio::test]
async fn the_service_that_was_ready_is_called_and_only_for_what_is_admitted() {
    for patience in [Duration::ZERO, Duration::from_secs(1)] {
        let counts: Arc<[AtomicUsize; 2]> = Arc::default();
        let layer = KeyedRateLimitLayer::new(MemoryStore::new(), policy(3), |_: &u8| "all").wait(patience);
        let mut service = layer.layer(Strict(false, counts.clone()));
        let mut admitted = 0;
        for request in 0..5 {
            admitted += usize::from(service.ready().await.unwrap().call(request).await.is_ok());
        }
        // A request that is admitted at its first try keeps the service that was ready for it.
        let counts = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        assert_eq!((admitted, counts), (3, [3, 5]), "{patience:?}");
    }
}

#[tokio::test]
async fn a_denial_after_a_wait_has_the_outcome_of_each_policy_of_a_key() {
    let [calls, tenant] =
        [("calls", 9), ("tenant", 1)].map(|(name, limit)| Policy::new(name, Quota::per_day(limit)));
    let charges = move |_: &&'static str| {
        [&calls, &tenant].map(|policy| Charge::new(policy, &Key::new("all"), 1)).to_vec()
    };
    let layer = KeyedRateLimitLayer::with_charges(MemoryStore::new(), charges).wait(Duration::from_millis(1));
    let service = layer.layer(service_fn(length));
    assert!(service.clone().oneshot("abc").await.is_ok());
    let error = service.oneshot("abc").await.unwrap_err();
    let outcomes = rejection(&error).decision().unwrap().outcomes();
    let names: Vec<_> = outcomes.iter().map(|outcome| outcome.policy().name()).collect();
    assert_eq!(names, ["calls", "tenant"]);
}

#[tokio::test]
async fn charges_may_depend_on_the_request_now_or_later_or_be_none() {
    type Charges = fn(&&'static str) -> Answer<Vec<Charge>>;
    fn tier(text: &&'static str) -> Result<Vec<Charge>, Error> {
        let policy = match *text {
            "unlimited" => return Ok(Vec::new()),
            "unknown" => return Err(Error::new(ErrorKind::UnknownIdentity, "no account")),
            "paid" => Policy::new("paid", Quota::per_hour(2)),
            _ => policy(1),
        };
        Ok(vec![Charge::new(&policy, &Key::new("all"), 1)])
    }
    let rows: [(&str, Charges); 2] = [
        ("now", |text| tier(text).into()),
        ("later", |text| {
            let charges = tier(text);
            Answer::pending(async move {
                yield_now().await;
                charges
            })
        }),
    ];
    for (name, charges) in rows {
        let service =
            KeyedRateLimitLayer::with_charges(MemoryStore::new(), charges).layer(service_fn(length));
        let mut admitted = Vec::new();
        for text in ["paid", "free", "paid", "paid", "free", "unlimited", "unlimited"] {
            admitted.push(service.clone().oneshot(text).await.is_ok());
        }
        assert_eq!(admitted, [true, true, true, false, false, true, true], "{name}");
        let error = service.oneshot("unknown").await.unwrap_err();
        assert_eq!(rejection(&error).status(), 401, "{name}");
    }
}
