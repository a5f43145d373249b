//! Custom algorithms: the one in the example, and invalid Lua files.

#[path = "../../examples/custom_algorithm.rs"]
#[allow(dead_code, reason = "`main` of the example")]
mod example;

use std::time::Duration;

use example::DayAndNight;
use support::{InLua, RedisServer, day, on_redis, redis_store, settings, store, table::rows};
use tower_ratelimit::{
    Charge, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, Quota, Reservation,
    algorithm::FixedWindow,
    settlement::SettlementSecret,
    store::{Action, ManualClock, Store},
};

pub(crate) fn reports() -> Policy {
    Policy::new("reports", Quota::per_hour(5)).algorithm(DayAndNight { night: 20 })
}

#[tokio::test]
async fn the_example_is_decided_together_with_a_built_in_algorithm() {
    let server = RedisServer::start();
    let clock = ManualClock::new(); // midnight
    let redis = settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap();
    redis.probe_policy(&reports()).await.unwrap();
    let keys: Vec<String> = server.command(&["KEYS", "*"]);
    assert!(keys.is_empty(), "{keys:?}");

    let memory = MemoryStore::with_clock(clock.clone());
    for limiter in [Limiter::new(redis), Limiter::new(memory)] {
        clock.set(ManualClock::new().now());
        let daily = day("daily", 23);
        let key = Key::new("acme");
        let both = [Charge::new(&reports(), &key, 1), Charge::new(&daily, &key, 1)];
        let admitted = async || {
            let mut admitted = 0;
            while limiter.check_all(&both).await.unwrap().is_admitted() {
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
        // A charge of the last hour no longer counts.
        let charged = limiter.check(&reports(), &key, 2).await.unwrap();
        assert_eq!(limiter.refund(&charged, 1).await.unwrap().remaining(), Some(1));
        clock.advance(Duration::from_secs(3_600));
        assert_eq!(limiter.check(&reports(), &key, 4).await.unwrap().remaining(), Some(1));
        assert_eq!(limiter.refund(&charged, 1).await.unwrap().remaining(), Some(1));
        assert_eq!(limiter.operator().refund_latest(&reports(), &key, 9).await.unwrap().remaining(), Some(5));
    }
}

fn policy(name: &'static str, lua: impl Into<String>) -> Policy {
    Policy::new("p", Quota::per_hour(5)).algorithm(InLua::new(name, lua)).failure_mode(FailureMode::Closed)
}

#[test]
fn the_name_of_an_algorithm_is_1_to_32_characters_and_no_built_in_one() {
    const LONGEST: &str = "an-algorithm-of-32-characters-09";
    let problem = |name| {
        let changed = Policy::new("p", Quota::per_hour(5)).try_algorithm(InLua::new(name, ""));
        changed.map_or_else(|error| error.to_string(), |policy| policy.settings().algorithm.name().to_owned())
    };
    for name in ["a", "9", "-", LONGEST] {
        assert_eq!(problem(name), name);
    }
    for name in ["", "an-algorithm-of-33-characters-099", "Mine", "my_own", "my own", "m\u{ef}ne", "a{b}"] {
        assert!(problem(name).contains("must be 1 to 32"), "{name}: {}", problem(name));
    }
    for name in ["gcra", "fixed-window", "concurrency"] {
        assert!(problem(name).contains("no built-in one has"), "{name}: {}", problem(name));
    }
}

#[tokio::test]
async fn an_invalid_lua_file_is_an_error_that_names_the_problem() {
    let server = RedisServer::start();
    for [name, lua, message] in rows(include_str!("tables/invalid-algorithms.txt")) {
        // Each row has its own store, because a store keeps the Lua source of each name.
        let store = store(&server).await;
        let policy = policy("mine", lua);
        let error = store.probe_policy(&policy).await.expect_err(&name);
        assert_eq!(error.kind(), ErrorKind::StoreFailed, "{name}: {error}");
        assert!(error.to_string().contains(&message), "{name}: {error}");
        assert!(Limiter::new(store).check(&policy, &Key::new("alice"), 1).await.is_err(), "{name}");
        let keys: Vec<String> = server.command(&["KEYS", "*"]);
        assert!(keys.is_empty(), "{name}: {keys:?}");
    }
}

#[tokio::test]
async fn a_lua_file_that_denies_a_cost_of_0_is_an_error() {
    let (_server, limiter) = on_redis().await;
    let denies = policy("mine", "return { decide = function() return 9, 0, 9 end }");
    assert!(!limiter.check(&denies, &Key::new("alice"), 1).await.unwrap().is_admitted());
    let error = limiter.peek(&denies, &Key::new("alice"), 0).await.unwrap_err();
    assert!(error.to_string().contains("the algorithm mine must admit a cost of 0"), "{error}");
    let stores = "return 0, 9, 5, 0, 0, 1000000, now, 1";
    let lua =
        format!("return {{ decide = function(_, cost) if cost == 0 then return 0, 9, 0 end {stores} end }}");
    let admits = policy("stores-no-zero", lua);
    assert!(limiter.peek(&admits, &Key::new("alice"), 0).await.unwrap().is_admitted());
    assert!(limiter.check(&admits, &Key::new("alice"), 1).await.unwrap().is_admitted());
}

/// The functions of a file that admits everything, with `refund`.
fn with_refund(refund: &str) -> String {
    format!(
        "return {{ decide = function(_, cost, time, count)
           local used = cost
           if time then used = used + count end
           return 0, 9, used, 0, 0, 1000000, now, used
         end, {refund} }}"
    )
}

