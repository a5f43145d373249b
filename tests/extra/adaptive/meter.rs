//! Controllers behind a layer, with services that answer late, fail, hang, or lose their clients. Time is virtual.

use std::{
    convert::Infallible,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use tokio::{
    task::JoinSet,
    time::{Instant, Sleep, sleep, timeout},
};
use tower::{Layer as _, Service, ServiceExt as _, service_fn};
use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer};
use tower_ratelimit_extra::adaptive::{
    Adaptive, AdaptivePolicy, Aimd, Gradient, InFlight, LoadMeter, Signal, Vegas,
};

const MILLI: Duration = Duration::from_millis(1);
const TARGET: Duration = Duration::from_millis(200);

/// A service that takes this many milliseconds, and answers with a status.
#[derive(Clone, Default)]
struct Behavior {
    millis: Arc<AtomicU64>,
    status: Arc<AtomicU64>,
}

impl Behavior {
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

/// A rate with each controller, one after another, and a service that answers after 50 ms.
fn each_rate() -> impl Iterator<Item = (&'static str, AdaptivePolicy, Behavior, LoadMeter)> {
    (0..3).map(|place| {
        let (meter, behavior) = (LoadMeter::new(), Behavior::default());
        behavior.set(50, 200);
        let (name, signal) = signals(&meter).into_iter().nth(place).unwrap();
        (name, rate(signal), behavior, meter)
    })
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
    for (name, policy, behavior, meter) in each_rate() {
        let service = meter.layer(behavior.service());
        send(&service, SECONDS(8), SECONDS(100)).await;
        assert_eq!(policy.share(), 1.0, "{name}");
        behavior.set(400, 200);
        send(&service, SECONDS(8), SECONDS(100)).await;
        let low = policy.share();
        assert!((0.05..0.5).contains(&low), "{name}: {low}");
        behavior.set(50, 200);
        send(&service, SECONDS(60), SECONDS(100)).await;
        assert_eq!(policy.share(), 1.0, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_fails_quickly_is_not_a_quick_service() {
    for (name, policy, behavior, meter) in each_rate() {
        let service = meter.layer(behavior.service());
        send(&service, SECONDS(4), SECONDS(100)).await;
        behavior.set(1, 503);
        send(&service, SECONDS(20), SECONDS(100)).await;
        assert_eq!(policy.share(), 0.05, "{name}: not the floor");
        // The client's fault.
        behavior.set(50, 404);
        send(&service, SECONDS(60), SECONDS(100)).await;
        assert_eq!(policy.share(), 1.0, "{name}");
    }
    let (meter, behavior) = (LoadMeter::new(), Behavior::default());
    behavior.set(1, 500);
    let tolerant = rate(Aimd::new(&meter, TARGET).failed_up_to(1.0));
    send(&meter.layer(behavior.service()), SECONDS(10), SECONDS(100)).await;
    assert_eq!(tolerant.share(), 1.0);
}

#[tokio::test(start_paused = true)]
async fn quick_failures_of_one_client_do_not_let_a_few_late_requests_lower_the_share() {
    let meter = LoadMeter::new();
    let policy = rate(Aimd::new(&meter, TARGET));
    sleep(MILLI * 100).await;
    for round in 0..120 {
        (0..60).for_each(|_| meter.begin().failed());
        let request = meter.begin();
        let took = MILLI * if round % 4 == 3 { 300 } else { 50 };
        sleep(took).await;
        request.succeeded();
        sleep(MILLI * 500 - took).await;
        assert_eq!(policy.share(), 1.0, "round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_that_may_be_many_change_nothing_and_a_share_rises_after_them() {
    let meter = LoadMeter::new();
    let policy = rate(Aimd::new(&meter, TARGET).failed_up_to(1.0));
    sleep(MILLI * 600).await;
    let late: Vec<_> = (0..60).map(|_| meter.begin()).collect();
    sleep(MILLI * 300).await;
    late.into_iter().for_each(InFlight::succeeded);
    sleep(SECONDS(1)).await;
    assert_eq!(policy.share(), 0.5);
    (0..60).for_each(|_| meter.begin().failed());
    sleep(SECONDS(5)).await;
    assert_eq!(policy.share(), 0.5);
    sleep(SECONDS(600)).await;
    assert_eq!(policy.share(), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_hangs_and_clients_that_give_up_lower_the_share() {
    for patience in [SECONDS(1), SECONDS(100)] {
        for (name, policy, behavior, meter) in each_rate() {
            let service = meter.layer(behavior.service());
            send(&service, SECONDS(4), SECONDS(100)).await;
            behavior.set(1_000_000, 200);
            send(&service, SECONDS(20), patience).await;
            assert!(policy.share() < 0.3, "{name}, {patience:?}: {}", policy.share());
            assert_eq!(meter.in_flight(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_hangs_after_a_few_requests_lowers_the_share_within_seconds() {
    for (name, policy, behavior, meter) in each_rate() {
        let service = meter.layer(behavior.service());
        send(&service, SECONDS(4), SECONDS(100)).await;
        // Too few for a judgement.
        send(&service, MILLI * 80, SECONDS(100)).await;
        behavior.set(1_000_000, 200);
        let clients = tokio::spawn(async move { send(&service, SECONDS(4), SECONDS(100)).await });
        sleep(SECONDS(4)).await;
        assert!(policy.share() < 0.3, "{name}: {}", policy.share());
        clients.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_hang_after_a_quiet_time_lower_a_rate() {
    for before in [0, 9] {
        let meter = LoadMeter::new();
        let policy = rate(Aimd::new(&meter, TARGET));
        let few: Vec<_> = (0..before).map(|_| meter.begin()).collect();
        sleep(SECONDS(2)).await;
        assert_eq!(policy.share(), 1.0, "{before}");
        let many: Vec<_> = (0..500).map(|_| meter.begin()).collect();
        sleep(SECONDS(60)).await;
        // Once, because no more requests wait.
        assert_eq!(policy.share(), 0.5, "{before}");
        drop((few, many));
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_hang_lower_a_rate_although_others_ended_in_the_same_window() {
    let meter = LoadMeter::new();
    let policy = rate(Aimd::new(&meter, TARGET));
    sleep(MILLI * 100).await;
    let mut waiting: Vec<_> = (0..30).map(|_| meter.begin()).collect();
    sleep(SECONDS(1)).await;
    // Too few for a judgment.
    waiting.drain(..20).for_each(InFlight::succeeded);
    waiting.extend((0..5).map(|_| meter.begin()));
    sleep(SECONDS(2)).await;
    assert_eq!(policy.share(), 0.5);
}

#[tokio::test(start_paused = true)]
async fn requests_that_a_few_clients_leave_unfinished_do_not_lower_a_limit_at_night() {
    for place in 0..6 {
        let meter = LoadMeter::new();
        let (name, signal) = signals(&meter).into_iter().nth(place % 3).unwrap();
        let is_rate = place >= 3;
        let policy = if is_rate { rate(signal) } else { in_flight(200, signal).0 };
        let seldom = async || {
            for _ in 0..20 {
                let request = meter.begin();
                sleep(MILLI * 50).await;
                request.succeeded();
                sleep(SECONDS(2)).await;
            }
        };
        seldom().await;
        let unfinished: Vec<_> = (0..10).map(|_| meter.begin()).collect();
        seldom().await;
        // A rate falls once for ten requests.
        let least = if is_rate { 0.5 } else { 1.0 };
        assert!(policy.share() >= least, "{name}, rate {is_rate}: {}", policy.share());
        drop(unfinished);
    }
}

#[tokio::test(start_paused = true)]
async fn few_requests_change_nothing_and_none_raise_the_share() {
    let (meter, behavior) = (LoadMeter::new(), Behavior::default());
    behavior.set(1_000, 200);
    let policy = rate(Aimd::new(&meter, TARGET));
    let service = meter.layer(behavior.service());
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
    let (meter, behavior) = (LoadMeter::new(), Behavior::default());
    behavior.set(100, 200);
    let (policy, limit) = in_flight(400, Aimd::new(&meter, TARGET));
    let service = limit.layer(meter.layer(behavior.service()));
    let units = || policy.policy().quota().limit();
    send(&service, SECONDS(5), SECONDS(100)).await;
    assert_eq!(units(), 400);
    // 100 requests a second that take a second: it falls to twice what is used, and below.
    behavior.set(1_000, 200);
    send(&service, SECONDS(30), SECONDS(100)).await;
    assert!((4..20).contains(&units()), "{}", units());
    behavior.set(100, 200);
    send(&service, SECONDS(60), SECONDS(100)).await;
    // Ten are in flight, so a limit above 20 rises no more. The last step is 2 % of 400.
    assert!((20..=29).contains(&units()), "{}", units());
}

/// A limit on the requests in flight, of this many units at most, and a service behind it.
fn in_flight(most: u64, signal: impl Into<Signal>) -> (AdaptivePolicy, RateLimitLayer) {
    let policy =
        Adaptive::new(Policy::concurrency("in-flight", most)).floor(0.01).follow(signal).start().unwrap();
    let limit = RateLimitLayer::new(MemoryStore::new(), &policy, Key::new("all"));
    (policy, limit)
}

/// Sends this many requests concurrently. Returns how many were denied.
async fn burst<S, B>(service: &S, size: usize) -> usize
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
    B: Send + 'static,
{
    let mut clients = JoinSet::new();
    for _ in 0..size {
        clients.spawn(service.clone().oneshot(Request::new(String::new())));
    }
    let answers = clients.join_all().await;
    answers.into_iter().filter(|answer| answer.as_ref().unwrap().status() == 429).count()
}

#[tokio::test(start_paused = true)]
async fn bursts_with_a_few_late_requests_do_not_lower_a_limit_for_good() {
    for place in 0..3 {
        let (meter, behavior) = (LoadMeter::new(), Behavior::default());
        let (name, signal) = signals(&meter).into_iter().nth(place).unwrap();
        let (policy, limit) = in_flight(500, signal);
        let service = limit.layer(meter.layer(behavior.service()));
        let mut denied = 0;
        // 40 concurrent requests of 20 ms, every second: 0.8 are in flight on average.
        for second in 0..120 {
            behavior.set(20, 200);
            denied += burst(&service, 40).await;
            if second % 20 == 5 {
                // 7 % of the requests of two bursts.
                behavior.set(300, 200);
                denied += burst(&service, 6).await;
            }
            sleep(SECONDS(1)).await;
        }
        let units = policy.policy().quota().limit();
        assert_eq!(denied, 0, "{name}: {units}");
        assert!(units >= 40, "{name}: {units}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_denies_bursts_rises_while_they_are_answered_in_time() {
    let (meter, behavior) = (LoadMeter::new(), Behavior::default());
    let (policy, limit) = in_flight(500, Aimd::new(&meter, TARGET));
    let service = limit.layer(meter.layer(behavior.service()));
    // Failures, until the limit is at its floor.
    behavior.set(20, 503);
    for _ in 0..60 {
        burst(&service, 40).await;
        sleep(SECONDS(1)).await;
    }
    assert_eq!(policy.policy().quota().limit(), 5);
    behavior.set(20, 200);
    assert_eq!(burst(&service, 40).await, 35);
    for _ in 0..60 {
        sleep(SECONDS(1)).await;
        burst(&service, 40).await;
    }
    assert!(policy.policy().quota().limit() >= 40, "{policy:?}");
    assert_eq!(burst(&service, 40).await, 0);
}

/// The smallest share in this time, and how often it fell.
async fn falls(policy: &AdaptivePolicy, time: Duration) -> (f64, u32) {
    let (started, mut before, mut least, mut falls) = (Instant::now(), policy.share(), 1.0_f64, 0);
    while started.elapsed() < time {
        sleep(MILLI * 100).await;
        let share = policy.share();
        falls += u32::from(share < before);
        least = least.min(share);
        before = share;
    }
    (least, falls)
}

#[tokio::test(start_paused = true)]
async fn a_reached_full_limit_is_lowered_every_ten_seconds_to_measure_the_service() {
    for gradient in [true, false] {
        // 50 ms, or 5 ms for each request in flight.
        for (most, clients, is_probed) in [(13, 20, true), (100, 13, false)] {
            let meter = LoadMeter::new();
            let signal =
                if gradient { Gradient::new(&meter).into() } else { Signal::from(Vegas::new(&meter)) };
            let (policy, limit) = in_flight(most, signal);
            let work = meter.clone();
            let service = limit.layer(meter.layer(service_fn(move |_: Request<String>| {
                let took = MILLI * 5 * work.in_flight().max(10) as u32;
                async move {
                    sleep(took).await;
                    Ok::<_, Infallible>(Response::new(String::new()))
                }
            })));
            let mut tasks = JoinSet::new();
            for client in 0..clients {
                let service = service.clone();
                tasks.spawn(async move {
                    // At first there is no queue.
                    sleep(if client < 8 { Duration::ZERO } else { SECONDS(5) }).await;
                    loop {
                        let answer = service.clone().oneshot(Request::new(String::new())).await.unwrap();
                        if answer.status() == 429 {
                            sleep(MILLI * 10).await;
                        }
                    }
                });
            }
            sleep(SECONDS(10)).await;
            let row = format!("gradient: {gradient}, at most {most}");
            assert_eq!(policy.share(), 1.0, "{row}");
            let (least, count) = falls(&policy, SECONDS(60)).await;
            if is_probed {
                assert!(least < 0.75 && (4..=7).contains(&count), "{row}: {least}, {count} times");
            } else {
                assert_eq!((least, count), (1.0, 0), "{row}");
            }
        }
    }
}

/// A body that ends after a time.
struct Download(Pin<Box<Sleep>>);

impl Body for Download {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.as_mut().poll(cx).map(|()| None)
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_uses_a_limit_in_flight_until_its_body_ends() {
    for place in 0..3 {
        let meter = LoadMeter::new();
        let (name, signal) = signals(&meter).into_iter().nth(place).unwrap();
        let (policy, limit) = in_flight(100, signal);
        let sent = Arc::new(AtomicU64::new(0));
        // Heads after 20 ms, some of them late for three seconds; bodies of ten seconds.
        let service = limit.layer(meter.layer(service_fn(move |_: Request<String>| {
            let number = sent.fetch_add(1, Relaxed);
            let is_late = (200..230).contains(&number) && number.is_multiple_of(5);
            async move {
                sleep(MILLI * if is_late { 300 } else { 20 }).await;
                Ok::<_, Infallible>(Response::new(Download(Box::pin(sleep(SECONDS(10))))))
            }
        })));
        let (mut clients, mut most) = (JoinSet::new(), 0);
        // Seven a second, so 70 are in flight.
        for _ in 0..840 {
            let answer = service.clone().oneshot(Request::new(String::new()));
            clients.spawn(async move {
                let response = answer.await.unwrap();
                let status = response.status().as_u16();
                response.into_body().collect().await.unwrap();
                status
            });
            sleep(SECONDS(1) / 7).await;
            most = most.max(meter.in_flight());
        }
        assert!((69..=72).contains(&most), "{name}: {most}");
        assert!(policy.policy().quota().limit() >= 72, "{name}: {policy:?}");
        let statuses = clients.join_all().await;
        assert_eq!(statuses.iter().filter(|status| **status != 200).count(), 0, "{name}");
        assert_eq!(meter.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn several_policies_follow_one_meter() {
    let (meter, behavior) = (LoadMeter::new(), Behavior::default());
    behavior.set(300, 200);
    let (strict, lax) = (rate(Aimd::new(&meter, TARGET)), rate(Aimd::new(&meter, SECONDS(2))));
    send(&meter.layer(behavior.service()), SECONDS(10), SECONDS(100)).await;
    assert!(strict.share() < 0.2, "{strict:?}");
    assert_eq!(lax.share(), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_panics_lowers_the_quota_as_one_that_answers_with_500_does() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Fault {
        Status,
        Call,
        Future,
        Client,
    }
    let rows = [
        (Fault::Status, false, 0.05),
        (Fault::Call, false, 0.05),
        (Fault::Call, true, 0.05),
        (Fault::Future, false, 0.05),
        (Fault::Future, true, 0.05),
        // A request that the client gives up.
        (Fault::Client, false, 1.0),
    ];
    for (fault, is_caught, share) in rows {
        let meter = LoadMeter::new();
        let policy = rate(Aimd::new(&meter, TARGET));
        let service = meter.layer(service_fn(move |_: Request<String>| {
            assert!(fault != Fault::Call, "a bug of the user's");
            async move {
                sleep(MILLI * 20).await;
                assert!(fault != Fault::Future, "a bug of the user's");
                Ok::<_, Infallible>(Response::builder().status(500).body(String::new()).unwrap())
            }
        }));
        let (started, mut clients) = (Instant::now(), JoinSet::new());
        while started.elapsed() < SECONDS(60) {
            let service = service.clone();
            let answer = async move { service.oneshot(Request::new(String::new())).await.map(drop) };
            let patience = if fault == Fault::Client { MILLI * 10 } else { SECONDS(9) };
            let answer = timeout(patience, answer);
            if is_caught {
                clients.spawn(AssertUnwindSafe(answer).catch_unwind().map(drop));
            } else {
                clients.spawn(answer.map(drop));
            }
            sleep(MILLI * 10).await;
        }
        while clients.join_next().await.is_some() {}
        assert_eq!((policy.share(), meter.in_flight()), (share, 0), "{fault:?}, caught: {is_caught}");
    }
}
