//! Redis freezes, or stops, for five seconds under load: what the requests wait, and what memory the process needs.

use std::time::Duration;

use tokio::time::sleep;
use tower_ratelimit::{Limiter, Policy, Quota, RedisStore};

use crate::{
    DEADLINE, RATE,
    load::{Load, layers, millis, quantile},
    promises::Promises,
};
use support::RedisServer;

const DURATION: Duration = Duration::from_secs(5);
/// Failures until the breaker must be open.
const FAILURES: usize = 20;
/// What the process may grow by: the samples of this program, and buffers that are kept.
const GROWTH: usize = 8 << 20;

pub(crate) async fn print(promises: &mut Promises) {
    println!("## Redis does not answer for {} s\n", DURATION.as_secs());
    println!(
        "{RATE} requests a second of 10,000 clients. The layers of a request have a store each, on the same server; no \
         request waits longer than its layers' deadlines.\n"
    );
    println!(
        "| Redis | layers | requests | decided without the store | p99.9, ms | of those that began after \
         {FAILURES} failures, ms | memory before, after, MB |"
    );
    println!("|---|---|---|---|---|---|---|");
    for is_frozen in [true, false] {
        for layers in [1, 2] {
            measure(is_frozen, layers, promises).await;
        }
    }
}

async fn measure(is_frozen: bool, count: u32, promises: &mut Promises) {
    let mut server = RedisServer::start();
    let mut limiters = Vec::new();
    for layer in 0..count {
        let store = RedisStore::builder().prefix(format!("layer-{layer}")).connect(&server.url()).await;
        limiters.push(Limiter::new(store.unwrap()));
    }
    let policy = Policy::new("p", Quota::per_day(100_000_000));
    let load = Load::start(layers(&limiters, &policy), RATE, 10_000);
    sleep(Duration::from_secs(1)).await;
    let before = memory();
    let begin = load.now();
    if is_frozen {
        server.signal("STOP")
    } else {
        server.kill()
    }
    sleep(DURATION).await;
    let (end, after) = (load.now(), memory());
    if is_frozen {
        server.signal("CONT");
    }
    let mut samples = load.stop().await;
    samples.retain(|sample| begin <= sample.at && sample.at <= end);
    let mut failures: Vec<Duration> =
        samples.iter().filter(|sample| sample.failed).map(|sample| sample.at + sample.took).collect();
    failures.sort_unstable();
    let opened = failures.get(FAILURES).copied().unwrap_or(end);
    let after_opening: Vec<_> = samples.iter().filter(|sample| sample.at > opened).copied().collect();
    let (all, later) = (quantile(&samples, 0.999), quantile(&after_opening, 0.999));
    let state = if is_frozen { "frozen" } else { "stopped" };
    let what = |what: &str| format!("{state}, {count} layers: {what}");
    let slow = promises.check(all < DEADLINE * count + Duration::from_millis(10), || {
        what(&format!("99.9 % of the requests took up to {all:?}"))
    });
    let slow_later = promises.check(later < Duration::from_millis(1), || {
        what(&format!("99.9 % of the requests took up to {later:?} after {FAILURES} failures"))
    });
    let grown = promises.check(after < before + GROWTH, || what(&format!("memory grew to {after} bytes")));
    println!(
        "| {state} | {count} | {} | {} | {}{slow} | {:.3}{slow_later} | {}, {}{grown} |",
        samples.len(),
        failures.len(),
        millis(all),
        later.as_secs_f64() * 1e3,
        before >> 20,
        after >> 20,
    );
}

/// The resident memory of this process, in bytes.
pub(crate) fn memory() -> usize {
    memory_stats::memory_stats().unwrap().physical_mem
}
