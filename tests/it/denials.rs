//! The log of denials.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use support::{
    Down, RedisServer, day,
    inner::{ask, get},
    on_redis, settings,
};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_ratelimit::{
    Charge, FailureMode, Header, Key, KeyExtractor as _, Limiter, MemoryStore, Policy, PolicySource, Quota,
    RateLimitLayer, Rule,
    decision::{DenialLog, RecentDenials},
    keyed::KeyedRateLimitLayer,
    policy::{Enforcement, Penalty},
    store::ManualClock,
};

/// The policy, the key and the number of denials of each recent entry, by policy and key.
fn entries(log: &DenialLog) -> Vec<(String, String, u64)> {
    let mut entries: Vec<_> = log
        .recent()
        .iter()
        .map(|entry| (entry.policy.name().to_owned(), entry.key.as_str().to_owned(), entry.denials))
        .collect();
    entries.sort();
    entries
}

fn entry(policy: &str, key: &str, denials: u64) -> (String, String, u64) {
    (policy.to_owned(), key.to_owned(), denials)
}

#[tokio::test]
async fn denials_of_layers_handlers_and_jobs_are_recorded_on_either_store() {
    let (_server, redis) = on_redis().await;
    for (name, limiter) in [("memory", Limiter::new(MemoryStore::new())), ("redis", redis)] {
        let log = limiter.record_denials();
        let before = SystemTime::now();
        let layer = RateLimitLayer::new(limiter.clone(), day("http", 1), Key::new("alice"));
        for status in [200, 429, 429] {
            assert_eq!(ask(&layer, get()).await.status(), status, "{name}");
        }
        let keyed = KeyedRateLimitLayer::new(limiter.clone(), day("jobs", 1), |key: &&'static str| *key);
        let service = keyed.layer(service_fn(async |_: &'static str| Ok::<_, std::convert::Infallible>(())));
        assert!(service.clone().oneshot("bob").await.is_ok() && service.oneshot("bob").await.is_err());
        // Of two policies, one denies.
        let both = [
            Charge::new(&day("tight", 1), &Key::new("carol"), 2),
            Charge::new(&day("wide", 9), &Key::new("carol"), 2),
        ];
        assert!(limiter.check_all(&both).await.unwrap().is_denied());
        // Neither a peek nor an admission is one.
        assert!(limiter.peek(&day("tight", 1), &Key::new("dora"), 2).await.unwrap().is_denied());
        assert!(limiter.check(&day("tight", 1), &Key::new("dora"), 1).await.unwrap().is_admitted());

        let expected = [entry("http", "alice", 2), entry("jobs", "bob", 1), entry("tight", "carol", 1)];
        assert_eq!(entries(&log), expected, "{name}");
        let recent = log.recent();
        let alice = recent.iter().find(|entry| entry.key == Key::new("alice")).unwrap();
        assert!(alice.retry_after.is_some_and(|wait| wait > Duration::from_secs(80_000)), "{name}");
        assert!(before - Duration::from_secs(1) <= alice.first && alice.first <= alice.last, "{name}");
        assert!(!alice.is_banned && !alice.is_shadow, "{name}");
        let top = log.most_denied();
        assert_eq!(
            (top[0].key.as_str(), top[0].denials, top[0].error, top.len()),
            ("alice", 2, 0, 3),
            "{name}"
        );
    }
}

/// As without the step: the log has the keys that were denied last.
#[tokio::test]
async fn a_clock_that_was_ahead_keeps_no_later_denials_out() {
    let week = Duration::from_secs(7 * 86_400);
    let clock = ManualClock::new();
    let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
    let log = limiter.record_denials();
    let deny = async |keys: std::ops::Range<u64>| {
        for key in keys {
            let denied = limiter.check(&day("api", 1), &Key::new(key), 2).await.unwrap();
            assert!(denied.is_denied());
            clock.advance(Duration::from_millis(1));
        }
    };
    clock.advance(week);
    deny(0..5_000).await;
    clock.step_back(week);
    deny(5_000..10_000).await;
    let recent = log.recent();
    let number = |entry: &RecentDenials| entry.key.as_str().parse::<u64>().unwrap();
    assert_eq!(recent.len(), 1_024);
    assert!(recent.iter().all(|entry| number(entry) >= 5_000));
    // Each of 128 sets has the 8 keys that were denied last.
    let last = recent.iter().filter(|entry| number(entry) >= 9_900).count();
    assert!(last >= 98, "{last}");
    assert_eq!(number(&recent[0]), 9_999);
    assert_eq!(log.most_denied().iter().map(|entry| entry.denials - entry.error).max(), Some(1));
}

/// The clock of the store was ahead of this machine's, and a few denials were made then.
#[tokio::test]
async fn denials_of_the_future_come_last() {
    let clock = ManualClock::new();
    let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
    let log = limiter.record_denials();
    let deny = async |key: &str| drop(limiter.check(&day("api", 1), &Key::new(key), 2).await.unwrap());
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    clock.set(wall + Duration::from_secs(7 * 86_400));
    deny("ahead").await;
    clock.set(wall);
    deny("now").await;
    let keys: Vec<_> = log.recent().iter().map(|entry| entry.key.as_str().to_owned()).collect();
    assert_eq!(keys, ["now", "ahead"]);
}

#[tokio::test]
async fn nothing_is_recorded_before_recording_begins_and_every_clone_has_one_log() {
    let limiter = Limiter::new(MemoryStore::new());
    let (policy, alice) = (day("api", 1), Key::new("alice"));
    assert!(limiter.check(&policy, &alice, 2).await.unwrap().is_denied());
    let log = limiter.clone().record_denials();
    assert_eq!(entries(&log), []);
    assert!(limiter.check(&policy, &alice, 2).await.unwrap().is_denied());
    assert!(log == limiter.record_denials());
    assert_eq!(entries(&limiter.record_denials()), [entry("api", "alice", 1)]);
    // Another store has its own.
    assert!(log != Limiter::new(MemoryStore::new()).record_denials());
}

#[tokio::test]
async fn all_limiters_on_clones_of_a_redis_store_share_a_log_with_its_deny_cache() {
    let server = RedisServer::start();
    let store = settings().connect(&server.url()).await.unwrap();
    let log = Limiter::new(store.clone()).record_denials();
    let limiter = Limiter::new(store);
    for _ in 0..3 {
        assert!(limiter.check(&day("api", 1), &Key::new("alice"), 2).await.unwrap().is_denied());
    }
    assert_eq!(entries(&log), [entry("api", "alice", 3)]);
    // A denial of one unit is remembered, and denies before the key of another rule is looked up.
    let later = |_: &http::request::Parts| tower_ratelimit::Answer::pending(async { Ok(Key::new("bob")) });
    let layer = RateLimitLayer::new(limiter.clone(), day("address", 1), Key::new("carol"))
        .rule(Rule::new(day("key", 9), later));
    for status in [200, 429, 429, 429] {
        assert_eq!(ask(&layer, get()).await.status(), status);
    }
    let entries = entries(&log);
    assert!(entries.contains(&entry("address", "carol", 3)), "{entries:?}");
    let recent = log.recent();
    assert_eq!(recent[0].source.as_str(), "deny_cache");
}

#[tokio::test]
async fn shadows_bans_reports_and_outages_are_told_apart() {
    let limiter = Limiter::new(MemoryStore::new());
    let log = limiter.record_denials();
    let alice = Key::new("alice");
    assert!(limiter.check(&day("shadow", 1).shadow(), &alice, 2).await.unwrap().is_admitted());
    let banning = day("banning", 1).penalty(Penalty::manual());
    limiter.operator().ban(&banning, &alice, Duration::from_secs(600)).await.unwrap();
    assert!(limiter.check(&banning, &alice, 1).await.unwrap().is_denied());
    let reporting = RateLimitLayer::new(limiter.clone(), day("reporting", 1), Key::new("alice"))
        .enforcement(Enforcement::ReportOnly);
    for _ in 0..2 {
        assert_eq!(ask(&reporting, get()).await.status(), 200);
    }
    let found = |name: &str| {
        let entry = log.recent().into_iter().find(|entry| entry.policy.name() == name).unwrap();
        (entry.is_shadow, entry.is_banned, entry.source.as_str())
    };
    assert_eq!(found("shadow"), (true, false, "store"));
    assert_eq!(found("banning"), (false, true, "store"));
    assert_eq!(found("reporting"), (false, false, "store"));

    let outage = Limiter::new(Down);
    let log = outage.record_denials();
    let local = day("local", 1);
    assert!(outage.check(&local, &alice, 2).await.unwrap().is_denied());
    assert_eq!(log.recent()[0].source.as_str(), "local");
    // No decision is made.
    let closed = day("closed", 1).failure_mode(FailureMode::Closed);
    assert!(outage.check(&closed, &alice, 2).await.is_err());
    assert_eq!(log.recent().len(), 1);
}

#[tokio::test]
async fn an_identity_that_is_not_stored_is_not_recorded() {
    let limiter = Limiter::new(MemoryStore::new());
    let log = limiter.record_denials();
    let key = Header::new("x-api-key").hashed("0123456789abcdef");
    let plan = PolicySource::per_request(|_: &http::request::Parts, _: &Key| {
        Some(Policy::new("plan", Quota::per_hour(1)))
    });
    let layer = RateLimitLayer::new(limiter, plan, key);
    for status in [200, 429, 429] {
        let request = http::Request::get("/").header("x-api-key", "user-4").body(String::new()).unwrap();
        assert_eq!(ask(&layer, request).await.status(), status);
    }
    // Each request has its own policy of this name.
    assert_eq!(entries(&log), [entry("plan", "%*a6949588618bfddffa881161bfd2fd6d", 2)]);
    assert_eq!(log.recent()[0].key.identity(), None);
    assert!(!format!("{log:?} {:?}", log.recent()).contains("a6949588618bfddffa881161bfd2fd6d"));
}

#[tokio::test]
async fn a_log_has_the_times_of_the_store() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let redis = settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap();
    let memory = MemoryStore::with_clock(clock.clone());
    for (name, limiter) in [("memory", Limiter::new(memory)), ("redis", Limiter::new(redis))] {
        let log = limiter.record_denials();
        let (policy, alice) = (day("api", 1), Key::new("alice"));
        assert!(limiter.check(&policy, &alice, 1).await.unwrap().is_admitted(), "{name}");
        let first = clock.now();
        // Redis makes the first denial, and the deny cache the second one.
        assert!(limiter.check(&policy, &alice, 1).await.unwrap().is_denied(), "{name}");
        clock.advance(Duration::from_millis(10));
        assert!(limiter.check(&policy, &alice, 1).await.unwrap().is_denied(), "{name}");
        // Of two policies, one denies.
        clock.advance(Duration::from_secs(5));
        let both = [Charge::new(&policy, &alice, 1), Charge::new(&day("wide", 9), &alice, 1)];
        assert!(limiter.check_all(&both).await.unwrap().is_denied(), "{name}");
        let times = |entry: &RecentDenials| (entry.first, entry.last, entry.denials);
        let (first, last) = (UNIX_EPOCH + first, UNIX_EPOCH + clock.now());
        assert_eq!(log.recent().iter().map(times).collect::<Vec<_>>(), [(first, last, 3)], "{name}");
    }
}

#[tokio::test]
async fn a_key_with_more_than_its_share_of_all_denials_is_among_the_most_denied() {
    let limiter = Limiter::new(MemoryStore::new());
    let (log, policy) = (limiter.record_denials(), day("api", 1));
    // 250 clients with 200 denials each, which is more than 1/256 of all denials, and then 1,100 with one.
    let heavy = (0..50_000).map(|i| format!("heavy-{}", i % 250));
    let light = (0..1_100).map(|i| format!("light-{i}"));
    for key in heavy.chain(light) {
        assert!(limiter.check(&policy, &Key::new(key), 2).await.unwrap().is_denied());
    }
    let top = log.most_denied();
    let heavy: Vec<_> = top.iter().filter(|entry| entry.key.as_str().starts_with("heavy-")).collect();
    assert_eq!(heavy.len(), 250);
    for entry in heavy {
        assert!(entry.denials - entry.error <= 200 && 200 <= entry.denials, "{entry:?}");
    }
}

#[test]
fn denials_of_several_threads_are_all_counted() {
    let limiter = Limiter::new(MemoryStore::new());
    let (log, policy) = (limiter.record_denials(), day("api", 1));
    // More than the recent entries of some sets, and fewer than there are counters.
    let keys: Vec<Key> = (0..900).map(|i| Key::new(format!("client-{i}"))).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (limiter, policy, keys) = (&limiter, &policy, &keys);
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(async {
                    for i in 0..20 * keys.len() {
                        let key = &keys[(i * 7 + thread * 225) % keys.len()];
                        assert!(limiter.check(policy, key, 2).await.unwrap().is_denied());
                    }
                });
            });
        }
    });
    let top = log.most_denied();
    assert_eq!(top.len(), keys.len());
    for entry in top {
        assert_eq!((entry.denials, entry.error), (80, 0), "{}", entry.key.as_str());
    }
}

/// A rule that would have let the request go on is not logged where another rule denies it.
#[tokio::test]
async fn a_rule_that_degrades_is_logged_where_the_request_went_on_without_it() {
    let limiter = Limiter::new(MemoryStore::new());
    let log = limiter.record_denials();
    let (requests, large) = (day("requests", 2), day("large-model", 1));
    let alice = Key::new("alice");
    let charges = [Charge::new(&requests, &alice, 1), Charge::new(&large, &alice, 1).or_degrade()];
    for denials in
        [vec![], vec![("large-model", 1, true)], vec![("large-model", 1, true), ("requests", 1, false)]]
    {
        limiter.check_all(&charges).await.unwrap();
        let recent = log.recent();
        let mut seen: Vec<_> =
            recent.iter().map(|entry| (entry.policy.name(), entry.denials, entry.is_degraded)).collect();
        seen.sort_unstable();
        assert_eq!(seen, denials);
    }
}
