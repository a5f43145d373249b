//! What a scrape of Prometheus shows.

#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/metrics/src/main.rs"]
mod example;

use std::{collections::BTreeMap, convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};
use support::{Down, Fake, RedisServer, fails, fails_after, inner::text, settings};
use tokio::task::yield_now;

use axum::{body::Body, extract::ConnectInfo};
use http::{Request, Response};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use prometheus_parse::{Scrape, Value};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_ratelimit::{
    Charge, Criticality, ErrorKind, FailureMode, Header, Key, Limiter, MemoryStore, Policy, Quota,
    RateLimitLayer,
    algorithm::{FixedWindow, LeakyBucket},
    policy::{Enforcement, EnforcementSwitch, Headroom, Penalty},
    store::{ManualClock, Store},
};
use tower_ratelimit_extra::adaptive::Adaptive;
use tower_ratelimit_operate::live::LivePolicies;

/// A recorder for this thread. It is never dropped, because the crate tells recorders apart by their addresses.
fn record(builder: PrometheusBuilder) -> (metrics::LocalRecorderGuard<'static>, PrometheusHandle) {
    let recorder = Box::leak(Box::new(builder.build_recorder()));
    (metrics::set_default_local_recorder(recorder), recorder.handle())
}

fn parse(text: &str) -> Scrape {
    Scrape::parse(text.lines().map(|line| Ok::<_, io::Error>(line.to_owned()))).unwrap()
}

/// The samples of `name`: the labels as `a=b,c=d`, and the value or the number of values.
fn samples(scrape: &Scrape, name: &str) -> BTreeMap<String, f64> {
    let samples = scrape.samples.iter().filter(|sample| sample.metric == name);
    samples
        .map(|sample| {
            let mut labels: Vec<String> =
                sample.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            labels.sort();
            let value = match &sample.value {
                Value::Counter(value) | Value::Gauge(value) | Value::Untyped(value) => *value,
                Value::Histogram(buckets) => buckets.last().unwrap().count,
                Value::Summary(_) => panic!("{name} has no buckets"),
            };
            (labels.join(","), value)
        })
        .collect()
}

/// The counters that are not 0: the counters of a layer's policies start there.
fn counted(handle: &PrometheusHandle, name: &str) -> BTreeMap<String, f64> {
    nonzero(samples(&parse(&handle.render()), name))
}

fn nonzero(mut samples: BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    samples.retain(|_, value| *value != 0.0);
    samples
}

fn map<const N: usize>(rows: [(&str, f64); N]) -> BTreeMap<String, f64> {
    rows.into_iter().map(|(labels, value)| (labels.to_owned(), value)).collect()
}

#[tokio::test]
async fn the_example_serves_its_counters_to_prometheus() {
    let (_guard, handle) = record(example::prometheus().unwrap());
    let app = example::app(MemoryStore::with_clock(ManualClock::new()), handle);
    let get = async |path: &str| {
        let peer = ConnectInfo(SocketAddr::from(([203, 0, 113, 7], 4711)));
        let request = Request::get(path).extension(peer).body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        (response.status().as_u16(), text(response).await)
    };
    for status in [200, 200, 429] {
        assert_eq!(get("/").await.0, status);
    }
    let (status, text) = get("/metrics").await;
    assert_eq!(status, 200);
    assert!(!text.contains("203.0.113"), "an identity is in {text}");
    let scrape = parse(&text);
    let decisions = map([
        ("policy=per-ip,source=store,verdict=admitted", 2.0),
        ("policy=per-ip,source=store,verdict=denied", 1.0),
    ]);
    assert_eq!(samples(&scrape, "ratelimit_decisions_total"), decisions);
    assert_eq!(nonzero(samples(&scrape, "ratelimit_rejections_total")), map([("reason=denied", 1.0)]));
    // Other tests have keys in memory too.
    assert!(samples(&scrape, "ratelimit_memory_keys")[""] >= 1.0);
    assert!(scrape.docs.contains_key("ratelimit_decisions_total"), "{:?}", scrape.docs);
}

