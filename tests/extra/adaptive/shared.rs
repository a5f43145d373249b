//! Instances that share their signals over a real Redis.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use support::{RedisServer, current_thread, eventually, redis_store, settings, store};
use tokio::sync::watch;
use tower_ratelimit::{
    ErrorKind, Key, Limiter, Policy, PolicySource, Quota, RedisStore, algorithm::FixedWindow,
};
use tower_ratelimit_extra::adaptive::{Adaptive, AdaptivePolicy, Aimd, Gradient, LoadMeter, Signal, Vegas};

/// So often that a test does not wait.
const OFTEN: Duration = Duration::from_millis(20);
const KEY: &str = "rl:adaptive:api:gcra";

fn api() -> Policy {
    Policy::new("api", Quota::per_second(1_000).burst(200))
}

/// An instance whose signal is this one.
fn instance(store: &RedisStore, share: f64) -> AdaptivePolicy {
    Adaptive::new(api()).every(OFTEN).follow(move || share).shared(store).start().unwrap()
}

fn entries(server: &RedisServer) -> u64 {
    server.command(&["HLEN", KEY])
}

async fn becomes(policies: &[&AdaptivePolicy], share: f64) -> bool {
    eventually(async || policies.iter().all(|policy| policy.share() == share)).await
}

#[tokio::test]
async fn all_instances_use_the_mean_and_one_that_stops_leaves_it() {
    let server = RedisServer::start();
    let (here, there) = (store(&server).await, store(&server).await);
    let (busy, idle) = (instance(&here, 0.25), instance(&there, 0.75));
    assert!(becomes(&[&busy, &idle], 0.5).await, "{busy:?} {idle:?}");
    assert_eq!(busy.policy(), idle.policy());
    assert_eq!(busy.policy().quota(), Quota::per_second(500).burst(100));
    let third = instance(&here, 0.5);
    assert!(eventually(async || entries(&server) == 3).await);
    assert!(becomes(&[&busy, &idle, &third], 0.5).await);
    drop(busy);
    assert!(eventually(async || entries(&server) == 2).await);
    assert!(becomes(&[&idle, &third], 0.625).await, "{idle:?} {third:?}");
    let ttl: i64 = server.command(&["PTTL", KEY]);
    assert!((1..=60_000).contains(&ttl), "{ttl}");
    drop((idle, third));
    assert!(eventually(async || server.command::<u64>(&["EXISTS", KEY]) == 0).await);
}

#[tokio::test]
async fn a_new_instance_begins_with_the_share_of_the_others() {
    let (_server, store) = redis_store().await;
    let busy = instance(&store, 0.25);
    assert!(becomes(&[&busy], 0.25).await);
    // Its own signal is not due for a long time.
    let hour = Duration::from_secs(3_600);
    let new = Adaptive::new(api()).every(hour).follow(|| 1.0).shared(&store).start().unwrap();
    assert!(becomes(&[&new], 0.25).await, "{new:?}");
}

#[tokio::test]
async fn an_instance_that_dies_counts_for_some_intervals_only() {
    let server = RedisServer::start();
    let here = store(&server).await;
    let idle = instance(&here, 1.0);
    // The other instance has its own runtime, which is shut down without notice.
    let url = server.url();
    let other = std::thread::spawn(move || {
        let runtime = current_thread();
        let busy = runtime.block_on(async {
            let busy = instance(&settings().connect(&url).await.unwrap(), 0.5);
            assert!(becomes(&[&busy], 0.75).await, "{busy:?}");
            busy
        });
        drop(runtime);
        busy
    });
    assert!(becomes(&[&idle], 0.75).await, "{idle:?}");
    let busy = tokio::task::spawn_blocking(|| other.join().unwrap()).await.unwrap();
    assert_eq!(entries(&server), 2);
    assert!(becomes(&[&idle], 1.0).await, "{idle:?}");
    assert!(eventually(async || entries(&server) == 1).await);
    // It has the last quota.
    assert_eq!(busy.share(), 0.75);
}

#[tokio::test]
async fn while_redis_is_down_each_instance_uses_its_own_share() {
    let mut server = RedisServer::start();
    let connect =
        async || settings().deadline(Duration::from_millis(300)).connect(&server.url()).await.unwrap();
    let (here, there) = (connect().await, connect().await);
    let (busy, idle) = (instance(&here, 0.25), instance(&there, 0.75));
    assert!(becomes(&[&busy, &idle], 0.5).await);
    server.kill();
    assert!(becomes(&[&busy], 0.25).await, "{busy:?}");
    assert!(becomes(&[&idle], 0.75).await, "{idle:?}");
    server.restart();
    assert!(becomes(&[&busy, &idle], 0.5).await, "{busy:?} {idle:?}");
}

