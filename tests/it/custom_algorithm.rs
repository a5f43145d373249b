//! Custom algorithms: the one in the example, and invalid ones.

#[path = "../../examples/custom_algorithm.rs"]
#[allow(dead_code, reason = "`main` of the example")]
mod example;

use std::time::Duration;

use crate::support::{RedisServer, inner, settings, store};
use example::DayAndNight;
use tower_ratelimit::{
    Charge, Error, ErrorKind, FailureMode, Key, Limiter, ManualClock, MemoryStore, Policy, PolicySource,
    Quota, RateLimitLayer, Rule,
    algorithm::{Algorithm, FixedWindow},
    key::Constant,
    keyed::{KeyedRateLimitLayer, KeyedRule},
};

fn reports() -> Policy {
    Policy::new("reports", Quota::per_hour(5)).algorithm(DayAndNight { night: 20 })
}

#[tokio::test]
async fn the_example_is_decided_together_with_a_built_in_algorithm() {
    let server = RedisServer::start();
    let clock = ManualClock::new(); // midnight
    let redis = settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap();
    redis.try_out(&reports()).await.unwrap();
    let keys: Vec<String> = server.command(&["KEYS", "*"]);
    assert!(keys.is_empty(), "{keys:?}");

    let limiter = Limiter::new(redis);
    let daily = Policy::new("daily", Quota::per_day(23)).algorithm(FixedWindow::anchored());
    let key = Key::new("acme");
    let both = [Charge::new(&reports(), &key, 1), Charge::new(&daily, &key, 1)];
    let admitted = async || {
        let mut admitted = 0;
        while limiter.check_all(&both).await.unwrap().is_allowed() {
            admitted += 1;
        }
        admitted
    };
    assert_eq!(admitted().await, 20);
    let denied = limiter.check_all(&both).await.unwrap();
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(3_600)));
    // The limit by day is five, but the other policy has three units left. The denial charged neither policy.
    clock.advance(Duration::from_secs(6 * 3_600));
    assert_eq!(admitted().await, 3);
    assert_eq!(limiter.peek(&reports(), &key, 0).await.unwrap().remaining(), Some(2));
}

/// An algorithm with a name and a Lua source.
#[derive(Debug)]
struct Lua(&'static str, &'static str);

impl Algorithm for Lua {
    fn name(&self) -> &str {
        self.0
    }
    fn lua(&self) -> &str {
        self.1
    }
    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        Ok(vec![quota.limit()])
    }
}

fn policy(name: &'static str, lua: &'static str) -> Policy {
    Policy::new("p", Quota::per_hour(5)).algorithm(Lua(name, lua)).on_store_failure(FailureMode::Closed)
}

#[tokio::test]
async fn an_invalid_lua_file_is_an_error_that_names_the_problem() {
    let server = RedisServer::start();
    let rows = [
        ("does not compile", "return function(key cost)", "compiling script"),
        ("is no function", "return 7", "must return the function plan(key, cost, arg)"),
        ("returns nothing", "return function() end", "must return a table from plan"),
        ("lacks a field", "return function() return { retry = 0 } end", "must plan an integer remaining"),
        (
            "has no charge",
            "return function() return { retry = 0, remaining = 1, reset = 0 } end",
            "must plan a function charge",
        ),
        (
            "writes without a TTL",
            "return function(key) return { retry = 0, remaining = 1, reset = 0, remaining_after = 0, reset_after = 1, \
             charge = function() redis.call('SET', key, '1') end } end",
            "wrote its key without a TTL",
        ),
        ("uses a global", "return function() counter = 1 return {} end", "readonly table"),
    ];
    for (name, lua, message) in rows {
        // Each row has its own store, because a store keeps the Lua source of each name.
        let store = store(&server).await;
        let policy = policy("mine", lua);
        let error = store.try_out(&policy).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreFailed, "{name}: {error}");
        assert!(error.to_string().contains(message), "{name}: {error}");
        assert!(Limiter::new(store).check(&policy, &Key::new("alice"), 1).await.is_err(), "{name}");
    }
}

#[tokio::test]
async fn a_name_belongs_to_one_source_and_not_to_a_built_in_algorithm() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let valid = "return function() return { retry = 9, remaining = 0, reset = 9 } end";
    store.try_out(&policy("mine", valid)).await.unwrap();
    store.try_out(&policy("another", valid)).await.unwrap();
    let error = store.try_out(&policy("mine", "return function() end")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("rename one of them"), "{error}");
    for name in ["gcra", "Mine", "", "a b", "x'y"] {
        let built = Policy::new("p", Quota::per_hour(5)).try_algorithm(Lua(name, valid));
        assert_eq!(built.unwrap_err().kind(), ErrorKind::InvalidConfig, "{name}");
    }
}

#[tokio::test]
#[should_panic(expected = "use a RedisStore")]
async fn a_memory_store_panics_for_a_custom_algorithm_when_the_layer_is_built() {
    let _ = RateLimitLayer::new(MemoryStore::new(), reports(), Constant::new("all"));
}

#[test]
fn a_memory_store_panics_for_a_custom_algorithm_of_a_further_rule() {
    let plain = || Policy::new("plain", Quota::per_hour(5));
    let layer = || {
        let _ = RateLimitLayer::new(MemoryStore::new(), plain(), Constant::new("all"))
            .and(Rule::new(reports(), Constant::new("all")));
    };
    let keyed = || {
        let _ = KeyedRateLimitLayer::new(MemoryStore::new(), plain(), |_: &u8| "all")
            .and(KeyedRule::new(reports(), |_| "all"));
    };
    assert!(std::panic::catch_unwind(layer).is_err());
    assert!(std::panic::catch_unwind(keyed).is_err());
}

#[tokio::test]
async fn a_memory_store_fails_the_request_that_chooses_a_custom_algorithm() {
    let source = PolicySource::per_request(|_, _| reports());
    let layer = RateLimitLayer::new(MemoryStore::new(), source, Constant::new("all"));
    assert_eq!(inner::ask(&layer, inner::get()).await.status(), 500);
}