#[tokio::test]
async fn decisions_are_counted_for_each_policy_that_was_charged_or_that_denied() {
    let (_guard, handle) = record(PrometheusBuilder::new());
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let (burst, daily) = (Policy::new("burst", Quota::per_hour(1)), Policy::new("daily", Quota::per_day(9)));
    let key = Key::new("alice");
    let both = [Charge::new(&burst, &key, 1), Charge::new(&daily, &key, 1)];
    let admitted = limiter.check_all(&both).await.unwrap();
    assert!(!limiter.check_all(&both).await.unwrap().is_admitted());
    // These are not decisions.
    limiter.peek_all(&both).await.unwrap();
    limiter.refund(&admitted, 1).await.unwrap();
    limiter.check_all(&[]).await.unwrap();
    let queue =
        Policy::new("queue", Quota::per_minute(60)).algorithm(LeakyBucket::queue(Duration::from_secs(9)));
    for _ in 0..2 {
        limiter.check(&queue, &key, 1).await.unwrap();
    }
    let expected = map([
        ("policy=burst,source=store,verdict=admitted", 1.0),
        ("policy=burst,source=store,verdict=denied", 1.0),
        ("policy=daily,source=store,verdict=admitted", 1.0),
        ("policy=queue,source=store,verdict=admitted", 1.0),
        ("policy=queue,source=store,verdict=delayed", 1.0),
    ]);
    assert_eq!(counted(&handle, "ratelimit_decisions_total"), expected);
}

#[tokio::test]
async fn denials_of_a_banned_key_have_a_separate_verdict() {
    let (_guard, handle) = record(PrometheusBuilder::new());
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let minute = Duration::from_secs(60);
    let policy = Policy::new("login", Quota::per_hour(1)).penalty(Penalty::after(2, minute));
    for _ in 0..5 {
        limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
    }
    let expected = map([
        ("policy=login,source=store,verdict=admitted", 1.0),
        ("policy=login,source=store,verdict=banned", 3.0),
        ("policy=login,source=store,verdict=denied", 1.0),
    ]);
    assert_eq!(counted(&handle, "ratelimit_decisions_total"), expected);
    let layer = RateLimitLayer::new(limiter, policy, Header::new("x-user"));
    let service =
        layer.layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(String::new())) }));
    let request = Request::get("/").header("x-user", "alice").body(()).unwrap();
    service.oneshot(request).await.unwrap();
    assert_eq!(counted(&handle, "ratelimit_rejections_total"), map([("reason=banned", 1.0)]));
}

#[tokio::test]
async fn requests_beyond_a_guarantee_are_counted_as_borrowed_or_denied() {
    let (_guard, handle) = record(PrometheusBuilder::new());
    let limiter = Limiter::new(MemoryStore::new());
    let pool = Policy::new("pool", Quota::per_hour(4)).headroom(Criticality::Sheddable, Headroom::Units(2));
    let tenant = Policy::new("tenant", Quota::per_hour(2));
    let charge = Charge::new(&pool, &Key::new("all"), 1).with_criticality(Criticality::Sheddable);
    let charges = [charge.guarantee(&tenant, &Key::new("acme")).unwrap(), charge];
    for _ in 0..3 {
        limiter.check_all(&charges).await.unwrap();
    }
    let expected = map([
        ("policy=pool,source=store,verdict=admitted", 2.0),
        ("policy=pool,source=store,verdict=shed", 1.0),
        ("policy=tenant,source=store,verdict=borrowed", 2.0),
        ("policy=tenant,source=store,verdict=denied", 1.0),
    ]);
    assert_eq!(counted(&handle, "ratelimit_decisions_total"), expected);
}

#[tokio::test]
async fn a_recorder_that_is_installed_late_counts_from_then_on() {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let policy = Policy::new("api", Quota::per_hour(9));
    let check = async || limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
    check().await;
    // The last one finds no place for its handles, and counts all the same.
    for count in [1, 2, 3] {
        let (_guard, handle) = record(PrometheusBuilder::new());
        for _ in 0..count {
            check().await;
        }
        let expected = map([("policy=api,source=store,verdict=admitted", f64::from(count))]);
        assert_eq!(counted(&handle, "ratelimit_decisions_total"), expected);
    }
}

