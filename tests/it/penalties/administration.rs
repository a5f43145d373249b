//! Bans by operators, and the list of bans.

use std::{
    collections::HashMap,
    future::ready,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};
use support::{Down, Fake, eventually, fails, fails_after, on_redis, stores_with_clock};

use tower_ratelimit::{
    Answer, Charge, Error, ErrorKind, FailureMode, RedisStore,
    decision::{DecisionSource, Outcome, Verdict},
    store::{Action, ManualClock, Store},
};

use super::*;
use crate::each_store::penalties::texts;

fn is_invalid(result: Result<impl std::fmt::Debug, Error>, expected: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains(expected), "{error}");
}

#[tokio::test]
async fn a_ban_by_hand_restarts_the_penalty_and_unban_forgets_all() {
    let clock = ManualClock::new();
    let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
    let policy = day("p", 1).penalty(Penalty::after(3, HOUR).up_to(4 * HOUR));
    let alice = Key::new("alice");
    ask(&limiter, &policy, &alice).await;
    ask(&limiter, &policy, &alice).await;
    ask(&limiter, &policy, &alice).await;
    limiter.operator().ban(&policy, &alice, MINUTE).await.unwrap();
    clock.advance(MINUTE);
    // The two denials from before do not count, and the ban by hand makes none longer.
    assert_eq!(provoke(&limiter, &policy, &alice).await, (0, 2));
    assert_eq!(ask(&limiter, &policy, &alice).await.banned_for(), Some(HOUR));
    clock.advance(HOUR);
    provoke(&limiter, &policy, &alice).await;
    assert_eq!(ask(&limiter, &policy, &alice).await.banned_for(), Some(2 * HOUR));
    limiter.operator().unban(&policy, &alice).await.unwrap();
    assert_eq!(provoke(&limiter, &policy, &alice).await, (0, 2));
    assert_eq!(ask(&limiter, &policy, &alice).await.banned_for(), Some(HOUR));
}

/// Someone else keeps trying the password.
#[tokio::test]
async fn requests_during_an_unlock_ban_no_key_again() {
    let policy = day("login", 2).penalty(Penalty::after(1, HOUR));
    let alice = Key::new("alice");
    for is_banned in [true, false] {
        let tries = Tries { store: MemoryStore::new(), are_over: false.into() };
        let limiter = Limiter::new(tries);
        ask(&limiter, &policy, &alice).await;
        ask(&limiter, &policy, &alice).await;
        if is_banned {
            provoke(&limiter, &policy, &alice).await;
        }
        limiter.operator().unlock(&policy, &alice).await.unwrap();
        let decision = ask(&limiter, &policy, &alice).await;
        assert_eq!(decision.is_admitted(), is_banned, "{decision:?}");
        limiter.operator().unlock(&policy, &alice).await.unwrap();
        assert!(ask(&limiter, &policy, &alice).await.is_admitted());
    }
}

/// Makes ten requests of the key after the first step of an unlock.
struct Tries {
    store: MemoryStore,
    are_over: AtomicBool,
}

impl Tries {
    fn make(&self, charge: &Charge) {
        for _ in 0..if self.are_over.swap(true, Ordering::Relaxed) { 0 } else { 10 } {
            self.store
                .decide(Action::Charge, std::slice::from_ref(charge))
                .if_ready()
                .unwrap()
                .as_ref()
                .unwrap();
        }
    }
}

impl Store for Tries {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        let answer = self.store.decide(action, charges);
        if action == Action::Ban {
            self.make(&Charge::new(charges[0].policy(), charges[0].key(), 1));
        }
        answer
    }
    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        let answer = self.store.reset(policy, key);
        self.make(&Charge::new(policy, key, 1));
        answer
    }
}

