//! Policies that operators change in Redis.

use std::time::Duration;

use super::{error, quotas};
use support::{
    RedisServer, eventually,
    inner::{ask, get},
    redis_store, settings, store,
    table::{rows, unescaped},
};
use tower_ratelimit::policy::QuotaUnit;
use tower_ratelimit::{
    Error, ErrorKind, FailureMode, Key, Limiter, Policy, Quota, RateLimitLayer, RedisStore,
    algorithm::{Algorithm, FixedWindow, Gcra, Replenishment},
    policy::{Enforcement, Penalty},
};
use tower_ratelimit_operate::live::LivePolicies;

/// So often that a test does not wait, and not so often that the server does nothing else.
pub(super) const OFTEN: Duration = Duration::from_millis(20);

pub(super) fn defaults() -> [Policy; 2] {
    [Policy::new("api", Quota::per_hour(2)), Policy::new("login", Quota::per_minute(5))]
}

async fn live(store: &RedisStore) -> LivePolicies {
    LivePolicies::redis(store, defaults()).await.unwrap().poll_every(OFTEN)
}

fn edit(server: &RedisServer, words: &[&str]) {
    let _: redis::Value = server.command(words);
}

fn set(server: &RedisServer, field: &str, value: &str) {
    edit(server, &["HSET", "rl:policies", field, value]);
}

/// How often the hash was read.
fn reads(server: &RedisServer) -> u64 {
    let stats: String = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_hgetall:calls="));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// Waits until what was written before is considered.
pub(super) async fn followed(server: &RedisServer) {
    let before = reads(server);
    // The first of these may have begun before, and what it read is considered before the next.
    assert!(eventually(async || reads(server) >= before + 3).await);
}

#[tokio::test]
async fn operators_change_policies_and_return_to_the_defaults() {
    let server = RedisServer::start();
    set(&server, "login", "6/min");
    let store = store(&server).await;
    let live = live(&store).await;
    // The hash that is there is active immediately, and is a change of the defaults.
    assert_eq!((quotas(&live).join(", "), live.version()), ("api 2/h, login 6/min".into(), 1));
    let layer =
        RateLimitLayer::new(store, live.get("api").unwrap(), Key::new("all")).enforcement(live.enforcement());
    let status = async || ask(&layer, get()).await.status().as_u16();
    assert_eq!([status().await, status().await, status().await], [200, 200, 429]);

    set(&server, "api", " 3/h burst 4 ");
    followed(&server).await;
    assert_eq!([status().await, status().await, status().await], [200, 200, 429]);
    edit(&server, &["HDEL", "rl:policies", "api", "login"]);
    followed(&server).await;
    assert_eq!(live.current(), defaults());
    assert_eq!(status().await, 429);

    set(&server, "@enforcement", "Off");
    followed(&server).await;
    assert_eq!((live.enforcement().get(), status().await), (Enforcement::Off, 200));
    edit(&server, &["DEL", "rl:policies"]);
    followed(&server).await;
    assert_eq!((live.enforcement().get(), status().await), (Enforcement::On, 429));
    assert_eq!(error(&live), "");
}

#[tokio::test]
async fn a_complete_json_object_replaces_the_default_or_adds_a_policy_of_another_name() {
    let (server, store) = redis_store().await;
    let live = live(&store).await;
    let whole = r#"{
        "quota": "100/day", "algorithm": { "name": "fixed-window", "utc_offset": "+01:00" },
        "failure_mode": "closed", "max_lease": 10, "max_debt": 4, "enforced": 0
    }"#;
    set(&server, "login", whole);
    set(&server, "export", r#"{"quota":"1/s"}"#);
    followed(&server).await;
    let hour = Duration::from_secs(3_600);
    let login = Policy::new("login", Quota::per_day(100))
        .algorithm(FixedWindow::aligned().utc_offset_east(hour))
        .failure_mode(FailureMode::Closed)
        .max_lease(10)
        .max_debt(4)
        .shadow();
    let export = Policy::new("export", Quota::per_second(1));
    assert_eq!(live.current(), [defaults()[0].clone(), export, login], "{}", error(&live));

    // A policy that only the hash has can be removed while it is not in use.
    let used = live.get("export").unwrap();
    edit(&server, &["HDEL", "rl:policies", "export"]);
    followed(&server).await;
    assert!(error(&live).contains("policy `export` is missing, and the service uses it"), "{}", error(&live));
    drop(used);
    followed(&server).await;
    assert_eq!((live.current().len(), error(&live)), (2, String::new()));
    edit(&server, &["HDEL", "rl:policies", "login"]);
    followed(&server).await;
    assert_eq!((live.current(), error(&live)), (defaults().to_vec(), String::new()));
}

/// Twice as much as its quota says, and known only to the service.
#[derive(Debug)]
struct Doubled;

impl Algorithm for Doubled {
    fn name(&self) -> &str {
        "doubled"
    }
    fn lua(&self) -> &str {
        "return {}"
    }
    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        Ok(vec![quota.limit() * 2])
    }
    fn capacity(&self, quota: &Quota) -> u64 {
        quota.limit() * 2
    }
    fn replenishment(&self, quota: &Quota) -> Replenishment {
        Gcra::new().replenishment(quota)
    }
}

