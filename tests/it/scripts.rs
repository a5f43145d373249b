//! The Lua script on a Redis server: its arithmetic, the keys it writes, and the commands it calls.

use futures_util::future::join_all;
use proptest::prelude::*;
use std::time::Duration;
use support::{RedisServer, on_redis, on_redis_with_clock, settings, within};

use tower_ratelimit::{
    Charge, Error, ErrorKind, FailureMode, Key, Limiter, Policy, Quota, Reservation,
    algorithm::{Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    settlement::SettlementSecret,
};

const ARITHMETIC: &str = include_str!("../../lua/include/muldiv.lua");

#[test]
fn muldiv_is_exact_up_to_2_to_the_45() {
    let server = RedisServer::start();
    let connection = std::cell::RefCell::new(server.connection());
    let script = redis::Script::new(&format!(
        "{ARITHMETIC}
        local quotient, rest = muldiv(tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]))
        return {{string.format('%d', quotient), string.format('%d', rest)}}"
    ));
    let number = || prop_oneof![0..1_000_u64, 0..=1_u64 << 45, (1_u64 << 45) - 1_000..=1_u64 << 45];
    let config = ProptestConfig { cases: 5_000, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(a in number(), b in number(), m in number())| {
        let m = m.max(1);
        let (quotient, rest) = (u128::from(a) * u128::from(b) / u128::from(m), u128::from(a) * u128::from(b) % u128::from(m));
        // The bounds of quotas keep every quotient below 2^53.
        prop_assume!(quotient < 1 << 53);
        let result: (u64, u64) = script.arg(a).arg(b).arg(m).invoke(&mut *connection.borrow_mut()).unwrap();
        prop_assert_eq!((u128::from(result.0), u128::from(result.1)), (quotient, rest));
    });
}

/// A policy of each algorithm that supports the quota.
fn each(name: &str, quota: Quota) -> Vec<(&'static str, Policy)> {
    let policy = || Policy::new(name, quota).failure_mode(FailureMode::Closed);
    let mut all = vec![
        ("gcra", policy()),
        ("token bucket", policy().algorithm(TokenBucket::new())),
        ("token bucket, not full at first", policy().algorithm(TokenBucket::new().starting_at(1))),
        ("meter", policy().algorithm(LeakyBucket::meter())),
        ("queue", policy().algorithm(LeakyBucket::queue(quota.period()))),
        ("anchored window", policy().algorithm(FixedWindow::anchored())),
        ("sliding window", policy().algorithm(SlidingWindow::new())),
        ("sliding window of ten", policy().algorithm(SlidingWindow::new().segments(10))),
        ("sliding log", policy().algorithm(SlidingLog::new())),
    ];
    // Others cannot be aligned.
    if Duration::from_secs(86_400).as_micros().is_multiple_of(quota.period().as_micros()) {
        all.push(("aligned window", policy().algorithm(FixedWindow::aligned())));
    }
    if quota.limit() <= 1_000_000 {
        all.push(("concurrency", policy().algorithm(Concurrency::new())));
    }
    all
}

/// The larger quota counts these units again, so they must not be forgotten before they have drained.
#[tokio::test]
async fn the_ttl_of_a_bucket_covers_the_units_of_a_larger_quota() {
    let (server, limiter) = on_redis().await;
    for ((kind, large), (_, small)) in
        each("p", Quota::per_minute(100)).into_iter().zip(each("p", Quota::per_minute(10)))
    {
        if !["gcra", "token bucket", "meter"].contains(&kind) {
            continue;
        }
        let () = server.command(&["FLUSHALL"]);
        let key = Key::new("alice");
        assert!(!limiter.check(&large, &key, 100).await.unwrap().verdict().is_denied(), "{kind}");
        assert!(limiter.check(&small, &key, 1).await.unwrap().verdict().is_denied(), "{kind}");
        let name: Vec<String> = server.command(&["KEYS", "*"]);
        let left: i64 = server.command(&["PTTL", &name[0]]);
        // Twice as long as 100 units at 10 a minute take to drain, less what drained between the two decisions.
        assert!((1_000_000..=1_200_002).contains(&left), "{kind}: {left}");
    }
}

