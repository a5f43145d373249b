//! Exactly the limit is admitted, regardless of how many concurrent requests there are and which instance they reach.

use std::time::Duration;

use proptest::prelude::*;
use support::{
    RedisServer,
    http::{Tally, app, hammer, serve},
    memory_and_redis, settings, store,
};
use tower_ratelimit::{
    FailureMode, Key, Limiter, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer,
    algorithm::{FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    store::ManualClock,
};

const CONNECTIONS: usize = 64;
const DENIALS: usize = 200;

/// Each algorithm in turn, with random limits.
fn policies() -> impl Strategy<Value = Vec<Policy>> {
    // A day is long enough that no units become available again during the test.
    proptest::collection::vec(1..150_u64, 10).prop_map(|limits| {
        let policies = limits.into_iter().map(|limit| Policy::new("p", Quota::per_day(limit)));
        let count = |(i, policy): (usize, Policy)| match i {
            0 => policy.algorithm(Gcra::new()),
            1 => policy.algorithm(FixedWindow::anchored()),
            2 => policy.algorithm(TokenBucket::new()),
            3 => policy.algorithm(LeakyBucket::meter()),
            4 => policy.algorithm(SlidingLog::new()),
            5 => policy.algorithm(SlidingWindow::new()),
            6 => policy.algorithm(SlidingWindow::new().segments(24)),
            7 => {
                let limit = policy.quota().limit();
                // The whole burst is admitted without a delay.
                policy.algorithm(LeakyBucket::queue(Duration::ZERO).delay_after(limit))
            }
            8 => policy.algorithm(TokenBucket::new().refill_every(Duration::from_secs(86_400))),
            // Windows that opened some hours ago, so that none ends during the test.
            _ => policy.algorithm(FixedWindow::aligned().utc_offset_west(since_midnight() / 2)),
        };
        // A failure of the store must not look like an admission.
        let closed = |policy: Policy| policy.failure_mode(FailureMode::Closed);
        policies.enumerate().map(count).map(closed).collect()
    })
}

fn since_midnight() -> Duration {
    let since_epoch = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    Duration::from_secs(since_epoch.as_secs() % 86_400)
}

fn exactly(policy: &Policy) -> Tally {
    let limit = usize::try_from(policy.quota().limit()).unwrap();
    Tally { ok: limit, limited: DENIALS, other: 0 }
}

fn for_random_policies(test: impl AsyncFn(Policy)) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config = ProptestConfig { cases: 3, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(policies in policies())| {
        for policy in policies {
            runtime.block_on(test(policy));
        }
    });
}

#[test]
fn two_instances_on_redis_admit_exactly_the_limit() {
    let server = RedisServer::start();
    for_random_policies(async |policy: Policy| {
        let () = server.command(&["FLUSHALL"]);
        let mut instances = Vec::new();
        for _ in 0..2 {
            let layer = RateLimitLayer::new(store(&server).await, policy.clone(), PeerIp::new());
            instances.push(serve(app(layer)).await);
        }
        let exactly = exactly(&policy);
        assert_eq!(hammer(&instances, CONNECTIONS, exactly.ok + DENIALS).await, exactly, "{policy:?}");
    });
}