#[tokio::test]
async fn a_quota_alone_keeps_the_algorithm_and_the_options_of_the_default() {
    let server = RedisServer::start();
    set(&server, "debt", "6/h");
    set(&server, "own", "7/h");
    set(&server, "window", "8/h");
    let build = |debt, own, window| {
        [
            Policy::new("debt", Quota::per_hour(debt)).max_debt(3).rollout(0.5),
            Policy::new("own", Quota::per_hour(own)).algorithm(Doubled).failure_mode(FailureMode::Open),
            Policy::new("window", Quota::per_hour(window)).algorithm(FixedWindow::aligned()).max_lease(5),
        ]
    };
    let live = LivePolicies::redis(&store(&server).await, build(1, 1, 1)).await.unwrap().poll_every(OFTEN);
    assert_eq!(live.current(), build(6, 7, 8));
    assert_eq!(live.current()[1].capacity(), 14);
    // The algorithm of the default cannot count it.
    set(&server, "window", "8/h burst 9");
    followed(&server).await;
    let expected =
        "the Redis hash `rl:policies`, field `window`: a fixed window has no burst: leave out `burst`";
    assert!(error(&live).starts_with(expected), "{}", error(&live));
    // With the debt it is above the bounds.
    edit(&server, &["HSET", "rl:policies", "window", "8/h", "debt", "1_000_000/s burst 10_000_000_000_000"]);
    followed(&server).await;
    assert!(error(&live).contains("field `debt`: the debt is too large"), "{}", error(&live));
    assert_eq!(live.current(), build(6, 7, 8));
}

#[tokio::test]
async fn changes_wait_for_the_version_if_there_is_one() {
    let server = RedisServer::start();
    set(&server, "@version", "1");
    set(&server, "api", "3/h");
    let store = store(&server).await;
    let live = live(&store).await;
    let now = async || {
        followed(&server).await;
        (quotas(&live).join(", "), error(&live).is_empty())
    };
    assert_eq!(now().await, ("api 3/h, login 5/min".into(), true));
    set(&server, "api", "4/h");
    set(&server, "login", "6/min");
    // It is reported until the version changes.
    assert_eq!(now().await, ("api 3/h, login 5/min".into(), false));
    assert!(error(&live).contains("set `@version` to another text"), "{}", error(&live));
    let before = live.version();
    set(&server, "@version", "2");
    assert_eq!(now().await, ("api 4/h, login 6/min".into(), true));
    // Several edits, one change.
    assert_eq!(live.version(), before + 1);

    // What is not active yet may be invalid.
    set(&server, "api", "many");
    assert_eq!(now().await, ("api 4/h, login 6/min".into(), false));
    set(&server, "@version", "3");
    assert_eq!(now().await, ("api 4/h, login 6/min".into(), false));
    // The correction needs no separate version.
    set(&server, "api", "5/h");
    assert_eq!(now().await, ("api 5/h, login 6/min".into(), true));
    // From then on it does again.
    set(&server, "api", "6/h");
    assert_eq!(now().await, ("api 5/h, login 6/min".into(), false));
    edit(&server, &["HDEL", "rl:policies", "@version"]);
    assert_eq!(now().await, ("api 6/h, login 6/min".into(), true));
    set(&server, "api", "7/h");
    assert_eq!(now().await, ("api 7/h, login 6/min".into(), true));
}