#[tokio::test]
async fn failures_of_the_store_and_rejections_are_counted_by_their_cause() {
    let (_guard, handle) = record(PrometheusBuilder::new());
    let rows = [
        (false, ErrorKind::StoreTimeout, FailureMode::Open),
        (true, ErrorKind::StoreTimeout, FailureMode::Closed),
        (true, ErrorKind::StoreUnreachable, FailureMode::Open),
    ];
    for (later, kind, mode) in rows {
        let policy = Policy::new("api", Quota::per_hour(9)).failure_mode(mode);
        let store =
            Fake::new(Down, move |_, _, _| if later { fails_after(yield_now(), kind) } else { fails(kind) });
        let layer = RateLimitLayer::new(store, policy, Header::new("x-user"))
            .block_if(|parts| parts.uri.path() == "/blocked");
        let service = layer
            .layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(String::new())) }));
        for path in ["/", "/blocked"] {
            let request = Request::get(path).header("x-user", "alice").body(()).unwrap();
            service.clone().oneshot(request).await.unwrap();
        }
    }
    let errors = map([("kind=timeout", 2.0), ("kind=unreachable", 1.0)]);
    assert_eq!(counted(&handle, "ratelimit_store_errors_total"), errors);
    let rejections = map([("reason=blocked", 3.0), ("reason=unavailable", 1.0)]);
    assert_eq!(counted(&handle, "ratelimit_rejections_total"), rejections);
    let decisions = map([("policy=,source=failure_mode,verdict=admitted", 2.0)]);
    assert_eq!(counted(&handle, "ratelimit_decisions_total"), decisions);
}

#[tokio::test]
async fn redis_shows_its_batches_its_queue_its_leases_and_who_decided() {
    let (_guard, handle) = record(example::prometheus().unwrap());
    let server = RedisServer::start();
    let store = settings().manual_clock(ManualClock::new()).connect(&server.url()).await.unwrap();
    let limiter = Limiter::new(store.clone());
    let single = Policy::new("single", Quota::per_hour(1));
    for _ in 0..3 {
        limiter.check(&single, &Key::new("alice"), 1).await.unwrap();
    }
    let many = Policy::new("many", Quota::per_hour(1_000));
    let keys: Vec<Key> = (0..100).map(|number| Key::new(format!("k{number}"))).collect();
    let calls = keys.iter().map(|key| limiter.check(&many, key, 1));
    futures_util::future::join_all(calls).await;

    let scrape = parse(&handle.render());
    let expected = map([
        ("policy=many,source=store,verdict=admitted", 100.0),
        ("policy=single,source=deny_cache,verdict=denied", 1.0),
        ("policy=single,source=store,verdict=admitted", 1.0),
        ("policy=single,source=store,verdict=denied", 1.0),
    ]);
    assert_eq!(samples(&scrape, "ratelimit_decisions_total"), expected);
    assert_eq!(samples(&scrape, "ratelimit_decision_duration_seconds"), map([("", 102.0)]));
    let batches = samples(&scrape, "ratelimit_batch_decisions")[""];
    assert!((3.0..60.0).contains(&batches), "{batches} batches of 102 decisions");
    let waited = samples(&scrape, "ratelimit_queue_length")[""];
    // Not the first one, which found no lane open.
    assert!((50.0..102.0).contains(&waited), "{waited} of 102 decisions waited");

    let leased = Policy::new("leased", Quota::per_hour(1_000)).max_lease(100);
    let by_lease = async || {
        limiter.check(&leased, &Key::new("alice"), 1).await.unwrap();
        let decisions = counted(&handle, "ratelimit_decisions_total");
        decisions.get("policy=leased,source=lease,verdict=admitted").is_some_and(|count| *count == 1.0)
    };
    assert!(support::eventually(by_lease).await, "no decision by a lease");
    let gauges = || {
        let scrape = parse(&handle.render());
        let value = |name| samples(&scrape, name).get("").copied();
        (value("ratelimit_leased_keys"), value("ratelimit_leased_units"))
    };
    // Other tests have leases too. The task that looks for unused leases sets the gauges.
    let found = async {
        while !matches!(gauges(), (Some(keys), Some(units)) if keys >= 1.0 && units >= 1.0) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), found).await.unwrap();
    store.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_adaptive_share_is_a_gauge_of_its_policy() {
    let (_guard, handle) = record(PrometheusBuilder::new());
    let start = |name: &'static str, share: f64| {
        let policy = Policy::new(name, Quota::per_second(1_000));
        Adaptive::new(policy).follow(move || share).start().unwrap()
    };
    let policies = [start("search", 1.0), start("upload", 0.25)];
    let second = Duration::from_secs(1);
    tokio::time::sleep(second).await;
    let first = counted(&handle, "ratelimit_adaptive_share");
    assert_eq!((first.len(), first["policy=search"]), (2, 1.0));
    tokio::time::sleep(second * 10).await;
    let expected = map([("policy=search", 1.0), ("policy=upload", 0.25)]);
    assert_eq!(counted(&handle, "ratelimit_adaptive_share"), expected);
    // A recorder that comes later sees shares that do not change.
    let (_guard, handle) = record(PrometheusBuilder::new());
    tokio::time::sleep(second).await;
    assert_eq!(counted(&handle, "ratelimit_adaptive_share"), expected);
    drop(policies);
}

