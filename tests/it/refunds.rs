//! A refund of a decision returns the part of its charge that still counts, and no units of other requests.

use std::{
    cell::Cell,
    collections::BTreeMap,
    time::{Duration, Instant},
};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use support::{Fake, PATIENT, RedisServer, day, fails, settings};
use tower_ratelimit::{
    Charge, Decision, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, Quota,
    algorithm::{Algorithm, FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    policy::Penalty,
    store::{Action, ManualClock},
};

fn policy(name: &str, quota: Quota, algorithm: impl Algorithm) -> (String, Policy) {
    (name.to_owned(), Policy::new(name, quota).algorithm(algorithm))
}

/// Policies with rounded numbers, with delays, or that do not start full. Only for the property tests.
fn others(period: Duration) -> Vec<(String, Policy)> {
    let quota = Quota::new(10, period);
    let fraction = Quota::new(7, period);
    vec![
        policy("fraction", fraction.burst(10), Gcra::new()),
        policy("fraction-of-steps", fraction, TokenBucket::new().refill_every(period)),
        policy("queue", quota, LeakyBucket::queue(period / 2).delay_after(5)),
        policy("starts-low", quota, TokenBucket::new().starting_at(3)),
    ]
}

fn every_algorithm(limit: u64, period: Duration) -> Vec<(String, Policy)> {
    let quota = Quota::new(limit, period);
    vec![
        policy("gcra", quota, Gcra::new()),
        policy("meter", quota, LeakyBucket::meter()),
        policy("tokens", quota, TokenBucket::new()),
        policy("steps", quota, TokenBucket::new().refill_every(period / u32::try_from(limit).unwrap())),
        policy("anchored", quota, FixedWindow::anchored()),
        policy("aligned", quota, FixedWindow::aligned()),
        policy("log", quota, SlidingLog::new()),
        policy("cells", quota, SlidingWindow::new().segments(10)),
    ]
}

/// A limiter in process and one on `server`, with one clock.
async fn both(server: &RedisServer, clock: &ManualClock) -> [(&'static str, Limiter); 2] {
    let redis = settings()
        .manual_clock(clock.clone())
        .deny_cache(Duration::ZERO)
        .connect(&server.url())
        .await
        .unwrap();
    [("memory", Limiter::new(MemoryStore::with_clock(clock.clone()))), ("redis", Limiter::new(redis))]
}

/// An attack on "refund a login that succeeds": slow successful logins start for twenty minutes, and end one by one
/// between guesses that all come at one moment.
#[tokio::test]
async fn saved_refunds_admit_no_more_guesses_than_the_limit() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    for (store, limiter) in both(&server, &clock).await {
        for (name, policy) in every_algorithm(5, Duration::from_secs(60)) {
            let key = Key::new("mallory");
            let mut slow = Vec::new();
            for _ in 0..100 {
                let decision = limiter.check(&policy, &key, 1).await.unwrap();
                if !decision.verdict().is_denied() {
                    slow.push(decision);
                }
                clock.advance(Duration::from_secs(12));
            }
            clock.advance(Duration::from_secs(60));
            assert!(slow.len() > 80, "{store}, {name}: {}", slow.len());
            let mut guesses = 0;
            loop {
                while !limiter.check(&policy, &key, 1).await.unwrap().verdict().is_denied() {
                    guesses += 1;
                }
                let Some(ended) = slow.pop() else { break };
                limiter.refund(&ended, 1).await.unwrap();
            }
            assert_eq!(guesses, 5, "{store}, {name}");
            clock.advance(Duration::from_secs(600));
        }
    }
}

#[tokio::test]
async fn a_refund_of_an_expired_charge_refunds_nothing() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    for (store, limiter) in both(&server, &clock).await {
        for (name, policy) in every_algorithm(10, Duration::from_secs(10)) {
            let key = Key::new("alice");
            let old = limiter.check(&policy, &key, 5).await.unwrap();
            clock.advance(Duration::from_secs(20));
            assert!(!limiter.check(&policy, &key, 10).await.unwrap().verdict().is_denied(), "{store} {name}");
            let after = limiter.refund(&old, 5).await.unwrap();
            assert_eq!(after.remaining(), Some(0), "{store}, {name}");
            assert!(limiter.check(&policy, &key, 1).await.unwrap().verdict().is_denied(), "{store}, {name}");
            clock.advance(Duration::from_secs(60));
        }
    }
}

