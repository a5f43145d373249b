//! The promises of `SlidingWindow` hold for small limits as they do for large ones.

use std::time::Duration;

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use support::{RedisServer, current_thread, settings, size, stores_with_clock};
use tower_ratelimit::{
    Key, Limiter, MemoryStore, Policy, Quota, algorithm::SlidingWindow, store::ManualClock,
};

/// A multiple of every number of segments here.
const PERIOD: u64 = 60_000_000;
const SEGMENTS: [u32; 5] = [1, 2, 4, 10, 60];

fn policy(limit: u64, segments: u32) -> Policy {
    let quota = Quota::new(limit, Duration::from_micros(PERIOD));
    Policy::new(&format!("{limit}-{segments}"), quota).algorithm(SlidingWindow::new().segments(segments))
}

/// Sends requests every `interval` microseconds for `periods`, from `start` on. Returns how many were sent and admitted.
async fn evenly(
    limiter: &Limiter,
    clock: &ManualClock,
    policy: &Policy,
    start: u64,
    interval: u64,
    periods: u64,
) -> (u64, u64) {
    let (started, key) = (clock.now(), Key::new(format!("{start}-{interval}")));
    clock.advance(Duration::from_micros(start));
    let (mut sent, mut admitted) = (0, 0);
    while sent * interval < periods * PERIOD {
        admitted += u64::from(limiter.check(policy, &key, 1).await.unwrap().is_admitted());
        sent += 1;
        clock.advance(Duration::from_micros(interval));
    }
    clock.set(started);
    (sent, admitted)
}

/// The microseconds between requests at this share of the limit, in thousandths; longer than those at the limit if it is below
/// a thousand.
fn interval(limit: u64, thousandths: u64) -> u64 {
    let exact = PERIOD * 1_000 / (limit * thousandths);
    if thousandths < 1_000 { exact.max(PERIOD / limit + 1) } else { exact }
}

#[tokio::test]
async fn requests_that_come_evenly_below_the_limit_are_all_admitted() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let memory = Limiter::new(MemoryStore::with_clock(clock.clone()));
    let redis = settings().deny_cache(Duration::ZERO).manual_clock(clock.clone());
    let redis = Limiter::new(redis.connect(&server.url()).await.unwrap());
    let limits: Vec<u64> = size(
        vec![1, 2, 3, 4, 5, 7, 10, 33, 100],
        (1..=40).chain([50, 60, 99, 100, 101, 250, 333, 1_000, 2_500, 9_999, 10_000]).collect(),
    );
    eprintln!(
        "| limit | segments | below the limit | at the limit | at twice the limit, per limit |\n|---|---|---|---|---|"
    );
    for limit in limits {
        for segments in SEGMENTS {
            let policy = policy(limit, segments);
            let periods = 2 + 400 / limit.min(200);
            let mut below = (0, 0);
            for (start, thousandths) in [(0, 999), (0, 900), (17_000_001, 999), (59_999_999, 667), (1, 500)] {
                let interval = interval(limit, thousandths);
                let (sent, admitted) = evenly(&memory, &clock, &policy, start, interval, periods).await;
                assert_eq!(admitted, sent, "{limit}, {segments} segments, every {interval} µs from {start}");
                below = (below.0 + sent, below.1 + admitted);
            }
            if limit <= 4 || [10, 100, 1_000, 10_000].contains(&limit) {
                let (sent, at) = evenly(&memory, &clock, &policy, 3, interval(limit, 1_000), periods).await;
                let (_, twice) = evenly(&memory, &clock, &policy, 3, interval(limit, 2_000), periods).await;
                let per_limit = twice as f64 / (limit * periods) as f64;
                eprintln!(
                    "| {limit} | {segments} | {} of {} | {at} of {sent} | {per_limit:.3} |",
                    below.1, below.0
                );
            }
            if limit <= 4 || limit == 100 && segments == 4 {
                let (sent, admitted) = evenly(&redis, &clock, &policy, 0, interval(limit, 999), 8).await;
                assert_eq!(admitted, sent, "{limit}, {segments} segments in Redis");
            }
        }
    }
}

/// A client that sends one request, and each next one when it was told to, gets the limit on average.
#[tokio::test]
async fn who_waits_as_told_gets_the_limit() {
    let clock = ManualClock::new();
    let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
    for (limit, segments) in [(1, 1), (4, 1), (5, 1), (5, 4), (100, 1), (1_000, 10)] {
        let (policy, key) = (policy(limit, segments), Key::new("alice"));
        let (since, mut admitted) = (clock.now(), 0);
        let periods = 20;
        while clock.now() < since + Duration::from_micros(periods * PERIOD) {
            let decision = limiter.check(&policy, &key, 1).await.unwrap();
            match decision.retry_after() {
                Some(wait) => clock.advance(wait),
                None => admitted += 1,
            }
        }
        let wanted = limit * periods;
        assert!((wanted..=wanted + limit).contains(&admitted), "{limit}, {segments}: {admitted} of {wanted}");
    }
}

/// At most the limit in a span that is one segment shorter than the period, and at most twice the limit in a period.
#[test]
fn no_span_has_more_than_promised() {
    let limit = prop_oneof![2 => 1..=12_u64, 1 => 1..=100_u64, 1 => 1..=10_000_u64];
    let request = (0..4_u8, 0..=PERIOD, any::<u64>());
    let case =
        (limit, proptest::sample::select(SEGMENTS.as_slice()), proptest::collection::vec(request, 1..200));
    let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&case, |(limit, segments, requests)| {
            let clock = ManualClock::new();
            let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
            let (policy, key) = (policy(limit, segments), Key::new("alice"));
            let width = PERIOD / u64::from(segments);
            let mut admitted: Vec<(u64, u64)> = Vec::new();
            for (kind, pause, cost) in requests {
                let now = u64::try_from(clock.now().as_micros()).unwrap();
                let pause = match kind {
                    0 => 0,
                    // To the end of the segment, and to its start.
                    1 => width - now % width - 1,
                    2 => width - now % width,
                    _ => pause / limit,
                };
                clock.advance(Duration::from_micros(pause));
                let cost = 1 + cost % limit;
                let decision = current(limiter.check(&policy, &key, cost));
                if decision.is_admitted() {
                    admitted.push((now + pause, cost));
                }
            }
            for (i, (from, _)) in admitted.iter().enumerate() {
                let within = |span: u64| -> u64 {
                    admitted[i..].iter().take_while(|(at, _)| *at < from + span).map(|(_, units)| units).sum()
                };
                prop_assert!(within(PERIOD - width) <= limit);
                prop_assert!(within(PERIOD) <= 2 * limit);
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

fn current<T>(future: impl Future<Output = Result<T, tower_ratelimit::Error>>) -> T {
    current_thread().block_on(future).unwrap()
}

/// A state with a cell for each of the most segments, and the sliding one.
#[tokio::test]
async fn the_most_segments_are_stored() {
    let (_server, clock, redis, memory) = stores_with_clock().await;
    let quota = Quota::new(5_000, Duration::from_secs(1_000));
    let policy = Policy::new("most", quota).algorithm(SlidingWindow::new().segments(1_000));
    for limiter in [Limiter::new(redis), Limiter::new(memory)] {
        let mut decided = Vec::new();
        for _ in 0..1_003 {
            decided.push(limiter.check(&policy, &Key::new("all"), 1).await.unwrap().remaining());
            clock.advance(Duration::from_secs(1));
        }
        assert_eq!(decided[decided.len() - 3..], [Some(3_999), Some(3_999), Some(3_999)], "{limiter:?}");
    }
}
