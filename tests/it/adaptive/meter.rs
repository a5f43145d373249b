//! Controllers behind a layer, with services that answer late, fail, hang, or lose their clients. Time is virtual.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{Request, Response};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tower::{Layer as _, Service, ServiceExt as _, service_fn};
use tower_ratelimit::{
    MemoryStore, Policy, Quota, RateLimitLayer,
    adaptive::{Adaptive, AdaptivePolicy, Aimd, Gradient, LoadMeter, Signal, Vegas},
    key::Constant,
};

const MILLI: Duration = Duration::from_millis(1);
const TARGET: Duration = Duration::from_millis(200);

/// A service that takes so many milliseconds, and answers with a status.
#[derive(Clone, Default)]
struct Behaviour {
    millis: Arc<AtomicU64>,
    status: Arc<AtomicU64>,
}

impl Behaviour {
    fn set(&self, millis: u64, status: u64) {
        self.millis.store(millis, Relaxed);
        self.status.store(status, Relaxed);
    }

    fn service(
        &self,
    ) -> impl Service<Request<String>, Response = Response<String>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + use<> {
        let Self { millis, status } = self.clone();
        service_fn(move |_: Request<String>| {
            let (took, status) = (MILLI * millis.load(Relaxed) as u32, status.load(Relaxed) as u16);
            async move {
                sleep(took).await;
                Ok(Response::builder().status(status).body(String::new()).unwrap())
            }
        })
    }
}

