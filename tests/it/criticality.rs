//! Requests that are less critical leave headroom to the others.

use std::time::Duration;

use futures_util::future::join_all;
use http::{Request, request::Parts};
use support::{RedisServer, inner::statuses, on_redis, settings};
use tower_ratelimit::{
    Charge, Criticality, Error, FailureMode, Header, Key, Limiter, MemoryStore, Policy, PolicySource, Quota,
    RateLimitLayer, Rule,
    algorithm::{Algorithm, Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    layer::Rules,
    policy::{Headroom, Penalty},
    store::ManualClock,
};

use crate::stores::{on_a_clock, pairs, stores};
use Criticality::{Critical, CriticalPlus, Sheddable, SheddablePlus};

const HOUR: Duration = Duration::from_secs(3_600);

fn ten(name: &str) -> Policy {
    Policy::new(name, Quota::per_hour(10)).headroom(Sheddable, Headroom::Units(4))
}

async fn ask(
    limiter: &Limiter,
    policy: &Policy,
    criticality: Criticality,
    cost: u64,
) -> tower_ratelimit::Decision {
    let charge = Charge::new(policy, &Key::new("all"), cost).with_criticality(criticality);
    limiter.check_all(&[charge]).await.unwrap()
}

/// A window without a word about headroom.
#[derive(Debug)]
struct Windows;

impl Algorithm for Windows {
    fn name(&self) -> &str {
        "windows"
    }
    fn lua(&self) -> &str {
        "return { decide = function(policy, cost, time, count)
           local limit, used = policy[1], time and count or 0
           local free = limit - used
           if cost > free then return cost > limit and NEVER or 7, free, 9, 0, 0 end
           return 0, free - cost, 9, 0, 0, 3600000000, now, used + cost
         end }"
    }
    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        Ok(vec![quota.limit()])
    }
}

#[tokio::test]
async fn each_algorithm_keeps_the_headroom_and_a_denial_for_it_writes_nothing() {
    let server = RedisServer::start();
    // A denial that is remembered has what remained then.
    let redis = settings().deny_cache(Duration::ZERO).connect(&server.url()).await.unwrap();
    let (redis, memory) = (Limiter::new(redis), Limiter::new(MemoryStore::new()));
    let of = |name: &str, algorithm: Box<dyn Fn(Policy) -> Policy>| algorithm(ten(name));
    let policies = [
        of("gcra", Box::new(|policy| policy)),
        of("debt", Box::new(|policy| policy.max_debt(5))),
        of("meter", Box::new(|policy| policy.algorithm(LeakyBucket::meter()))),
        of("tokens", Box::new(|policy| policy.algorithm(TokenBucket::new().refill_every(HOUR / 10)))),
        of("anchored", Box::new(|policy| policy.algorithm(FixedWindow::anchored()))),
        of(
            "aligned",
            Box::new(|policy| {
                policy.algorithm(FixedWindow::aligned()).with_quota(Quota::per_month(10)).unwrap()
            }),
        ),
        of("log", Box::new(|policy| policy.algorithm(SlidingLog::new()))),
        of("cells", Box::new(|policy| policy.algorithm(SlidingWindow::new().segments(4)))),
        of("permits", Box::new(|policy| policy.algorithm(Concurrency::new()))),
        of("custom", Box::new(|policy| policy.algorithm(Windows))),
    ];
    for policy in policies {
        for (store, limiter) in [("redis", &redis), ("memory", &memory)] {
            let name = format!("{store}, {}", policy.name());
            if (store, policy.name()) == ("memory", "custom") {
                continue;
            }
            let first = ask(limiter, &policy, Sheddable, 3).await;
            // Seven of ten remain, and four are kept.
            assert_eq!((first.is_admitted(), first.remaining()), (true, Some(3)), "{name}");
            let second = ask(limiter, &policy, Sheddable, 3).await;
            assert_eq!((second.is_admitted(), second.remaining()), (true, Some(0)), "{name}");
            let keys = || -> Vec<(String, Vec<u8>)> {
                let names: Vec<String> = server.command(&["KEYS", "rl:*"]);
                names.into_iter().map(|name| (name.clone(), server.command(&["DUMP", &name]))).collect()
            };
            let before = keys();
            for cost in [1, 4] {
                let shed = ask(limiter, &policy, Sheddable, cost).await;
                assert!(shed.is_shed() && shed.retry_after().is_some(), "{name}: {shed:?}");
                assert_eq!(shed.remaining(), Some(0), "{name}");
            }
            let denied = ask(limiter, &policy, Sheddable, 5).await;
            assert!(denied.is_denied() && !denied.is_shed(), "{name}: {denied:?}");
            // More than the capacity leaves.
            let never = ask(limiter, &policy, Sheddable, 7).await;
            assert!(never.is_denied() && never.retry_after().is_none(), "{name}: {never:?}");
            assert_eq!(keys(), before, "{name}");
            let critical = ask(limiter, &policy, CriticalPlus, 4).await;
            assert_eq!((critical.is_admitted(), critical.remaining()), (true, Some(0)), "{name}");
            // Nothing remains, so nothing is kept.
            let exhausted = ask(limiter, &policy, Sheddable, 1).await;
            assert!(exhausted.is_denied() && !exhausted.is_shed(), "{name}: {exhausted:?}");
            drop((first, second, critical));
        }
    }
}

