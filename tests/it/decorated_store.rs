//! A store around another one: its `decide` sees every decision, and what the inner store can do in addition works.

use std::{
    panic::catch_unwind,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use http::request::Parts;
use support::{
    InLua, PATIENT, RedisServer, eventually, inner, redis_store, settings, store, stores_with_clock,
};
use tower_ratelimit::{
    Answer, Charge, Decision, Error, ErrorKind, FailureMode, Key, KeyExtractor as _, Limiter, MemoryStore,
    Policy, Quota, RateLimitHeaders, RateLimitLayer, RedisStore, Rule,
    algorithm::{Concurrency, FixedWindow},
    layer::Rules,
    policy::Penalty,
    response::Dialect,
    store::{Action, Store},
};

/// Logs the decisions of a store.
#[derive(Clone)]
struct Logged<S> {
    store: S,
    log: Arc<Mutex<Vec<Action>>>,
}

impl<S: Store> Store for Logged<S> {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        self.log.lock().unwrap().push(action);
        self.store.decide(action, charges)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        self.store.reset(policy, key)
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }
}

fn logged<S>(store: S) -> Logged<S> {
    Logged { store, log: Arc::default() }
}

/// A limiter on a store that others are around.
struct Nested {
    name: String,
    limiter: Limiter,
    logs: Vec<Arc<Mutex<Vec<Action>>>>,
}

impl Nested {
    /// The decisions so far, which each store around the inner one sees.
    fn decisions(&self) -> Vec<Action> {
        let logs: Vec<_> = self.logs.iter().map(|log| log.lock().unwrap().clone()).collect();
        assert!(logs.windows(2).all(|pair| pair[0] == pair[1]), "{}: {logs:?}", self.name);
        logs[0].clone()
    }

    /// A key that no other limiter of the test uses.
    fn key(&self) -> Key {
        Key::new(&self.name)
    }
}

/// `store` inside one store and inside two.
fn nestings(name: &str, store: &(impl Store + Clone)) -> [Nested; 2] {
    let once = logged(store.clone());
    let twice = logged(logged(store.clone()));
    let logs = vec![twice.log.clone(), twice.store.log.clone()];
    [
        Nested { name: format!("{name}, once"), logs: vec![once.log.clone()], limiter: Limiter::new(once) },
        Nested { name: format!("{name}, twice"), logs, limiter: Limiter::new(twice) },
    ]
}

/// Nestings of both stores.
async fn all(server: &RedisServer) -> impl Iterator<Item = Nested> {
    let redis = nestings("redis", &store(server).await);
    nestings("memory", &MemoryStore::new()).into_iter().chain(redis)
}

/// Its limit holds for the whole test.
fn window(name: &str, limit: u64) -> Policy {
    Policy::new(name, Quota::per_day(limit)).algorithm(FixedWindow::anchored())
}

async fn admitted(limiter: &Limiter, policy: &Policy, key: &Key, requests: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += usize::from(limiter.check(policy, key, 1).await.unwrap().is_admitted());
    }
    admitted
}

/// A store that makes no decision waits for this time.
async fn impatient(server: &RedisServer) -> RedisStore {
    settings().deadline(Duration::from_millis(300)).connect(&server.url()).await.unwrap()
}

#[tokio::test]
async fn each_decision_of_a_limiter_is_seen() {
    use Action::{Ban, Charge as Charged, ChargeUpTo, Debit, Peek, Refund};
    let server = RedisServer::start();
    let policy = window("api", 100).penalty(Penalty::manual());
    for nested in all(&server).await {
        let (limiter, operator, key) = (&nested.limiter, nested.limiter.operator(), nested.key());
        let made = limiter.check(&policy, &key, 10).await.unwrap();
        let both = [Charge::new(&policy, &key, 1), Charge::new(&window("other", 9), &key, 1)];
        limiter.check_all(&both).await.unwrap();
        limiter.check_up_to(&policy, &key, 1).await.unwrap();
        limiter.debit(&made, 5).await.unwrap();
        limiter.refund(&made, 2).await.unwrap();
        operator.refund_latest(&policy, &key, 1).await.unwrap();
        operator.ban(&policy, &key, PATIENT).await.unwrap();
        assert!(limiter.peek(&policy, &key, 1).await.unwrap().banned_for().is_some(), "{}", nested.name);
        operator.unban(&policy, &key).await.unwrap();
        let expected = [Charged, Charged, ChargeUpTo, Debit, Refund, Refund, Ban, Peek, Ban];
        assert_eq!(nested.decisions(), expected, "{}", nested.name);
        operator.reset(&policy, &key).await.unwrap();
        assert_eq!(limiter.peek(&policy, &key, 0).await.unwrap().remaining(), Some(100), "{}", nested.name);
    }
}