#[tokio::test]
async fn an_invalid_refund_is_an_error_and_leaves_the_state() {
    let server = RedisServer::start();
    let rows = [
        ("a text", "refund = function() return 'all' end", "an integer lifetime"),
        ("a lifetime of -2", "refund = function() return -2, now, 1 end", "an integer lifetime"),
        ("no time", "refund = function() return 5 end", "an integer time"),
        ("a negative count", "refund = function() return KEEP_TTL, now, -1 end", "an integer count"),
        ("an error", "refund = function() error('RATELIMIT-ALGORITHM too bad', 0) end", "too bad"),
    ];
    for (name, refund, message) in rows {
        let limiter = Limiter::new(store(&server).await);
        let (policy, key) = (policy("mine", with_refund(refund)), Key::new(name));
        let decision = limiter.check(&policy, &key, 3).await.unwrap();
        let error = limiter.refund(&decision, 1).await.expect_err(name);
        assert!(error.to_string().contains(message), "{name}: {error}");
        let used = limiter.peek(&policy, &key, 0).await.unwrap().outcomes()[0].reset_after();
        assert_eq!(used, Duration::from_micros(3), "{name}");
    }
}

#[tokio::test]
async fn a_renewal_that_is_invalid_or_missing_is_an_error() {
    let server = RedisServer::start();
    let rows = [
        ("a text", "renew = function() return 'all' end", "an integer lifetime"),
        ("no time", "renew = function() return 5 end", "an integer time"),
        ("no function", "refund = nil", "has no renew"),
    ];
    for (name, renew, message) in rows {
        let store = store(&server).await;
        let charge = Charge::new(&policy("mine", with_refund(renew)), &Key::new(name), 1);
        store.decide(Action::Charge, std::slice::from_ref(&charge)).await.unwrap();
        let error = store.decide(Action::Renew, &[charge]).await.expect_err(name);
        assert!(error.to_string().contains(message), "{name}: {error}");
    }
}