/// A refund leaves a text in the state of a bucket, which `usual.lua` does not read.
#[tokio::test]
async fn a_bucket_with_a_refund_keeps_the_headroom() {
    for (name, limiter) in stores("criticality-refund").await {
        for headroom in [4, 1] {
            let policy = ten(&headroom.to_string()).headroom(Sheddable, Headroom::Units(headroom));
            let charged = ask(&limiter, &policy, CriticalPlus, 10 - headroom).await;
            limiter.refund(&charged, 1).await.unwrap();
            assert!(ask(&limiter, &policy, Sheddable, 1).await.is_admitted(), "{name}");
            assert!(ask(&limiter, &policy, Sheddable, 1).await.is_shed(), "{name}");
            let other = Charge::new(&Policy::new("other", Quota::per_hour(9)), &Key::new("all"), 1);
            let charge = Charge::new(&policy, &Key::new("all"), 1).with_criticality(Sheddable);
            assert!(limiter.check_all(&[charge, other]).await.unwrap().is_shed(), "{name}");
        }
    }
}

#[tokio::test]
async fn a_denial_for_the_sake_of_others_counts_for_no_penalty() {
    for (name, limiter) in stores("criticality-penalty").await {
        let policy = ten("banning").penalty(Penalty::after(2, HOUR).ban(HOUR));
        assert!(ask(&limiter, &policy, CriticalPlus, 6).await.is_admitted(), "{name}");
        for _ in 0..5 {
            let shed = ask(&limiter, &policy, Sheddable, 1).await;
            assert!(shed.is_shed() && shed.banned_for().is_none(), "{name}: {shed:?}");
        }
        for is_banned in [false, true] {
            let denied = ask(&limiter, &policy, Sheddable, 5).await;
            assert_eq!(denied.banned_for().is_some(), is_banned, "{name}: {denied:?}");
        }
        assert!(!ask(&limiter, &policy, Sheddable, 1).await.is_shed(), "{name}");
    }
}

#[tokio::test]
async fn a_denial_that_is_remembered_is_one_for_the_less_critical_requests_only() {
    let (server, limiter) = on_redis().await;
    let policy = ten("site").headroom(SheddablePlus, Headroom::Units(2));
    assert!(ask(&limiter, &policy, CriticalPlus, 6).await.is_admitted());
    assert!(ask(&limiter, &policy, Sheddable, 1).await.is_shed());
    let before = server.script_calls();
    for _ in 0..9 {
        let shed = ask(&limiter, &policy, Sheddable, 1).await;
        assert!(shed.is_shed(), "{shed:?}");
    }
    assert_eq!(server.script_calls(), before);
    for _ in 0..2 {
        assert!(ask(&limiter, &policy, SheddablePlus, 1).await.is_admitted());
    }
    assert!(ask(&limiter, &policy, SheddablePlus, 1).await.is_shed());
    assert!(ask(&limiter, &policy, Critical, 1).await.is_admitted());
}

#[tokio::test]
async fn a_policy_with_headroom_is_not_leased() {
    let (server, limiter) = on_redis().await;
    let plain = Policy::new("plain", Quota::per_day(1_000_000)).max_lease(100);
    let keeping = Policy::new("keeping", Quota::per_day(1_000_000)).max_lease(100);
    let keeping = keeping.headroom(Sheddable, Headroom::Percent(50));
    assert_eq!((plain.warnings().len(), keeping.lease_bound()), (0, None));
    assert!(
        keeping.warnings()[0].contains("leave out `max_lease` or `headroom`"),
        "{:?}",
        keeping.warnings()
    );
    let calls = async |policy: &Policy| {
        let before = server.script_calls();
        for _ in 0..50 {
            assert!(ask(&limiter, policy, CriticalPlus, 1).await.is_admitted());
        }
        server.script_calls() - before
    };
    assert!(calls(&plain).await < 50);
    assert!(calls(&keeping).await >= 50);
}