#[tokio::test]
async fn the_ttl_of_a_window_covers_the_windows_that_pay_for_its_debt() {
    let (server, limiter) = on_redis().await;
    let policy = Policy::new("p", Quota::per_minute(10)).algorithm(FixedWindow::anchored()).max_debt(25);
    let request = limiter.check(&policy, &Key::new("alice"), 10).await.unwrap();
    limiter.debit(&request, 25).await.unwrap();
    let name: Vec<String> = server.command(&["KEYS", "*"]);
    let left: i64 = server.command(&["PTTL", &name[0]]);
    // Its own window and three more, twice, less what has passed since.
    assert!((400_000..=480_002).contains(&left), "{left}");
}

/// Under a much smaller quota, what is left takes longer to drain than a TTL can be.
#[tokio::test]
async fn the_units_of_a_much_larger_quota_get_a_ttl_that_redis_accepts() {
    let (server, limiter) = on_redis().await;
    let most = 1_000_000_000_000;
    let large = Quota::new(most, Duration::from_secs(86_400));
    let small = Quota::new(1, Duration::from_secs(400 * 86_400));
    for ((kind, large), (_, small)) in each("p", large).into_iter().zip(each("p", small)) {
        let () = server.command(&["FLUSHALL"]);
        let key = Key::new("alice");
        if kind == "token bucket, not full at first" {
            continue;
        }
        assert!(!limiter.check(&large, &key, most).await.unwrap().verdict().is_denied(), "{kind}");
        let denied = limiter.check(&small, &key, 1).await.unwrap();
        assert_eq!(denied.remaining(), Some(0), "{kind}");
        let name: Vec<String> = server.command(&["KEYS", "*"]);
        let left: i64 = server.command(&["PTTL", &name[0]]);
        assert!(left > 0, "{kind}: {left}");
        // A queue delays as much as its burst, and another aligned window has started.
        let again = limiter.check(&large, &key, most / 2).await.unwrap();
        assert!(
            again.verdict().is_denied() || ["queue", "aligned window"].contains(&kind),
            "{kind}: {again:?}"
        );
    }
}