#[tokio::test]
async fn the_counters_of_a_layers_policies_start_at_zero() {
    let server = RedisServer::start();
    let store = settings().connect(&server.url()).await.unwrap();
    let hour = |name, limit| Policy::new(name, Quota::per_hour(limit));
    let policies = [
        hour("plain", 1),
        hour("shadow", 1).shadow(),
        hour("penalty", 1).penalty(Penalty::manual()).failure_mode(FailureMode::Closed),
        hour("leased", 9).max_lease(2).failure_mode(FailureMode::Open),
        hour("meter", 1).algorithm(LeakyBucket::meter()).failure_mode(FailureMode::Closed),
        hour("queue", 1)
            .algorithm(LeakyBucket::queue(Duration::from_secs(9)))
            .failure_mode(FailureMode::Closed),
    ];
    let (_guard, handle) = record(PrometheusBuilder::new());
    for policy in policies {
        let layer = RateLimitLayer::new(store.clone(), policy, Header::new("x-user"));
        drop(layer.layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) })));
    }
    let in_memory = RateLimitLayer::new(MemoryStore::new(), hour("memory", 1), Header::new("x-user"));
    drop(in_memory.layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) })));
    let scrape = parse(&handle.render());
    let rows = [
        ("plain", "store", &["admitted", "denied"][..]),
        ("plain", "deny_cache", &["denied"]),
        ("plain", "local", &["admitted", "denied"]),
        ("shadow", "store", &["admitted", "shadow_denied"]),
        ("shadow", "deny_cache", &["shadow_denied"]),
        ("shadow", "local", &["admitted", "shadow_denied"]),
        ("penalty", "store", &["admitted", "banned", "denied"]),
        ("penalty", "deny_cache", &["banned", "denied"]),
        ("leased", "store", &["admitted", "denied"]),
        ("leased", "deny_cache", &["denied"]),
        ("leased", "lease", &["admitted"]),
        // A meter never delays.
        ("meter", "store", &["admitted", "denied"]),
        ("meter", "deny_cache", &["denied"]),
        ("queue", "store", &["admitted", "delayed", "denied"]),
        ("queue", "deny_cache", &["denied"]),
        ("", "failure_mode", &["admitted"]),
        ("memory", "store", &["admitted", "denied"]),
    ];
    let expected: BTreeMap<String, f64> = rows
        .into_iter()
        .flat_map(|(policy, source, verdicts)| {
            verdicts
                .iter()
                .map(move |verdict| (format!("policy={policy},source={source},verdict={verdict}"), 0.0))
        })
        .collect();
    assert_eq!(samples(&scrape, "ratelimit_decisions_total"), expected);
    assert_eq!(samples(&scrape, "ratelimit_store_errors_total").len(), 8);
    assert_eq!(samples(&scrape, "ratelimit_rejections_total")["reason=unavailable"], 0.0);
}