#[tokio::test]
async fn in_an_outage_each_instance_keeps_its_share() {
    let server = RedisServer::start();
    let limiter = Limiter::new(settings().connect(&server.url()).await.unwrap());
    drop(server);
    let policy = Policy::new("site", Quota::per_hour(20)).failure_mode(FailureMode::Local { instances: 2 });
    let policy = policy.headroom(Critical, Headroom::Units(10));
    let mut admitted = [0, 0];
    for (count, criticality) in [Critical, CriticalPlus].into_iter().enumerate() {
        while ask(&limiter, &policy, criticality, 1).await.is_admitted() {
            admitted[count] += 1;
        }
    }
    assert_eq!(admitted, [5, 5]);
}

#[test]
fn less_critical_requests_leave_at_least_as_much_and_a_percentage_follows_the_quota() {
    let headroom = |policy: &Policy| {
        [Sheddable, SheddablePlus, Critical, CriticalPlus].map(|criticality| {
            Charge::new(policy, &Key::new("all"), 1).with_criticality(criticality).headroom()
        })
    };
    let hundred = Policy::new("p", Quota::per_hour(100));
    let units = hundred.clone().headroom(SheddablePlus, Headroom::Units(30));
    assert_eq!(headroom(&units), [30, 30, 0, 0]);
    let parts =
        units.clone().headroom(Critical, Headroom::Percent(41)).headroom(Sheddable, Headroom::Percent(1));
    assert_eq!(headroom(&parts), [41, 41, 41, 0]);
    let ten = Quota::per_hour(10);
    assert_eq!(headroom(&units.with_quota(ten).unwrap()), [30, 30, 0, 0]);
    assert_eq!(headroom(&parts.with_quota(ten).unwrap()), [30, 30, 5, 0]);
    assert_eq!(
        parts.to_string(),
        "100/h, gcra, headroom 41% of critical, headroom 30 of sheddable-plus, headroom 1% of sheddable, failure mode local"
    );
    assert_ne!(units, hundred);
    let rows = [
        (
            hundred.clone().try_headroom(CriticalPlus, Headroom::Units(1)),
            "the most critical requests leave no headroom: set it for `Critical`, `SheddablePlus` or `Sheddable`",
        ),
        (
            hundred.clone().try_headroom(Sheddable, Headroom::Percent(101)),
            "a headroom must be from 0 to 100 percent",
        ),
    ];
    for (policy, message) in rows {
        assert_eq!(policy.unwrap_err().to_string(), message);
    }
    let shut = hundred.headroom(Sheddable, Headroom::Units(100));
    assert_eq!(
        shut.warnings(),
        ["the policy \"p\" admits no request that is sheddable: its headroom is all of the capacity, 100"]
    );
}

#[tokio::test]
async fn what_a_reduced_quota_does_not_admit_may_be_admitted_once_it_has_grown() {
    for (name, _, on) in on_a_clock("criticality-reduced") {
        let limiter = on(ManualClock::new());
        let full = Policy::new("adaptive", Quota::per_hour(10)).headroom(Sheddable, Headroom::Units(4));
        let second = Duration::from_secs(1);
        let reduced = full.with_reduced_quota(Quota::per_hour(3), second).unwrap();
        let waits = async |criticality, cost| ask(&limiter, &reduced, criticality, cost).await.retry_after();
        assert_eq!(waits(Sheddable, 1).await, Some(second), "{name}");
        assert_eq!(waits(Sheddable, 6).await, Some(second), "{name}");
        assert_eq!(waits(Sheddable, 7).await, None, "{name}");
        assert_eq!(waits(CriticalPlus, 10).await, Some(second), "{name}");
        assert_eq!(waits(CriticalPlus, 11).await, None, "{name}");
        assert!(ask(&limiter, &reduced, CriticalPlus, 3).await.is_admitted(), "{name}");
        assert_eq!(waits(CriticalPlus, 1).await, Some(HOUR / 3), "{name}");
        // A percentage is of the full quota then.
        let full = Policy::new("half", Quota::per_hour(10)).headroom(Sheddable, Headroom::Percent(50));
        let reduced = full.with_reduced_quota(Quota::per_hour(4), second).unwrap();
        let wait = async |cost| ask(&limiter, &reduced, Sheddable, cost).await.retry_after();
        assert_eq!((wait(5).await, wait(6).await), (Some(second), None), "{name}");
    }
}

