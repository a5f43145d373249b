//! Two instances follow an operator while they decide. Nothing depends on how fast: only the order of the changes, what is
//! active in the end, and how many are admitted. The measured times are printed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use support::{RedisServer, day, eventually, redis_cluster::RedisCluster, settings};
use tokio::task::JoinHandle;
use tower_ratelimit::{
    FailureMode, Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, RedisStore,
    algorithm::{Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    store::{ManualClock, Servers},
};
use tower_ratelimit_operate::live::LivePolicies;

/// An instance of a service, with callers that never rest.
struct Instance {
    live: LivePolicies,
    admitted: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<()>>,
}

impl Instance {
    async fn start(store: RedisStore, default: &Policy) -> Self {
        let live = LivePolicies::redis(&store, [default.clone()]).await.unwrap();
        let layer = RateLimitLayer::new(store, live.get("api").unwrap(), Key::new("all"));
        let (admitted, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let caller = || {
            let (layer, admitted, stop) = (layer.clone(), admitted.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let response = support::inner::ask(&layer, support::inner::get()).await;
                    admitted.fetch_add(u64::from(response.status() == 200), Ordering::Relaxed);
                    // A denial that is known here takes no time.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        };
        let callers = (0..4).map(|_| caller()).collect();
        Self { live, admitted, stop, callers }
    }

    fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::Relaxed)
    }

    fn limit(&self) -> u64 {
        self.live.current()[0].quota().limit()
    }

    async fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.await.unwrap();
        }
        self.admitted.load(Ordering::Relaxed)
    }
}

/// Raises and lowers a limit whose window does not end during the test, so the number of admitted requests is exact.
async fn counts_stay_within_the_old_and_the_new_limit(
    name: &str,
    server: &RedisServer,
    key: &str,
    stores: [RedisStore; 2],
    default: Policy,
) {
    let [one, other] = stores;
    let instances = [Instance::start(one, &default).await, Instance::start(other, &default).await];
    let admitted = || instances.iter().map(Instance::admitted).sum::<u64>();
    let change = async |limit: u64| {
        let began = Instant::now();
        let _: u64 = server.command(&["HSET", key, "api", &format!("{limit}/day")]);
        let mut times = Vec::new();
        for instance in &instances {
            let followed = eventually(async || instance.limit() == limit).await;
            assert!(followed, "{name}: {:?}", instance.live.last_error());
            times.push(began.elapsed().as_millis());
        }
        eprintln!("{name}: both instances follow to {limit} a day after {times:?} ms");
    };
    let reaches = async |expected: u64| {
        let reached = eventually(async || admitted() >= expected).await;
        assert!(reached, "{name}: {} instead of {expected}", admitted());
    };
    reaches(200).await;
    assert_eq!(admitted(), 200, "{name}");
    // Raised: the difference is admitted, and what was charged before counts.
    change(500).await;
    reaches(500).await;
    assert_eq!(admitted(), 500, "{name}");
    // Lowered: nothing more is admitted, and nothing is forgotten.
    change(300).await;
    change(600).await;
    reaches(600).await;
    assert_eq!(admitted(), 600, "{name}");
    // Lowered while requests are admitted: each instance admits by one of the two limits.
    change(100_000).await;
    let before = admitted();
    reaches(before.max(700)).await;
    change(701).await;
    let [one, other] = instances;
    let total = one.stop().await + other.stop().await;
    assert!((700..=100_000).contains(&total), "{name}: {total}");
}