#[tokio::test]
async fn what_others_write_into_the_hash_changes_nothing() {
    let server = RedisServer::start();
    let strange = ["a", "", "b", "NaN 1", "c", "1e300 1", "d", "-0.5 1", "e", "\u{1f600}"];
    let _: u64 = server.command(&[&["HSET", KEY], &strange[..]].concat());
    let store = store(&server).await;
    let (first, second) = (instance(&store, 0.25), instance(&store, 0.75));
    assert!(becomes(&[&first, &second], 0.5).await, "{first:?} {second:?}");
    let _: String = server.command(&["SET", KEY, "of another type"]);
    // Nothing can be shared, so each uses its own.
    assert!(becomes(&[&first], 0.25).await, "{first:?}");
    assert!(becomes(&[&second], 0.75).await, "{second:?}");
    assert_eq!(server.command::<String>(&["GET", KEY]), "of another type");
}

#[tokio::test]
async fn policies_of_another_name_or_prefix_are_apart() {
    let (server, store) = redis_store().await;
    let shop = settings().prefix("shop").connect(&server.url()).await.unwrap();
    let own = instance(&store, 0.5);
    let others = [
        instance(&shop, 1.0),
        Adaptive::new(Policy::new("{a}:b", Quota::per_second(9)))
            .follow(|| 1.0)
            .shared(&store)
            .start()
            .unwrap(),
    ];
    assert!(
        eventually(async || server.command::<u64>(&["EXISTS", "rl:adaptive:%7Ba%7D%3Ab:gcra"]) == 1).await
    );
    assert!(eventually(async || server.command::<u64>(&["EXISTS", "shop:adaptive:api:gcra"]) == 1).await);
    assert!(becomes(&[&own], 0.5).await && others.iter().all(|other| other.share() == 1.0), "{others:?}");
}

#[tokio::test]
async fn a_change_reaches_the_other_instance_within_an_interval() {
    let server = RedisServer::start();
    let (here, there) = (store(&server).await, store(&server).await);
    let dial = Arc::new(AtomicU64::new(100));
    let signal = {
        let dial = dial.clone();
        move || dial.load(Relaxed) as f64 / 100.0
    };
    let busy = Adaptive::new(api()).every(OFTEN).follow(signal).shared(&here).start().unwrap();
    // It reads every 20 ms, and has no signal.
    let calls = Arc::new(AtomicU64::new(0));
    let idle = {
        let calls = calls.clone();
        let signal = move || {
            calls.fetch_add(1, Relaxed);
            1.0
        };
        Adaptive::new(api()).every(OFTEN).follow(signal).shared(&there).start().unwrap()
    };
    assert!(eventually(async || entries(&server) == 2).await);
    dial.store(50, Relaxed);
    assert!(becomes(&[&busy], 0.75).await, "{busy:?}");
    // Published, and read with its next interval: the second call from now begins after that.
    let now = calls.load(Relaxed);
    assert!(eventually(async || calls.load(Relaxed) >= now + 3).await);
    assert_eq!(idle.share(), 0.75);
}

#[tokio::test]
async fn a_limit_on_the_requests_in_flight_of_all_instances_is_the_mean_share() {
    let server = RedisServer::start();
    let (here, there) = (store(&server).await, store(&server).await);
    let start = |store: &RedisStore, share: f64| {
        let full = Policy::concurrency("in-flight", 8);
        Adaptive::new(full).every(OFTEN).follow(move || share).shared(store).start().unwrap()
    };
    let (busy, idle) = (start(&here, 0.25), start(&there, 0.75));
    assert!(becomes(&[&busy, &idle], 0.5).await, "{busy:?} {idle:?}");
    let (here, there, key) = (Limiter::new(here), Limiter::new(there), Key::new("all"));
    let mut held = Vec::new();
    for _ in 0..2 {
        for (limiter, policy) in [(&here, &busy), (&there, &idle)] {
            let decision = limiter.check(&policy.policy(), &key, 1).await.unwrap();
            assert!(decision.is_admitted());
            held.push(decision);
        }
    }
    for (limiter, policy) in [(&here, &busy), (&there, &idle)] {
        assert!(!limiter.check(&policy.policy(), &key, 1).await.unwrap().is_admitted());
    }
    held.truncate(3);
    let admitted = async || there.check(&idle.policy(), &key, 1).await.unwrap().is_admitted();
    assert!(eventually(admitted).await);
}