#[tokio::test]
async fn a_policy_that_the_algorithm_does_not_take_refunds_nothing() {
    let (_server, limiter) = on_redis().await;
    let lua = with_refund(
        "refund = function() return 5, now, 1 end,
         policy = function() error('RATELIMIT-ALGORITHM too few', 0) end",
    );
    let (policy, key) = (policy("mine", lua), Key::new("alice"));
    let errors = [
        limiter.check(&policy, &key, 1).await.unwrap_err(),
        limiter.operator().refund_latest(&policy, &key, 1).await.unwrap_err(),
    ];
    assert!(errors.iter().all(|error| error.to_string().contains("too few")), "{errors:?}");
}

#[tokio::test]
async fn a_settlement_that_fails_is_not_settled_for_the_rest_of_its_batch() {
    let (_server, limiter) = on_redis().await;
    let fails =
        policy("mine", with_refund("refund = function() error('RATELIMIT-ALGORITHM too bad', 0) end"));
    let decision = limiter.check(&fails, &Key::new("alice"), 3).await.unwrap();
    let (secret, lifetime) = (SettlementSecret::new([7; 32]), Duration::from_secs(60));
    let token = Reservation::new(&limiter, &decision).into_token(&secret, lifetime).unwrap();
    let policies = [fails.clone()];
    let settle = || limiter.settle_token(&secret, &token, &policies, 0);
    // The first call is sent alone, and the others together while it is under way.
    let (_, first, second) = tokio::join!(limiter.peek(&fails, &Key::new("bob"), 0), settle(), settle());
    for error in [first.unwrap_err(), second.unwrap_err()] {
        assert!(error.to_string().contains("too bad"), "{error}");
    }
}

#[tokio::test]
async fn a_refund_may_keep_the_ttl_of_a_key_that_exists_only() {
    let (server, limiter) = on_redis().await;
    let keeps = policy("mine", with_refund("refund = function() return KEEP_TTL, now, 1 end"));
    let error = limiter.operator().refund_latest(&keeps, &Key::new("alice"), 1).await.unwrap_err();
    assert!(error.to_string().contains("KEEP_TTL for a key that does not exist"), "{error}");
    // A key of another type is neither read nor overwritten.
    let key = "rl:p:mine:{bob}";
    let _: i64 = server.command(&["RPUSH", key, "1"]);
    limiter.operator().refund_latest(&keeps, &Key::new("bob"), 1).await.unwrap_err();
    let keys: Vec<String> = server.command(&["KEYS", "*"]);
    assert_eq!(keys, [key]);
    let kind: String = server.command(&["TYPE", key]);
    assert_eq!(kind, "list");
}

#[tokio::test]
async fn a_removed_state_is_gone_for_the_same_call() {
    let (server, limiter) = on_redis().await;
    // It returns the old state too, which must not count.
    let removes = policy(
        "mine",
        with_refund("refund = function(_, _, _, _, time, count) return REMOVE, time, count end"),
    );
    let decision = limiter.check(&removes, &Key::new("alice"), 3).await.unwrap();
    let refunded = limiter.refund(&decision, 3).await.unwrap();
    assert_eq!(refunded.outcomes()[0].reset_after(), Duration::ZERO);
    let keys: Vec<String> = server.command(&["KEYS", "*"]);
    assert!(keys.is_empty(), "{keys:?}");
}

#[tokio::test]
async fn a_file_without_refund_refunds_nothing() {
    let (_server, limiter) = on_redis().await;
    let (policy, key) = (policy("mine", with_refund("")), Key::new("alice"));
    let decision = limiter.check(&policy, &key, 3).await.unwrap();
    let refunded = limiter.refund(&decision, 2).await.unwrap();
    assert_eq!(refunded.outcomes()[0].reset_after(), Duration::from_micros(3));
}

#[tokio::test]
async fn a_name_belongs_to_one_source_and_not_to_a_built_in_algorithm() {
    let (_server, store) = redis_store().await;
    let valid = "return { decide = function(_, cost) return cost, 0, 9 end }";
    store.probe_policy(&policy("mine", valid)).await.unwrap();
    store.probe_policy(&policy("another", valid)).await.unwrap();
    let error = store.probe_policy(&policy("mine", "return { decide = type }")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("rename one of them"), "{error}");
    for name in ["gcra", "Mine", "", "a b", "x'y"] {
        let built = Policy::new("p", Quota::per_hour(5)).try_algorithm(InLua::new(name, valid));
        assert_eq!(built.unwrap_err().kind(), ErrorKind::InvalidConfig, "{name}");
    }
}