#[tokio::test]
async fn a_refund_in_time_refunds_the_whole_charge() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    for (store, limiter) in both(&server, &clock).await {
        for (name, policy) in every_algorithm(10, Duration::from_secs(60)) {
            let key = Key::new("alice");
            let before = limiter.check(&policy, &key, 3).await.unwrap();
            let mine = limiter.check(&policy, &key, 4).await.unwrap();
            let later = limiter.check(&policy, &key, 3).await.unwrap();
            let after = limiter.refund(&mine, 4).await.unwrap();
            assert_eq!(after.remaining(), Some(4), "{store}, {name}");
            for decision in [later, before] {
                limiter.refund(&decision, 3).await.unwrap();
            }
            let left = limiter.peek(&policy, &key, 0).await.unwrap();
            assert_eq!(left.remaining(), Some(10), "{store}, {name}");
            assert_eq!(left.outcomes()[0].reset_after(), Duration::ZERO, "{store}, {name}");
        }
    }
}

#[tokio::test]
async fn a_refund_after_a_reset_returns_nothing_of_a_charge_that_has_drained() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let (hour, key) = (Duration::from_secs(3_600), Key::new("alice"));
    let (_, policy) = policy("p", Quota::per_hour(10), Gcra::new());
    for (name, limiter) in both(&server, &clock).await {
        // The mark of the second charge is ahead by the time of the refunded units.
        let first = limiter.check(&policy, &key, 10).await.unwrap();
        limiter.refund(&first, 10).await.unwrap();
        let second = limiter.check(&policy, &key, 5).await.unwrap();
        clock.advance(hour);
        limiter.operator().reset(&policy, &key).await.unwrap();
        assert!(!limiter.check(&policy, &key, 10).await.unwrap().verdict().is_denied(), "{name}");
        assert_eq!(limiter.refund(&second, 5).await.unwrap().remaining(), Some(0), "{name}");
    }
}

/// Instances change to another quota at different times.
#[tokio::test]
async fn a_part_of_a_unit_that_a_refund_leaves_is_worth_as_much_under_another_quota() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let second = Duration::from_secs(1);
    let meter = |limit| policy("meter", Quota::per_day(limit).burst(40), LeakyBucket::meter()).1;
    for (store, limiter) in both(&server, &clock).await {
        for (one, other) in [(7, 35), (35, 7), (7, 1), (1, 40)] {
            let (one, other) = (meter(one), meter(other));
            let name = format!("{store}, {} and {}", one.quota(), other.quota());
            let key = Key::new(&name);
            let older = limiter.check(&one, &key, 1).await.unwrap();
            limiter.check(&one, &key, 6).await.unwrap();
            clock.advance(second);
            limiter.refund(&older, 1).await.unwrap();
            // What drained before the refund is replenished at the other rate.
            clock.advance(60 * second);
            for policy in [&other, &one] {
                let remaining = limiter.peek(policy, &key, 0).await.unwrap().remaining();
                assert_eq!(remaining, Some(34), "{name}");
            }
            // Requests that end in another order than they began.
            let mut charged = Vec::new();
            for round in 0..20 {
                let policy = [&one, &other][round % 2];
                charged.push(limiter.check(policy, &key, 1).await.unwrap());
                clock.advance(second);
                if round % 3 == 2 {
                    for decision in charged.drain(..).rev() {
                        limiter.refund(&decision, 1).await.unwrap();
                    }
                }
            }
            for decision in charged {
                limiter.refund(&decision, 1).await.unwrap();
            }
            for policy in [&one, &other] {
                let remaining = limiter.peek(policy, &key, 0).await.unwrap().remaining();
                assert!(matches!(remaining, Some(33..=34)), "{name}: {remaining:?}");
            }
        }
    }
}

