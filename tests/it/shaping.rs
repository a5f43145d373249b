//! The queue of a leaky bucket in the layer: requests are delayed, in order and evenly spaced.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response};
use support::{RedisServer, inner::get, settings};
use tokio::{task::JoinSet, time::Instant};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, algorithm::LeakyBucket, decision::Verdict,
    store::ManualClock,
};

fn fifty_a_second(max_wait: Duration) -> Policy {
    Policy::new("shape", Quota::per_second(50)).algorithm(LeakyBucket::queue(max_wait))
}

const SPACING: Duration = Duration::from_millis(20);

/// The requests that reached the service, and when.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<(usize, Duration)>>>);

impl Calls {
    /// Sends request number `i` through `layer`, concurrently.
    fn send(&self, layer: &RateLimitLayer, i: usize, started: Instant) -> impl Future<Output = u16> + use<> {
        let calls = self.clone();
        let service = service_fn(move |_: Request<String>| {
            calls.0.lock().unwrap().push((i, started.elapsed()));
            async { Ok::<_, Infallible>(Response::new(String::new())) }
        });
        let mut response = Box::pin(layer.layer(service).oneshot(get()));
        async move {
            let Ok(response) = response.as_mut().await;
            response.status().as_u16()
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_100_leaves_evenly_spaced_and_in_order() {
    let store = MemoryStore::with_clock(ManualClock::new());
    let layer = RateLimitLayer::new(store, fifty_a_second(Duration::from_secs(2)), Key::new("all"));
    let (calls, started) = (Calls::default(), Instant::now());
    let mut burst = JoinSet::new();
    for i in 0..110 {
        burst.spawn(calls.send(&layer, i, started));
        // Admitted in the order in which they are sent.
        tokio::task::yield_now().await;
    }
    let denied = burst.join_all().await.into_iter().filter(|status| *status == 429).count();
    // The last admitted request, the 101st, is delayed by two seconds.
    assert_eq!(denied, 9);
    let calls = calls.0.lock().unwrap();
    assert_eq!(calls.len(), 101);
    for (i, (number, at)) in calls.iter().enumerate() {
        assert_eq!(*number, i);
        let due = SPACING * u32::try_from(i).unwrap();
        // A timer of tokio's is up to a millisecond late.
        assert!((due..=due + Duration::from_millis(1)).contains(at), "{i}: {at:?}, due {due:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_delayed_request_whose_client_hangs_up_does_not_reach_the_service() {
    let store = MemoryStore::with_clock(ManualClock::new());
    let layer = RateLimitLayer::new(store, fifty_a_second(Duration::from_secs(2)), Key::new("all"));
    let (calls, started) = (Calls::default(), Instant::now());
    let mut waiting: Vec<_> = (0..10).map(|i| tokio::spawn(calls.send(&layer, i, started))).collect();
    tokio::time::sleep(SPACING / 2).await;
    for hung_up in waiting.drain(5..) {
        hung_up.abort();
    }
    for request in waiting {
        assert_eq!(request.await.unwrap(), 200);
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let carried_out: Vec<usize> = calls.0.lock().unwrap().iter().map(|(i, _)| *i).collect();
    assert_eq!(carried_out, [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn across_two_instances_the_order_of_admission_is_the_order_of_departure() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let mut instances = Vec::new();
    for _ in 0..2 {
        instances
            .push(Limiter::new(settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap()));
    }
    let policy = fifty_a_second(Duration::from_secs(2));
    for i in 0..101_u32 {
        let decision = instances[i as usize % 2].check(&policy, &Key::new("all"), 1).await.unwrap();
        let expected = if i == 0 { Verdict::Admit } else { Verdict::Delay(SPACING * i) };
        assert_eq!(decision.verdict(), expected);
    }
    let denied = instances[0].check(&policy, &Key::new("all"), 1).await.unwrap();
    assert_eq!(denied.retry_after(), Some(SPACING));
}

#[tokio::test]
async fn the_first_requests_of_a_burst_are_not_delayed_with_delay_after() {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let queue = LeakyBucket::queue(Duration::from_secs(1)).delay_after(3);
    let policy = Policy::new("shape", Quota::per_second(50)).algorithm(queue);
    let mut delays = Vec::new();
    for _ in 0..5 {
        delays.push(match limiter.check(&policy, &Key::new("all"), 1).await.unwrap().verdict() {
            Verdict::Delay(delay) => delay,
            _ => Duration::ZERO,
        });
    }
    assert_eq!(delays, [Duration::ZERO, Duration::ZERO, Duration::ZERO, SPACING, SPACING * 2]);
}