#[tokio::test]
async fn every_key_has_a_ttl_as_long_as_its_state_matters() {
    let (server, limiter) = on_redis().await;
    let quota = |limit, period| Quota::new(limit, period);
    let rows = [
        ("a second", Quota::per_second(10)),
        ("a day", Quota::per_day(10)),
        ("ten million a second", Quota::per_second(10_000_000)),
        ("400 days", quota(1, Duration::from_secs(400 * 86_400))),
        ("a millisecond", quota(1, Duration::from_millis(1))),
    ];
    for (name, quota) in rows {
        for (kind, policy) in each(name, quota) {
            let () = server.command(&["FLUSHALL"]);
            let key = Key::new("alice");
            let charged = limiter.check(&policy, &key, 1).await.unwrap();
            assert!(!charged.verdict().is_denied(), "{name}, {kind}");
            let reset = i64::try_from(charged.outcomes()[0].reset_after().as_millis()).unwrap();
            // Each later step keeps a TTL too.
            for step in ["charge", "denial", "refund"] {
                match step {
                    "denial" => drop(limiter.check(&policy, &key, policy.capacity()).await.unwrap()),
                    "refund" => drop(limiter.operator().refund_latest(&policy, &key, 1).await.unwrap()),
                    _ => {}
                }
                let mut keys: Vec<String> = server.command(&["KEYS", "*"]);
                // Where instances announce themselves.
                keys.retain(|key| !key.contains("%25instances"));
                let brief = name == "a millisecond" || name == "ten million a second";
                // State that matters for a millisecond may have expired, and a refund may delete the key.
                assert!(keys.len() == 1 || brief || step == "refund", "{name}, {kind}, {step}");
                for key in keys {
                    let ttl: i64 = server.command(&["PTTL", &key]);
                    assert_ne!(ttl, -1, "{name}, {kind}, {step}");
                    if step == "charge" && reset > 1_000 {
                        assert!(ttl > reset - 1_000, "{name}, {kind}: {ttl} of {reset}");
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn the_ttl_of_a_bucket_covers_later_refunds_and_a_start_that_is_not_full() {
    let (server, limiter) = on_redis().await;
    let minute = 60_000;
    // Ten units drain in an hour.
    let policy = Policy::new("p", Quota::per_hour(10));
    let starts_with_one = policy.clone().algorithm(TokenBucket::new().starting_at(1));
    let rows = [
        ("charged", policy.clone(), 5, 0, 0, 30 * minute),
        // A refund of the oldest charge must know of this one.
        ("refunded", policy.clone(), 10, 9, 0, 60 * minute),
        ("refunded and charged", policy, 10, 9, 1, 60 * minute),
        // After it is full, it counts as new only when an empty bucket would have filled.
        ("not full at first", starts_with_one.clone(), 1, 0, 0, 120 * minute),
        // A refund keeps the TTL of the charge.
        ("not full at first, refunded", starts_with_one, 1, 1, 0, 120 * minute),
    ];
    for (name, policy, cost, refund, again, expected) in rows {
        let () = server.command(&["FLUSHALL"]);
        let key = Key::new("alice");
        assert!(!limiter.check(&policy, &key, cost).await.unwrap().verdict().is_denied(), "{name}");
        if refund > 0 {
            limiter.operator().refund_latest(&policy, &key, refund).await.unwrap();
        }
        if again > 0 {
            assert!(!limiter.check(&policy, &key, again).await.unwrap().verdict().is_denied(), "{name}");
        }
        let stored: String = server.command(&["RANDOMKEY"]);
        let ttl: i64 = server.command(&["PTTL", &stored]);
        // A TTL is twice as long as the state matters.
        assert!((2 * expected - 20_000..=2 * expected + 10).contains(&ttl), "{name}: {ttl} of {expected}");
    }
}

#[tokio::test]
async fn a_refund_of_a_charge_in_a_window_keeps_the_ttl_and_the_last_one_deletes_the_key() {
    let (server, limiter) = on_redis().await;
    let windows =
        ["anchored window", "aligned window", "sliding window", "sliding window of ten", "sliding log"];
    for (name, policy) in each("p", Quota::per_day(10)) {
        if !windows.contains(&name) {
            continue;
        }
        let () = server.command(&["FLUSHALL"]);
        let charged = limiter.check(&policy, &Key::new("alice"), 3).await.unwrap();
        let stored: String = server.command(&["RANDOMKEY"]);
        let _: u64 = server.command(&["PEXPIRE", &stored, "60000"]);
        assert!(!limiter.refund(&charged, 1).await.unwrap().verdict().is_denied(), "{name}");
        let ttl: i64 = server.command(&["PTTL", &stored]);
        assert!((1..=60_000).contains(&ttl), "{name}: {ttl}");
        limiter.refund(&charged, 2).await.unwrap();
        let keys: u64 = server.command(&["DBSIZE"]);
        assert_eq!(keys, 0, "{name}");
    }
}

/// How often the server has run `command`, in scripts too.
fn calls(server: &RedisServer, command: &str) -> u64 {
    let info: String = server.command(&["INFO", "commandstats"]);
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn a_batch_of_new_keys_under_one_and_two_policies_is_read_once() {
    let server = RedisServer::start();
    let limiter = Limiter::new(settings().pool_size(1).connect(&server.url()).await.unwrap());
    let [first, second] = ["first", "second"].map(|name| Policy::new(name, Quota::per_day(10)));
    let charges = |i: u64| {
        let key = Key::new(format!("client-{i}"));
        let all = [Charge::new(&first, &key, 1), Charge::new(&second, &key, 1)];
        // The first half is charged under one policy.
        all.into_iter().take(if i < 20 { 1 } else { 2 }).collect::<Vec<_>>()
    };
    let (reads, scripts) = (calls(&server, "mget"), calls(&server, "evalsha") + calls(&server, "eval"));
    let decisions = (0..40).map(|i| {
        let (limiter, charges) = (limiter.clone(), charges(i));
        async move { limiter.check_all(&charges).await.unwrap() }
    });
    for decision in join_all(decisions).await {
        assert!(decision.is_admitted());
        assert!(decision.outcomes().iter().all(|outcome| outcome.remaining() == 9), "{decision:?}");
    }
    // The first decision is alone, and its key is read with GET. What `usual.lua` leaves is read again.
    let reads = calls(&server, "mget") - reads;
    let batches = calls(&server, "evalsha") + calls(&server, "eval") - scripts - 1;
    assert_eq!(reads, batches);
    assert!(batches > 0);
}

#[tokio::test]
async fn an_active_key_is_written_in_place_while_its_ttl_is_long_enough() {
    let (server, limiter) = on_redis().await;
    // A TTL is twice as long as the state matters. A bucket's matters longer after each charge, so the first,
    // the third and the sixth charge need a longer TTL. A window's matters until it ends.
    let rows = [
        ("gcra", Policy::new("p", Quota::per_day(10)), [3, 5]),
        ("anchored window", Policy::new("p", Quota::per_day(10)).algorithm(FixedWindow::anchored()), [1, 7]),
        ("sliding window", Policy::new("p", Quota::per_day(10)).algorithm(SlidingWindow::new()), [1, 7]),
    ];
    for (name, policy, expected) in rows {
        for count in [1, 5] {
            // One key is decided alone, and five in one call.
            let () = server.command(&["FLUSHALL"]);
            let before = ["set", "setrange"].map(|command| calls(&server, command));
            for _ in 0..8 {
                let charges: Vec<_> =
                    (0..count).map(|i| Charge::new(&policy, &Key::new(format!("client-{i}")), 1)).collect();
                let decision = limiter.check_all(&charges).await.unwrap();
                for (charge, outcome) in charges.iter().zip(decision.outcomes()) {
                    let stored = limiter.operator().stored_name(charge.policy(), charge.key()).unwrap();
                    let ttl: u64 = server.command(&["PTTL", &stored]);
                    let reset = outcome.reset_after().as_millis() as u64;
                    assert!(
                        (reset.saturating_sub(10_000)..=2 * reset + 20_000).contains(&ttl),
                        "{name}: {ttl} of {reset}"
                    );
                }
            }
            let after = ["set", "setrange"].map(|command| calls(&server, command));
            let written = [after[0] - before[0], after[1] - before[1]];
            assert_eq!(written, expected.map(|each| each * count), "{name}, {count} keys");
        }
    }
}

#[tokio::test]
async fn a_log_drops_entries_that_have_expired() {
    let (server, clock, limiter) = on_redis_with_clock().await;
    let policy = Policy::new("p", Quota::per_minute(10)).algorithm(SlidingLog::new());
    for _ in 0..20 {
        clock.advance(Duration::from_secs(20));
        assert!(!limiter.check(&policy, &Key::new("alice"), 1).await.unwrap().verdict().is_denied());
    }
    let stored: String = server.command(&["RANDOMKEY"]);
    let length: u64 = server.command(&["LLEN", &stored]);
    // The total before the log, and the entries of one minute.
    assert_eq!(length, 4);
}

#[tokio::test]
async fn denials_and_peeks_write_nothing() {
    let (server, limiter) = on_redis().await;
    for (name, policy) in each("p", Quota::per_hour(3)) {
        let () = server.command(&["FLUSHALL"]);
        let key = Key::new("alice");
        let _charged = limiter.check(&policy, &key, 1).await.unwrap();
        let writes = || {
            let info: String = server.command(&["INFO", "persistence"]);
            let changes = info.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
            changes.unwrap().trim().parse::<u64>().unwrap()
        };
        let before = writes();
        for cost in [policy.capacity(), policy.capacity() + 1, u64::MAX] {
            assert!(limiter.check(&policy, &key, cost).await.unwrap().verdict().is_denied(), "{name}");
        }
        assert!(!limiter.check(&policy, &key, 0).await.unwrap().verdict().is_denied());
        limiter.peek(&policy, &key, 1).await.unwrap();
        assert_eq!(writes(), before, "{name}");
    }
}

#[tokio::test]
async fn a_key_needs_no_more_memory_than_documented() {
    let (server, limiter) = on_redis().await;
    let small = Quota::per_second(10);
    let large = Quota::per_hour(1_000_000);
    let rows = [
        ("gcra", Policy::new("p", small.burst(20)), 104),
        ("gcra, uneven", Policy::new("p", Quota::per_second(3)), 104),
        ("gcra, large", Policy::new("p", large), 104),
        ("token bucket", Policy::new("p", large).algorithm(TokenBucket::new()), 104),
        ("leaky bucket", Policy::new("p", large).algorithm(LeakyBucket::meter()), 104),
        ("fixed window", Policy::new("p", large).algorithm(FixedWindow::anchored()), 104),
        ("queue", Policy::new("p", large).algorithm(LeakyBucket::queue(Duration::from_secs(60))), 104),
        ("sliding window", Policy::new("p", large).algorithm(SlidingWindow::new()), 120),
        ("sliding window of ten", Policy::new("p", large).algorithm(SlidingWindow::new().segments(10)), 200),
    ];
    for (name, policy, bytes) in rows {
        let () = server.command(&["FLUSHALL"]);
        // The charge with the longest state.
        limiter.check(&policy, &Key::new("a"), policy.capacity()).await.unwrap();
        let key: String = server.command(&["RANDOMKEY"]);
        // The documented sizes are for keys of 20 bytes.
        let () = server.command(&["RENAME", &key, "rl:p:gcra:{12345678}"]);
        let used: u64 = server.command(&["MEMORY", "USAGE", "rl:p:gcra:{12345678}"]);
        assert!(used <= bytes, "{name}: {used}");
        eprintln!("{name}: {used} bytes");
    }
}

#[tokio::test]
async fn a_logged_request_needs_at_most_20_bytes_for_any_cost() {
    let (server, limiter) = on_redis().await;
    let policy = Policy::new("p", Quota::per_day(10_000_000)).algorithm(SlidingLog::new());
    let requests = 5_000;
    for i in 0..requests {
        assert!(!limiter.check(&policy, &Key::new("a"), 1 + i % 1_000).await.unwrap().verdict().is_denied());
    }
    let key: String = server.command(&["RANDOMKEY"]);
    let used: u64 = server.command(&["MEMORY", "USAGE", &key, "SAMPLES", "0"]);
    assert!(used <= 20 * requests, "{} bytes a request", used / requests);
    eprintln!("sliding log: {} bytes for {requests} requests", used);
}

#[tokio::test]
async fn a_permit_needs_at_most_140_bytes() {
    let (server, limiter) = on_redis().await;
    let policy = Policy::concurrency("p", 1_000);
    let mut held = Vec::new();
    for units in [100, 900] {
        held.push(limiter.check(&policy, &Key::new("a"), units).await.unwrap());
        let key: String = server.command(&["RANDOMKEY"]);
        let used: u64 = server.command(&["MEMORY", "USAGE", &key, "SAMPLES", "0"]);
        let units: u64 = server.command(&["ZCARD", &key]);
        assert!(used <= 140 * units, "{} bytes a unit", used / units);
        eprintln!("concurrency: {used} bytes for {units} units");
    }
}

#[tokio::test]
async fn one_decision_is_one_command() {
    let (server, limiter) = on_redis().await;
    let policy = Policy::new("p", Quota::per_hour(1_000));
    limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
    let calls = |command: &str| {
        let info: String = server.command(&["INFO", "commandstats"]);
        let line = info.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
        line.map_or(0, |line| line.split(['=', ',']).nth(1).unwrap().parse::<u64>().unwrap())
    };
    let before = (calls("evalsha"), calls("ping"), calls("eval"));
    for _ in 0..100 {
        limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
    }
    let after = (calls("evalsha"), calls("ping"), calls("eval"));
    assert_eq!(after, (before.0 + 100, before.1, before.2));
}

/// Waits until all permits are released in the background.
async fn released(limiter: &Limiter, policy: &Policy) -> Result<(), Error> {
    for _ in 0..40 {
        if limiter.peek(policy, &Key::new("alice"), 0).await?.remaining() == Some(policy.capacity()) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Err(Error::new(ErrorKind::StoreFailed, "a permit was not released"))
}

#[tokio::test]
async fn the_printed_acl_rule_is_sufficient_and_each_of_its_commands_is_needed() {
    let server = RedisServer::start();
    // Everything the store does, up to the first error.
    let everything = async |url: &str| -> Result<(), Error> {
        let store = settings().prefix("a*b").connect(url).await?;
        let limiter = Limiter::new(store.clone());
        let key = Key::new("alice");
        for (name, policy) in each("p", Quota::per_minute(3)) {
            let mut held = Vec::new();
            for cost in [2, 1, 2] {
                held.push(limiter.check(&policy, &key, cost).await?);
            }
            held.push(limiter.check_up_to(&policy, &key, 9).await?);
            drop(held);
            if name == "concurrency" {
                released(&limiter, &policy).await?;
            } else {
                limiter.operator().refund_latest(&policy, &key, 1).await?;
                limiter.operator().refund_latest(&policy, &key, 3).await?;
                let (secret, lifetime) = (SettlementSecret::new([7; 32]), Duration::from_secs(60));
                let decision = limiter.check(&policy, &key, 1).await?;
                let token = Reservation::new(&limiter, &decision).into_token(&secret, lifetime)?;
                limiter.settle_token(&secret, &token, std::slice::from_ref(&policy), 0).await?;
            }
            limiter.operator().reset(&policy, &key).await?;
        }
        let hash = store.hash("any");
        hash.set(&[("a", "1"), ("b", "2")]).await?;
        hash.change(&[(b"a".to_vec(), b"1".to_vec())], &[("c", "3")]).await?;
        hash.remove(&["b"]).await?;
        hash.expire(Duration::from_secs(60)).await?;
        assert_eq!(
            (hash.fields().await?.len(), hash.read(b"", 9).await?.fields.map(|all| all.len())),
            (2, Some(2))
        );
        // Permits are renewed and released.
        let short = Policy::new("short", Quota::new(2, Duration::from_secs(3)))
            .algorithm(Concurrency::new())
            .failure_mode(FailureMode::Closed);
        let held = limiter.check(&short, &key, 1).await?;
        let holders = || {
            server.command::<Vec<String>>(&[
                "ZRANGE",
                "a*b:short:concurrency:{alice}",
                "0",
                "-1",
                "WITHSCORES",
            ])
        };
        let first = holders();
        if !within(Duration::from_secs(9), async || holders() != first).await {
            return Err(Error::new(ErrorKind::StoreFailed, "a permit was not renewed"));
        }
        assert_eq!(limiter.peek(&short, &key, 0).await?.remaining(), Some(1));
        // The permit of a holder that was killed.
        let name = "a*b:short:concurrency:{alice}";
        let _: redis::Value = server.command(&["ZADD", name, "1", "dead:1:3000000"]);
        let _: redis::Value = server.command(&["ZINCRBY", name, "-1", "units"]);
        drop(limiter.check(&short, &key, 1).await?);
        drop(held);
        released(&limiter, &short).await
    };
    let store = settings().prefix("a*b").connect(&server.url()).await.unwrap();
    assert!(!store.acl_rule().contains("+h"), "it grants the commands of hashes to a store without any");
    let _hash = store.hash("any");
    let rule = store.acl_rule();
    everything(&server.user("whole", &rule)).await.unwrap();

    // Without GET, `lua/usual.lua` leaves each decision to the rest of the script: the same decisions take longer.
    let needed = rule.split(' ').filter(|word| word.starts_with('+') && *word != "+get");
    for word in needed {
        let less = rule.split(' ').filter(|other| *other != word).collect::<Vec<_>>().join(" ");
        let name = word.replace(['+', '|'], "-");
        // What the user before has left would fail this one.
        let () = server.command(&["FLUSHALL"]);
        let failed = everything(&server.user(&name, &less)).await;
        assert!(failed.is_err(), "{word} is not needed");
    }
}

/// Many tenants on one pool: their decisions share its key, and all are in one call.
#[tokio::test]
async fn decisions_on_a_shared_key_fail_together_if_it_cannot_be_written_and_alone_if_their_own_key_is_foreign()
 {
    let server = RedisServer::start();
    let store = settings().pool_size(1).deny_cache(Duration::ZERO).connect(&server.url()).await.unwrap();
    let limiter = Limiter::new(store);
    let policy = |name: &str| Policy::new(name, Quota::per_day(100)).failure_mode(FailureMode::Closed);
    let (tenants, pool) = (policy("tenants"), policy("pool"));
    let both =
        |tenant: u64| [Charge::new(&tenants, &Key::new(tenant), 1), Charge::new(&pool, &Key::new("all"), 1)];
    let round = async || {
        let tenants: Vec<_> = (0..8).map(both).collect();
        let decided = join_all(tenants.iter().map(|charges| limiter.check_all(charges))).await;
        decided.into_iter().map(|decided| decided.map(|decision| decision.is_admitted())).collect::<Vec<_>>()
    };
    let used = async |policy: &Policy, key: Key| {
        100 - limiter.peek(policy, &key, 0).await.unwrap().remaining().unwrap()
    };
    // With and without states.
    for before in [0, 8] {
        let () = server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        for decided in round().await {
            assert_eq!(decided.unwrap_err().kind(), ErrorKind::StoreFailed);
        }
        let () = server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        assert_eq!(used(&pool, Key::new("all")).await, before);
        // Only what cannot be written leaves too few units for the second one.
        let () = server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        let all = Key::new("all");
        for decided in join_all((60..69).map(|cost| limiter.check(&pool, &all, cost))).await {
            assert_eq!(decided.unwrap_err().kind(), ErrorKind::StoreFailed);
        }
        let () = server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        assert!(round().await.into_iter().all(|decided| decided.unwrap()));
    }
    let () = server.command(&["DEL", "rl:tenants:gcra:{5}"]);
    let () = server.command(&["RPUSH", "rl:tenants:gcra:{5}", "x"]);
    for (tenant, decided) in round().await.into_iter().enumerate() {
        assert_eq!(decided.is_err_and(|error| error.kind() == ErrorKind::ForeignValue), tenant == 5);
    }
    assert_eq!(used(&pool, Key::new("all")).await, 23);
    for tenant in (0..8).filter(|tenant| *tenant != 5) {
        assert_eq!(used(&tenants, Key::new(tenant)).await, 3);
    }
}

#[tokio::test]
async fn a_decision_before_the_first_change_of_an_unwritable_key_stands() {
    let (server, limiter) = on_redis().await;
    let policy = Policy::new("stepped", Quota::per_hour(5)).failure_mode(FailureMode::Closed);
    let policy = policy.algorithm(TokenBucket::new().refill_every(Duration::from_secs(720)));
    let (alice, other) = (Key::new("alice"), Key::new("other"));
    assert!(limiter.check(&policy, &alice, 2).await.unwrap().is_admitted());
    let () = server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    // The first one is sent alone.
    let asked = [(&other, 0), (&alice, 4), (&alice, 1), (&alice, 3)];
    let decided = join_all(asked.iter().map(|(key, cost)| limiter.check(&policy, key, *cost))).await;
    let denied: Vec<_> = decided.into_iter().map(|one| one.map(|one| one.is_denied()).ok()).collect();
    assert_eq!(denied, [Some(false), Some(true), None, None]);
}

/// A TTL is at most twice as long as a state matters, and no shorter, also where a state has a text or is leased.
#[tokio::test]
async fn a_ttl_is_at_most_twice_as_long_as_its_state_matters() {
    let (server, limiter) = on_redis().await;
    let hour = || Quota::per_hour(1_000);
    let day = Duration::from_secs(86_400);
    let rows = [
        (
            "stepped",
            Policy::new("stepped", hour())
                .algorithm(TokenBucket::new().refill_every(Duration::from_secs(36))),
        ),
        ("debt", Policy::new("debt", hour()).max_debt(500)),
        ("log", Policy::new("log", hour()).algorithm(SlidingLog::new())),
        ("permits", Policy::new("permits", Quota::new(1_000, day / 24)).algorithm(Concurrency::new())),
        ("leased", Policy::new("leased", hour()).algorithm(FixedWindow::anchored()).max_lease(5)),
    ];
    for (name, policy) in rows {
        let mut held = Vec::new();
        for units in [1, 1, 400] {
            for _ in 0..if name == "leased" && units == 1 { 60 } else { 1 } {
                held.push(limiter.check(&policy, &Key::new("alice"), units).await.unwrap());
            }
            let reset = held[held.len() - 1].outcomes()[0].reset_after().as_millis();
            let keys: Vec<String> = server.command(&["KEYS", &format!("rl:{name}:*")]);
            let ttl: i64 = server.command(&["PTTL", &keys[0]]);
            let longest = 2 * u128::max(reset, 3_600_000) + 1_000;
            let ttl = u128::try_from(ttl).unwrap();
            assert!(ttl + 1_000 >= reset && ttl <= longest, "{name}, {units}: {ttl} of {reset}");
        }
        if !policy.has_permits() {
            limiter.operator().refund_latest(&policy, &Key::new("alice"), 1).await.unwrap();
            let keys: Vec<String> = server.command(&["KEYS", &format!("rl:{name}:*")]);
            let ttl: i64 = server.command(&["PTTL", &keys[0]]);
            // Debt is replenished too.
            let longest = if name == "debt" { 10_802_000 } else { 7_202_000 };
            assert!((1_000_000..=longest).contains(&ttl), "{name}, refunded: {ttl}");
        }
    }
}

/// As an earlier release wrote it, without the end of its TTL.
#[tokio::test]
async fn a_refund_of_a_state_in_version_1_has_a_ttl() {
    let (server, limiter) = on_redis().await;
    let policy = || Policy::new("p", Quota::per_hour(10));
    let policies = [
        ("fixed-window", policy().algorithm(FixedWindow::anchored()), 3_000_000),
        // After an hour, a full bucket is new again.
        ("token-bucket", policy().algorithm(TokenBucket::new().starting_at(5)), 10_000_000),
    ];
    for (name, policy, least) in policies {
        let charged = limiter.check(&policy, &Key::new("alice"), 3).await.unwrap();
        let key = format!("rl:p:{name}:{{alice}}");
        let state: Vec<u8> = server.command(&["GET", &key]);
        let first = [&[1][..], &state[1..17]].concat();
        let mut set = redis::cmd("SET");
        let () = set.arg(&key).arg(first).arg("KEEPTTL").query(&mut server.connection()).unwrap();
        let before = charged.remaining().unwrap();
        assert_eq!(limiter.refund(&charged, 1).await.unwrap().remaining(), Some(before + 1), "{name}");
        let ttl: i64 = server.command(&["PTTL", &key]);
        assert!(ttl > least, "{name}: {ttl}");
    }
}

/// A batch reads the keys of all its decisions. Each is written beside what its own key held.
#[tokio::test]
async fn each_new_key_of_a_batch_has_a_ttl() {
    let (server, limiter) = on_redis().await;
    let queue = || LeakyBucket::queue(Duration::from_secs(43_200));
    let policy = |name: &str, quota| Policy::new(name, quota).algorithm(queue());
    let (hourly, daily) = (policy("hourly", Quota::per_hour(10)), policy("daily", Quota::per_day(10)));
    let both = |key: &str| [Charge::new(&hourly, &Key::new(key), 1), Charge::new(&daily, &Key::new(key), 1)];
    limiter.check_all(&both("alice")).await.unwrap();
    // The first call is sent alone, and the others together while it is under way.
    let all = ["dave", "alice", "bob", "carol"].map(both);
    for decided in join_all(all.iter().map(|charges| limiter.check_all(charges))).await {
        assert!(!decided.unwrap().is_denied());
    }
    for key in ["alice", "bob", "carol", "dave"] {
        for (name, seconds) in [("hourly", 360), ("daily", 8_640)] {
            let ttl: i64 = server.command(&["PTTL", &format!("rl:{name}:leaky-bucket:{{{key}}}")]);
            assert!((seconds * 1_000..=seconds * 5_000).contains(&ttl), "{name}, {key}: {ttl}");
        }
    }
}

/// Those without a state have the same outcome, which is computed once.
#[tokio::test]
async fn a_batch_tells_new_keys_from_those_with_a_state() {
    let (_server, limiter) = on_redis().await;
    let algorithms = [
        Policy::new("gcra", Quota::per_day(100)),
        Policy::new("window", Quota::per_day(100)).algorithm(FixedWindow::anchored()),
        Policy::new("cells", Quota::per_day(100)).algorithm(SlidingWindow::new()),
    ];
    for policy in algorithms {
        limiter.check(&policy, &Key::new(5), 5).await.unwrap();
        // The first call is sent alone, and the others together while it is under way.
        let keys = [1, 2, 3, 4, 5, 6, 7].map(Key::new);
        let decided = join_all(keys.iter().map(|key| limiter.check(&policy, key, 1))).await;
        let remaining: Vec<_> = decided.into_iter().map(|decided| decided.unwrap().remaining()).collect();
        assert_eq!(remaining, [99, 99, 99, 99, 94, 99, 99].map(Some), "{policy:?}");
        for (key, remaining) in keys.iter().zip(remaining) {
            assert_eq!(limiter.peek(&policy, key, 0).await.unwrap().remaining(), remaining, "{policy:?}");
        }
    }
}

#[tokio::test]
async fn a_key_that_a_batch_shares_has_the_longest_ttl_that_its_charges_want() {
    let (server, limiter) = on_redis().await;
    let policy = |name: &str| Policy::new(name, Quota::per_day(100));
    let (tenants, pool) = (policy("tenants"), policy("pool"));
    let both =
        |tenant: u64| [Charge::new(&tenants, &Key::new(tenant), 1), Charge::new(&pool, &Key::new("all"), 1)];
    for round in 1..=4 {
        let charges: Vec<_> = (0..8).map(both).collect();
        for decided in join_all(charges.iter().map(|charges| limiter.check_all(charges))).await {
            assert!(decided.unwrap().is_admitted());
        }
        let ttl: i64 = server.command(&["PTTL", "rl:pool:gcra:{all}"]);
        // Each unit counts for 864 seconds, and a TTL is up to twice as long as that.
        let needed = round * 8 * 864_000;
        assert!((needed - 1_000..=2 * needed + 1_000).contains(&ttl), "{round}: {ttl}");
    }
}