#[tokio::test]
async fn an_unlock_that_fails_says_which_step_was_made() {
    let policy = day("login", 1).penalty(Penalty::after(1, HOUR));
    let alice = Key::new("alice");
    let store = Fake::new(MemoryStore::new(), |store, action, charges| match action {
        Action::Ban => fails(ErrorKind::StoreUnreachable),
        _ => store.decide(action, charges),
    });
    // `Fake` passes a reset on.
    let limiter = Limiter::new(store.clone());
    ask(&limiter, &policy, &alice).await;
    let error = limiter.operator().unlock(&policy, &alice).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreUnreachable);
    assert!(error.to_string().starts_with("the key was reset, and its ban may last: "), "{error}");
    store.fail(ErrorKind::StoreTimeout);
    let error = limiter.operator().unlock(&policy, &alice).await.unwrap_err();
    assert!(error.kind() == ErrorKind::StoreTimeout && !error.to_string().contains("was reset"), "{error}");
}

#[tokio::test]
async fn an_unlock_in_an_outage_removes_what_this_process_has_counted() {
    let policy = day("login", 1).penalty(Penalty::after(1, HOUR));
    let limiter = Limiter::new(Fake::failing(ErrorKind::StoreSuspended));
    let alice = Key::new("alice");
    assert_eq!(provoke(&limiter, &policy, &alice).await, (1, 0));
    assert!(limiter.operator().unlock(&policy, &alice).await.is_err());
    let decision = ask(&limiter, &policy, &alice).await;
    assert!(decision.is_admitted() && decision.source() == DecisionSource::Local, "{decision:?}");
}

#[tokio::test]
async fn another_instance_follows_within_the_time_of_its_deny_cache() {
    let server = RedisServer::start();
    let (clock, millis) = (ManualClock::new(), Duration::from_millis);
    let settings = || settings().manual_clock(clock.clone());
    let here = Limiter::new(settings().deny_cache(millis(200)).connect(&server.url()).await.unwrap());
    let there = Limiter::new(settings().connect(&server.url()).await.unwrap());
    let (policy, alice) = (day("p", 9).penalty(Penalty::manual()), Key::new("alice"));
    there.operator().ban(&policy, &alice, HOUR).await.unwrap();
    for source in [DecisionSource::Store, DecisionSource::DenyCache] {
        let banned = ask(&here, &policy, &alice).await;
        assert!(banned.banned_for().is_some() && banned.source() == source, "{banned:?}");
    }
    there.operator().unban(&policy, &alice).await.unwrap();
    assert!(ask(&there, &policy, &alice).await.is_admitted());
    clock.advance(millis(199));
    let cached = ask(&here, &policy, &alice).await;
    assert!(cached.banned_for().is_some() && cached.source() == DecisionSource::DenyCache, "{cached:?}");
    clock.advance(millis(1));
    assert!(ask(&here, &policy, &alice).await.is_admitted());
}

#[tokio::test]
async fn what_cannot_be_banned_is_an_error_that_says_what_to_write() {
    let (limiter, alice) = (Limiter::new(MemoryStore::new()), Key::new("alice"));
    let (plain, policy) = (day("plain", 1), day("p", 1).penalty(Penalty::manual()));
    let add = "the policy `plain` has no penalty, so no key can be banned under it: add `.penalty(Penalty::manual())`";
    is_invalid(limiter.operator().ban(&plain, &alice, HOUR).await, add);
    is_invalid(limiter.operator().unban(&plain, &alice).await, add);
    is_invalid(limiter.operator().bans(&plain).await, add);
    for time in [Duration::ZERO, Duration::from_micros(999), 3_651 * DAY] {
        is_invalid(limiter.operator().ban(&policy, &alice, time).await, "1 ms to 3650 days: use `unban`");
    }
    assert!(limiter.operator().ban(&policy, &alice, 3_650 * DAY).await.is_ok());
    // A store of a user that knows no bans.
    let says = support::Says(|charge: &Charge| Outcome::new(charge, Verdict::Admit, 9, Duration::ZERO));
    let limiter = Limiter::new(says.clone());
    is_invalid(limiter.operator().ban(&policy, &alice, HOUR).await, "this store has no bans");
    is_invalid(Limiter::new(says).operator().bans(&policy).await, "this store cannot list its keys");

    // The failure mode does not apply.
    for mode in [FailureMode::Local { instances: 1 }, FailureMode::Open, FailureMode::Closed] {
        let policy = policy.clone().failure_mode(mode);
        assert!(Limiter::new(Down).operator().ban(&policy, &alice, HOUR).await.is_err(), "{mode:?}");
    }
}