/// The controllers, on one meter.
fn signals(meter: &LoadMeter) -> [(&'static str, Signal); 3] {
    [
        ("aimd", Aimd::new(meter, TARGET).into()),
        ("gradient", Gradient::new(meter).into()),
        ("vegas", Vegas::new(meter).into()),
    ]
}

fn rate(signal: impl Into<Signal>) -> AdaptivePolicy {
    Adaptive::new(Policy::new("rate", Quota::per_second(1_000))).follow(signal).start().unwrap()
}

/// Sends a request every ten milliseconds for this time. Clients wait for `patience`.
async fn send<S>(service: &S, time: Duration, patience: Duration)
where
    S: Service<Request<String>, Future: Send + 'static> + Clone,
{
    let (started, mut clients) = (Instant::now(), JoinSet::new());
    while started.elapsed() < time {
        let mut service = service.clone();
        let Ok(ready) = service.ready().await else { panic!("always ready") };
        let answer = ready.call(Request::new(String::new()));
        clients.spawn(async move { timeout(patience, answer).await.is_ok() });
        sleep(MILLI * 10).await;
    }
    clients.join_all().await;
}

const SECONDS: fn(u64) -> Duration = Duration::from_secs;

#[tokio::test(start_paused = true)]
async fn a_share_falls_while_requests_are_late_and_rises_when_they_are_not() {
    for place in 0..3 {
        let (meter, behaviour) = (LoadMeter::new(), Behaviour::default());
        behaviour.set(50, 200);
        let (name, signal) = signals(&meter).into_iter().nth(place).unwrap();
        let policy = rate(signal);
        let service = meter.layer(behaviour.service());
        send(&service, SECONDS(8), SECONDS(100)).await;
        assert_eq!(policy.share(), 1.0, "{name}");
        behaviour.set(400, 200);
        send(&service, SECONDS(8), SECONDS(100)).await;
        let low = policy.share();
        assert!((0.05..0.5).contains(&low), "{name}: {low}");
        behaviour.set(50, 200);
        send(&service, SECONDS(60), SECONDS(100)).await;
        assert_eq!(policy.share(), 1.0, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_fails_quickly_is_not_a_quick_service() {
    for place in 0..3 {
        let (meter, behaviour) = (LoadMeter::new(), Behaviour::default());
        behaviour.set(50, 200);
        let (name, signal) = signals(&meter).into_iter().nth(place).unwrap();
        let policy = rate(signal);
        let service = meter.layer(behaviour.service());
        send(&service, SECONDS(4), SECONDS(100)).await;
        behaviour.set(1, 503);
        send(&service, SECONDS(20), SECONDS(100)).await;
        assert_eq!(policy.share(), 0.05, "{name}: not the floor");
        // The client's fault.
        behaviour.set(50, 404);
        send(&service, SECONDS(60), SECONDS(100)).await;
        assert_eq!(policy.share(), 1.0, "{name}");
    }
    let (meter, behaviour) = (LoadMeter::new(), Behaviour::default());
    behaviour.set(1, 500);
    let tolerant = rate(Aimd::new(&meter, TARGET).failed_up_to(1.0));
    send(&meter.layer(behaviour.service()), SECONDS(10), SECONDS(100)).await;
    assert_eq!(tolerant.share(), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_hangs_and_clients_that_give_up_lower_the_share() {
    for place in 0..3 {
        for patience in [SECONDS(1), SECONDS(100)] {
            let (meter, behaviour) = (LoadMeter::new(), Behaviour::default());
            behaviour.set(50, 200);
            let (name, signal) = signals(&meter).into_iter().nth(place).unwrap();
            let policy = rate(signal);
            let service = meter.layer(behaviour.service());
            send(&service, SECONDS(4), SECONDS(100)).await;
            behaviour.set(1_000_000, 200);
            send(&service, SECONDS(20), patience).await;
            assert!(policy.share() < 0.3, "{name}, {patience:?}: {}", policy.share());
            assert_eq!(meter.in_flight(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn few_requests_change_nothing_and_none_raise_the_share() {
    let (meter, behaviour) = (LoadMeter::new(), Behaviour::default());
    behaviour.set(1_000, 200);
    let policy = rate(Aimd::new(&meter, TARGET));
    let service = meter.layer(behaviour.service());
    // Nine, all of them late.
    send(&service, MILLI * 90, SECONDS(100)).await;
    sleep(SECONDS(3)).await;
    assert_eq!(policy.share(), 1.0);
    send(&service, SECONDS(2), SECONDS(100)).await;
    sleep(SECONDS(2)).await;
    let low = policy.share();
    assert!(low < 0.6, "{low}");
    sleep(SECONDS(600)).await;
    assert_eq!(policy.share(), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_limit_in_flight_follows_the_latency_behind_its_layer_and_does_not_rise_unused() {
    let (meter, behaviour) = (LoadMeter::new(), Behaviour::default());
    behaviour.set(100, 200);
    let policy = Adaptive::new(Policy::concurrency("in-flight", 400))
        .floor(0.01)
        .follow(Aimd::new(&meter, TARGET))
        .start()
        .unwrap();
    let limit = RateLimitLayer::new(MemoryStore::new(), &policy, Constant::new("all"));
    let service = limit.layer(meter.layer(behaviour.service()));
    let units = || policy.policy().quota().limit();
    send(&service, SECONDS(5), SECONDS(100)).await;
    assert_eq!(units(), 400);
    // 100 requests a second that take a second: it falls to twice what is used, and below.
    behaviour.set(1_000, 200);
    send(&service, SECONDS(30), SECONDS(100)).await;
    assert!((4..20).contains(&units()), "{}", units());
    behaviour.set(100, 200);
    send(&service, SECONDS(60), SECONDS(100)).await;
    // Ten are in flight, so a limit above 20 rises no more. The last step is 2 % of 400.
    assert!((20..=29).contains(&units()), "{}", units());
}

#[tokio::test(start_paused = true)]
async fn several_policies_follow_one_meter() {
    let (meter, behaviour) = (LoadMeter::new(), Behaviour::default());
    behaviour.set(300, 200);
    let (strict, lax) = (rate(Aimd::new(&meter, TARGET)), rate(Aimd::new(&meter, SECONDS(2))));
    send(&meter.layer(behaviour.service()), SECONDS(10), SECONDS(100)).await;
    assert!(strict.share() < 0.2, "{strict:?}");
    assert_eq!(lax.share(), 1.0);
}
