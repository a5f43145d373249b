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
use support::{RedisServer, on_redis_with_clock, settings};
use tower_ratelimit::{
    Decision, Key, Limiter, MemoryStore, Policy, Quota,
    algorithm::{Algorithm, FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    store::ManualClock,
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

/// The `part`th part of `REFUND_CASES`.
fn cases(default: u32, part: u32) -> u32 {
    std::env::var("REFUND_CASES").map_or(default, |cases| cases.parse::<u32>().unwrap() / part)
}

#[test]
fn what_was_not_refunded_keeps_within_the_limit_in_process() {
    what_was_not_refunded_keeps_within_the_limit(cases(50, 1), false);
}

#[test]
fn what_was_not_refunded_keeps_within_the_limit_on_redis() {
    // All 20,000 of `make test-long` would take 25 minutes.
    what_was_not_refunded_keeps_within_the_limit(cases(6, 10), true);
}

/// Where a log has more than 1,000 entries before a charge and after it, a refund takes the oldest units instead.
#[tokio::test]
async fn a_refund_in_the_middle_of_a_long_log_removes_the_oldest_units() {
    let (_server, clock, limiter) = on_redis_with_clock().await;
    let (hour, milli) = (Duration::from_secs(3_600), Duration::from_millis(1));
    let policy = Policy::new("log", Quota::new(4_400, hour)).algorithm(SlidingLog::new());
    let key = Key::new("all");
    let (started, mut charged) = (clock.now(), Vec::new());
    for _ in 0..2_200 {
        charged.push(limiter.check(&policy, &key, 2).await.unwrap());
        clock.advance(milli);
    }
    let remaining = async || limiter.peek(&policy, &key, 0).await.unwrap().remaining();
    assert_eq!(remaining().await, Some(0));
    // A unit of the first charge, then its other one and one of the second.
    for (units, left) in [(1, 1), (2, 3)] {
        limiter.refund(&charged[1_100 + units as usize], units).await.unwrap();
        assert_eq!(remaining().await, Some(left));
    }
    // Until its second unit expires, the second charge has one.
    for (expired, left) in [(0, 3), (1, 4), (2, 6), (3, 8)] {
        clock.set(started + hour + milli * expired);
        assert_eq!(remaining().await, Some(left), "{expired}");
    }
    // Near an end, exactly its own units.
    limiter.refund(&charged[2_190], 2).await.unwrap();
    assert_eq!(remaining().await, Some(10));
    clock.set(started + hour + milli * 4);
    assert_eq!(remaining().await, Some(12));
}

/// Where refunds of 18 years are summed up, the sum starts again: then no earlier charge is refunded, nor one of that microsecond.
#[tokio::test]
async fn after_many_years_of_refunds_no_earlier_charge_is_refunded() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let policy = Policy::new("p", Quota::new(1, Duration::from_secs(400 * 86_400)).burst(40));
    for (store, limiter) in both(&server, &clock).await {
        let key = Key::new("alice");
        let charge = async |units| limiter.check(&policy, &key, units).await.unwrap();
        let refund = async |decision: &Decision, units| {
            limiter.refund(decision, units).await.unwrap().remaining().unwrap()
        };
        let (large, small) = (charge(20).await, charge(2).await);
        assert_eq!(refund(&large, 20).await, 38, "{store}");
        assert_eq!(refund(&small, 2).await, 38, "{store}");
        clock.advance(Duration::from_micros(1));
        let later = charge(2).await;
        assert_eq!(refund(&later, 2).await, 38, "{store}");
    }
}

/// An operator's refund moves the bucket by what it takes to drain the units, without the steps.
#[tokio::test]
async fn an_operators_refund_leaves_a_later_charge_of_a_stepped_bucket_to_its_client() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let second = Duration::from_secs(1);
    // Two units every twenty seconds.
    let bucket = TokenBucket::new().refill_every(20 * second);
    let policy = Policy::new("p", Quota::new(10, 100 * second)).algorithm(bucket);
    for (store, limiter) in both(&server, &clock).await {
        let key = Key::new("alice");
        limiter.check(&policy, &key, 3).await.unwrap();
        let latest = limiter.check(&policy, &key, 3).await.unwrap();
        limiter.operator().refund_latest(&policy, &key, 1).await.unwrap();
        clock.advance(20 * second);
        assert_eq!(limiter.refund(&latest, 3).await.unwrap().remaining(), Some(10), "{store}");
    }
}
