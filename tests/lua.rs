//! The Lua on a real server: its arithmetic, and what it leaves there.

mod support;

use proptest::prelude::*;
use support::{RedisServer, store};
use tower_ratelimit::{FixedWindow, Gcra, Key, Limiter, Policy, Quota};

const PRELUDE: &str = include_str!("../lua/include/prelude.lua");

#[test]
fn muldiv_is_exact_up_to_2_to_the_45() {
    let server = RedisServer::start();
    let connection = std::cell::RefCell::new(server.connection());
    let script = redis::Script::new(&format!(
        "{PRELUDE}
        local quotient, rest = muldiv(tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]))
        return {{integer(quotient), integer(rest)}}"
    ));
    let number = || prop_oneof![0..1_000_u64, 0..=1_u64 << 45, (1_u64 << 45) - 1_000..=1_u64 << 45];
    let config = ProptestConfig { cases: 5_000, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(a in number(), b in number(), m in number())| {
        let m = m.max(1);
        let (quotient, rest) = (u128::from(a) * u128::from(b) / u128::from(m), u128::from(a) * u128::from(b) % u128::from(m));
        // A quotient beyond 2^53 is no time and no count; the quotas are bounded so that none is made.
        prop_assume!(quotient < 1 << 53);
        let said: (u64, u64) = script.arg("0").arg(a).arg(b).arg(m).invoke(&mut *connection.borrow_mut()).unwrap();
        prop_assert_eq!((u128::from(said.0), u128::from(said.1)), (quotient, rest));
    });
}

#[tokio::test]
async fn every_key_has_a_ttl_as_long_as_its_state_matters() {
    let server = RedisServer::start();
    let limiter = Limiter::new(store(&server).await);
    let rows = [
        ("a second", Quota::per_second(10), 1_000),
        ("a day", Quota::per_day(10), 86_400_000),
        ("400 days", Quota::new(1, std::time::Duration::from_secs(400 * 86_400)).unwrap(), 34_560_000_000),
        ("a millisecond", Quota::new(1, std::time::Duration::from_millis(1)).unwrap(), 1),
    ];
    for (name, quota, lifetime) in rows {
        for (kind, policy) in [
            ("gcra", Policy::new(name, quota).algorithm(Gcra)),
            ("anchored", Policy::new(name, quota).algorithm(FixedWindow::anchored())),
            ("aligned", Policy::new(name, quota).algorithm(FixedWindow::aligned())),
        ] {
            let capacity = policy.capacity();
            limiter.check(&policy, &Key::new(kind), capacity).await.unwrap();
            // A millisecond may be over by the time we look.
            let key: Vec<String> = server.command(&["KEYS", &format!("*{{{kind}}}")]);
            for key in key {
                let ttl: i64 = server.command(&["PTTL", &key]);
                assert!(ttl != -1 && ttl <= lifetime + 2, "{name}, {kind}: {ttl}");
                if lifetime > 1_000 && kind != "aligned" {
                    assert!(ttl > lifetime - 1_000, "{name}, {kind}: {ttl}");
                }
                let _: i64 = server.command(&["DEL", &key]);
            }
        }
    }
}

#[tokio::test]
async fn refusals_and_peeks_write_nothing() {
    let server = RedisServer::start();
    let limiter = Limiter::new(store(&server).await);
    for policy in [
        Policy::new("p", Quota::per_hour(3)),
        Policy::new("p", Quota::per_hour(3)).algorithm(FixedWindow::anchored()),
    ] {
        let key = Key::new("alice");
        limiter.check(&policy, &key, 2).await.unwrap();
        let writes = || {
            let info: String = server.command(&["INFO", "persistence"]);
            let changes = info.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
            changes.unwrap().trim().parse::<u64>().unwrap()
        };
        let before = writes();
        for cost in [2, 4, u64::MAX] {
            assert!(!limiter.check(&policy, &key, cost).await.unwrap().is_allowed());
        }
        assert!(limiter.check(&policy, &key, 0).await.unwrap().is_allowed());
        assert!(limiter.peek(&policy, &key, 1).await.unwrap().is_allowed());
        assert_eq!(writes(), before);
    }
}

#[tokio::test]
async fn a_key_takes_no_more_memory_than_promised() {
    let server = RedisServer::start();
    let limiter = Limiter::new(store(&server).await);
    let rows = [
        ("gcra", Policy::new("p", Quota::per_second(10).burst(20)), 80),
        ("gcra, uneven", Policy::new("p", Quota::per_second(3)), 80),
        ("gcra, large", Policy::new("p", Quota::per_hour(1_000_000)), 110),
        ("window", Policy::new("p", Quota::per_minute(60)).algorithm(FixedWindow::anchored()), 80),
        (
            "window, large",
            Policy::new("p", Quota::per_hour(1_000_000)).algorithm(FixedWindow::anchored()),
            110,
        ),
    ];
    for (name, policy, bytes) in rows {
        let () = server.command(&["FLUSHALL"]);
        // As long a charge as there can be.
        limiter.check(&policy, &Key::new("a"), policy.capacity()).await.unwrap();
        let key: String = server.command(&["RANDOMKEY"]);
        // The promise is for keys of 20 bytes.
        let () = server.command(&["RENAME", &key, "rl:p:gcra:{12345678}"]);
        let used: u64 = server.command(&["MEMORY", "USAGE", "rl:p:gcra:{12345678}"]);
        assert!(used <= bytes, "{name}: {used}");
        eprintln!("{name}: {used} bytes");
    }
}

#[tokio::test]
async fn one_decision_is_one_command() {
    let server = RedisServer::start();
    let limiter = Limiter::new(store(&server).await);
    let policy = Policy::new("p", Quota::per_hour(1_000));
    limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
    let calls = |command: &str| {
        let info: String = server.command(&["INFO", "commandstats"]);
        let line = info.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
        line.map_or(0, |line| line.split(['=', ',']).nth(1).unwrap().parse::<u64>().unwrap())
    };
    let before = (calls("evalsha"), calls("ping"), calls("script|load"));
    for _ in 0..100 {
        limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
    }
    let after = (calls("evalsha"), calls("ping"), calls("script|load"));
    assert_eq!(after, (before.0 + 100, before.1, before.2));
}