#[tokio::test]
async fn renewals_and_the_release_of_a_permit_are_seen() {
    let server = RedisServer::start();
    let policy = Policy::new("jobs", Quota::per_second(1)).algorithm(Concurrency::new());
    for nested in all(&server).await {
        let held = nested.limiter.check(&policy, &nested.key(), 1).await.unwrap();
        let renewed = async || nested.decisions().contains(&Action::Renew);
        assert!(eventually(renewed).await, "{}", nested.name);
        drop(held);
        let released = async || nested.decisions().contains(&Action::Refund);
        assert!(eventually(released).await, "{}", nested.name);
    }
}

#[tokio::test]
async fn decisions_of_a_lease_are_seen_and_a_drain_returns_its_units() {
    let (_server, store) = redis_store().await;
    let policy = window("hot", 1_000_000_000).max_lease(1_000);
    for nested in nestings("redis", &store) {
        let mut requests = 0;
        while store.lease_status().units == 0 {
            nested.limiter.check(&policy, &nested.key(), 1).await.unwrap();
            requests += 1;
        }
        assert_eq!(nested.decisions(), vec![Action::Charge; requests]);
        nested.limiter.drain(PATIENT).await.unwrap();
        assert_eq!(store.lease_status().units, 0, "{}", nested.name);
    }
}

#[tokio::test]
async fn a_client_over_its_limit_causes_no_lookup() {
    let server = RedisServer::start();
    for nested in all(&server).await {
        let lookups = Arc::new(AtomicUsize::default());
        let (key, counted) = (nested.key(), lookups.clone());
        let looked_up = move |parts: &Parts| {
            let (answer, counted) = (key.extract(parts), counted.clone());
            Answer::pending(async move {
                counted.fetch_add(1, Relaxed);
                answer.await
            })
        };
        let rules = Rules::new()
            .always(Rule::new(window("client", 1), nested.key()))
            .always(Rule::new(window("tenant", 9), looked_up));
        let layer = RateLimitLayer::with_rules(nested.limiter.clone(), rules);
        // A Redis store knows of a denial once it has made it.
        let statuses = inner::statuses(&layer, [(); 3].map(|()| inner::get())).await;
        assert_eq!(statuses, [200, 429, 429], "{}", nested.name);
        let before = (lookups.load(Relaxed), nested.decisions());
        for _ in 0..3 {
            assert_eq!(inner::ask(&layer, inner::get()).await.status(), 429, "{}", nested.name);
        }
        assert_eq!((lookups.load(Relaxed), nested.decisions()), before, "{}", nested.name);
    }
}

#[tokio::test]
async fn limiters_on_one_store_share_what_they_count_in_an_outage() {
    let mut server = RedisServer::start();
    let policy = window("api", 8);
    let key = Key::new("alice");
    let all = nestings("redis", &impatient(&server).await);
    let _ = admitted(&all[0].limiter, &policy, &Key::new("bob"), 1).await;
    server.kill();
    let mut sum = 0;
    for nested in &all {
        sum += admitted(&nested.limiter, &policy, &key, 5).await;
    }
    assert_eq!(sum, 8);
    server.restart();
    // What the outage admitted is charged to the store by a decision that the stores around it see.
    for nested in &all {
        let bob = Key::new("bob");
        let is_back = async || {
            nested.limiter.peek(&policy, &bob, 1).await.unwrap().failure().is_none()
                && all.iter().any(|nested| nested.decisions().contains(&Action::ChargeUpTo))
        };
        assert!(eventually(is_back).await, "{}", nested.name);
    }
}

#[tokio::test]
async fn the_limit_of_an_outage_is_divided_by_the_instances() {
    let mut server = RedisServer::start();
    // Holds what three other instances hold.
    let announcements = Policy::new("%instances", Quota::new(100_000, Duration::from_secs(15)));
    let announcements = announcements.algorithm(Concurrency::new());
    let others = Limiter::new(store(&server).await);
    let _held = others.check(&announcements, &Key::new("%instances"), 3).await.unwrap();
    let store = impatient(&server).await;
    assert_eq!(store.instances(), Some(3));
    let policy = window("api", 9).failure_mode(FailureMode::Local { instances: 0 });
    let nestings = nestings("redis", &store);
    server.kill();
    for nested in nestings {
        assert_eq!(admitted(&nested.limiter, &policy, &nested.key(), 20).await, 3, "{}", nested.name);
    }
}