#[tokio::test]
async fn the_switches_and_the_errors_of_live_policies_are_gauges() {
    let (_guard, handle) = record(PrometheusBuilder::new());
    let server = RedisServer::start();
    let edit = |words: &[&str]| {
        let _: redis::Value = server.command(words);
    };
    let store = settings().connect(&server.url()).await.unwrap();
    // Other tests may have switches, which are on.
    let switches = || {
        let switches = counted(&handle, "ratelimit_enforcement_switches");
        ["report-only", "off"]
            .map(|position| switches.get(&format!("position={position}")).copied().unwrap_or(0.0))
    };
    let failed = || samples(&parse(&handle.render()), "ratelimit_failed_policy_sources").get("").copied();
    let switch = EnforcementSwitch::new(Enforcement::ReportOnly);
    assert_eq!(switches(), [1.0, 0.0]);
    switch.set(Enforcement::Off);
    switch.clone().set(Enforcement::Off);
    assert_eq!(switches(), [0.0, 1.0]);
    switch.set(Enforcement::On);
    assert_eq!(switches(), [0.0, 0.0]);
    drop(switch);

    let live = LivePolicies::redis(&store, [Policy::new("api", Quota::per_hour(1))]).await.unwrap();
    let live = live.poll_every(Duration::from_millis(20));
    assert_eq!(failed(), Some(0.0));
    let is = async |expected: (Option<f64>, [f64; 2])| {
        assert!(
            support::eventually(async || (failed(), switches()) == expected).await,
            "{}",
            handle.render()
        );
    };
    edit(&["HSET", "rl:policies", "api", "many"]);
    is((Some(1.0), [0.0, 0.0])).await;
    edit(&["HSET", "rl:policies", "@enforcement", "off"]);
    is((Some(1.0), [0.0, 1.0])).await;
    edit(&["HSET", "rl:policies", "api", "2/h"]);
    is((Some(0.0), [0.0, 1.0])).await;
    edit(&["HSET", "rl:policies", "api", "many"]);
    is((Some(1.0), [0.0, 1.0])).await;
    drop(live);
    // The task that follows the hash ends soon after the last handle.
    is((Some(0.0), [0.0, 0.0])).await;
}

/// How many of the recorded shares that `policy` has used are in each bucket, by its upper bound.
fn shares(handle: &PrometheusHandle, policy: &str) -> BTreeMap<String, f64> {
    let scrape = parse(&handle.render());
    let is_of_policy = |sample: &&prometheus_parse::Sample| {
        sample.metric == "ratelimit_used_share" && sample.labels.get("policy") == Some(policy)
    };
    let Some(sample) = scrape.samples.iter().find(is_of_policy) else { return BTreeMap::new() };
    let Value::Histogram(buckets) = &sample.value else { panic!("{sample:?}") };
    let mut below = 0.0;
    let counts = buckets.iter().map(|bucket| {
        (bucket.less_than.to_string(), bucket.count - std::mem::replace(&mut below, bucket.count))
    });
    nonzero(counts.collect())
}

#[tokio::test]
async fn the_share_that_a_key_has_used_is_recorded_after_each_decision_of_a_store() {
    let server = RedisServer::start();
    let redis = settings().manual_clock(ManualClock::new()).connect(&server.url()).await.unwrap();
    let memory = MemoryStore::with_clock(ManualClock::new());
    for (store, limiter) in [("redis", Limiter::new(redis)), ("memory", Limiter::new(memory))] {
        let (_guard, handle) = record(example::prometheus().unwrap());
        let policy = Policy::new("tokens", Quota::per_hour(10)).max_debt(20);
        let key = Key::new("alice");
        let charge = async |units| limiter.check(&policy, &key, units).await.unwrap();
        charge(4).await;
        assert_eq!(shares(&handle, "tokens"), map([("0.5", 1.0)]), "{store}");
        limiter.peek(&policy, &key, 1).await.unwrap();
        let decision = charge(5).await;
        limiter.refund(&decision, 1).await.unwrap();
        assert_eq!(shares(&handle, "tokens"), map([("0.5", 1.0), ("0.9", 1.0)]), "{store}");
        // The settlement of a request that used more: a debt of 4 units.
        limiter.debit(&decision, 6).await.unwrap();
        assert!(charge(1).await.is_denied());
        let expected = map([("0.5", 1.0), ("0.9", 1.0), ("1", 1.0), ("1.5", 1.0)]);
        assert_eq!(shares(&handle, "tokens"), expected, "{store}");
        // The debit has a larger quota, which is not the policy's.
        assert_eq!(counted(&handle, "ratelimit_capacity_units"), map([("policy=tokens", 10.0)]), "{store}");
    }
}

