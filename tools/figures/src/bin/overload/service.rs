//! A simulated service that is overloaded, and the clients that ask it. Time is tokio's paused clock.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tower_ratelimit::{Error, Key, Limiter, MemoryStore, Policy, Quota};
use tower_ratelimit_extra::adaptive::{Adaptive, AdaptivePolicy, Aimd, Gradient, LoadMeter, Vegas};

/// In seconds.
pub(crate) const END: f64 = 180.0;
/// A client gives up after this time. The service does not notice, and answers all the same.
pub(crate) const TIMEOUT: f64 = 1.0;
const WORKERS: usize = 10;
/// The mean time that a worker needs for a request, in seconds.
const WORK: f64 = 0.05;
/// More clients than usual, in seconds since the start.
pub(crate) const RUSH: std::ops::Range<f64> = 20.0..70.0;
/// The database is slow: all work takes this many times longer.
pub(crate) const SLOW: std::ops::Range<f64> = 110.0..150.0;
const SLOWER: f64 = 2.5;

/// Requests a second at a time.
pub(crate) fn load(at: f64) -> f64 {
    if RUSH.contains(&at) { 400.0 } else { 120.0 }
}

/// The requests a second that the service can answer.
pub(crate) fn capacity(at: f64) -> f64 {
    WORKERS as f64 / (WORK * slowness(at))
}

fn slowness(at: f64) -> f64 {
    if SLOW.contains(&at) { SLOWER } else { 1.0 }
}

/// What protects the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    Nothing,
    /// A quota that never changes.
    Fixed,
    /// A rate that follows the latency.
    AimdRate,
    /// The requests in flight.
    AimdInFlight,
    Vegas,
    Gradient,
    /// The same on rates.
    VegasRate,
    GradientRate,
}

/// The client's view of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Request {
    /// When it was sent, in seconds since the start.
    pub(crate) at: f64,
    pub(crate) fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fate {
    Denied,
    /// Answered after this many seconds.
    Answered(f64),
}

impl Fate {
    pub(crate) fn is_in_time(self) -> bool {
        matches!(self, Self::Answered(after) if after <= TIMEOUT)
    }
}

enum Limit {
    Nothing,
    Fixed(Policy),
    Adaptive(AdaptivePolicy),
}

impl Limit {
    fn new(protection: Protection, meter: &LoadMeter) -> Result<Self, Error> {
        // Nine tenths of what the service can do on a good day.
        let fixed = Policy::new("rate", Quota::per_second(180).burst(20));
        let rate = Adaptive::new(Policy::new("rate", Quota::per_second(500).burst(50)));
        let in_flight = Adaptive::new(Policy::concurrency("in-flight", 500)).floor(0.01);
        let target = Duration::from_millis(250);
        let adaptive = match protection {
            Protection::Nothing => return Ok(Self::Nothing),
            Protection::Fixed => return Ok(Self::Fixed(fixed)),
            Protection::AimdRate => rate.follow(Aimd::new(meter, target)),
            Protection::AimdInFlight => in_flight.follow(Aimd::new(meter, target)),
            Protection::Vegas => in_flight.follow(Vegas::new(meter)),
            Protection::Gradient => in_flight.follow(Gradient::new(meter)),
            Protection::VegasRate => rate.follow(Vegas::new(meter)),
            Protection::GradientRate => rate.follow(Gradient::new(meter)),
        };
        adaptive.start().map(Self::Adaptive)
    }

    fn policy(&self) -> Option<Policy> {
        match self {
            Self::Nothing => None,
            Self::Fixed(policy) => Some(policy.clone()),
            Self::Adaptive(adaptive) => Some(adaptive.policy()),
        }
    }
}

/// Runs the clients and the service. Returns their requests in the order of time. The same seed gives the
/// same requests for every protection of the service.
pub(crate) async fn run(protection: Protection, seed: u64) -> Result<Vec<Request>, Error> {
    let meter = LoadMeter::new();
    let limit = Limit::new(protection, &meter)?;
    let (limiter, key) = (Limiter::new(MemoryStore::new()), Key::new("all"));
    let workers = Arc::new(Semaphore::new(WORKERS));
    let mut random = Rng::with_seed(seed);
    let (start, mut at) = (Instant::now(), 0.0);
    let (mut requests, mut answers) = (Vec::new(), JoinSet::new());
    loop {
        // Requests come at random, and their work differs by up to 60 %.
        at -= random.f64().max(1e-9).ln() / load(at);
        let work = WORK * (0.4 + 1.2 * random.f64());
        if at >= END {
            break;
        }
        sleep_until(start + Duration::from_secs_f64(at)).await;
        let decision = match limit.policy() {
            Some(policy) => Some(limiter.check(&policy, &key, 1).await?),
            None => None,
        };
        if decision.as_ref().is_some_and(|decision| decision.verdict().is_denied()) {
            requests.push(Request { at, fate: Fate::Denied });
            continue;
        }
        let (measured, workers) = (meter.begin(), workers.clone());
        answers.spawn(async move {
            // In the order in which they came.
            let worker = workers.acquire_owned().await;
            let slowness = slowness(start.elapsed().as_secs_f64());
            sleep(Duration::from_secs_f64(work * slowness)).await;
            drop(worker);
            measured.succeeded();
            drop(decision);
            Request { at, fate: Fate::Answered(start.elapsed().as_secs_f64() - at) }
        });
    }
    requests.extend(answers.join_all().await);
    requests.sort_by(|one, other| one.at.total_cmp(&other.at));
    Ok(requests)
}

/// What became of the requests of some time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    pub(crate) in_time: f64,
    pub(crate) late: f64,
    pub(crate) denied: f64,
    /// The requests that the service could have answered in time.
    pub(crate) possible: f64,
    /// The 95th percentile of the seconds until an answer.
    pub(crate) p95: f64,
}

impl Sum {
    pub(crate) fn of(requests: &[Request], from: f64, to: f64) -> Self {
        let mut sum = Self::default();
        let mut waits = Vec::new();
        for request in requests.iter().filter(|request| (from..to).contains(&request.at)) {
            match request.fate {
                Fate::Denied => sum.denied += 1.0,
                fate if fate.is_in_time() => sum.in_time += 1.0,
                Fate::Answered(_) => sum.late += 1.0,
            }
            if let Fate::Answered(wait) = request.fate {
                waits.push(wait);
            }
        }
        let steps = ((to - from) * 10.0).round() as usize;
        let times = (0..steps).map(|step| from + (step as f64 + 0.5) / 10.0);
        sum.possible = times.map(|at| load(at).min(capacity(at)) / 10.0).sum();
        waits.sort_by(f64::total_cmp);
        sum.p95 = waits.get(waits.len() * 95 / 100).copied().unwrap_or_default();
        sum
    }
}
