//! How the cost of a decision of this crate on Redis grows: with the number of keys, the limit, and the policies of a
//! request. 64 in flight.

use std::{error::Error, iter::repeat_n, sync::Arc, time::Duration};

use http::HeaderValue;
use serde::Serialize;
use tower::Layer;
use tower_ratelimit::{
    FailureMode, Header, Policy, Quota, RateLimitLayer, RedisStore, Rule,
    algorithm::{Algorithm, Gcra, SlidingLog, SlidingWindow},
    store::RedisStoreBuilder,
};

use crate::{
    bench::{Bench, Rounds},
    contender::{Handler, Limit, Place, Subject, subject},
    measure::{Load, keys},
    request::KEY,
    scenario::IDENTITIES,
};

const KEYS: [usize; 5] = [100, 1_000, 10_000, 100_000, 1_000_000];
const LIMITS: [u32; 6] = [10, 100, 1_000, 10_000, 100_000, 1_000_000];
const POLICIES: [usize; 4] = [1, 2, 4, 8];
/// The keys of the points that differ in the limit: enough that even the lowest limit is not reached in a round.
const SPREAD: usize = 250_000;
const IN_FLIGHT: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Axis {
    Keys,
    Limit,
    Policies,
}

/// One measurement, repeated.
#[derive(Serialize)]
pub(crate) struct Point {
    pub(crate) series: &'static str,
    pub(crate) axis: Axis,
    /// The number of keys or policies, or the limit.
    pub(crate) at: u64,
    /// Whether the keys are exhausted.
    pub(crate) denied: bool,
    pub(crate) rounds: Rounds,
}

struct Prepared {
    point: Point,
    service: Box<dyn Subject>,
    keys: Arc<[HeaderValue]>,
}

pub(crate) async fn measure(bench: &Bench) -> Result<Vec<Point>, Box<dyn Error>> {
    let mut points = prepare(bench).await?;
    for round in 0..bench.rounds.div_ceil(2) {
        let first = round % points.len();
        let (later, earlier) = points.split_at_mut(first);
        for Prepared { point, service, keys } in earlier.iter_mut().chain(later) {
            let load = Load {
                in_flight: IN_FLIGHT,
                keys: keys.clone(),
                time: bench.time / 2,
                timed: false,
                is_eager: false,
                on_one_thread: false,
                is_extended: false,
            };
            bench.load(Place::Redis, &**service, load, point.denied, &mut point.rounds).await?;
        }
    }
    Ok(points.into_iter().map(|prepared| prepared.point).collect())
}

/// Makes the services, and a state of each key in Redis.
async fn prepare(bench: &Bench) -> Result<Vec<Prepared>, Box<dyn Error>> {
    let mut points = Vec::new();
    let all = keys('g', KEYS[KEYS.len() - 1]);
    let spread: Arc<[HeaderValue]> = all[..SPREAD].into();

    for (series, policy) in [("Gcra", policy(Gcra::new())), ("SlidingWindow", policy(SlidingWindow::new()))] {
        for count in KEYS {
            let service = service(bench, &format!("keys{series}"), &[policy("p", Limit::PLENTY)?]).await?;
            let keys: Arc<[HeaderValue]> = all[..count].into();
            if count == all.len() {
                service.visit(keys.clone()).await;
            }
            points.push(Prepared { point: point(series, Axis::Keys, count as u64), service, keys });
        }
    }
    for (series, policy) in [
        ("Gcra", policy(Gcra::new())),
        ("SlidingWindow", policy(SlidingWindow::new())),
        ("SlidingLog", policy(SlidingLog::new())),
    ] {
        for count in LIMITS {
            // One unit a second, so keys are replenished between rounds.
            let limit = Limit { count, period: Duration::from_secs(1) * count };
            let service = service(bench, &format!("limit{count}{series}"), &[policy("p", limit)?]).await?;
            service.visit(spread.clone()).await;
            let point = point(series, Axis::Limit, count.into());
            points.push(Prepared { point, service, keys: spread.clone() });
        }
    }
    for count in LIMITS {
        let policies = [policy(SlidingLog::new())("p", Limit::few(count))?];
        let service = service(bench, &format!("full{count}"), &policies).await?;
        let one = all[0].clone();
        service.visit(repeat_n(one.clone(), count as usize).collect()).await;
        let point =
            Point { denied: true, ..point("SlidingLog, a full log, denied", Axis::Limit, count.into()) };
        points.push(Prepared { point, service, keys: Arc::from([one]) });
    }
    for count in POLICIES {
        let policy = policy(Gcra::new());
        let policies: Result<Vec<Policy>, _> = ["a", "b", "c", "d", "e", "f", "g", "h"][..count]
            .iter()
            .map(|name| policy(name, Limit::PLENTY))
            .collect();
        let service = service(bench, &format!("policies{count}"), &policies?).await?;
        let keys: Arc<[HeaderValue]> = all[..IDENTITIES].into();
        service.visit(keys.clone()).await;
        points.push(Prepared { point: point("Gcra", Axis::Policies, count as u64), service, keys });
    }
    Ok(points)
}

fn point(series: &'static str, axis: Axis, at: u64) -> Point {
    Point { series, axis, at, denied: false, rounds: Rounds::default() }
}

type MakePolicy = Box<dyn Fn(&'static str, Limit) -> Result<Policy, tower_ratelimit::Error>>;

fn policy(algorithm: impl Algorithm + Copy) -> MakePolicy {
    Box::new(move |name, limit| {
        let policy = Policy::new(name, Quota::try_new(limit.count.into(), limit.period)?);
        Ok(policy.algorithm(algorithm).failure_mode(FailureMode::Closed))
    })
}

async fn service(
    bench: &Bench,
    prefix: &str,
    policies: &[Policy],
) -> Result<Box<dyn Subject>, Box<dyn Error>> {
    // A denial is to be Redis's own.
    let store: RedisStoreBuilder =
        RedisStore::builder().prefix(prefix).deadline(Duration::from_secs(10)).deny_cache(Duration::ZERO);
    let store = store.connect(&bench.plain.url()).await?;
    let [first, others @ ..] = policies else { return Err("no policies".into()) };
    let layer = RateLimitLayer::new(store, first.clone(), Header::from(KEY));
    let layer =
        others.iter().fold(layer, |layer, policy| layer.rule(Rule::new(policy.clone(), Header::from(KEY))));
    Ok(subject(layer.layer(Handler)))
}