fn policy() -> Policy {
    day("api", 200).failure_mode(FailureMode::Closed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_follow_an_operator_under_load_and_lose_no_counts() {
    let server = RedisServer::start();
    for (name, prefix, policy) in
        [("one server", "exact", policy()), ("one server, leased", "leased", policy().max_lease(20))]
    {
        let store = async || settings().prefix(prefix).connect(&server.url()).await.unwrap();
        let (key, stores) = (format!("{prefix}:policies"), [store().await, store().await]);
        counts_stay_within_the_old_and_the_new_limit(name, &server, &key, stores, policy).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_follow_an_operator_under_load_in_a_cluster() {
    let (cluster, prefix) = (RedisCluster::shared(), "live-load");
    let store = async || settings().prefix(prefix).connect(Servers::cluster(cluster.urls())).await.unwrap();
    let (key, stores) = (format!("{prefix}:policies"), [store().await, store().await]);
    let owner = &cluster.nodes[cluster.first_owner(cluster.slot(&key))];
    counts_stay_within_the_old_and_the_new_limit("cluster", owner, &key, stores, policy()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_admits_no_more_than_the_largest_burst_and_rate_while_its_quota_changes() {
    let server = RedisServer::start();
    let store = async || settings().connect(&server.url()).await.unwrap();
    let policy = |limit: u64| Policy::new("api", Quota::per_second(limit)).failure_mode(FailureMode::Closed);
    let began = Instant::now();
    let default = policy(50);
    let instances =
        [Instance::start(store().await, &default).await, Instance::start(store().await, &default).await];
    for limit in [150, 20, 100] {
        let _: u64 = server.command(&["HSET", "rl:policies", "api", &format!("{limit}/s")]);
        for instance in &instances {
            assert!(eventually(async || instance.limit() == limit).await);
        }
    }
    let mut admitted = 0;
    for instance in instances {
        admitted += instance.stop().await;
    }
    let most = 150 + 150 * (began.elapsed().as_secs() + 1);
    assert!(admitted <= most, "{admitted} of at most {most}");
    eprintln!("a bucket: {admitted} admitted, at most {most} allowed");
}

/// Two instances that disagree, one decision after the other, while no time passes.
#[tokio::test]
async fn no_algorithm_admits_more_than_the_larger_limit_while_instances_disagree() {
    let quota = |limit| Policy::new("p", Quota::per_hour(limit));
    let rows: [(&str, fn(Policy) -> Policy); 10] = [
        ("GCRA", |policy| policy),
        ("a debt", |policy| policy.max_debt(2)),
        ("tokens", |policy| policy.algorithm(TokenBucket::new())),
        ("a new bucket", |policy| policy.algorithm(TokenBucket::new().starting_at(2))),
        ("a meter", |policy| policy.algorithm(LeakyBucket::meter())),
        ("an anchored window", |policy| policy.algorithm(FixedWindow::anchored())),
        ("an aligned window", |policy| policy.algorithm(FixedWindow::aligned())),
        ("a sliding window", |policy| policy.algorithm(SlidingWindow::new().segments(6))),
        ("a log", |policy| policy.algorithm(SlidingLog::new())),
        ("permits", |policy| policy.algorithm(Concurrency::new())),
    ];
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let redis = settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap();
    for (name, build) in rows {
        for limiter in [Limiter::new(MemoryStore::with_clock(clock.clone())), Limiter::new(redis.clone())] {
            let (small, large) = (build(quota(3)), build(quota(8)));
            let mut admitted = Vec::new();
            for policy in [&small, &large].into_iter().cycle().take(60) {
                let decision = limiter.check(policy, &Key::new(name), 1).await.unwrap();
                admitted.extend(decision.is_admitted().then_some(decision));
            }
            let expected = if name == "a new bucket" { 7 } else { 8 };
            assert_eq!(admitted.len(), expected, "{name}");
        }
    }
}

/// The smaller quota has its own burst and rate; the larger one counts all of it.
#[tokio::test]
async fn a_lowered_bucket_does_not_wait_for_units_beyond_it_and_a_raised_one_counts_them() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let redis = settings().deny_cache(Duration::ZERO).manual_clock(clock.clone());
    let redis = redis.connect(&server.url()).await.unwrap();
    let (small, large) = (Policy::new("p", Quota::per_hour(3)), Policy::new("p", Quota::per_hour(8)));
    for limiter in [Limiter::new(MemoryStore::with_clock(clock.clone())), Limiter::new(redis)] {
        let key = Key::new("alice");
        let take = async |policy: &Policy, cost| limiter.check(policy, &key, cost).await.unwrap();
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        assert!(take(&large, 8).await.is_admitted());
        assert_eq!(take(&small, 1).await.retry_after(), Some(minutes(20)));
        clock.advance(minutes(5));
        assert_eq!(take(&small, 1).await.retry_after(), Some(minutes(15)), "the time that was named stays");
        clock.advance(minutes(15));
        assert!(take(&small, 1).await.is_admitted());
        assert!(!take(&small, 1).await.is_admitted());
        clock.advance(minutes(60));
        assert!(take(&small, 3).await.is_admitted(), "an hour without charges replenishes the burst");
        // 12 units were charged, of which 4 were replenished at the rate of the smaller quota.
        let denied = take(&large, 1).await;
        assert_eq!((denied.is_admitted(), denied.remaining()), (false, Some(0)));
        clock.advance(minutes(15));
        assert_eq!(take(&large, 0).await.remaining(), Some(2));
        // All of it drains, and the key with it.
        clock.advance(minutes(60));
        assert_eq!(take(&large, 0).await.remaining(), Some(8));
        limiter.operator().reset(&large, &key).await.unwrap();
    }
}