#[tokio::test]
async fn a_shared_limit_in_flight_rises_on_an_instance_that_uses_little_of_it() {
    let server = RedisServer::start();
    let (here, there) = (store(&server).await, store(&server).await);
    let meter = LoadMeter::new();
    let start = |store: &RedisStore| {
        let full = Policy::concurrency("in-flight", 1_000);
        let aimd = Aimd::new(&meter, Duration::from_secs(3_600));
        Adaptive::new(full).every(OFTEN).follow(aimd).shared(store).start().unwrap()
    };
    let policies = [start(&here), start(&there)];
    // One request after the other, so one of a thousand is in flight.
    let answer = async |has_failed: bool, is_done: fn(f64) -> bool| {
        eventually(async || {
            for _ in 0..60 {
                let request = meter.begin();
                if has_failed { request.failed() } else { request.succeeded() }
            }
            policies.iter().all(|policy| is_done(policy.share()))
        })
        .await
    };
    assert!(answer(true, |share| share < 0.1).await, "{policies:?}");
    assert!(answer(false, |share| share > 0.5).await, "{policies:?}");
}

#[tokio::test]
async fn controllers_that_empty_the_queue_with_their_own_share_cannot_be_shared() {
    let server = RedisServer::start();
    let (store, meter) = (store(&server).await, LoadMeter::new());
    let start =
        |signal: Signal| Adaptive::new(api()).follow(|| 1.0).follow(signal).shared(&store).start().map(drop);
    for signal in [Gradient::new(&meter).into(), Vegas::new(&meter).into()] {
        let error = start(signal).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("share an `Aimd` or a closure"), "{error}");
    }
    start(Aimd::new(&meter, Duration::from_secs(1)).into()).unwrap();
}

#[tokio::test]
async fn instances_with_long_intervals_keep_their_entries() {
    let server = RedisServer::start();
    let often = instance(&store(&server).await, 0.5);
    assert!(eventually(async || entries(&server) == 1).await);
    // The next entry comes after ten minutes. The others read it all the time.
    let seldom: u64 = server.command(&["HSET", KEY, "seldom", "1 1 600000"]);
    assert_eq!(seldom, 1);
    assert!(becomes(&[&often], 0.75).await, "{often:?}");
    let ttl = || server.command::<i64>(&["PTTL", KEY]);
    assert!(eventually(async || ttl() > 60_000).await, "{}", ttl());
}

#[tokio::test]
async fn an_instance_that_stopped_does_not_count_if_its_entry_cannot_be_removed() {
    let (server, store) = redis_store().await;
    let (first, second) = (instance(&store, 0.25), instance(&store, 0.75));
    assert!(becomes(&[&first, &second], 0.5).await, "{first:?} {second:?}");
    let _: String = server.command(&["ACL", "SETUSER", "default", "-hdel"]);
    let _: u64 = server.command(&["HSET", KEY, "stopped", "1 1 10"]);
    assert!(eventually(async || first.share() > 0.6 && second.share() > 0.6).await, "{first:?} {second:?}");
    // After two seconds, and it stays so.
    for _ in 0..3 {
        assert!(becomes(&[&first, &second], 0.5).await, "{first:?} {second:?}");
        tokio::time::sleep(OFTEN * 3).await;
    }
    assert_eq!((first.share(), second.share(), entries(&server)), (0.5, 0.5, 3));
}

#[tokio::test]
async fn a_changed_algorithm_moves_an_instance_to_the_table_of_the_others_that_have_it() {
    let (server, store) = redis_store().await;
    let windows = || Policy::new("api", Quota::per_second(1_000)).algorithm(FixedWindow::anchored());
    let (sender, receiver) = watch::channel(api());
    let changed = Adaptive::new(PolicySource::watched(receiver));
    let changed = changed.every(OFTEN).follow(|| 0.25).shared(&store).start().unwrap();
    let old = instance(&store, 0.75);
    let new = Adaptive::new(windows()).every(OFTEN).follow(|| 1.0).shared(&store).start().unwrap();
    assert!(becomes(&[&changed, &old], 0.5).await, "{changed:?} {old:?}");
    sender.send_replace(windows());
    assert!(becomes(&[&changed, &new], 0.625).await, "{changed:?} {new:?}");
    assert!(becomes(&[&old], 0.75).await, "{old:?}");
    assert_eq!(changed.policy(), new.policy());
    assert_eq!((entries(&server), server.command::<u64>(&["HLEN", "rl:adaptive:api:fixed-window"])), (1, 2));
}

#[tokio::test]
async fn the_acl_rule_of_a_store_with_a_hash_is_sufficient_to_share() {
    let (server, store) = redis_store().await;
    let _hash = store.hash("any");
    let store = settings().connect(&server.user("app", &store.acl_rule())).await.unwrap();
    let adaptive = Adaptive::new(Policy::new("p", Quota::per_minute(3)))
        .every(Duration::from_millis(10))
        .follow(|| 0.5)
        .shared(&store)
        .start()
        .unwrap();
    let published = async |count: u64| {
        let is_there = async || server.command::<u64>(&["EXISTS", "rl:adaptive:p:gcra"]) == count;
        eventually(is_there).await
    };
    assert!(published(1).await);
    drop(adaptive);
    assert!(published(0).await);
}