/// The sum of refunds of a bucket restarts at 18 years.
#[tokio::test]
async fn after_refunds_of_18_years_earlier_charges_cannot_be_refunded() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let key = Key::new("alice");
    // A unit drains in 400 days.
    let quota = Quota::new(1, Duration::from_secs(400 * 86_400)).burst(20);
    let (_, policy) = policy("p", quota, Gcra::new());
    for (name, limiter) in both(&server, &clock).await {
        let check = async || limiter.check(&policy, &key, 1).await.unwrap();
        let refund = async |decision: &Decision| limiter.refund(decision, 1).await.unwrap().remaining();
        let earlier = check().await;
        clock.advance(Duration::from_micros(1));
        let at_the_restart = check().await;
        for _ in 0..17 {
            let charged = check().await;
            assert_eq!(refund(&charged).await, Some(18), "{name}");
        }
        assert_eq!(refund(&earlier).await, Some(18), "{name}");
        assert_eq!(refund(&at_the_restart).await, Some(18), "{name}");
        clock.advance(Duration::from_micros(1));
        let later = check().await;
        assert_eq!(refund(&later).await, Some(18), "{name}");
    }
}

#[tokio::test]
async fn repeated_refunds_of_a_decision_never_exceed_its_charge() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    for (store, limiter) in both(&server, &clock).await {
        for (name, policy) in every_algorithm(10, Duration::from_secs(60)) {
            let key = Key::new("alice");
            let mine = limiter.check(&policy, &key, 2).await.unwrap();
            limiter.check(&policy, &key, 8).await.unwrap();
            // A clone counts as the same decision.
            for (decision, units, left) in [(&mine, 1, 1), (&mine.clone(), 5, 2), (&mine, u64::MAX, 2)] {
                let after = limiter.refund(decision, units).await.unwrap();
                assert_eq!(after.remaining(), Some(left), "{store}, {name}");
            }
        }
    }
}

/// The first refund is kept, and sent once the store answers.
#[tokio::test]
async fn a_refund_that_is_repeated_in_an_outage_is_sent_once() {
    let store = Fake::default();
    let limiter = Limiter::new(store.clone());
    let (policy, key) = (day("ten", 10), Key::new("alice"));
    let decision = limiter.check(&policy, &key, 6).await.unwrap();
    limiter.check(&policy, &key, 4).await.unwrap();
    store.fail(ErrorKind::StoreUnreachable);
    for _ in 0..2 {
        assert!(limiter.refund(&decision, 6).await.unwrap().failure().is_some());
    }
    store.fail(None);
    limiter.drain(PATIENT).await.unwrap();
    assert_eq!(limiter.peek(&policy, &key, 0).await.unwrap().remaining(), Some(6));
}

/// It may have been made.
#[tokio::test]
async fn a_refund_whose_answer_is_lost_is_not_repeated() {
    let store = Fake::new(MemoryStore::new(), |store, action, charges| {
        let answer = store.decide(action, charges);
        if action == Action::Refund { fails(ErrorKind::StoreTimeout) } else { answer }
    });
    let limiter = Limiter::new(store);
    let (policy, key) = (day("ten", 10).failure_mode(FailureMode::Closed), Key::new("alice"));
    let decision = limiter.check(&policy, &key, 6).await.unwrap();
    limiter.check(&policy, &key, 4).await.unwrap();
    for _ in 0..2 {
        assert_eq!(limiter.refund(&decision, 6).await.unwrap_err().kind(), ErrorKind::StoreTimeout);
        assert_eq!(limiter.peek(&policy, &key, 0).await.unwrap().remaining(), Some(6));
    }
}

#[tokio::test]
async fn a_denial_and_a_peek_have_nothing_to_refund() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    for (store, limiter) in both(&server, &clock).await {
        for (name, policy) in every_algorithm(10, Duration::from_secs(60)) {
            let key = Key::new("alice");
            let peeked = limiter.peek(&policy, &key, 3).await.unwrap();
            limiter.check(&policy, &key, 10).await.unwrap();
            let denied = limiter.check(&policy, &key, 3).await.unwrap();
            for decision in [&peeked, &denied] {
                let after = limiter.refund(decision, 3).await.unwrap();
                assert_eq!(after.remaining(), Some(0), "{store}, {name}");
            }
        }
    }
}

#[tokio::test]
async fn a_denial_by_one_policy_has_nothing_to_refund_of_another() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    for (store, limiter) in both(&server, &clock).await {
        let (_, exhausted) = policy("exhausted", Quota::per_minute(1), FixedWindow::anchored());
        for (name, policy) in every_algorithm(10, Duration::from_secs(60)) {
            let key = Key::new(&name);
            limiter.check(&exhausted, &key, 1).await.unwrap();
            assert!(!limiter.check(&policy, &key, 3).await.unwrap().verdict().is_denied(), "{store}, {name}");
            let charges = [Charge::new(&policy, &key, 3), Charge::new(&exhausted, &key, 1)];
            let denied = limiter.check_all(&charges).await.unwrap();
            assert!(denied.verdict().is_denied(), "{store}, {name}");
            for decision in [&denied, &denied.for_policy(policy.name()).unwrap()] {
                limiter.refund(decision, 3).await.unwrap();
            }
            let remaining = limiter.peek(&policy, &key, 0).await.unwrap().remaining();
            assert_eq!(remaining, Some(7), "{store}, {name}");
        }
    }
}

