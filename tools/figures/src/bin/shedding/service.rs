//! A simulated service at three times its capacity, and its three classes of requests. Time is tokio's paused clock.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tower::{ServiceBuilder, ServiceExt as _, service_fn};
use tower_ratelimit::{
    Charge, Criticality, Error, Key, Limiter, MemoryStore, Policy, Quota, policy::Headroom,
};
use tower_ratelimit_extra::adaptive::{Adaptive, Aimd, LoadMeter};

/// In seconds.
pub(crate) const END: f64 = 90.0;
/// Three times as many requests as the service can answer.
pub(crate) const RUSH: std::ops::Range<f64> = 20.0..70.0;
/// When the quota has settled.
pub(crate) const SETTLED: std::ops::Range<f64> = 25.0..70.0;
/// A client gives up after this time.
pub(crate) const TIMEOUT: f64 = 1.0;
const WORKERS: usize = 10;
/// The mean time that a worker needs for a request, in seconds.
const WORK: f64 = 0.05;
/// The requests a second that the service can answer.
pub(crate) const CAPACITY: f64 = WORKERS as f64 / WORK;
/// The classes of requests, and how many of all requests are of each.
pub(crate) const CLASSES: [(Criticality, f64); 3] =
    [(Criticality::CriticalPlus, 0.2), (Criticality::SheddablePlus, 0.3), (Criticality::Sheddable, 0.5)];

/// What protects the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// A limit on the requests in flight that follows the latency, of which less critical requests leave a part.
    Criticality,
    /// The same limit for all.
    Equal,
    /// A rate that never changes.
    Fixed,
    /// `tower::load_shed` over a limit of concurrent requests.
    LoadShed,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Request {
    /// When it was sent, in seconds since the start.
    pub(crate) at: f64,
    /// Its place in [`CLASSES`].
    pub(crate) class: usize,
    /// After how many seconds it was answered. `None` if it was rejected.
    pub(crate) answered: Option<f64>,
}

impl Request {
    pub(crate) fn is_in_time(&self) -> bool {
        self.answered.is_some_and(|after| after <= TIMEOUT)
    }
}

/// Runs the clients and the service. The same seed gives the same requests for every protection.
pub(crate) async fn run(protection: Protection, seed: u64) -> Result<Vec<Request>, Error> {
    let meter = LoadMeter::new();
    let in_flight = Policy::concurrency("in-flight", 500);
    let in_flight = match protection {
        Protection::Criticality => in_flight
            .headroom(Criticality::SheddablePlus, Headroom::Percent(25))
            .headroom(Criticality::Sheddable, Headroom::Percent(50)),
        _ => in_flight,
    };
    let adaptive =
        Adaptive::new(in_flight).floor(0.01).follow(Aimd::new(&meter, Duration::from_millis(250))).start()?;
    // Nine tenths of what the service can do.
    let fixed = Policy::new("rate", Quota::per_second(180).burst(20));
    let (limiter, key) = (Limiter::new(MemoryStore::new()), Key::new("all"));
    let workers = Arc::new(Semaphore::new(WORKERS));
    let work = move |time: f64| {
        let workers = workers.clone();
        async move {
            // In the order in which they came.
            let worker = workers.acquire_owned().await;
            sleep(Duration::from_secs_f64(time)).await;
            drop(worker);
            Ok::<_, std::convert::Infallible>(())
        }
    };
    // As many as answer within the target of the others.
    let shedding = ServiceBuilder::new().load_shed().concurrency_limit(50).service(service_fn(work.clone()));
    let (mut random, start, mut at) = (Rng::with_seed(seed), Instant::now(), 0.0);
    let (mut requests, mut answers) = (Vec::new(), JoinSet::new());
    loop {
        // Requests come at random, and their work differs by up to 60 %.
        let load = CAPACITY * if RUSH.contains(&at) { 3.0 } else { 0.6 };
        at -= random.f64().max(1e-9).ln() / load;
        let (time, lot) = (WORK * (0.4 + 1.2 * random.f64()), random.f64());
        if at >= END {
            break;
        }
        let class = if lot < 0.2 {
            0
        } else if lot < 0.5 {
            1
        } else {
            2
        };
        sleep_until(start + Duration::from_secs_f64(at)).await;
        let policy = match protection {
            Protection::Criticality | Protection::Equal => Some(adaptive.policy()),
            Protection::Fixed => Some(fixed.clone()),
            Protection::LoadShed => None,
        };
        let charge = policy.map(|policy| Charge::new(&policy, &key, 1).with_criticality(CLASSES[class].0));
        let decision = limiter.check_all(charge.as_slice()).await?;
        if !decision.is_admitted() {
            requests.push(Request { at, class, answered: None });
            continue;
        }
        let (measured, work) = (meter.begin(), work.clone());
        let shedding = (protection == Protection::LoadShed).then(|| shedding.clone());
        answers.spawn(async move {
            let is_answered = match shedding {
                Some(shedding) => shedding.oneshot(time).await.is_ok(),
                None => work(time).await.is_ok(),
            };
            measured.succeeded();
            drop(decision);
            Request { at, class, answered: is_answered.then(|| start.elapsed().as_secs_f64() - at) }
        });
    }
    requests.extend(answers.join_all().await);
    requests.sort_by(|one, other| one.at.total_cmp(&other.at));
    Ok(requests)
}