#[tokio::test]
async fn several_policies_are_decided_together_each_with_its_headroom() {
    for (name, [limiter, other]) in pairs("criticality-several").await {
        let (tenant, pool) = (Policy::new("tenant", Quota::per_hour(100)), ten("pool"));
        let charges = |key: &str, criticality| {
            let charges = [Charge::new(&tenant, &Key::new(key), 1), Charge::new(&pool, &Key::new("all"), 1)];
            charges.map(|charge| charge.with_criticality(criticality))
        };
        for at in 0..6 {
            let key = format!("t{at}");
            assert!(limiter.check_all(&charges(&key, Sheddable)).await.unwrap().is_admitted(), "{name}");
        }
        let shed = other.check_all(&charges("t7", Sheddable)).await.unwrap();
        assert!(
            shed.is_shed() && !shed.outcomes()[0].is_shed() && shed.outcomes()[1].is_shed(),
            "{name}: {shed:?}"
        );
        // Nothing was charged.
        assert_eq!(shed.outcomes()[0].remaining(), 100, "{name}");
        assert!(other.check_all(&charges("t7", Critical)).await.unwrap().is_admitted(), "{name}");
        assert!(limiter.peek_all(&charges("t7", Sheddable)).await.unwrap().is_shed(), "{name}");
    }
}

/// A path that can be read as another route gets the rules of both, and is as critical as the less critical one.
#[tokio::test]
async fn a_path_with_two_readings_is_as_critical_as_the_less_critical_one() {
    let policy = Policy::new("site", Quota::per_hour(10)).headroom(Sheddable, Headroom::Units(9));
    let rule = |criticality| Rule::new(policy.clone(), Key::new("all")).criticality(move |_| criticality);
    let rules = Rules::new().route("/checkout", rule(CriticalPlus)).route("/{page}/", rule(Sheddable));
    let layer = RateLimitLayer::with_rules(MemoryStore::new(), rules);
    let requests =
        ["/checkout/", "/checkout/", "/checkout"].map(|path| Request::get(path).body(String::new()).unwrap());
    assert_eq!(statuses(&layer, requests).await, [200, 429, 200]);
}

#[tokio::test]
async fn a_rule_says_how_critical_its_requests_are_under_policies_that_are_looked_up() {
    let policy = Policy::new("site", Quota::per_hour(2)).headroom(Sheddable, Headroom::Units(1));
    let source = PolicySource::per_request(move |_: &Parts, _: &Key| policy.clone());
    let rule = Rule::new(source, Header::new("x-api-key")).criticality(|request| match request.uri.path() {
        "/crawl" => Sheddable,
        _ => CriticalPlus,
    });
    let layer = RateLimitLayer::with_rules(MemoryStore::new(), rule);
    let request = |path: &str| Request::get(path).header("x-api-key", "a").body(String::new()).unwrap();
    assert_eq!(statuses(&layer, ["/crawl", "/crawl", "/"].map(request)).await, [200, 429, 200]);
}

/// Each does nothing without the other.
#[test]
fn a_criticality_without_headroom_and_the_reverse_are_warned_of() {
    let plain = || Policy::new("site", Quota::per_hour(10));
    let keeping = || plain().headroom(Sheddable, Headroom::Units(1));
    let warnings = |rule: Rule| RateLimitLayer::with_rules(MemoryStore::new(), rule).warnings();
    let rule = |policy: Policy| Rule::new(policy, Key::new("all"));
    assert_eq!(warnings(rule(keeping()).criticality(|_| Sheddable)), Vec::<String>::new());
    assert_eq!(warnings(rule(plain())), Vec::<String>::new());
    assert!(warnings(rule(keeping()))[0].ends_with("add Rule::criticality"));
    assert!(warnings(rule(plain()).criticality(|_| Sheddable))[0].ends_with("add Policy::headroom"));
    let banning = plain().penalty(Penalty::manual());
    assert!(warnings(rule(banning).or_degrade())[0].ends_with("leave out one of them"));
}

/// In a batch, the functions of the algorithm decide about one key, and the usual script about the others.
#[tokio::test]
async fn a_batch_charges_each_key_once() {
    let (_server, limiter) = on_redis().await;
    let policy = Policy::new("p", Quota::per_day(100)).headroom(Sheddable, Headroom::Units(3));
    let refunded = limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
    limiter.refund(&refunded, 1).await.unwrap();
    // The first call is sent alone, and the others together while it is under way.
    let charges = ["dave", "alice", "bob", "carol"]
        .map(|key| [Charge::new(&policy, &Key::new(key), 1).with_criticality(Sheddable)]);
    let decided = join_all(charges.iter().map(|charge| limiter.check_all(charge))).await;
    assert!(decided.into_iter().all(|decided| decided.unwrap().is_admitted()));
    for key in ["alice", "bob", "carol", "dave"] {
        let peeked = limiter.peek(&policy, &Key::new(key), 0).await.unwrap();
        assert_eq!(peeked.remaining(), Some(99), "{key}");
    }
}