#[tokio::test]
async fn a_denial_by_a_ban_has_nothing_to_refund_of_another_policy() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    for (store, limiter) in both(&server, &clock).await {
        let policy = Policy::new("api", Quota::per_minute(10));
        let banning = Policy::new("banning", Quota::per_minute(10))
            .penalty(Penalty::after(5, Duration::from_secs(60)).ban(Duration::from_secs(60)));
        let key = Key::new("alice");
        limiter.check(&policy, &key, 3).await.unwrap();
        limiter.operator().ban(&banning, &key, Duration::from_secs(60)).await.unwrap();
        let charges = [Charge::new(&policy, &key, 3), Charge::new(&banning, &key, 1)];
        let denied = limiter.check_all(&charges).await.unwrap();
        assert!(denied.verdict().is_denied(), "{store}");
        for decision in [&denied, &denied.for_policy(policy.name()).unwrap()] {
            limiter.refund(decision, 3).await.unwrap();
        }
        let remaining = limiter.peek(&policy, &key, 0).await.unwrap().remaining();
        assert_eq!(remaining, Some(7), "{store}");
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take(u64),
    /// Refund units of the decision this many steps back, regardless of its age and of resets since.
    Refund(usize, u64),
    /// Reset the key, a microsecond before the next step.
    Reset,
    /// Advance the clock by thousandths of the period.
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..4_u64).prop_map(Step::Take),
        4 => (0..12_usize, 1..5_u64).prop_map(|(back, units)| Step::Refund(back, units)),
        1 => Just(Step::Reset),
        3 => prop_oneof![1..40_u64, 40..400_u64, 400..1_500_u64].prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 20..120)
}

/// An admitted request, and its units that were not refunded.
struct Kept {
    at: Duration,
    /// The start of its window, if windows are anchored.
    opened: Duration,
    units: u64,
    /// The number of resets before.
    resets: u64,
}

/// The requests of `steps` that were not refunded must stay within the promise of `policy`, from each reset to the next.
async fn run(limiter: &Limiter, clock: &ManualClock, name: &str, policy: &Policy, key: &Key, steps: &[Step]) {
    let quota = policy.quota();
    let mut taken: Vec<(Decision, Kept)> = Vec::new();
    // For anchored windows: the units of each window that were not refunded.
    let (mut windows, mut open, mut resets) = (BTreeMap::<Duration, u64>::new(), None, 0);
    for step in steps {
        match *step {
            Step::Take(units) => {
                let decision = limiter.check(policy, key, units).await.unwrap();
                if !decision.verdict().is_denied() {
                    let now = clock.now();
                    let opened = match open {
                        // A window that was refunded completely is removed.
                        Some(opened) if now < opened + quota.period() && windows[&opened] > 0 => opened,
                        _ => now,
                    };
                    open = Some(opened);
                    if name == "anchored" {
                        *windows.entry(opened).or_default() += units;
                        assert!(windows[&opened] <= quota.limit(), "{name}: {windows:?}, {steps:?}");
                    } else {
                        windows.insert(opened, 1);
                    }
                    taken.push((decision, Kept { at: now, opened, units, resets }));
                }
            }
            Step::Refund(back, units) => {
                let Some(place) = taken.len().checked_sub(back + 1) else { continue };
                let (decision, kept) = &mut taken[place];
                limiter.refund(decision, units).await.unwrap();
                let refunded = units.min(kept.units);
                kept.units -= refunded;
                if name == "anchored"
                    && kept.resets == resets
                    && let Some(used) = windows.get_mut(&kept.opened)
                {
                    *used -= refunded;
                }
            }
            Step::Reset => {
                limiter.operator().reset(policy, key).await.unwrap();
                (open, resets) = (None, resets + 1);
                windows.clear();
                clock.advance(Duration::from_micros(1));
            }
            Step::Wait(share) => {
                let micros = quota.period().as_micros() * u128::from(share) / 1_000;
                clock.advance(Duration::from_micros(u64::try_from(micros).unwrap()));
            }
        }
    }
    assert!(windows.values().all(|used| *used <= quota.limit()), "{name}: {windows:?}, {steps:?}");
    let kept: Vec<Kept> = taken.into_iter().map(|(_, kept)| kept).collect();
    let (limit, period) = (u128::from(quota.limit()), quota.period().as_micros());
    for (first, from) in kept.iter().enumerate() {
        let mut units = 0;
        for to in kept[first..].iter().filter(|to| to.resets == from.resets) {
            units += u128::from(to.units);
            let span = (to.at - from.at).as_micros();
            let allowed = match name {
                "log" if span >= period => continue,
                "log" => limit,
                // Units in cells that count in full.
                "cells" if span >= period - period / 10 => continue,
                "cells" => limit,
                "aligned" if from.at.as_micros() / period != to.at.as_micros() / period => continue,
                "aligned" => limit,
                // Checked by window, above.
                "anchored" => continue,
                "steps" => limit + span * limit / period + 1,
                // A refund is rounded by less than 2 microseconds.
                "fraction" => 10 + (span + 2 * steps.len() as u128) * limit / period,
                "fraction-of-steps" => limit + (span / period + 1) * limit,
                _ => limit + span * limit / period,
            };
            assert!(units <= allowed, "{name}: {units} of {allowed} in {span} µs, {steps:?}");
        }
    }
}