#[tokio::test]
async fn concurrent_decisions_of_a_custom_and_of_a_built_in_algorithm_are_told_apart() {
    let server = RedisServer::start();
    let clock = ManualClock::new(); // midnight
    let store = settings().pool_size(1).manual_clock(clock).connect(&server.url()).await.unwrap();
    let limiter = Limiter::new(store);
    let hourly = Policy::new("hourly", Quota::per_hour(3)).algorithm(FixedWindow::anchored());
    let answers = (0..200).map(|i| {
        let (policy, remaining) = if i % 2 == 0 { (reports(), 18) } else { (hourly.clone(), 1) };
        let answer = limiter.check(&policy, &Key::new(format!("client-{i}")), 2);
        async move { (i, remaining, answer.await.unwrap()) }
    });
    for (i, remaining, decision) in futures_util::future::join_all(answers).await {
        assert!(decision.failure().is_none(), "{i}: {decision:?}");
        assert_eq!(decision.remaining(), Some(remaining), "{i}");
    }
}

#[tokio::test]
async fn a_forgotten_local_changes_nothing_for_the_other_policies_of_a_decision() {
    let (server, limiter) = on_redis().await;
    let lua = "return { decide = function(_, cost) \
               ttl, pack, now, manual_time, write_state, NEVER = 0, 0, 0, 1, 0, 0 \
               request, reply, errors, left, size, count_of_records = 0, 0, 0, 0, 0, 0 \
               return 0, 4, 3, 0, 0, 9, 1, cost end }";
    let hourly = Policy::new("hourly", Quota::per_hour(3)).failure_mode(FailureMode::Closed);
    let charges = [policy("mine", lua), hourly].map(|policy| Charge::new(&policy, &Key::new("alice"), 1));
    for remaining in [2, 1] {
        let decision = limiter.check_all(&charges).await.unwrap();
        assert_eq!(decision.outcomes()[1].remaining(), remaining);
    }
    // Two units are replenished in 40 minutes, and a TTL is twice as long.
    let ttl: i64 = server.command(&["PTTL", "rl:hourly:gcra:{alice}"]);
    assert!(ttl <= 4_800_002, "{ttl}");
}

#[tokio::test]
async fn a_file_can_round_up_and_keep_a_text() {
    let (_server, limiter) = on_redis().await;
    // Keeps the digits of all costs, and reports how many there are, and a fifth of their number.
    let digits = "return { decide = function(_, cost, time, count, text)
        local costs = (text or '') .. (cost > 0 and format('%d', cost) or '')
        return 0, #costs, muldiv_up(costs + 0, 2, 10), 0, 0, 1000000, now, 0, costs
      end }";
    let policy = policy("digits", digits);
    for (cost, remaining, micros) in [(5, 1, 1), (4, 2, 11), (0, 2, 11), (5, 3, 109)] {
        let decided = limiter.check(&policy, &Key::new("alice"), cost).await.unwrap();
        let reset = decided.outcomes()[0].reset_after();
        assert_eq!((decided.remaining(), reset), (Some(remaining), Duration::from_micros(micros)));
    }
}

#[tokio::test]
async fn an_empty_text_is_kept_as_nil() {
    let (_server, limiter) = on_redis().await;
    let empty = "return { decide = function(_, _, _, _, text)
        return 0, text and 1 or 2, 0, 0, 0, 1000000, now, 0, ''
      end }";
    let policy = policy("empty", empty);
    for _ in 0..2 {
        let decided = limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
        assert_eq!(decided.remaining(), Some(2));
    }
}