#[tokio::test]
async fn a_list_with_room_for_fewer_bans_has_the_longest_and_says_so() {
    const BANS: u64 = 10_001;
    let (server, clock, redis, memory) = stores_with_clock().await;
    let policy = day("p", 1).penalty(Penalty::manual());
    let key = |number: u64| Key::new(format!("{number:05}"));
    // The longest ban comes last in the order of the keys.
    let time = |number: u64| Duration::from_secs(3_600 + number);
    for number in 0..BANS {
        Limiter::new(memory.clone()).operator().ban(&policy, &key(number), time(number)).await.unwrap();
    }
    let script = "for i = 0, ARGV[2] - 1 do
        local ends = ARGV[1] + (3600 + i) * 1000000
        redis.call('SET', string.format('rl:p:penalty:{%05d}', i), struct.pack('<Bdd', 1, ARGV[1], 0) .. string.format('0;%d', ends))
    end";
    let () = server.command(&["EVAL", script, "0", &clock.now().as_micros().to_string(), &BANS.to_string()]);
    for (name, limiter) in [("memory", Limiter::new(memory)), ("redis", Limiter::new(redis))] {
        let list = limiter.operator().bans(&policy).await.unwrap();
        assert!(!list.is_complete, "{name}");
        let expected = (1..BANS).rev().map(|number| (key(number), time(number)));
        assert!(list.bans.into_iter().eq(expected), "{name}");
        limiter.operator().unban(&policy, &key(BANS / 2)).await.unwrap();
        let all = limiter.operator().bans(&policy).await.unwrap();
        assert_eq!((all.bans.len() as u64, all.is_complete), (BANS - 1, true), "{name}");
    }
}

#[tokio::test]
async fn a_redis_with_more_denied_keys_than_are_looked_at_says_so() {
    let (server, limiter) = on_redis().await;
    let policy = day("p", 1).penalty(three());
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let script = "for i = 1, 110000 do
        redis.call('SET', string.format('rl:p:penalty:{%06d}', i), struct.pack('<Bdd', 1, ARGV[1], 1))
    end";
    let () = server.command(&["EVAL", script, "0", &time.as_micros().to_string()]);
    let list = limiter.operator().bans(&policy).await.unwrap();
    assert_eq!((list.bans.len(), list.is_complete), (0, false));
}

#[tokio::test]
async fn values_of_other_programs_hide_no_ban_and_a_failure_differs_from_an_empty_list() {
    let (server, limiter) = on_redis().await;
    let policy = day("p", 1).penalty(Penalty::manual());
    limiter.operator().ban(&policy, &Key::new("alice"), HOUR).await.unwrap();
    let () = server.command(&["SET", "rl:p:fixed-window:{alice}", "a count of another program"]);
    let () = server.command(&["SET", "rl:p:penalty:{bob}", "a text"]);
    let () = server.command(&["HSET", "rl:p:penalty:{carol}", "a", "hash"]);
    let list = limiter.operator().bans(&policy).await.unwrap();
    let banned: Vec<_> = list.bans.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!((banned, list.is_complete), (vec!["alice"], false));
    let () = server.command(&["ACL", "SETUSER", "default", "-evalsha"]);
    let error = limiter.operator().bans(&policy).await.unwrap_err();
    assert!(error.to_string().contains("acl_rule"), "{error}");
}