fn what_was_not_refunded_keeps_within_the_limit(cases: u32, on_redis: bool) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let [(_, memory), (_, redis)] = runtime.block_on(both(&server, &clock));
    let limiter = if on_redis { redis } else { memory };
    let since = Instant::now();
    let lives = Cell::new(0);
    // Periods in which units are replenished in whole microseconds, so that nothing is rounded.
    let period = Duration::from_secs(10);
    for (name, policy) in every_algorithm(10, period).into_iter().chain(others(period)) {
        let config = Config { cases, failure_persistence: None, ..Config::default() };
        TestRunner::new(config)
            .run(&steps(), |steps| {
                lives.set(lives.get() + 1);
                let key = Key::new(format!("life-{}", lives.get()));
                runtime.block_on(run(&limiter, &clock, &name, &policy, &key, &steps));
                Ok(())
            })
            .unwrap_or_else(|failure| panic!("{failure}"));
    }
    eprintln!("{} sequences of 20 to 120 steps in {:?}", lives.get(), since.elapsed());
}

fn cases(default: u32) -> u32 {
    std::env::var("REFUND_CASES").map_or(default, |cases| cases.parse().unwrap())
}

#[test]
fn what_was_not_refunded_keeps_within_the_limit_in_process() {
    what_was_not_refunded_keeps_within_the_limit(cases(50), false);
}

#[test]
fn what_was_not_refunded_keeps_within_the_limit_on_redis() {
    what_was_not_refunded_keeps_within_the_limit(cases(6), true);
}

/// The log has more entries than a refund rewrites, so the refund removes the oldest units instead, and never too
/// many.
#[tokio::test]
async fn a_refund_in_the_middle_of_a_long_log_removes_the_oldest_units() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    for (store, limiter) in both(&server, &clock).await {
        let policy = Policy::new("long", Quota::per_minute(3_000)).algorithm(SlidingLog::new());
        let key = Key::new("alice");
        let mut middle = None;
        for request in 0..3_000 {
            let decision = limiter.check(&policy, &key, 1).await.unwrap();
            if request == 1_500 {
                middle = Some(decision);
            }
            clock.advance(Duration::from_millis(1));
        }
        assert!(limiter.check(&policy, &key, 1).await.unwrap().verdict().is_denied(), "{store}");
        let after = limiter.refund(&middle.unwrap(), 1).await.unwrap();
        assert_eq!(after.remaining(), Some(1), "{store}");
        // When the first request would have left the log, no further unit is free: its unit was removed already.
        clock.advance(Duration::from_millis(57_000));
        assert_eq!(limiter.peek(&policy, &key, 0).await.unwrap().remaining(), Some(1), "{store}");
        clock.advance(Duration::from_millis(1));
        assert_eq!(limiter.peek(&policy, &key, 0).await.unwrap().remaining(), Some(2), "{store}");
        clock.advance(Duration::from_secs(120));
    }
}
