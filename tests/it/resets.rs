//! A reset leaves a mark: what was charged before it returns nothing of what is charged after it.

use std::{slice, time::Duration};

use futures_util::future::{join, join_all};
use support::{Fake, InLua, RedisServer, on_redis, pool, settings, stores_with_clock, units_left};
use tower_ratelimit::{
    Charge, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, Quota, RedisStore, Reservation,
    algorithm::{FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    decision::Outcome,
    policy::Penalty,
    settlement::SettlementSecret,
    store::{ManualClock, Store as _},
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

fn all() -> Key {
    Key::new("all")
}

/// 100 units under each algorithm. In the seconds of a test, less than one is replenished.
fn every_algorithm() -> Vec<Policy> {
    let quota = Quota::per_day(100);
    vec![
        Policy::new("gcra", quota).algorithm(Gcra::new()),
        Policy::new("meter", quota).algorithm(LeakyBucket::meter()),
        Policy::new("queue", Quota::per_day(50)).algorithm(LeakyBucket::queue(24 * HOUR).delay_after(50)),
        Policy::new("tokens", quota).algorithm(TokenBucket::new()),
        Policy::new("steps", quota).algorithm(TokenBucket::new().refill_every(24 * HOUR)),
        Policy::new("anchored", quota).algorithm(FixedWindow::anchored()),
        Policy::new("aligned", quota).algorithm(FixedWindow::aligned()),
        Policy::new("month", Quota::per_month(100)),
        Policy::new("log", quota).algorithm(SlidingLog::new()),
        Policy::new("cells", quota).algorithm(SlidingWindow::new().segments(10)),
        Policy::new("one cell", quota).algorithm(SlidingWindow::new()),
    ]
}

/// A limiter on each store, and the clock of both.
async fn both() -> (RedisServer, ManualClock, [(&'static str, Limiter); 2]) {
    let (server, clock, redis, memory) = stores_with_clock().await;
    (server, clock, [("memory", Limiter::new(memory)), ("redis", Limiter::new(redis))])
}

#[tokio::test]
async fn a_charge_from_before_a_reset_returns_nothing_and_one_from_after_it_returns_itself() {
    let (_server, clock, stores) = both().await;
    for (store, limiter) in stores {
        for policy in every_algorithm() {
            let name = format!("{store}, {}", policy.name());
            let before = limiter.check(&policy, &all(), 50).await.unwrap();
            clock.advance(SECOND);
            limiter.operator().reset(&policy, &all()).await.unwrap();
            clock.advance(SECOND);
            let after = limiter.check(&policy, &all(), 50).await.unwrap();
            clock.advance(SECOND);
            let refunded = limiter.refund(&before, 50).await.unwrap();
            assert_eq!(refunded.remaining(), Some(50), "{name}");
            assert_eq!(units_left(&limiter, &policy).await, 50, "{name}");
            let refunded = limiter.refund(&after, 50).await.unwrap();
            assert_eq!(refunded.remaining(), Some(100), "{name}");
        }
    }
}

#[tokio::test]
async fn a_charge_in_the_microsecond_of_a_reset_returns_nothing() {
    let (_server, _, stores) = both().await;
    for (store, limiter) in stores {
        for policy in every_algorithm() {
            let before = limiter.check(&policy, &all(), 50).await.unwrap();
            limiter.operator().reset(&policy, &all()).await.unwrap();
            let after = limiter.check(&policy, &all(), 50).await.unwrap();
            for charged in [before, after] {
                let refunded = limiter.refund(&charged, 50).await.unwrap();
                assert_eq!(refunded.remaining(), Some(50), "{store}, {}", policy.name());
            }
        }
    }
}

#[tokio::test]
async fn reservations_and_tokens_from_before_a_reset_return_nothing() {
    let (_server, clock, stores) = both().await;
    let secret = SettlementSecret::new([7; 32]);
    for (store, limiter) in stores {
        for policy in every_algorithm() {
            let name = format!("{store}, {}", policy.name());
            let mut reservations = Vec::new();
            for _ in 0..3 {
                let reserved = limiter.check(&policy, &all(), 20).await.unwrap();
                reservations.push(Reservation::new(&limiter, &reserved));
            }
            clock.advance(SECOND);
            limiter.operator().unlock(&policy, &all()).await.unwrap();
            clock.advance(SECOND);
            assert!(!limiter.check(&policy, &all(), 100).await.unwrap().verdict().is_denied(), "{name}");
            let token = reservations.pop().unwrap().into_token(&secret, HOUR).unwrap();
            let settled = limiter.settle_token(&secret, &token, slice::from_ref(&policy), 0).await.unwrap();
            // It is settled, and only once.
            assert!(!settled.is_repeated(), "{name}");
            assert_eq!(settled.decision().remaining(), Some(0), "{name}");
            let again = limiter.settle_token(&secret, &token, slice::from_ref(&policy), 0).await.unwrap();
            assert!(again.is_repeated(), "{name}");
            reservations.pop().unwrap().settle(5).await.unwrap();
            drop(reservations.pop().unwrap().or_refund());
            limiter.drain(SECOND).await.unwrap();
            assert_eq!(units_left(&limiter, &policy).await, 0, "{name}");
        }
    }
}

/// Each of these charges has a mark, which comes after the keys of all decisions.
#[tokio::test]
async fn refunds_of_several_charges_in_one_call_read_the_marks_of_their_keys() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let redis = settings().pool_size(1).deny_cache(Duration::ZERO).manual_clock(clock.clone());
    let limiter = Limiter::new(redis.connect(&server.url()).await.unwrap());
    let policies = every_algorithm();
    let permits = Policy::concurrency("permits", 9);
    let key = |number: usize| Key::new(format!("client {number}"));
    let mut charged = Vec::new();
    for number in 0..20 {
        // Two policies in each decision, of which the first one is reset for every second client.
        let pair = [number % policies.len(), (number + 1) % policies.len()];
        let mut charges = pair.map(|place| Charge::new(&policies[place], &key(number), 30)).to_vec();
        charges.push(Charge::new(&permits, &key(number), 1));
        charged.push((pair, limiter.check_all(&charges).await.unwrap()));
    }
    clock.advance(SECOND);
    for (number, (pair, _)) in charged.iter().enumerate().filter(|(number, _)| number % 2 == 0) {
        limiter.operator().reset(&policies[pair[0]], &key(number)).await.unwrap();
        limiter.check(&policies[pair[0]], &key(number), 30).await.unwrap();
    }
    clock.advance(SECOND);
    // The first one is sent alone; the others wait, and share a call with charges.
    let before = server.script_calls();
    let alone = limiter.peek(&policies[0], &Key::new("alone"), 0);
    let refunds = charged.iter().map(|(_, decision)| limiter.refund(decision, 10));
    let others = (0..20).map(|number| limiter.check(&policies[0], &Key::new(format!("other {number}")), 7));
    let (_, (refunded, others)) = join(alone, join(join_all(refunds), join_all(others))).await;
    assert!(server.script_calls() - before < 20);
    for (number, refunded) in refunded.into_iter().enumerate() {
        let left: Vec<u64> = refunded.unwrap().outcomes().iter().map(Outcome::remaining).collect();
        let first = if number % 2 == 0 { 70 } else { 80 };
        assert_eq!(left[..2], [first, 80], "{number}");
    }
    for other in others {
        assert_eq!(other.unwrap().remaining(), Some(93));
    }
}

#[tokio::test]
async fn a_custom_algorithm_needs_to_know_nothing_of_resets() {
    let lua = "
        local function decide(policy, cost, time, count)
          local used = (count or 0) + cost
          return used > 100 and -1 or 0, 100 - math.min(used, 100), 1e6, 0, 0, 1e9, now, used
        end
        local function refund(policy, units, made, mark, time, count)
          return 1e9, time, count - units
        end
        return { policy = function() return {} end, decide = decide, refund = refund }
    ";
    let policy = Policy::new("custom", Quota::per_day(100)).algorithm(InLua::new("counter", lua));
    let (_server, limiter) = on_redis().await;
    let before = limiter.check(&policy, &all(), 50).await.unwrap();
    limiter.operator().reset(&policy, &all()).await.unwrap();
    let after = limiter.check(&policy, &all(), 50).await.unwrap();
    assert_eq!(limiter.refund(&before, 50).await.unwrap().remaining(), Some(50));
    assert_eq!(limiter.refund(&after, 20).await.unwrap().remaining(), Some(70));
}

#[tokio::test]
async fn an_operator_may_refund_after_a_reset_and_permits_are_released() {
    let (_server, _, stores) = both().await;
    for (store, limiter) in stores {
        let policy = Policy::new("api", Quota::per_day(100));
        limiter.check(&policy, &all(), 50).await.unwrap();
        limiter.operator().reset(&policy, &all()).await.unwrap();
        limiter.check(&policy, &all(), 50).await.unwrap();
        let refunded = limiter.operator().refund_latest(&policy, &all(), 20).await.unwrap();
        assert_eq!(refunded.remaining(), Some(70), "{store}");

        let permits = Policy::concurrency("permits", 3);
        let before = limiter.check(&permits, &all(), 1).await.unwrap();
        limiter.operator().reset(&permits, &all()).await.unwrap();
        let after = limiter.check(&permits, &all(), 1).await.unwrap();
        drop(before);
        limiter.drain(SECOND).await.unwrap();
        assert_eq!(units_left(&limiter, &permits).await, 2, "{store}");
        drop(after);
        limiter.drain(SECOND).await.unwrap();
        assert_eq!(units_left(&limiter, &permits).await, 3, "{store}");
    }
}

#[tokio::test]
async fn a_reset_after_the_clock_stepped_back_keeps_the_mark_of_the_one_before() {
    let (_server, clock, stores) = both().await;
    let policy = Policy::new("api", Quota::per_day(100));
    for (store, limiter) in stores {
        let before = limiter.check(&policy, &all(), 50).await.unwrap();
        limiter.operator().reset(&policy, &all()).await.unwrap();
        clock.step_back(HOUR);
        limiter.check(&policy, &all(), 50).await.unwrap();
        limiter.operator().reset(&policy, &all()).await.unwrap();
        clock.advance(HOUR + SECOND);
        limiter.check(&policy, &all(), 50).await.unwrap();
        assert_eq!(limiter.refund(&before, 50).await.unwrap().remaining(), Some(50), "{store}");
    }
}

/// How long a charge can be refunded, at least an hour, and as the server's clock goes.
#[tokio::test]
async fn the_mark_expires_and_is_in_no_list_of_keys() {
    let (server, store) = support::redis_store().await;
    let limiter = Limiter::new(store);
    let marks = || server.command::<Vec<String>>(&["KEYS", "*%reset*"]);
    let rows = [
        (Policy::new("a*[b]", Quota::per_day(100)), 2 * 24 * HOUR),
        (Policy::new("p", Quota::per_second(5)), HOUR),
        (Policy::new("p", Quota::per_day(10).burst(100)), 11 * 24 * HOUR),
        (Policy::new("p", Quota::per_day(10).burst(100)).max_debt(50), 16 * 24 * HOUR),
        (Policy::new("p", Quota::per_day(100)).algorithm(SlidingWindow::new()), 2 * 24 * HOUR),
        (Policy::new("p", Quota::per_month(100)), 60 * 24 * HOUR),
        (Policy::new("p", Quota::new(1, 400 * 24 * HOUR).burst(90)), 91 * 400 * 24 * HOUR),
    ];
    for (policy, expected) in rows {
        let () = server.command(&["FLUSHALL"]);
        let name = limiter.operator().stored_name(&policy, &all()).unwrap();
        // A key without a count gets no mark.
        limiter.operator().reset(&policy, &all()).await.unwrap();
        assert!(marks().is_empty(), "{name}");
        limiter.check(&policy, &all(), 1).await.unwrap();
        // At least as long as the state.
        let expected = expected.max(Duration::from_millis(server.command(&["PTTL", &name])));
        limiter.operator().reset(&policy, &all()).await.unwrap();
        let [mark] = &marks()[..] else { panic!("{name}: {:?}", marks()) };
        assert_eq!(*mark, name.replace(":{", "%reset:{"));
        let left = Duration::from_millis(server.command(&["PTTL", mark]));
        assert!(expected - SECOND < left && left <= expected, "{name}: {left:?} of {expected:?}");
        let [seconds, micros]: [u64; 2] = server.command(&["TIME"]);
        let time: u64 = server.command(&["GET", mark]);
        assert!((seconds * 1_000_000 + micros).abs_diff(time) < 20_000_000, "{name}: {time}");
        let used: u64 = server.command(&["MEMORY", "USAGE", mark]);
        assert!(used <= 120, "{name}: {used}");
        let banning = policy.clone().penalty(Penalty::manual());
        for listed in [vec![policy.clone(), banning.clone()], vec![]] {
            let found = limiter.operator().keys(&listed, 1_000).await.unwrap();
            assert!(found.keys.is_empty(), "{name}");
        }
        assert!(limiter.operator().bans(&banning).await.unwrap().bans.is_empty(), "{name}");
    }
}

/// A charge under a longer quota can be refunded for as long as its state matters, which the quota at the reset does not
/// tell.
#[tokio::test]
async fn the_mark_lives_as_long_as_the_state_and_the_mark_that_it_replaces() {
    let (server, store) = support::redis_store().await;
    let limiter = Limiter::new(store);
    for longer in every_algorithm() {
        let name = longer.name().to_owned();
        let shorter = if name == "steps" { Quota::per_day(100) } else { Quota::per_minute(100) };
        let shorter = longer.with_quota(shorter).unwrap();
        limiter.check(&longer, &all(), 50).await.unwrap();
        let key = limiter.operator().stored_name(&longer, &all()).unwrap();
        let mark = key.replace(":{", "%reset:{");
        let ttl = |key: &str| Duration::from_millis(server.command::<u64>(&["PTTL", key]));
        let least = ttl(&key) - SECOND;
        for reset in 1..=2 {
            limiter.operator().reset(&shorter, &all()).await.unwrap();
            assert!(ttl(&mark) >= least, "{name}, {reset}: {:?} of {least:?}", ttl(&mark));
            limiter.check(&shorter, &all(), 1).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_store_in_process_lists_no_mark_and_forgets_it() {
    let store = MemoryStore::new().capacity(1);
    let limiter = Limiter::new(store.clone());
    let policy = Policy::new("p", Quota::new(1, Duration::from_millis(1)));
    limiter.operator().reset(&policy, &all()).await.unwrap();
    assert_eq!(store.key_count(), 0);
    let slow = Policy::new("slow", Quota::per_day(9));
    limiter.check(&slow, &all(), 1).await.unwrap();
    limiter.operator().reset(&slow, &all()).await.unwrap();
    assert_eq!(store.key_count(), 1);
    assert!(limiter.operator().keys(&[slow], 9).await.unwrap().keys.is_empty());
    // Other keys may take its place.
    for number in 0..1_000 {
        limiter.check(&policy, &Key::new(format!("client {number}")), 1).await.unwrap();
    }
    assert!(store.key_count() <= 256);
}

#[tokio::test]
async fn a_key_of_any_type_is_reset_and_without_memory_too() {
    let (server, store) = support::redis_store().await;
    let limiter = Limiter::new(store);
    let policy = Policy::new("api", Quota::per_day(100));
    let name = limiter.operator().stored_name(&policy, &all()).unwrap();
    let mark = name.replace(":{", "%reset:{");
    for value in [["SET", &name, "x", "GET"], ["HSET", &name, "a", "b"], ["LPUSH", &name, "a", "b"]] {
        let () = server.command(&["DEL", &name]);
        let _: redis::Value = server.command(&value);
        limiter.operator().reset(&policy, &all()).await.unwrap();
        assert!(limiter.check(&policy, &all(), 1).await.unwrap().is_admitted());
    }
    // The mark may hold a foreign value too.
    let before = limiter.check(&policy, &all(), 50).await.unwrap();
    let () = server.command(&["DEL", &mark]);
    let _: redis::Value = server.command(&["HSET", &mark, "a", "b"]);
    limiter.operator().reset(&policy, &all()).await.unwrap();
    let time: u64 = server.command(&["GET", &mark]);
    limiter.check(&policy, &all(), 50).await.unwrap();
    let () = server.command(&["DEL", &mark]);
    let _: redis::Value = server.command(&["HSET", &mark, "a", "b"]);
    assert_eq!(limiter.refund(&before, 0).await.unwrap().remaining(), Some(50));
    let () = server.command(&["DEL", &mark]);
    server.set(&mark, time.to_string().as_bytes());

    let () = server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    limiter.operator().reset(&policy, &all()).await.unwrap();
    let () = server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(units_left(&limiter, &policy).await, 100);
    limiter.check(&policy, &all(), 50).await.unwrap();
    assert_eq!(limiter.refund(&before, 50).await.unwrap().remaining(), Some(50));
}

/// One of several instances.
struct Instance {
    store: RedisStore,
    limiter: Limiter,
}

#[tokio::test]
async fn a_lease_from_before_the_reset_by_another_instance_returns_nothing() {
    let server = RedisServer::start();
    let (pool, clock) = (pool(&server).await, ManualClock::new());
    let quota = Quota::per_day(1_000);
    let policies = [
        Policy::new("anchored", quota).algorithm(FixedWindow::anchored()),
        Policy::new("aligned", quota).algorithm(FixedWindow::aligned()),
        Policy::new("month", Quota::per_month(1_000)),
        Policy::new("cells", quota).algorithm(SlidingWindow::new()),
        Policy::new("gcra", quota),
    ];
    for policy in policies {
        let (policy, key) = (policy.max_lease(100), Key::new("all"));
        let [leasing, other] = [(); 2].map(|()| {
            let settings = settings().manual_clock(clock.clone()).deny_cache(Duration::ZERO);
            let store = settings.build(pool.clone()).unwrap();
            Instance { limiter: Limiter::new(store.clone()), store }
        });
        let lease = async |instance: &Instance| {
            while instance.store.lease_status().units == 0 {
                assert!(instance.limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
                while instance.store.lease_status().calls > 0 {
                    tokio::task::yield_now().await;
                }
            }
        };
        lease(&leasing).await;
        clock.advance(Duration::from_millis(1));
        other.limiter.operator().reset(&policy, &key).await.unwrap();
        clock.advance(Duration::from_millis(1));
        // It leases units of the same window or slot.
        lease(&other).await;
        let left = units_left(&leasing.limiter, &policy).await;
        leasing.store.drain().await.unwrap();
        assert_eq!(units_left(&leasing.limiter, &policy).await, left, "{}", policy.name());
        // A lease from after the reset is returned.
        let leased = other.store.lease_status().units;
        assert!(leased > 0);
        other.store.drain().await.unwrap();
        assert_eq!(units_left(&leasing.limiter, &policy).await, left + leased, "{}", policy.name());
        clock.advance(SECOND);
    }
}

#[tokio::test]
async fn what_was_charged_or_refunded_in_an_outage_returns_nothing_after_a_reset() {
    let counts = MemoryStore::new();
    let store = Fake::over(counts.clone());
    let (here, other) = (Limiter::new(store.clone()), Limiter::new(counts));
    let policy = Policy::new("api", Quota::per_day(100)).failure_mode(FailureMode::Local { instances: 1 });
    let key = all();
    let (first, second) =
        (here.check(&policy, &key, 20).await.unwrap(), here.check(&policy, &key, 30).await.unwrap());
    store.fail(ErrorKind::StoreUnreachable);
    // The refund of what the store has charged is kept for later.
    here.refund(&first, 20).await.unwrap();
    let local = here.check(&policy, &key, 40).await.unwrap();
    assert!(local.failure().is_some());
    // Another instance resets the key, which does not know what this one owes.
    other.operator().reset(&policy, &key).await.unwrap();
    assert!(other.check(&policy, &key, 50).await.unwrap().is_admitted());
    store.fail(None);
    here.drain(HOUR).await.unwrap();
    assert_eq!(units_left(&other, &policy).await, 10);
    assert_eq!(here.refund(&second, 30).await.unwrap().remaining(), Some(10));
    // What it charged after the reset is its own.
    tokio::time::sleep(Duration::from_millis(1)).await;
    here.refund(&local, 40).await.unwrap();
    assert_eq!(units_left(&other, &policy).await, 50);

    // A reset in the outage forgets what this process has counted.
    store.fail(ErrorKind::StoreUnreachable);
    let before = here.check(&policy, &key, 40).await.unwrap();
    here.operator().reset(&policy, &key).await.unwrap_err();
    let left = units_left(&here, &policy).await;
    let after = here.check(&policy, &key, 40).await.unwrap();
    assert!(after.is_admitted());
    here.refund(&before, 40).await.unwrap();
    assert_eq!(units_left(&here, &policy).await, left - 40);
    store.fail(None);
    here.drain(HOUR).await.unwrap();
    assert_eq!(units_left(&other, &policy).await, 10);
    here.refund(&before, 40).await.unwrap();
    assert_eq!(units_left(&other, &policy).await, 10);
}

#[tokio::test]
async fn a_reset_marks_its_key_and_policy_and_no_other() {
    let (_server, clock, stores) = both().await;
    for (store, limiter) in stores {
        let policies = [Policy::new("a", Quota::per_day(100)), Policy::new("b", Quota::per_day(100))];
        let log = Policy::new("a", Quota::per_day(100)).algorithm(SlidingWindow::new());
        let keys = [Key::new("alice"), Key::new("bob")];
        let mut charged = Vec::new();
        for policy in policies.iter().chain([&log]) {
            for key in &keys {
                charged.push((policy, key, limiter.check(policy, key, 50).await.unwrap()));
            }
        }
        clock.advance(SECOND);
        limiter.operator().reset(&policies[0], &keys[0]).await.unwrap();
        for (place, (policy, key, decision)) in charged.iter().enumerate() {
            let left = limiter.refund(decision, 20).await.unwrap().remaining();
            let expected = if place == 0 { 100 } else { 70 };
            assert_eq!(left, Some(expected), "{store}, {}, {key:?}", policy.name());
        }
    }
}