#[tokio::test]
async fn no_share_is_recorded_while_the_store_fails() {
    let (_guard, handle) = record(example::prometheus().unwrap());
    let policy = Policy::new("api", Quota::per_hour(10));
    let limiter = Limiter::new(Fake::new(Down, |_, _, _| fails(ErrorKind::StoreTimeout)));
    let decision = limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
    limiter.debit(&decision, 1).await.unwrap();
    let local = map([("policy=api,source=local,verdict=admitted", 1.0)]);
    assert_eq!(counted(&handle, "ratelimit_decisions_total"), local);
    assert_eq!(shares(&handle, "api"), map([]));
}

#[tokio::test]
async fn thresholds_are_counted_by_their_percent_and_a_layer_shows_them_at_zero() {
    let (_guard, handle) = record(PrometheusBuilder::new());
    let policy =
        Policy::new("plan", Quota::per_hour(2)).algorithm(FixedWindow::anchored()).notify_at([50, 100]);
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let layer = RateLimitLayer::new(limiter.clone(), policy.clone(), Header::new("x-user"));
    drop(layer.layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) })));
    let reached = || samples(&parse(&handle.render()), "ratelimit_thresholds_total");
    assert_eq!(reached(), map([("percent=100,policy=plan", 0.0), ("percent=50,policy=plan", 0.0)]));
    for key in ["alice", "bob"] {
        limiter.check(&policy, &Key::new(key), 1).await.unwrap();
    }
    assert_eq!(reached(), map([("percent=100,policy=plan", 0.0), ("percent=50,policy=plan", 2.0)]));
}

#[tokio::test]
async fn policies_that_are_built_per_request_share_the_series_of_their_name() {
    let (_guard, handle) = record(example::prometheus().unwrap());
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let check = async |limit| {
        let policy = Policy::new("tenant", Quota::per_hour(limit));
        limiter.check(&policy, &Key::new(format!("tenant {limit}")), 1).await.unwrap();
        handle.render().lines().filter(|line| line.contains("tenant")).count()
    };
    let first = check(10).await;
    for limit in 11..100 {
        assert_eq!(check(limit).await, first, "{}", handle.render());
    }
    // The one that was last used for the first time.
    assert_eq!(counted(&handle, "ratelimit_capacity_units"), map([("policy=tenant", 99.0)]));
    assert_eq!(shares(&handle, "tenant").values().sum::<f64>(), 90.0);
}

#[tokio::test]
async fn the_capacity_of_a_layers_policies_is_shown_from_the_start() {
    let (_guard, handle) = record(PrometheusBuilder::new());
    let layer = RateLimitLayer::new(
        MemoryStore::new(),
        Policy::new("api", Quota::per_second(5).burst(20)),
        Header::new("x-user"),
    );
    drop(layer.layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) })));
    assert_eq!(counted(&handle, "ratelimit_capacity_units"), map([("policy=api", 20.0)]));
}

#[tokio::test]
async fn the_capacity_follows_a_live_policy_also_back_to_its_default() {
    let (_guard, handle) = record(PrometheusBuilder::new());
    let server = RedisServer::start();
    let edit = |words: &[&str]| {
        let _: redis::Value = server.command(words);
    };
    let store = settings().connect(&server.url()).await.unwrap();
    let live = LivePolicies::redis(&store, [Policy::new("api", Quota::per_hour(10))]).await.unwrap();
    let live = live.poll_every(Duration::from_millis(20));
    let limiter = Limiter::new(store);
    let becomes = async |capacity: f64| {
        let is_shown = async || {
            limiter.check(&live.policy("api").unwrap(), &Key::new("alice"), 1).await.unwrap();
            counted(&handle, "ratelimit_capacity_units") == map([("policy=api", capacity)])
        };
        assert!(support::eventually(is_shown).await, "{}", handle.render());
    };
    becomes(10.0).await;
    edit(&["HSET", "rl:policies", "api", "25/h"]);
    becomes(25.0).await;
    edit(&["HDEL", "rl:policies", "api"]);
    becomes(10.0).await;
}