#[tokio::test]
async fn the_switch_moves_independently_of_the_version_and_the_other_fields() {
    let server = RedisServer::start();
    edit(&server, &["HSET", "rl:policies", "@version", "1", "api", "3/h"]);
    let store = store(&server).await;
    let live = live(&store).await;
    let now = async || {
        followed(&server).await;
        (live.enforcement().get(), quotas(&live).join(", "), error(&live))
    };
    let active = || "api 3/h, login 5/min".to_owned();
    // The emergency command of the guide `operations`.
    set(&server, "@enforcement", "off");
    assert_eq!(now().await, (Enforcement::Off, active(), String::new()));
    edit(&server, &["HDEL", "rl:policies", "@enforcement"]);
    assert_eq!(now().await, (Enforcement::On, active(), String::new()));

    // Beside a change that waits for its version, which is reported.
    edit(&server, &["HSET", "rl:policies", "@enforcement", "report-only", "api", "4/h"]);
    let waits = "the Redis hash `rl:policies` has changed, but its field `@version` has not: set `@version` to another text \
                 to apply the change, or remove it";
    assert_eq!(now().await, (Enforcement::ReportOnly, active(), waits.to_owned()));
    // And beside an error.
    edit(&server, &["HSET", "rl:policies", "@enforcement", "off", "@version", "2", "login", "many"]);
    let (enforcement, policies, problem) = now().await;
    assert_eq!((enforcement, policies), (Enforcement::Off, active()));
    assert!(problem.contains("field `login`: invalid quota `many`"), "{problem}");
    set(&server, "@enforcement", "on");
    assert_eq!(now().await.0, Enforcement::On);
    // A typing error in the command itself leaves the switch as it is.
    set(&server, "@enforcement", "of");
    let (enforcement, _, problem) = now().await;
    assert_eq!(enforcement, Enforcement::On);
    assert!(problem.contains("field `@enforcement`: invalid enforcement `of`"), "{problem}");
    edit(&server, &["HSET", "rl:policies", "@enforcement", "off", "login", "6/min"]);
    assert_eq!(now().await, (Enforcement::Off, "api 4/h, login 6/min".to_owned(), String::new()));
    // What holds the change back is undone, and with it the switch.
    edit(&server, &["HSET", "rl:policies", "@enforcement", "on", "api", "9/h"]);
    assert_eq!(now().await.0, Enforcement::On);
    edit(&server, &["HSET", "rl:policies", "@enforcement", "off", "api", "4/h"]);
    assert_eq!(now().await, (Enforcement::Off, "api 4/h, login 6/min".to_owned(), String::new()));
}