#[tokio::test]
async fn a_redis_user_who_may_not_scan_cannot_list_and_all_else_works() {
    let server = RedisServer::start();
    let rule = RedisStore::builder().connect_lazy(server.url()).unwrap().acl_rule();
    let limiter = Limiter::new(settings().connect(&server.user("limiter", &rule)).await.unwrap());
    let (policy, alice) = (day("p", 1).penalty(three()), Key::new("alice"));
    provoke(&limiter, &policy, &alice).await;
    limiter.operator().ban(&policy, &alice, HOUR).await.unwrap();
    assert_eq!(limiter.operator().bans(&policy).await.unwrap_err().kind(), ErrorKind::StoreFailed);
    server.user("limiter", "+scan");
    assert_eq!(texts(&limiter.operator().bans(&policy).await.unwrap()), ["alice"]);
    limiter.operator().unban(&policy, &alice).await.unwrap();
    assert!(eventually(async || limiter.operator().bans(&policy).await.unwrap().bans.is_empty()).await);
}

#[tokio::test]
async fn one_list_is_made_at_a_time_for_a_store() {
    let server = RedisServer::start();
    let policy = Policy::new("p", Quota::per_hour(1)).penalty(Penalty::manual());
    let store = store(&server).await;
    let limiter = Limiter::new(store.clone());
    // Enough keys that a list takes several steps.
    let mut keys = redis::pipe();
    (0..5_000).for_each(|number| {
        keys.cmd("SET").arg(format!("other:{number}")).arg(1).ignore();
    });
    let () = keys.query(&mut server.connection()).unwrap();
    let () = server.command(&["CONFIG", "SET", "slowlog-max-len", "100000"]);
    let () = server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    let lists = (0..8).map(|number| {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        tokio::spawn(async move {
            match number % 2 {
                0 => drop(limiter.operator().bans(&policy).await.unwrap()),
                _ => drop(limiter.operator().keys(&[policy], 100_000).await.unwrap()),
            }
        })
    });
    for list in lists.collect::<Vec<_>>() {
        list.await.unwrap();
    }
    // The arguments of a script are not UTF-8.
    type Entry = (u64, u64, u64, Vec<Vec<u8>>, redis::Value, redis::Value);
    let mut log: Vec<Entry> = server.command(&["SLOWLOG", "GET", "-1"]);
    log.reverse();
    let scans = log.iter().map(|(_, _, _, words, ..)| words).filter(|words| words[0] == b"SCAN");
    let cursors: Vec<&str> = scans.map(|words| str::from_utf8(&words[1]).unwrap()).collect();
    // The steps of several concurrent lists would alternate. Their number differs while the server's table of keys
    // grows.
    let lists: Vec<_> = cursors.split(|cursor| *cursor == "0").skip(1).collect();
    assert!(lists.len() == 8 && lists.iter().all(|list| list.len() >= 3), "{cursors:?}");
}

/// Bans in memory. The first answers to peeks at a key are failures.
fn pausing(failures: usize) -> Fake {
    let failed = Mutex::<HashMap<Key, usize>>::default();
    Fake::new(MemoryStore::new(), move |store, action, charges| {
        if action == Action::Peek {
            let mut failed = failed.lock().unwrap();
            let failed = failed.entry(charges[0].key().clone()).or_default();
            *failed += 1;
            if *failed <= failures {
                let kinds = [ErrorKind::StoreTimeout, ErrorKind::StoreSuspended, ErrorKind::StoreBusy];
                let kind = kinds[*failed % kinds.len()];
                return if failed.is_multiple_of(2) { fails(kind) } else { fails_after(ready(()), kind) };
            }
        }
        store.decide(action, charges)
    })
}

#[tokio::test(start_paused = true)]
async fn a_list_of_bans_outlasts_a_pause_of_the_store_that_a_request_would_not() {
    let policy = Policy::new("api", Quota::per_second(10)).penalty(Penalty::manual());
    for (failures, is_listed) in [(0, true), (10, true), (usize::MAX, false)] {
        let limiter = Limiter::new(pausing(failures));
        for number in 0..300 {
            let key = Key::new(number.to_string());
            limiter.operator().ban(&policy, &key, Duration::from_secs(3_600)).await.unwrap();
        }
        let list = limiter.operator().bans(&policy).await;
        assert_eq!(list.as_ref().is_ok_and(|list| list.bans.len() == 300), is_listed, "{failures}: {list:?}");
    }
}