#[tokio::test(start_paused = true)]
async fn the_capacity_follows_an_adaptive_policy_also_back_to_its_full_quota() {
    let (_guard, handle) = record(PrometheusBuilder::new());
    let (signal, share) = tokio::sync::watch::channel(1.0);
    let full = Policy::new("search", Quota::per_second(1_000));
    let policy = Adaptive::new(full).follow(move || *share.borrow()).start().unwrap();
    let limiter = Limiter::new(MemoryStore::new());
    for (share, capacity) in [(1.0, 1_000.0), (0.5, 500.0), (1.0, 1_000.0)] {
        signal.send_replace(share);
        tokio::time::sleep(Duration::from_secs(60)).await;
        limiter.check(&policy.policy(), &Key::new("alice"), 1).await.unwrap();
        assert_eq!(counted(&handle, "ratelimit_capacity_units"), map([("policy=search", capacity)]));
    }
}

#[test]
fn the_docs_quote_the_file_of_alerts() {
    let (docs, alerts) =
        (include_str!("../../src/guide/metrics_and_alerts.md"), include_str!("../../ops/alerts.yml"));
    assert!(docs.contains(&format!("```yaml\n{alerts}```\n")));
}

/// A recorder of which each function panics, and the handles that it registers.
struct Panicking(bool);

impl Panicking {
    fn call(&self) {
        assert!(!self.0, "foreign code panics on purpose");
    }
}

impl metrics::CounterFn for Panicking {
    fn increment(&self, _: u64) {
        panic!("foreign code panics on purpose")
    }
    fn absolute(&self, _: u64) {
        panic!("foreign code panics on purpose")
    }
}

impl metrics::GaugeFn for Panicking {
    fn increment(&self, _: f64) {
        panic!("foreign code panics on purpose")
    }
    fn decrement(&self, _: f64) {
        panic!("foreign code panics on purpose")
    }
    fn set(&self, _: f64) {
        panic!("foreign code panics on purpose")
    }
}

impl metrics::HistogramFn for Panicking {
    fn record(&self, _: f64) {
        panic!("foreign code panics on purpose")
    }
}

impl metrics::Recorder for Panicking {
    fn describe_counter(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {
        self.call();
    }
    fn describe_gauge(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {
        self.call();
    }
    fn describe_histogram(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {
        self.call();
    }
    fn register_counter(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        self.call();
        metrics::Counter::from_arc(Arc::new(Self(self.0)))
    }
    fn register_gauge(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        self.call();
        metrics::Gauge::from_arc(Arc::new(Self(self.0)))
    }
    fn register_histogram(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Histogram {
        self.call();
        metrics::Histogram::from_arc(Arc::new(Self(self.0)))
    }
}

/// The recorder, or only its handles.
#[tokio::test]
async fn a_recorder_that_panics_changes_no_answer() {
    let server = RedisServer::start();
    for registers in [true, false] {
        let recorder = Box::leak(Box::new(Panicking(!registers)));
        let _guard = metrics::set_default_local_recorder(recorder);
        for (store, limiter) in support::memory_and_redis(&server).await {
            let policy = Policy::new(if registers { "p" } else { "q" }, Quota::per_day(2)).notify_at([50]);
            let layer = RateLimitLayer::new(limiter.clone(), policy.max_lease(1), Key::new("all"));
            let mut statuses = Vec::new();
            for _ in 0..3 {
                let service = layer.clone().layer(service_fn(|_: Request<String>| async {
                    Ok::<_, Infallible>(Response::new(String::new()))
                }));
                let Ok(response) = service.oneshot(Request::new(String::new())).await;
                statuses.push(response.status().as_u16());
            }
            assert_eq!(statuses, [200, 200, 429], "{store}, {registers}");
            limiter.drain(Duration::from_secs(60)).await.unwrap();
        }
    }
}