#[tokio::test]
async fn operators_see_the_names_and_the_bans_of_the_inner_store() {
    let server = RedisServer::start();
    let policy = window("api", 9).penalty(Penalty::manual());
    for nested in all(&server).await {
        let (limiter, key) = (&nested.limiter, nested.key());
        let name = limiter.operator().stored_name(&policy, &key);
        let expected = format!("rl:api:fixed-window:{{{}}}", key.as_str());
        let expected = nested.name.starts_with("redis").then_some(expected);
        assert_eq!(name, expected, "{}", nested.name);

        limiter.operator().ban(&policy, &key, PATIENT).await.unwrap();
        let list = limiter.operator().bans(&policy).await.unwrap();
        assert!(list.bans.iter().any(|(banned, _)| *banned == key), "{}: {list:?}", nested.name);
        assert_eq!(nested.decisions().last(), Some(&Action::Peek), "{}", nested.name);
    }
}

#[tokio::test]
async fn an_algorithm_that_the_inner_store_does_not_support_is_rejected_when_a_layer_is_built() {
    let server = RedisServer::start();
    let [one, other] = ["return 1", "return 2"]
        .map(|lua| Policy::new("reports", Quota::per_hour(5)).algorithm(InLua::new("in-lua", lua)));
    for nested in all(&server).await {
        let (name, limiter) = (&nested.name, &nested.limiter);
        // Redis knows an algorithm by its name.
        assert_eq!(limiter.supports(&one).is_ok(), name.starts_with("redis"), "{name}");
        assert_eq!(limiter.supports(&other).unwrap_err().kind(), ErrorKind::InvalidConfig, "{name}");
        let build = || drop(RateLimitLayer::new(limiter.clone(), other.clone(), Key::new("all")));
        assert!(catch_unwind(std::panic::AssertUnwindSafe(build)).is_err(), "{name}");
    }
}

#[tokio::test]
async fn the_manual_clock_of_the_inner_store_sets_the_time_in_headers() {
    let (_server, clock, redis, memory) = stores_with_clock().await;
    let reset = (clock.now() + Duration::from_secs(86_400)).as_secs().to_string();
    for nested in nestings("memory", &memory).into_iter().chain(nestings("redis", &redis)) {
        let layer = RateLimitLayer::new(nested.limiter.clone(), window("api", 9), nested.key())
            .headers(RateLimitHeaders::new(Dialect::LegacyEpoch));
        let response = inner::ask(&layer, inner::get()).await;
        assert_eq!(response.headers()["x-ratelimit-reset"], reset.as_str(), "{}", nested.name);
    }
}

/// Fails while `fails` is set, although the inner store does not.
#[derive(Clone)]
struct Failing<S> {
    store: S,
    fails: Arc<AtomicBool>,
}

impl<S: Store> Store for Failing<S> {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        if self.fails.load(Relaxed) {
            return Answer::ready(Err(Error::new(ErrorKind::StoreUnreachable, "a failure of the test")));
        }
        self.store.decide(action, charges)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        self.store.reset(policy, key)
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }
}

async fn fails_and_returns<S: Store + Clone>(name: &str, store: S) {
    let fails = Arc::new(AtomicBool::new(true));
    for nested in nestings(name, &Failing { store, fails: fails.clone() }) {
        let (limiter, key) = (&nested.limiter, nested.key());
        let closed = window("closed", 2).failure_mode(FailureMode::Closed);
        let open = window("open", 2).failure_mode(FailureMode::Open);
        let local = window("local", 4).failure_mode(FailureMode::Local { instances: 2 });
        fails.store(true, Relaxed);
        let error = limiter.check(&closed, &key, 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreUnreachable, "{}", nested.name);
        assert_eq!(admitted(limiter, &open, &key, 5).await, 5, "{}", nested.name);
        assert_eq!(admitted(limiter, &local, &key, 5).await, 2, "{}", nested.name);
        fails.store(false, Relaxed);
        assert!(limiter.check(&closed, &key, 1).await.unwrap().is_admitted());
        limiter.drain(PATIENT).await.unwrap();
        assert!(nested.decisions().contains(&Action::ChargeUpTo), "{}", nested.name);
        let remaining = limiter.peek(&local, &key, 0).await.unwrap().remaining();
        assert_eq!(remaining, Some(2), "{}: the outage is charged", nested.name);
    }
}

#[tokio::test]
async fn a_store_around_another_one_may_fail_and_the_failure_modes_apply() {
    let server = RedisServer::start();
    fails_and_returns("memory", MemoryStore::new()).await;
    fails_and_returns("redis", store(&server).await).await;
}