#[test]
fn one_instance_in_memory_admits_exactly_the_limit() {
    for_random_policies(async |policy: Policy| {
        let layer = RateLimitLayer::new(MemoryStore::new(), policy.clone(), PeerIp::new());
        let instance = serve(app(layer)).await;
        let exactly = exactly(&policy);
        assert_eq!(hammer(&[instance], CONNECTIONS, exactly.ok + DENIALS).await, exactly, "{policy:?}");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn several_policies_are_charged_together_or_not_at_all() {
    let server = RedisServer::start();
    let limiters = memory_and_redis(&server).await;
    for (name, limiter) in limiters {
        // Each key of `one` admits 10, `all` admits 25: together 25, and no unit is lost.
        let (one, all) = (Policy::new("one", Quota::per_day(10)), Policy::new("all", Quota::per_day(25)));
        let tasks: tokio::task::JoinSet<_> = (0..120)
            .map(|i| {
                let (limiter, one, all) = (limiter.clone(), one.clone(), all.clone());
                async move {
                    let charges = [
                        tower_ratelimit::Charge::new(&one, &format!("key{}", i % 4).into(), 1),
                        tower_ratelimit::Charge::new(&all, &"everybody".into(), 1),
                    ];
                    limiter.check_all(&charges).await.unwrap().is_admitted()
                }
            })
            .collect();
        let admitted = tasks.join_all().await.into_iter().filter(|admitted| *admitted).count();
        assert_eq!(admitted, 25, "{name}");
        let mut charged = 0;
        for i in 0..4 {
            let left =
                limiter.peek(&one, &format!("key{i}").into(), 0).await.unwrap().outcomes()[0].remaining();
            charged += 10 - left;
        }
        assert_eq!(charged, 25, "{name}");
    }
}

/// No span as long as the period admits more than the limit. Checks all spans, not only windows.
#[tokio::test(flavor = "multi_thread")]
async fn a_sliding_log_holds_in_every_span_over_two_instances() {
    let server = RedisServer::start();
    let (limit, period) = (20, Duration::from_millis(50));
    let policy = Policy::new("p", Quota::new(limit, period)).algorithm(SlidingLog::new());
    let mut instances = Vec::new();
    for _ in 0..2 {
        instances.push(Limiter::new(store(&server).await));
    }
    let mut running = tokio::task::JoinSet::new();
    for i in 0..8 {
        let (limiter, policy) = (instances[i % 2].clone(), policy.clone());
        running.spawn(async move {
            let started = std::time::Instant::now();
            while started.elapsed() < 10 * period {
                let decision = limiter.check(&policy, &"all".into(), 1).await.unwrap();
                assert!(decision.failure().is_none());
                // A remembered denial does not yield to other tasks.
                tokio::task::yield_now().await;
            }
        });
    }
    // The log in Redis has an entry for each call that admitted, with the server's time and the units up to then. The
    // test polls it all the time and merges the entries.
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
    let mut admitted = std::collections::BTreeMap::new();
    let mut connection = server.connection();
    while !running.is_empty() {
        let log: Vec<Vec<u8>> =
            redis::cmd("LRANGE").arg("rl:p:sliding-log:{all}").arg(0).arg(-1).query(&mut connection).unwrap();
        for entries in log.windows(2) {
            let [before, upto] = [0, 1].map(|i| number(&entries[i][8..]));
            admitted.insert((number(&entries[1][1..8]), upto), upto - before);
        }
        while let Some(done) = running.try_join_next() {
            done.unwrap();
        }
        tokio::task::yield_now().await;
    }
    // The time of each admitted unit.
    let stamps: Vec<u64> =
        admitted.iter().flat_map(|((at, _), units)| (0..*units).map(move |_| *at)).collect();
    assert!(stamps.len() as u64 > 2 * limit, "{}", stamps.len());
    for span in stamps.windows(usize::try_from(limit).unwrap() + 1) {
        assert!(span[span.len() - 1] - span[0] >= 50_000, "{span:?}");
    }
}

/// The denial writes down the state that it has changed to the earlier time, also that of a key with a single unit.
#[tokio::test]
async fn the_retry_time_of_a_denial_holds_after_the_clock_stepped_back() {
    let server = RedisServer::start();
    let period = Duration::from_secs(100);
    let algorithms: [(&str, Policy); 6] = [
        ("gcra", Policy::new("gcra", Quota::new(1, period))),
        ("tokens", Policy::new("tokens", Quota::new(1, period)).algorithm(TokenBucket::new())),
        ("meter", Policy::new("meter", Quota::new(1, period)).algorithm(LeakyBucket::meter())),
        ("window", Policy::new("window", Quota::new(1, period)).algorithm(FixedWindow::anchored())),
        ("log", Policy::new("log", Quota::new(1, period)).algorithm(SlidingLog::new())),
        (
            "segments",
            Policy::new("segments", Quota::new(1, period)).algorithm(SlidingWindow::new().segments(10)),
        ),
    ];
    for (name, policy) in algorithms {
        let clock = ManualClock::new();
        let redis = settings().deny_cache(Duration::ZERO).manual_clock(clock.clone());
        let limiters = [
            ("memory", Limiter::new(MemoryStore::with_clock(clock.clone()))),
            ("redis", Limiter::new(redis.connect(&server.url()).await.unwrap())),
        ];
        for (store, limiter) in limiters {
            let ask = async || limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
            assert!(ask().await.is_admitted(), "{name}, {store}");
            clock.step_back(period / 2);
            let wait = ask().await.retry_after().unwrap();
            clock.advance(wait - Duration::from_micros(1));
            assert!(!ask().await.is_admitted(), "{name}, {store}: before {wait:?}");
            clock.advance(Duration::from_micros(1));
            assert!(ask().await.is_admitted(), "{name}, {store}: after {wait:?}");
            clock.step_back(wait / 2);
        }
    }
}
