//! Cached lookups: one for all who wait, old values while lookups fail or hang, and bounded memory.

use std::{
    convert::Infallible,
    fmt, io,
    ops::RangeFrom,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, future::join_all};
use http::{Request, request::Parts};
use support::{
    Lines, PATIENT, RedisServer, current_thread, eventually,
    inner::{ask, get},
    store,
};
use tokio::{
    sync::Semaphore,
    task::{JoinSet, yield_now},
    time::{Instant, advance, sleep},
};
use tower_ratelimit::{
    Error, ErrorKind, Header, Key, KeyExtractor as _, Limiter, MemoryStore, Policy, PolicySource, Quota,
    RateLimitLayer, Rule,
};
use tower_ratelimit_extra::lookup::Lookup;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// How a database behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    Answers,
    Fails,
    Hangs,
    Panics,
    Forgot,
}

/// A database whose values are the number of the query.
#[derive(Clone)]
struct Database {
    mood: Arc<Mutex<Mood>>,
    queries: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connection to db.internal lost")
    }
}

impl std::error::Error for Broken {}

impl Database {
    fn new() -> Self {
        Self { mood: Arc::new(Mutex::new(Mood::Answers)), queries: Arc::default() }
    }

    fn is(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn queries(&self) -> usize {
        self.queries.load(Ordering::SeqCst)
    }

    async fn query(self) -> Result<usize, Box<dyn std::error::Error + Send + Sync>> {
        let query = self.queries.fetch_add(1, Ordering::SeqCst) + 1;
        yield_now().await;
        let mood = *self.mood.lock().unwrap();
        match mood {
            Mood::Answers => Ok(query),
            Mood::Fails => Err(Broken.into()),
            Mood::Hangs => std::future::pending().await,
            Mood::Panics => panic!("a bug of the user's"),
            Mood::Forgot => Err(Error::new(ErrorKind::UnknownIdentity, "no such account").into()),
        }
    }

    fn lookup(&self) -> Lookup<String, usize> {
        let database = self.clone();
        Lookup::new(move |_: String| database.clone().query())
    }
}

/// A database, and a lookup in which "a" has the value 1 for ten seconds.
async fn looked_up() -> (Database, Lookup<String, usize>) {
    let database = Database::new();
    let lookup = database.lookup().ttl(seconds(10));
    assert_eq!(lookup.get("a").await.unwrap(), 1);
    (database, lookup)
}

/// Lets tasks in the background run. The clock is paused, and stays.
async fn settle() {
    for _ in 0..50 {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_is_looked_up_once_and_ready_until_its_ttl() {
    let (database, lookup) = looked_up().await;
    for _ in 0..10 {
        assert_eq!(lookup.get("a").now_or_never().unwrap().unwrap(), 1);
        advance(Duration::from_millis(900)).await;
    }
    settle().await;
    assert_eq!(database.queries(), 1);
    assert_eq!(lookup.get("b").await.unwrap(), 2);
    // Its clones share the values.
    assert_eq!(lookup.clone().get(&String::from("b")).now_or_never().unwrap().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn after_the_ttl_the_old_value_serves_while_one_lookup_runs() {
    let (database, lookup) = looked_up().await;
    advance(seconds(10)).await;
    for _ in 0..100 {
        assert_eq!(lookup.get("a").now_or_never().unwrap().unwrap(), 1);
    }
    settle().await;
    assert_eq!(database.queries(), 2);
    assert_eq!(lookup.get("a").now_or_never().unwrap().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_old_value_serves_while_lookups_fail_or_hang_and_no_longer_than_it_may() {
    for mood in [Mood::Fails, Mood::Hangs, Mood::Panics] {
        let database = Database::new();
        let lookup = database.lookup().ttl(seconds(10)).stale_for(seconds(100)).timeout(seconds(2));
        assert_eq!(lookup.get("a").await.unwrap(), 1);
        database.is(mood);
        let started = Instant::now();
        while started.elapsed() < seconds(109) {
            assert_eq!(lookup.get("a").now_or_never().unwrap().unwrap(), 1, "{mood:?}");
            settle().await;
            advance(Duration::from_millis(500)).await;
        }
        settle().await;
        let queries = database.queries();
        assert!((20..=200).contains(&queries), "{queries} queries of a database that {mood:?}");

        advance(seconds(1)).await;
        let error = lookup.get("a").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IdentityUnavailable, "{mood:?}");

        database.is(Mood::Answers);
        let recovered = lookup.get("a").await.unwrap();
        assert_eq!(recovered, database.queries(), "{mood:?}");
        assert_eq!(lookup.get("a").now_or_never().unwrap().unwrap(), recovered, "{mood:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_background_lookup_is_tried_again_after_a_second() {
    let (database, lookup) = looked_up().await;
    database.is(Mood::Fails);
    advance(seconds(10)).await;
    for (name, wait, queries) in
        [("expired", 0, 2), ("immediately", 0, 2), ("soon", 900, 2), ("after a second", 100, 3)]
    {
        advance(Duration::from_millis(wait)).await;
        assert_eq!(lookup.get("a").now_or_never().unwrap().unwrap(), 1, "{name}");
        settle().await;
        assert_eq!(database.queries(), queries, "{name}");
    }
    database.is(Mood::Answers);
    advance(seconds(1)).await;
    assert_eq!(lookup.get("a").now_or_never().unwrap().unwrap(), 1);
    settle().await;
    assert_eq!(lookup.get("a").now_or_never().unwrap().unwrap(), 4);
}

#[tokio::test(start_paused = true)]
async fn after_a_failure_the_next_try_is_a_second_later() {
    for mood in [Mood::Fails, Mood::Panics] {
        let (database, lookup) = looked_up().await;
        database.is(mood);
        advance(seconds(10)).await;
        for expected in [2, 3] {
            for _ in 0..100 {
                assert_eq!(lookup.get("a").now_or_never().unwrap().unwrap(), 1, "{mood:?}");
                settle().await;
                advance(Duration::from_millis(1)).await;
            }
            assert_eq!(database.queries(), expected, "{mood:?}");
            advance(seconds(1)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_an_old_value_a_failure_is_an_error_that_is_not_cached() {
    let started = Instant::now();
    let rows = [
        (Mood::Fails, "the lookup failed", Some("connection to db.internal lost"), seconds(0), 1),
        (Mood::Hangs, "the lookup took longer than 1s: see `Lookup::timeout`", None, seconds(1), 1),
        (Mood::Panics, "the lookup panicked", None, seconds(0), 1),
    ];
    for (mood, message, source, wait, tries) in rows {
        let database = Database::new();
        let lookup = database.lookup();
        database.is(mood);
        let before = started.elapsed();
        for asked in 1..=2 {
            let error = lookup.get("a").await.unwrap_err();
            assert_eq!((error.kind(), &*error.to_string()), (ErrorKind::IdentityUnavailable, message));
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            assert_eq!(cause.as_deref(), source, "{mood:?}");
            assert_eq!(database.queries(), asked * tries, "{mood:?}");
        }
        assert_eq!(started.elapsed() - before, wait * 2, "{mood:?}");
        database.is(Mood::Answers);
        assert!(lookup.get("a").await.is_ok(), "{mood:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_is_the_clients_keeps_its_kind_and_ends_the_old_value() {
    let (database, lookup) = looked_up().await;
    database.is(Mood::Forgot);
    advance(seconds(10)).await;
    assert_eq!(lookup.get("a").await.unwrap(), 1);
    settle().await;
    assert_eq!(lookup.get("a").await.unwrap_err().kind(), ErrorKind::UnknownIdentity);
}

#[tokio::test(start_paused = true)]
async fn a_key_without_a_value_is_looked_up_once_until_the_ttl() {
    let database = Database::new();
    let lookup = database.lookup().ttl(seconds(10));
    database.is(Mood::Forgot);
    for _ in 0..5 {
        assert_eq!(lookup.get("a").await.unwrap_err().kind(), ErrorKind::UnknownIdentity);
    }
    assert_eq!(database.queries(), 1);
    // The account is created. It is found after the `ttl`.
    database.is(Mood::Answers);
    advance(Duration::from_millis(9_999)).await;
    assert_eq!(lookup.get("a").await.unwrap_err().to_string(), "no such account");
    advance(Duration::from_millis(1)).await;
    assert_eq!(lookup.get("a").await.unwrap(), 2);
    assert_eq!(lookup.get("a").now_or_never().unwrap().unwrap(), 2);

    let uncached = database.lookup().misses(0);
    database.is(Mood::Forgot);
    for asked in 3..6 {
        assert!(uncached.get("a").await.is_err());
        assert_eq!(database.queries(), asked);
    }
}

#[tokio::test]
async fn keys_without_a_value_are_bounded_and_displace_no_value() {
    const MISSES: usize = 100;
    let alive = Arc::new(());
    let queries = Arc::new(AtomicUsize::new(0));
    #[derive(Debug)]
    struct Held(#[expect(dead_code, reason = "it counts how often it is held")] Arc<()>);
    impl fmt::Display for Held {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("held")
        }
    }
    impl std::error::Error for Held {}
    let lookup = Lookup::new({
        let (alive, queries) = (alive.clone(), queries.clone());
        move |key: u64| {
            queries.fetch_add(1, Ordering::SeqCst);
            let held = Held(alive.clone());
            async move {
                let unknown = Error::new(ErrorKind::UnknownIdentity, "no such account").with_source(held);
                if key < 10 { Ok(key) } else { Err(unknown) }
            }
        }
    })
    .capacity(10)
    .misses(MISSES);
    for key in 0..10 {
        assert_eq!(lookup.get(&key).await.unwrap(), key);
    }
    for key in 10..20_000 {
        assert!(lookup.get(&key).await.is_err());
    }
    let is_bounded = async |key| {
        assert!(lookup.get(&key).await.is_err());
        Arc::strong_count(&alive) < MISSES + 1_000
    };
    assert!(becomes_bounded(20_000.., is_bounded).await, "{} misses together", Arc::strong_count(&alive));
    let before = queries.load(Ordering::SeqCst);
    for key in 0..10 {
        assert_eq!(lookup.get(&key).await.unwrap(), key);
    }
    assert_eq!(queries.load(Ordering::SeqCst), before, "a value was looked up again");
}

/// So a layer that knows that another rule denies the request causes no lookup.
#[tokio::test(start_paused = true)]
async fn a_lookup_that_is_not_awaited_does_not_start() {
    let database = Database::new();
    drop(database.lookup().get("a"));
    settle().await;
    assert_eq!(database.queries(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_says_none_is_cached() {
    let queries = Arc::new(AtomicUsize::new(0));
    let lookup = Lookup::new({
        let queries = queries.clone();
        move |id: u64| {
            queries.fetch_add(1, Ordering::SeqCst);
            async move { Ok::<_, Infallible>((id == 7).then_some("ann")) }
        }
    });
    for _ in 0..3 {
        assert_eq!(lookup.get(&8).await.unwrap(), None);
        assert_eq!(lookup.get(&7).await.unwrap(), Some("ann"));
    }
    assert_eq!(queries.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn extreme_settings_hold_what_they_say() {
    type Row = (&'static str, fn(Lookup<String, usize>) -> Lookup<String, usize>, [usize; 3]);
    let rows: [Row; 6] = [
        ("no ttl, nothing stale", |lookup| lookup.ttl(Duration::ZERO).stale_for(Duration::ZERO), [1, 2, 3]),
        ("no ttl, stale", |lookup| lookup.ttl(Duration::ZERO), [1, 1, 2]),
        ("nothing stale", |lookup| lookup.stale_for(Duration::ZERO), [1, 1, 2]),
        (
            "forever",
            |lookup| lookup.ttl(Duration::MAX).stale_for(Duration::MAX).timeout(Duration::MAX),
            [1, 1, 1],
        ),
        ("none kept", |lookup| lookup.capacity(0), [1, 2, 3]),
        ("all kept", |lookup| lookup.capacity(usize::MAX), [1, 1, 1]),
    ];
    for (name, set, expected) in rows {
        let lookup = set(Database::new().lookup());
        let mut seen = [0; 3];
        for (i, wait) in [0, 0, 60].into_iter().enumerate() {
            advance(seconds(wait)).await;
            seen[i] = lookup.get("a").await.unwrap();
            settle().await;
        }
        assert_eq!(seen, expected, "{name}");
    }
}

#[tokio::test]
async fn sixty_four_concurrent_requests_cause_one_lookup_on_both_stores() {
    let server = RedisServer::start();
    for limiter in [Limiter::new(MemoryStore::new()), Limiter::new(store(&server).await)] {
        let (queries, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let accounts = Lookup::new({
            let (queries, gate) = (queries.clone(), gate.clone());
            move |api_key: String| {
                let (queries, gate) = (queries.clone(), gate.clone());
                async move {
                    queries.fetch_add(1, Ordering::SeqCst);
                    gate.acquire().await.unwrap().forget();
                    Ok::<_, io::Error>((
                        format!("account of {api_key}"),
                        Policy::new("free", Quota::per_day(40)),
                    ))
                }
            }
        })
        .timeout(seconds(60));
        let client = Header::new("x-api-key").map({
            let accounts = accounts.clone();
            move |api_key| accounts.get(api_key).map(|(id, _)| Key::new(id))
        });
        let tier = PolicySource::per_request(move |request: &Parts, _: &Key| {
            accounts.get(request.headers["x-api-key"].to_str().unwrap()).map(|(_, policy)| policy)
        });
        let layer = RateLimitLayer::new(limiter, tier, client);
        let requests = (0..64).map(|_| {
            let layer = layer.clone();
            tokio::spawn(async move {
                let request = Request::get("/").header("x-api-key", "k1").body(String::new()).unwrap();
                ask(&layer, request).await.status().as_u16()
            })
        });
        let requests: Vec<_> = requests.collect();
        assert!(eventually(async || queries.load(Ordering::SeqCst) == 1).await);
        gate.add_permits(64);
        let statuses: Vec<_> = join_all(requests).await.into_iter().map(Result::unwrap).collect();
        let of = |status| statuses.iter().filter(|one| **one == status).count();
        assert_eq!((of(200), of(429)), (40, 24));
        assert_eq!(queries.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn callers_that_give_up_do_not_disturb_the_others() {
    let database = Database::new();
    let slow = Lookup::new({
        let database = database.clone();
        move |_: String| {
            let database = database.clone();
            async move {
                sleep(Duration::from_millis(500)).await;
                database.query().await
            }
        }
    });
    let first = slow.get("a");
    let second = tokio::spawn(slow.get("a"));
    let third = tokio::spawn(slow.get("a"));
    let mut fourth = Box::pin(slow.get("a"));
    assert!((&mut fourth).now_or_never().is_none());
    drop(first);
    second.abort();
    drop(fourth);
    assert_eq!(third.await.unwrap().unwrap(), 1);
    // A lookup that all of them left was not for nothing.
    let mut left = slow.get("b");
    assert!((&mut left).now_or_never().is_none());
    drop(left);
    sleep(Duration::from_millis(501)).await;
    settle().await;
    assert_eq!(slow.get("b").now_or_never().unwrap().unwrap(), 2);
    assert_eq!(database.queries(), 2);
}

/// Looks up further keys until `is_bounded` returns true. The cache drops values in batches of some hundred, and only while no
/// thread of the process is inside of any such cache: on a busy machine, the thread of another test may have been stopped there.
async fn becomes_bounded(mut keys: RangeFrom<u64>, mut is_bounded: impl AsyncFnMut(u64) -> bool) -> bool {
    eventually(async || is_bounded(keys.next().unwrap()).await).await
}

#[tokio::test]
async fn a_flood_of_unknown_keys_stays_bounded_and_leaves_busy_clients_their_values() {
    const CAPACITY: usize = 100;
    let alive = Arc::new(());
    let queries = Arc::new(Mutex::new(Vec::new()));
    let lookup = Lookup::new({
        let (alive, queries) = (alive.clone(), queries.clone());
        move |key: String| {
            queries.lock().unwrap().push(key);
            let value = alive.clone();
            async move { Ok::<_, Infallible>(value) }
        }
    })
    .capacity(CAPACITY)
    .ttl(Duration::from_secs(3_600));
    let is_bounded = async |key: u64| {
        lookup.get("busy").await.unwrap();
        lookup.get(&format!("unknown {key}")).await.unwrap();
        Arc::strong_count(&alive) < CAPACITY + 1_000
    };
    for key in 0..20_000 {
        is_bounded(key).await;
    }
    assert!(becomes_bounded(20_000.., is_bounded).await, "{} values together", Arc::strong_count(&alive));
    let busy = queries.lock().unwrap().iter().filter(|key| *key == "busy").count();
    assert_eq!(busy, 1, "the busy client was looked up again");
}

#[tokio::test(start_paused = true)]
async fn lookups_that_hang_are_bounded_too() {
    let database = Database::new();
    database.is(Mood::Hangs);
    let lookup = database.lookup().capacity(3);
    let waiting: Vec<_> = (0..3).map(|i| tokio::spawn(lookup.get(&format!("{i}")))).collect();
    // A lookup starts when its answer is awaited.
    settle().await;
    let error = lookup.get("one too many").now_or_never().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "too many concurrent lookups: see `Lookup::capacity`");
    assert_eq!(error.kind(), ErrorKind::IdentityUnavailable);
    // Those that run can be joined.
    assert!(lookup.get("1").now_or_never().is_none());
    for waiting in waiting {
        assert!(waiting.await.unwrap().is_err());
    }
    database.is(Mood::Answers);
    assert!(lookup.get("one too many").await.is_ok());
}

#[test]
fn a_runtime_that_ends_does_not_fail_the_callers_of_another() {
    let database = Database::new();
    database.is(Mood::Hangs);
    let lookup = database.lookup().timeout(seconds(60));
    let runtime = || current_thread();
    let (ends, stays) = (runtime(), runtime());
    let [waiting] = ends.block_on(async {
        let mut waiting = lookup.get("a");
        assert!((&mut waiting).now_or_never().is_none());
        settle().await;
        [waiting]
    });
    assert_eq!(database.queries(), 1);
    database.is(Mood::Answers);
    drop(ends);
    assert_eq!(stays.block_on(waiting).unwrap(), 2);
}

#[test]
fn without_a_runtime_the_error_says_so() {
    let lookup = Database::new().lookup();
    let error = lookup.get("a").now_or_never().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingSetup);
    // It is enough that the answer is awaited in one.
    let runtime = current_thread();
    assert_eq!(runtime.block_on(lookup.get("a")).unwrap(), 1);
    assert_eq!(error.to_string(), "a `Lookup` needs a Tokio runtime: await it inside of one");
}

#[tokio::test(start_paused = true)]
async fn a_request_falls_under_the_policy_for_failures_while_the_database_hangs() {
    let database = Database::new();
    let tiers = |database: &Database| {
        let lookup = database.lookup().ttl(seconds(10)).stale_for(Duration::ZERO);
        PolicySource::per_request(move |_: &Parts, _: &Key| {
            lookup.get("a").map(|_| Policy::new("paid", Quota::per_day(9)))
        })
    };
    let layer = |source| RateLimitLayer::new(MemoryStore::new(), source, |_: &Parts| "all");
    let with = layer(tiers(&database).or_on_error(Policy::new("fallback", Quota::per_day(9))));
    let without = layer(tiers(&database));
    let policy_of = async |layer: &RateLimitLayer| {
        let response = ask(layer, Request::new(String::new())).await;
        let line = response.headers().get("ratelimit-policy").map(|line| line.to_str().unwrap().to_owned());
        (response.status().as_u16(), line.and_then(|line| line.split('"').nth(1).map(String::from)))
    };
    for (name, mood, fallback, bare) in [
        ("up", Mood::Answers, (200, Some("paid")), (200, Some("paid"))),
        ("hangs", Mood::Hangs, (200, Some("fallback")), (500, None)),
        ("fails", Mood::Fails, (200, Some("fallback")), (500, None)),
        ("up again", Mood::Answers, (200, Some("paid")), (200, Some("paid"))),
    ] {
        database.is(mood);
        advance(seconds(20)).await;
        let seen = [policy_of(&with).await, policy_of(&without).await];
        let expected = [fallback, bare].map(|(status, policy)| (status, policy.map(String::from)));
        assert_eq!(seen, expected, "{name}");
    }
}

#[test]
fn debug_shows_neither_keys_nor_values() {
    let lookup = Lookup::new(|secret: String| async move { Ok::<_, Infallible>(secret) }).ttl(seconds(5));
    let runtime = current_thread();
    runtime.block_on(lookup.get("secret")).unwrap();
    let shown = format!("{lookup:?}");
    assert!(shown.contains("ttl: 5s") && !shown.contains("secret"), "{shown}");
}

#[tokio::test]
async fn an_outage_of_a_lookup_and_its_policy_source_is_one_line_each_without_the_cause() {
    let accounts = Lookup::new(|_: String| async { Err::<Policy, _>("no row for secret-alice") });
    let tiers = PolicySource::per_request(move |_: &Parts, _: &Key| accounts.get("secret-alice"))
        .or_on_error(Policy::new("fallback", Quota::per_day(9)));
    // The second rule limits what the lookup cannot tell apart, so there is no warning of that.
    let rest = Rule::new(Policy::new("rest", Quota::per_day(9)), Key::new("all"));
    let layer = RateLimitLayer::new(MemoryStore::new(), tiers, Key::new("all")).rule(rest);
    let (lines, _guard) = Lines::listen();
    for _ in 0..5 {
        assert_eq!(ask(&layer, get()).await.status(), 200);
    }
    for line in ["outage of a lookup;", "outage of a policy source;"] {
        assert_eq!(lines.with(line), 1, "{line}: {}", lines.text());
    }
    assert_eq!(lines.with("WARN"), 2, "{}", lines.text());
    assert!(!lines.text().contains("secret"), "{}", lines.text());
}

/// A value whose clones panic, and a lookup that panics.
#[tokio::test]
async fn a_lookup_that_panics_fails_the_requests_that_wait_for_its_key() {
    struct Value(bool);
    impl Clone for Value {
        fn clone(&self) -> Self {
            assert!(!self.0, "foreign code panics on purpose");
            Self(false)
        }
    }
    let lookup = Lookup::new(|key: String| async move {
        yield_now().await;
        assert!(key != "panics", "foreign code panics on purpose");
        Ok::<_, Error>(Value(key == "clone"))
    });
    for key in ["panics", "clone", "panics"] {
        let mut waiting = JoinSet::new();
        for _ in 0..3 {
            let lookup = lookup.clone();
            waiting.spawn(async move { lookup.get(key).await.map(|_| ()) });
        }
        while let Some(waited) = waiting.join_next().await {
            assert!(waited.is_err() || waited.unwrap().is_err(), "{key}");
        }
        assert!(lookup.get("well").await.is_ok(), "{key}");
    }
}

#[test]
fn a_lookup_of_a_runtime_that_is_not_driven_delays_none_of_another() {
    let lookup = Lookup::new(|key: String| async move {
        yield_now().await;
        Ok::<_, Infallible>(key.len())
    });
    let (idle, driven) = (current_thread(), current_thread());
    let mut stuck = lookup.get("key");
    // Its runtime runs no further.
    idle.block_on(async { assert!((&mut stuck).now_or_never().is_none()) });
    let found = driven.block_on(async { tokio::time::timeout(PATIENT, lookup.get("key")).await });
    assert_eq!(found.expect("it waits for the other runtime").unwrap(), 3);
}