#[tokio::test]
async fn a_json_object_changes_only_the_entries_that_it_has() {
    let server = RedisServer::start();
    let penalty = Penalty::after(3, Duration::from_secs(60));
    let login = Policy::new("login", Quota::per_minute(5))
        .failure_mode(FailureMode::Closed)
        .penalty(penalty)
        .max_debt(2);
    let own = Policy::new("own", Quota::per_hour(1)).algorithm(Doubled).quota_unit(QuotaUnit::ContentBytes);
    let window = Policy::new("window", Quota::per_hour(9)).algorithm(FixedWindow::aligned()).max_lease(5);
    let defaults = [login.clone(), own.clone(), window.clone()];
    let live = LivePolicies::redis(&store(&server).await, defaults.clone()).await.unwrap().poll_every(OFTEN);
    let hour = |limit| Quota::per_hour(limit);
    let rows: [(&str, &str, &str, Policy); 7] = [
        ("a share", "login", r#"{"enforced":0}"#, login.clone().shadow()),
        (
            "a quota and a share",
            "login",
            r#"{"quota":"1/h","enforced":0.5}"#,
            Policy::new("login", hour(1))
                .failure_mode(FailureMode::Closed)
                .penalty(penalty)
                .max_debt(2)
                .rollout(0.5),
        ),
        (
            "entries removed",
            "login",
            r#"{"penalty":null,"max_debt":null,"failure_mode":null}"#,
            Policy::new("login", Quota::per_minute(5)),
        ),
        (
            "an algorithm that only the service knows",
            "own",
            r#"{"quota":"3/h"}"#,
            Policy::new("own", hour(3)).algorithm(Doubled).quota_unit(QuotaUnit::ContentBytes),
        ),
        (
            "another algorithm",
            "own",
            r#"{"algorithm":"gcra"}"#,
            Policy::new("own", hour(1)).quota_unit(QuotaUnit::ContentBytes),
        ),
        (
            "what only fits together",
            "window",
            r#"{"quota":"9/h burst 10","algorithm":"gcra","max_lease":null,"penalty":"manual"}"#,
            Policy::new("window", hour(9).burst(10)).penalty(Penalty::manual()),
        ),
        ("nothing", "window", "{}", window.clone()),
    ];
    for (name, field, value, expected) in rows {
        edit(&server, &["DEL", "rl:policies"]);
        set(&server, field, value);
        followed(&server).await;
        assert_eq!(error(&live), "", "{name}");
        let current = live.policy(field).unwrap();
        assert_eq!(current, expected, "{name}");
    }
    // What is left of the default may not fit.
    set(&server, "window", r#"{"penalty":"manual"}"#);
    followed(&server).await;
    let problem = error(&live);
    assert!(problem.contains("field `window`: a policy with a penalty cannot be leased"), "{problem}");
}

#[tokio::test]
async fn an_invalid_hash_changes_nothing_and_says_what_to_do() {
    let (server, store) = redis_store().await;
    let live = live(&store).await;
    let long = |text: &str| unescaped(text).replace("{long}", &"1".repeat(5_000));
    for [name, field, value, message] in rows(include_str!("../tables/invalid-hashes.txt")) {
        let (field, value) = (long(&field), long(&value));
        // Another field is right, and not active either.
        edit(&server, &["HSET", "rl:policies", &field, &value, "api", "9/h"]);
        followed(&server).await;
        let error = error(&live);
        assert!(error.starts_with("the Redis hash `rl:policies`"), "{name}: {error}");
        assert!(error.contains(&message), "{name}: {error}");
        assert_eq!(error.lines().count(), 1, "{name}: {error}");
        assert!(error.len() < 700, "{name}: {error}");
        assert_eq!((live.current(), live.version()), (defaults().to_vec(), 0), "{name}");
        edit(&server, &["DEL", "rl:policies"]);
    }
    for (field, value, message) in [
        (&b"login"[..], &b"\xff\xfe"[..], "field `login`: its value is not UTF-8: remove it with HDEL"),
        (b"lo\xffgin", b"5/min", "field `lo\\xffgin`: its name is not UTF-8"),
    ] {
        let () = redis::cmd("HSET")
            .arg("rl:policies")
            .arg(field)
            .arg(value)
            .query(&mut server.connection())
            .unwrap();
        followed(&server).await;
        assert!(error(&live).contains(message), "{}", error(&live));
        edit(&server, &["DEL", "rl:policies"]);
    }
    edit(&server, &["SET", "rl:policies", "10/min"]);
    followed(&server).await;
    assert_eq!(live.last_error().unwrap().kind(), ErrorKind::ForeignValue);
    assert!(error(&live).contains("the Redis hash `rl:policies` cannot be read: "), "{}", error(&live));
    assert!(error(&live).contains("holds a value of another type"), "{}", error(&live));
    // A new instance starts with the defaults.
    let new = LivePolicies::redis(&store, defaults()).await.unwrap();
    assert_eq!((new.current(), error(&new)), (defaults().to_vec(), error(&live)));
    edit(&server, &["DEL", "rl:policies"]);
    set(&server, "api", "9/h");
    followed(&server).await;
    assert_eq!((quotas(&live).join(", "), error(&live)), ("api 9/h, login 5/min".into(), String::new()));
}

#[tokio::test]
async fn defaults_with_one_name_and_reserved_names_are_errors() {
    let store = RedisStore::builder().connect_lazy("redis://127.0.0.1:1").unwrap();
    let login = || Policy::new("login", Quota::per_minute(5));
    let rows = [
        (vec![login(), login()], "there are two policies `login`: give each its own name"),
        (vec![Policy::new("@version", Quota::per_minute(5))], "the policy `@version` needs another name"),
    ];
    for (defaults, message) in rows {
        let error = LivePolicies::redis(&store, defaults).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().starts_with(message), "{error}");
    }
}

#[tokio::test]
async fn while_redis_is_down_the_policies_stay() {
    let mut server = RedisServer::start();
    set(&server, "api", "3/h");
    let store = settings().deadline(Duration::from_millis(300)).connect(&server.url()).await.unwrap();
    let live = live(&store).await;
    server.kill();
    assert!(eventually(async || error(&live).contains("cannot be read")).await, "{live:?}");
    // A service that starts now has the defaults.
    let lazy = RedisStore::builder().connect_lazy(server.url()).unwrap();
    let started = LivePolicies::redis(&lazy, defaults()).await.unwrap().poll_every(OFTEN);
    assert_eq!((started.current(), error(&started).is_empty()), (defaults().to_vec(), false));
    assert_eq!(quotas(&live), ["api 3/h", "login 5/min"]);
    server.restart();
    set(&server, "api", "4/h");
    for live in [&live, &started] {
        let expected = ["api 4/h", "login 5/min"];
        assert!(eventually(async || quotas(live) == expected && error(live).is_empty()).await);
    }
}

#[tokio::test]
async fn the_hash_is_not_read_while_the_breaker_is_open_and_later_without_a_decision() {
    let server = RedisServer::start();
    let store = settings().deadline(Duration::from_millis(50)).connect(&server.url()).await.unwrap();
    let live = live(&store).await;
    server.signal("STOP");
    let (limiter, policy) = (Limiter::new(store), &defaults()[0]);
    // A read that gets no answer counts as a decision that gets none. Otherwise such reads would use up the connections.
    let suspended = Some(ErrorKind::StoreSuspended);
    assert!(eventually(async || live.last_error().map(|error| error.kind()) == suspended).await);
    let decision = limiter.check(policy, &Key::new("a"), 1).await.unwrap();
    assert_eq!(decision.failure().map(Error::kind), suspended);
    assert_eq!((live.current(), live.version()), (defaults().to_vec(), 0));
    server.signal("CONT");
    set(&server, "api", "9/h");
    assert!(eventually(async || quotas(&live) == ["api 9/h", "login 5/min"]).await, "{}", error(&live));
}

#[tokio::test]
async fn only_live_policies_need_the_permission_to_read_the_hash() {
    let server = RedisServer::start();
    let admin = store(&server).await;
    let _hash = admin.hash("any");
    let rule = admin.acl_rule();
    let enough = settings().connect(&server.user("enough", &rule)).await.unwrap();
    assert_eq!(error(&live(&enough).await), "");
    let less = settings().connect(&server.user("less", &rule.replace(" +hgetall", ""))).await.unwrap();
    let limiter = Limiter::new(less.clone());
    assert!(limiter.check(&defaults()[0], &Key::new("a"), 1).await.unwrap().failure().is_none());
    let live = live(&less).await;
    assert_eq!(live.current(), defaults());
    let error = error(&live);
    assert!(error.contains("HGETALL") && error.contains("RedisStore::acl_rule"), "{error}");
}

#[tokio::test]
async fn the_hash_is_read_until_the_last_handle_is_dropped() {
    let (server, store) = redis_store().await;
    let live = live(&store).await;
    followed(&server).await;
    let source = live.get("api").unwrap();
    drop(live);
    followed(&server).await;
    drop(source);
    let stopped = async || {
        let before = reads(&server);
        tokio::time::sleep(OFTEN * 10).await;
        reads(&server) == before
    };
    assert!(eventually(stopped).await);
}

#[tokio::test]
async fn the_key_has_the_prefix_of_the_store() {
    let server = RedisServer::start();
    let shop = settings().prefix("shop").connect(&server.url()).await.unwrap();
    set(&server, "api", "3/h");
    edit(&server, &["HSET", "shop:policies", "api", "4/h"]);
    assert_eq!(quotas(&live(&shop).await), ["api 4/h", "login 5/min"]);
}
