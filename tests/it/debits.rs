//! Debits and reservations: what a request has cost is charged once it is known.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::FutureExt as _;
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use support::{
    Down, Fake, PATIENT, RedisServer, current_thread, day, eventually, fails, fails_after, memory_and_redis,
    settings, store,
};
use tokio::{sync::Semaphore, task::JoinSet};
use tower_ratelimit::{
    Charge, Decision, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, Quota, Reservation,
    algorithm::{Algorithm, FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    store::{Action, ManualClock},
};

const PERIOD: Duration = Duration::from_secs(100);

fn ten(algorithm: impl Algorithm) -> Policy {
    Policy::new("ten", Quota::new(10, PERIOD)).algorithm(algorithm)
}

/// A limiter in process and one on `server`, with one clock.
async fn both(server: &RedisServer, clock: &ManualClock) -> [(&'static str, Limiter); 2] {
    let redis = settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap();
    [("memory", Limiter::new(MemoryStore::with_clock(clock.clone()))), ("redis", Limiter::new(redis))]
}

/// A live change, `Adaptive` and a rolling deploy make a quota smaller.
#[tokio::test]
async fn units_within_a_larger_quota_do_not_become_a_debt_of_a_smaller_one() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let (large, small) = (Quota::per_minute(1_000), Quota::per_minute(50));
    let step = Duration::from_secs(6);
    let rows = [
        ("gcra", Policy::new("p", large), Duration::from_millis(1_200)),
        ("meter", Policy::new("p", large).algorithm(LeakyBucket::meter()), Duration::from_millis(1_200)),
        ("tokens", Policy::new("p", large).algorithm(TokenBucket::new()), Duration::from_millis(1_200)),
        ("steps", Policy::new("p", large).algorithm(TokenBucket::new().refill_every(step)), step),
        ("starts low", Policy::new("p", large).algorithm(TokenBucket::new().starting_at(999)), {
            Duration::from_millis(1_200)
        }),
    ];
    for (name, policy, wait) in rows {
        for (store, limiter) in both(&server, &clock).await {
            let key = Key::new(name);
            let roomy = policy.clone().max_debt(5_000);
            let used = roomy.capacity() - u64::from(name == "starts low");
            assert!(limiter.check(&roomy, &key, used).await.unwrap().is_admitted(), "{name}, {store}");
            let lowered = roomy.with_quota(small).unwrap();
            let denied = limiter.check(&lowered, &key, 1).await.unwrap();
            assert_eq!(denied.retry_after(), Some(wait), "{name}, {store}");
            // Under the larger quota, they count again.
            let denied = limiter.check(&roomy, &key, 1).await.unwrap();
            assert!(denied.retry_after().is_some_and(|wait| wait <= step), "{name}, {store}: {denied:?}");
            let denied = limiter.check(&roomy, &key, 1_000).await.unwrap();
            assert_eq!(denied.retry_after(), Some(Duration::from_secs(60)), "{name}, {store}");
        }
    }
}

/// A debit is what a request has used, so no change of the quota forgives it.
#[tokio::test]
async fn a_debt_stays_owed_under_another_quota() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let (large, small) = (Quota::per_minute(1_000), Quota::per_minute(50));
    let rows = [
        ("gcra", Policy::new("p", large)),
        ("meter", Policy::new("p", large).algorithm(LeakyBucket::meter())),
        ("tokens", Policy::new("p", large).algorithm(TokenBucket::new())),
    ];
    for (name, policy) in rows {
        for (store, limiter) in both(&server, &clock).await {
            let (key, policy) = (Key::new(name), policy.clone().max_debt(200));
            let lowered = policy.with_quota(small).unwrap();
            let wait = async |policy: &Policy| {
                limiter.check(policy, &key, 1).await.unwrap().retry_after().map(|wait| wait.as_millis())
            };
            let request = limiter.check(&policy, &key, 1_000).await.unwrap();
            let debited = limiter.debit(&request, 100).await.unwrap();
            assert_eq!(debited.outcomes()[0].granted(), 100, "{name}, {store}");
            assert_eq!(wait(&policy).await, Some(101 * 60), "{name}, {store}");
            assert_eq!(wait(&lowered).await, Some(101 * 1_200), "{name}, {store}");
            assert_eq!(wait(&policy).await, Some(101 * 60), "{name}, {store}");
            // A tenth of the debt is paid off, under the smaller quota.
            clock.advance(Duration::from_secs(12));
            assert_eq!(wait(&lowered).await, Some(91 * 1_200), "{name}, {store}");
            // A debit under it may owe as much more as the setting allows.
            let more = [Charge::new(&lowered, &key, 0)];
            let request = limiter.check_all(&more).await.unwrap();
            let debited = limiter.debit(&request, 500).await.unwrap();
            assert_eq!(debited.outcomes()[0].granted(), 110, "{name}, {store}");
            assert_eq!(wait(&lowered).await, Some(201 * 1_200), "{name}, {store}");
            // With less room for debts, what is above is not owed.
            assert_eq!(wait(&lowered.clone().max_debt(40)).await, Some(41 * 1_200), "{name}, {store}");
            assert_eq!(wait(&lowered.max_debt(0)).await, Some(1_200), "{name}, {store}");
        }
    }
}

/// Ten units in each window of a hundred seconds, a day or a month, with a debt of 25.
fn windows() -> [(&'static str, Policy, [u64; 5]); 4] {
    let day = 86_400;
    let month = |days: [u64; 5]| days.map(|days| days * day);
    let per_month = Quota::per_month(10);
    [
        ("anchored", ten(FixedWindow::anchored()), [100, 200, 300, 400, 500]),
        ("aligned", Policy::new("ten", Quota::per_day(10)).algorithm(FixedWindow::aligned()), {
            [1, 2, 3, 4, 5].map(|days| days * day)
        }),
        // The clock starts on the first of January, 2026.
        ("months", Policy::new("ten", per_month).algorithm(FixedWindow::aligned()), {
            month([31, 59, 90, 120, 151])
        }),
        (
            "months in a zone",
            Policy::new("ten", per_month).algorithm(FixedWindow::aligned().time_zone("Europe/Berlin")),
            // An hour before, and two in summer.
            [31 * day - 3_600, 59 * day - 3_600, 90 * day - 7_200, 120 * day - 7_200, 151 * day - 7_200],
        ),
    ]
    .map(|(name, policy, starts)| (name, policy.max_debt(25), starts))
}

/// A new key under one of [`windows`] on one store, at the start of the first window.
struct Windows {
    context: String,
    limiter: Limiter,
    policy: Policy,
    key: Key,
    /// The seconds from `began` to the start of each later window.
    starts: [u64; 5],
    clock: ManualClock,
    began: Duration,
}

/// Calls `test` for each of [`windows`] on each store.
async fn in_each_window(test: impl AsyncFn(Windows)) {
    let server = RedisServer::start();
    for (name, policy, starts) in windows() {
        let clock = ManualClock::new();
        let began = clock.now();
        for (store, limiter) in both(&server, &clock).await {
            clock.set(began);
            let (context, policy) = (format!("{name}, {store}"), policy.clone());
            let (key, clock) = (Key::new(name), clock.clone());
            test(Windows { context, limiter, policy, key, starts, clock, began }).await;
        }
    }
}

#[tokio::test]
async fn each_window_pays_for_at_most_its_limit_of_a_debt() {
    in_each_window(async |Windows { context, limiter, policy, key, starts, clock, began }| {
        let request = limiter.check(&policy, &key, 10).await.unwrap();
        let debited = limiter.debit(&request, 1_000).await.unwrap();
        assert_eq!((debited.outcomes()[0].granted(), debited.remaining()), (25, Some(0)), "{context}");
        let owed = async || limiter.operator().owed(&policy, &key).await.unwrap();
        assert_eq!(owed().await, 25, "{context}");
        // The windows pay for 10, 10 and 5 units. Nothing is owed in the fourth one.
        for (cost, window) in [(1, 3), (5, 3), (6, 4), (10, 4)] {
            let denied = limiter.check(&policy, &key, cost).await.unwrap();
            let wait = Some(Duration::from_secs(starts[window - 1]));
            assert_eq!((denied.remaining(), denied.retry_after()), (Some(0), wait), "{context}, {cost}");
            assert_eq!(denied.outcomes()[0].reset_after(), Duration::from_secs(starts[3]), "{context}");
            assert_eq!(limiter.check(&policy, &key, 11).await.unwrap().retry_after(), None, "{context}");
        }
        let mut admitted = 35;
        for (window, owes, remaining) in [(1, 15, 0), (2, 5, 0), (3, 0, 5), (4, 0, 10), (5, 0, 10)] {
            // Until just before it, nothing changes.
            clock.set(began + Duration::from_secs(starts[window - 1]) - Duration::from_micros(1));
            assert!(limiter.check(&policy, &key, 1).await.unwrap().is_denied(), "{context}, {window}");
            clock.advance(Duration::from_micros(1));
            assert_eq!(owed().await, owes, "{context}, {window}");
            let all = limiter.check_up_to(&policy, &key, 100).await.unwrap();
            assert_eq!(all.outcomes()[0].granted(), remaining, "{context}, {window}");
            admitted += remaining;
        }
        assert_eq!(admitted, 6 * 10, "{context}");
    })
    .await;
}

/// A settlement often comes after the window of its request.
#[tokio::test]
async fn a_refund_in_a_later_window_leaves_what_would_be_owed_without_its_units() {
    let server = RedisServer::start();
    let second = Duration::from_secs(1);
    for (name, policy, starts) in windows() {
        let clock = ManualClock::new();
        let began = clock.now();
        for (store, limiter) in both(&server, &clock).await {
            for window in 0..3 {
                for units in [1, 4, 10] {
                    let context = format!("{name}, {store}, {units} units in window {window}");
                    let remaining = async |is_charged: bool| {
                        clock.set(began + second);
                        let key = Key::new(format!("{context} {is_charged}"));
                        let request = limiter.check(&policy, &key, 6).await.unwrap();
                        limiter.debit(&request, 29 - units).await.unwrap();
                        let last = limiter.debit(&request, if is_charged { units } else { 0 }).await.unwrap();
                        if window > 0 {
                            clock.set(began + second + Duration::from_secs(starts[window - 1]));
                        }
                        // The units of this window are of another request, so they stay.
                        let own = limiter.check_up_to(&policy, &key, 2).await.unwrap();
                        if is_charged {
                            assert!(limiter.refund(&last, units).await.unwrap().is_admitted(), "{context}");
                        }
                        let peeked = limiter.peek(&policy, &key, 9).await.unwrap();
                        let owed = limiter.operator().owed(&policy, &key).await.unwrap();
                        (peeked.remaining(), peeked.retry_after(), owed, own.outcomes()[0].granted())
                    };
                    let [(left, wait, owed, own), without] = [remaining(true).await, remaining(false).await];
                    // What was admitted in between was not, while the units were owed.
                    let left = left.map(|left| left + own);
                    let expected = (without.0.map(|left| left + without.3), without.1, without.2);
                    if own == without.3 {
                        assert_eq!((left, wait, owed), expected, "{context}");
                    } else {
                        assert_eq!(left, expected.0, "{context}");
                    }
                }
            }
        }
    }
}

/// A request that used nothing, and whose window owed one unit, gives back one unit of a later window.
#[tokio::test]
async fn a_refund_in_a_later_window_returns_no_more_than_its_window_has_left() {
    in_each_window(async |Windows { context, limiter, policy, key, starts, clock, began }| {
        let policy = policy.max_debt(10);
        let first = limiter.check(&policy, &key, 10).await.unwrap();
        limiter.debit(&first, 1).await.unwrap();
        clock.set(began + Duration::from_secs(starts[0]));
        let debit = async |units| limiter.debit(&first, units).await.unwrap().outcomes()[0].granted();
        assert_eq!(debit(100).await, 19, "{context}");
        clock.set(began + Duration::from_secs(starts[1]));
        assert_eq!(debit(1).await, 1, "{context}");
        limiter.refund(&first, 10).await.unwrap();
        // The second and the third window together: their limits and the debt.
        assert!(19 + 1 + debit(100).await <= 2 * 10 + 10, "{context}");
    })
    .await;
}

/// Of any windows in a row, what is charged in them in the end is at most their limits and the debt.
#[test]
fn windows_with_a_debt_admit_no_more_than_their_limits_and_the_debt_regardless_of_refunds() {
    let step = (0..4_u8, 1..30_u64, any::<prop::sample::Index>(), prop_oneof![3 => Just(0), 2 => 1..3_u64]);
    let case = (1..12_u64, 0..40_u64, any::<bool>(), proptest::collection::vec(step, 1..40));
    TestRunner::new(Config { cases: 2_000, failure_persistence: None, ..Config::default() })
        .run(&case, |(limit, debt, is_anchored, steps)| {
            let algorithm = if is_anchored { FixedWindow::anchored() } else { FixedWindow::aligned() };
            let policy = Policy::new("p", Quota::per_day(limit)).algorithm(algorithm).max_debt(debt);
            let (clock, key) = (ManualClock::new(), Key::new("alice"));
            let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
            let now = |answer: tower_ratelimit::Answer<Decision>| answer.now_or_never().unwrap().unwrap();
            let any = now(limiter.check(&policy, &key, 0));
            // What each charge has in the end, and its day.
            let mut charged: Vec<(Decision, u64, u64)> = Vec::new();
            let mut day = 0;
            for (what, units, which, days) in steps {
                match what {
                    0 | 1 => {
                        let decision = if what == 0 {
                            now(limiter.check_up_to(&policy, &key, units))
                        } else {
                            now(limiter.debit(&any, units))
                        };
                        let granted = decision.outcomes()[0].granted();
                        if granted > 0 {
                            charged.push((decision, granted, day));
                        }
                    }
                    2 if !charged.is_empty() => {
                        let (decision, left, _) = which.get_mut(&mut charged);
                        now(limiter.refund(decision, units));
                        *left = left.saturating_sub(units);
                    }
                    _ => {
                        day += days;
                        clock.advance(day_of(days));
                    }
                }
            }
            for first in 0..=day {
                for last in first..=day {
                    let in_these = charged.iter().filter(|(.., day)| (first..=last).contains(day));
                    let admitted = in_these.map(|(_, left, _)| left).sum::<u64>();
                    let most = (last - first + 1) * limit + debt;
                    prop_assert!(admitted <= most, "{admitted} of {most} from day {first} to {last}");
                }
            }
            Ok(())
        })
        .unwrap();
}

fn day_of(days: u64) -> Duration {
    Duration::from_secs(days * 86_400)
}

/// What was charged within a larger quota is not owed, and what is owed is not more than the debt.
#[tokio::test]
async fn a_changed_quota_makes_no_debt_of_a_window() {
    in_each_window(async |Windows { context, limiter, policy, key, starts, .. }| {
        let larger = policy.with_quota(policy.quota().with_limit(1_000).unwrap()).unwrap();
        limiter.check(&larger, &key, 900).await.unwrap();
        let wait = async |policy: &Policy| {
            limiter.check(policy, &key, 1).await.unwrap().retry_after().map(|wait| wait.as_secs())
        };
        assert_eq!(wait(&policy).await, Some(starts[0]), "{context}");
        assert_eq!(limiter.operator().owed(&policy, &key).await.unwrap(), 0, "{context}");
        // A debit owes what it charges.
        let request = limiter.check(&policy, &key, 0).await.unwrap();
        let debited = limiter.debit(&request, 1_000).await.unwrap();
        assert_eq!(debited.outcomes()[0].granted(), 25, "{context}");
        assert_eq!(wait(&policy).await, Some(starts[2]), "{context}");
        // A larger limit has room for it, and a smaller debt forgives the rest.
        assert_eq!(wait(&larger).await, None, "{context}");
        let request = limiter.check(&policy, &key, 0).await.unwrap();
        limiter.debit(&request, 1_000).await.unwrap();
        for (debt, window) in [(20, 3), (19, 2), (9, 1), (0, 1)] {
            let lowered = policy.clone().max_debt(debt);
            assert_eq!(wait(&lowered).await, Some(starts[window - 1]), "{context}, {debt}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_debit_charges_what_remains_and_the_debt_and_no_more() {
    let server = RedisServer::start();
    // In buckets, a unit takes ten seconds. In windows, all units are of one moment.
    let rows = [
        ("gcra", ten(Gcra::new()), 10),
        ("meter", ten(LeakyBucket::meter()), 10),
        ("tokens", ten(TokenBucket::new()), 10),
        ("starts low", ten(TokenBucket::new().starting_at(4)), 10),
        ("steps", ten(TokenBucket::new().refill_every(PERIOD / 10)), 10),
        ("window", ten(FixedWindow::anchored()), 0),
        ("log", ten(SlidingLog::new()), 0),
        ("cells", ten(SlidingWindow::new().segments(10)), 0),
    ];
    for (name, policy, unit) in rows {
        for debt in [0, 5] {
            let clock = ManualClock::new();
            let policy = policy.clone().max_debt(debt);
            for (store, limiter) in both(&server, &clock).await {
                let context = format!("{name}, debt {debt}, {store}");
                let key = Key::new(format!("{name}-{debt}"));
                let request = limiter.check(&policy, &key, 1).await.unwrap();
                let remaining = request.remaining().unwrap();
                assert_eq!(remaining, if name == "starts low" { 3 } else { 9 }, "{context}");

                let debited = limiter.debit(&request, 3).await.unwrap();
                let left = remaining - 3;
                assert_eq!(debited.remaining(), Some(left), "{context}");
                let debited = limiter.debit(&request, 1_000_000).await.unwrap();
                assert!(debited.is_admitted(), "{context}");
                let granted = |decision: &Decision| decision.outcomes()[0].granted();
                assert_eq!((granted(&debited), debited.remaining()), (left + debt, Some(0)), "{context}");
                let nothing = limiter.debit(&request, 1).await.unwrap();
                assert!(nothing.is_admitted() && granted(&nothing) == 0, "{context}");

                let denied = limiter.check(&policy, &key, 1).await.unwrap();
                let wait = denied.retry_after().unwrap_or_else(|| panic!("{context}: {denied:?}"));
                if unit > 0 {
                    assert_eq!(wait.as_secs(), (debt + 1) * unit, "{context}");
                } else {
                    assert!(wait >= PERIOD / 2, "{context}: {wait:?}");
                }
                clock.advance(wait);
                assert!(limiter.check(&policy, &key, 1).await.unwrap().is_admitted(), "{context}");
                clock.step_back(wait);
            }
        }
    }
    let keys: Vec<String> = server.command(&["KEYS", "*"]);
    assert_eq!(keys.len(), 16);
    for key in keys {
        let ttl: i64 = server.command(&["PTTL", &key]);
        assert!(ttl > 0, "{key}: {ttl}");
    }
}

/// What a request does with its reservation.
#[derive(Clone, Debug)]
enum Step {
    Reserve(u64),
    Settle(usize, u64),
    Extend(usize, u64),
    Record(usize, u64),
    Debit(usize, u64),
    Refund(usize, u64),
    Drop(usize),
}

/// A request and what of its charge can still be refunded.
struct Request {
    reservation: Option<Reservation>,
    decision: Decision,
    /// The total that was asked for last.
    wanted: u64,
    /// What its reservation is charged.
    charged: u64,
    refundable: u64,
    /// What can be refunded of the reservation's own debits.
    debited: u64,
    settled: bool,
    recorded: Option<u64>,
    refunds: bool,
}

impl Request {
    fn refund(&mut self, used: &mut u64, units: u64) {
        let refunded = units.min(self.refundable);
        self.refundable -= refunded;
        *used -= refunded;
    }

    /// Charges `units` in total.
    fn total(&mut self, used: &mut u64, units: u64) {
        self.wanted = units;
        let granted = units.saturating_sub(self.charged).min(LIMIT + DEBT - *used);
        self.charged += granted;
        self.debited += granted;
        *used += granted;

        let surplus = self.charged.saturating_sub(units);
        let of_debits = surplus.min(self.debited);
        let of_estimate = (surplus - of_debits).min(self.refundable);
        self.debited -= of_debits;
        *used -= of_debits;
        self.refund(used, of_estimate);
        self.charged -= of_debits + of_estimate;
    }
}

const LIMIT: u64 = 100;
const DEBT: u64 = 30;

/// Nothing is replenished, so the units in use are the sum of what is charged.
async fn count_is_right(limiter: &Limiter, policy: &Policy, key: &Key, steps: &[Step]) {
    let (mut used, mut requests) = (0, Vec::<Request>::new());
    let debit = |used: &mut u64, units: u64| *used += units.min(LIMIT + DEBT - *used);
    for step in steps {
        let number = requests.len().max(1);
        match *step {
            Step::Reserve(units) => {
                let decision = limiter.check(policy, key, units).await.unwrap();
                assert_eq!(decision.is_admitted(), used + units <= LIMIT, "{step:?} with {used} used");
                if decision.is_admitted() {
                    used += units;
                    let reservation = Reservation::new(limiter, &decision);
                    let refunds = units % 2 == 0;
                    let reservation = Some(if refunds { reservation.or_refund() } else { reservation });
                    requests.push(Request {
                        reservation,
                        decision,
                        wanted: units,
                        charged: units,
                        refundable: units,
                        debited: 0,
                        settled: false,
                        recorded: None,
                        refunds,
                    });
                }
            }
            Step::Settle(which, units) => {
                let Some(request) = requests.get_mut(which % number) else { continue };
                let Some(reservation) = &request.reservation else { continue };
                reservation.settle(units).await.unwrap();
                request.settled = true;
                request.total(&mut used, units);
            }
            Step::Extend(which, units) => {
                let Some(request) = requests.get_mut(which % number) else { continue };
                let Some(reservation) = &request.reservation else { continue };
                reservation.extend_to(units).await.unwrap();
                request.total(&mut used, request.wanted.max(units));
            }
            Step::Record(which, units) => {
                let Some(request) = requests.get_mut(which % number) else { continue };
                let Some(reservation) = &request.reservation else { continue };
                reservation.record(units);
                request.recorded = Some(units);
            }
            Step::Debit(which, units) => {
                let Some(request) = requests.get(which % number) else { continue };
                debit(&mut used, units);
                assert!(limiter.debit(&request.decision, units).await.unwrap().is_admitted());
            }
            Step::Refund(which, units) => {
                let Some(request) = requests.get_mut(which % number) else { continue };
                request.refund(&mut used, units);
                limiter.refund(&request.decision, units).await.unwrap();
            }
            Step::Drop(which) => {
                let Some(request) = requests.get_mut(which % number) else { continue };
                if request.reservation.take().is_none() || request.settled {
                    continue;
                }
                match request.recorded {
                    Some(units) => request.total(&mut used, units),
                    None if request.refunds => request.total(&mut used, 0),
                    None => {}
                }
            }
        }
        let remaining = LIMIT.saturating_sub(used);
        let left = async || limiter.peek(policy, key, 0).await.unwrap().remaining();
        assert!(
            eventually(async || left().await == Some(remaining)).await,
            "{step:?}: {remaining} must remain, {:?} do",
            left().await
        );
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = 0..8_usize;
    let units = 0..60_u64;
    let step = prop_oneof![
        4 => (1..60_u64).prop_map(Step::Reserve),
        4 => (which.clone(), units.clone()).prop_map(|(which, units)| Step::Settle(which, units)),
        2 => (which.clone(), units.clone()).prop_map(|(which, units)| Step::Extend(which, units)),
        1 => (which.clone(), units.clone()).prop_map(|(which, units)| Step::Record(which, units)),
        1 => (which.clone(), units.clone()).prop_map(|(which, units)| Step::Debit(which, units)),
        1 => (which.clone(), units).prop_map(|(which, units)| Step::Refund(which, units)),
        2 => which.prop_map(Step::Drop),
    ];
    proptest::collection::vec(step, 1..40)
}

#[test]
fn the_count_is_right_after_debits_refunds_and_settlements_in_any_order() {
    let runtime = current_thread();
    let server = RedisServer::start();
    let redis = Limiter::new(runtime.block_on(store(&server)));
    let memory = Limiter::new(MemoryStore::new());
    let day = Quota::per_day(LIMIT);
    let policies = [
        Policy::new("log", day).algorithm(SlidingLog::new()).max_debt(DEBT),
        Policy::new("window", day).algorithm(FixedWindow::anchored()).max_debt(DEBT),
    ];
    let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
    let case = std::cell::Cell::new(0);
    TestRunner::new(config)
        .run(&steps(), |steps| {
            let key = Key::new(format!("case-{}", case.replace(case.get() + 1)));
            for policy in &policies {
                for limiter in [&memory, &redis] {
                    runtime.block_on(count_is_right(limiter, policy, &key, &steps));
                }
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
    let keys: Vec<String> = server.command(&["KEYS", "*"]);
    assert!(!keys.is_empty());
    for key in keys {
        let ttl: i64 = server.command(&["PTTL", &key]);
        assert!(ttl > 0, "{key}: {ttl}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_settlements_are_all_counted() {
    let server = RedisServer::start();
    let limiters = [Limiter::new(MemoryStore::new()), Limiter::new(store(&server).await)];
    let policy = Policy::new("tokens", Quota::per_day(100_000)).algorithm(FixedWindow::anchored());
    for limiter in limiters {
        let mut tasks = JoinSet::new();
        for cost in 1..=64_u64 {
            let (limiter, policy) = (limiter.clone(), policy.clone());
            tasks.spawn(async move {
                let decision = limiter.check(&policy, &Key::new("all"), 50).await.unwrap();
                let reservation = Reservation::new(&limiter, &decision);
                // As a stream does.
                for part in 1..cost {
                    reservation.extend_to(part * 2).await.unwrap();
                }
                reservation.settle(cost * 2).await.unwrap();
            });
        }
        tasks.join_all().await;
        let expected: u64 = (1..=64).map(|cost| cost * 2).sum();
        let left = limiter.peek(&policy, &Key::new("all"), 0).await.unwrap().remaining();
        assert_eq!(left, Some(100_000 - expected));
    }
}

#[tokio::test]
async fn a_settlement_that_was_not_sent_can_be_made_again() {
    for mode in [FailureMode::Closed, FailureMode::Open] {
        for cost in [3, 30] {
            let store = Fake::default();
            let limiter = Limiter::new(store.clone());
            let policy = Policy::new("tokens", Quota::per_day(100))
                .algorithm(FixedWindow::anchored())
                .failure_mode(mode);
            let decision = limiter.check(&policy, &Key::new("alice"), 10).await.unwrap();
            let reservation = Reservation::new(&limiter, &decision);
            store.fail(ErrorKind::StoreUnreachable);
            let settled = reservation.settle(cost).await;
            let failed = settled.map_or(true, |decision| decision.failure().is_some());
            assert!(failed, "{mode:?}, {cost}");
            store.fail(None);
            for _ in 0..2 {
                reservation.settle(cost).await.unwrap();
            }
            let left = limiter.peek(&policy, &Key::new("alice"), 0).await.unwrap().remaining();
            assert_eq!(left, Some(100 - cost), "{mode:?}, {cost}");
        }
    }
}

#[tokio::test]
async fn a_debit_while_the_store_fails_is_charged_in_process_and_reconciled() {
    let store = Fake::default();
    let limiter = Limiter::new(store.clone());
    let policy = Policy::new("tokens", Quota::per_day(100)).algorithm(FixedWindow::anchored()).max_debt(20);
    let alice = Key::new("alice");
    let decision = limiter.check(&policy, &alice, 10).await.unwrap();
    store.fail(ErrorKind::StoreUnreachable);
    let debited = limiter.debit(&decision, 500).await.unwrap();
    // The local count starts from zero, and has no room for debt.
    assert_eq!((debited.outcomes()[0].granted(), debited.remaining()), (100, Some(0)));
    assert!(!limiter.check(&policy, &alice, 1).await.unwrap().is_admitted());
    store.fail(None);
    let denied = async || !limiter.check(&policy, &alice, 1).await.unwrap().is_admitted();
    assert!(eventually(denied).await);
}

#[test]
fn a_reservation_may_be_dropped_outside_the_runtime() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let limiter = Limiter::new(runtime.block_on(store(&server)));
    let policy = Policy::new("tokens", Quota::per_day(100)).algorithm(FixedWindow::anchored());
    let alice = Key::new("alice");
    let decision = runtime.block_on(limiter.check(&policy, &alice, 10)).unwrap();
    let reservation = runtime.block_on(async { Reservation::new(&limiter, &decision).or_refund() });
    drop(reservation.clone());
    assert!(format!("{reservation:?}").contains("is_settled: false"));
    drop(reservation);
    let left = async || limiter.peek(&policy, &alice, 0).await.unwrap().remaining();
    assert!(runtime.block_on(eventually(async || left().await == Some(100))));
}

/// What one row's calls charge, in turn.
enum Total {
    Settle(u64),
    Extend(u64),
}

#[tokio::test]
async fn a_reservation_is_charged_the_last_total_not_what_was_granted_before() {
    use Total::{Extend, Settle};

    let server = RedisServer::start();
    // The limit, and after each call what is charged of an estimate of 100.
    let rows: [(&str, u64, &[(Total, u64)]); 7] = [
        ("more than remains, then less", 150, &[(Extend(400), 150), (Settle(120), 120)]),
        ("up, down, up", 1_000, &[(Settle(400), 400), (Settle(50), 50), (Settle(400), 400)]),
        ("everything, then less", 1_000, &[(Settle(u64::MAX), 1_000), (Settle(120), 120)]),
        ("nothing, then more", 1_000, &[(Settle(0), 0), (Settle(130), 130), (Extend(100), 130)]),
        ("in parts, then less", 1_000, &[(Extend(150), 150), (Extend(300), 300), (Settle(120), 120)]),
        ("settled, then a part", 150, &[(Settle(400), 150), (Extend(200), 150), (Settle(0), 0)]),
        ("less than the estimate", 150, &[(Extend(40), 100), (Settle(40), 40), (Extend(60), 60)]),
    ];
    let clock = ManualClock::new();
    for (name, limit, calls) in rows {
        let day = Quota::per_day(limit);
        let policies = [
            ("gcra", Policy::new("p", day)),
            ("tokens", Policy::new("p", day).algorithm(TokenBucket::new())),
            ("window", Policy::new("p", day).algorithm(FixedWindow::anchored())),
            ("cells", Policy::new("p", day).algorithm(SlidingWindow::new())),
            ("log", Policy::new("p", day).algorithm(SlidingLog::new())),
        ];
        for (algorithm, policy) in policies {
            for (store, limiter) in both(&server, &clock).await {
                let key = Key::new(format!("{name} {algorithm}"));
                let decision = limiter.check(&policy, &key, 100).await.unwrap();
                let reservation = Reservation::new(&limiter, &decision);
                let mut charged = Vec::new();
                for (call, _) in calls {
                    let settled = match *call {
                        Settle(units) => reservation.settle(units).await.unwrap(),
                        Extend(units) => reservation.extend_to(units).await.unwrap(),
                    };
                    assert!(settled.is_admitted(), "{name}, {algorithm}, {store}");
                    let left = limiter.peek(&policy, &key, 0).await.unwrap().remaining().unwrap();
                    charged.push(limit - left);
                }
                let expected: Vec<u64> = calls.iter().map(|(_, expected)| *expected).collect();
                assert_eq!(charged, expected, "{name}, {algorithm}, {store}");
            }
        }
    }
}

#[tokio::test]
async fn a_settlement_is_made_when_it_is_called_although_its_future_is_never_polled() {
    let server = RedisServer::start();
    let policy = Policy::new("tokens", Quota::per_day(100)).algorithm(FixedWindow::anchored());
    for limiter in [Limiter::new(MemoryStore::new()), Limiter::new(store(&server).await)] {
        for (user, units) in [("more", 60), ("less", 10)] {
            let key = Key::new(user);
            let decision = limiter.check(&policy, &key, 30).await.unwrap();
            let reservation = Reservation::new(&limiter, &decision);
            drop(reservation.settle(units));
            drop(reservation);
            let left = async || limiter.peek(&policy, &key, 0).await.unwrap().remaining();
            assert!(
                eventually(async || left().await == Some(100 - units)).await,
                "{user}, {limiter:?}: {:?} left",
                left().await
            );
        }
    }
}

#[tokio::test]
async fn a_reservation_that_is_dropped_settles_at_what_was_recorded_last() {
    /// What a request does before its reservation is dropped.
    enum Step {
        Record(u64),
        Extend(u64),
        Settle(u64),
        Clone,
    }
    use Step::{Clone, Extend, Record, Settle};

    let server = RedisServer::start();
    // What is charged of an estimate of 50, without and with `or_refund`.
    let rows: [(&str, &[Step], [u64; 2]); 10] = [
        ("nothing", &[], [50, 0]),
        ("less", &[Record(7)], [7, 7]),
        ("more", &[Record(7), Record(80)], [80, 80]),
        ("less than before", &[Record(80), Record(20)], [20, 20]),
        ("nothing used", &[Record(0)], [0, 0]),
        ("beyond the limit and its debt", &[Record(1_000)], [130, 130]),
        ("settled", &[Record(7), Settle(60), Record(9)], [60, 60]),
        ("after a debit", &[Extend(70), Record(65)], [65, 65]),
        ("only a debit", &[Extend(70)], [70, 0]),
        ("on another handle", &[Clone, Record(7)], [7, 7]),
    ];
    for (store, limiter) in memory_and_redis(&server).await {
        for (name, steps, expected) in &rows {
            for (or_refund, expected) in [false, true].into_iter().zip(expected) {
                let policy =
                    Policy::new("p", Quota::per_day(100)).algorithm(FixedWindow::anchored()).max_debt(30);
                let key = Key::new(format!("{name} {or_refund}"));
                let decision = limiter.check(&policy, &key, 50).await.unwrap();
                let reservation = Reservation::new(&limiter, &decision);
                let reservation = if or_refund { reservation.or_refund() } else { reservation };
                let mut clone = None;
                for step in *steps {
                    match *step {
                        Record(units) => reservation.record(units),
                        Extend(units) => drop(reservation.extend_to(units)),
                        Settle(units) => drop(reservation.settle(units)),
                        Clone => clone = Some(reservation.clone()),
                    }
                }
                drop(reservation);
                drop(clone);
                limiter.drain(PATIENT).await.unwrap();
                let room = limiter.peek(&policy, &key, 0).await.unwrap();
                let left = 130 - limiter.debit(&room, u64::MAX).await.unwrap().outcomes()[0].granted();
                assert_eq!(left, *expected, "{store}, {name}, {or_refund}");
            }
        }
    }
}

#[tokio::test]
async fn calls_that_are_made_while_one_is_under_way_share_the_next_one() {
    let (store, permits) = Fake::gated(MemoryStore::new(), &[Action::Debit, Action::Refund]);
    let limiter = Limiter::new(store.clone());
    let policy = Policy::new("tokens", Quota::per_day(1_000)).algorithm(FixedWindow::anchored());
    let key = Key::new("alice");
    let decision = limiter.check(&policy, &key, 10).await.unwrap();
    let reservation = Reservation::new(&limiter, &decision);
    let first = reservation.extend_to(20);
    let others: Vec<_> = (3..=90).map(|part| reservation.extend_to(part * 10)).collect();
    let last = reservation.settle(800);
    permits.add_permits(1);
    assert_eq!(first.await.unwrap().remaining(), Some(980));
    // One call for all others.
    permits.add_permits(1);
    for other in others {
        assert_eq!(other.await.unwrap().remaining(), Some(200));
    }
    assert_eq!(last.await.unwrap().remaining(), Some(200));
    assert_eq!(permits.available_permits(), 0);
}

#[tokio::test]
async fn a_call_that_needs_no_debit_after_the_one_under_way_shows_what_that_one_left() {
    let (store, permits) = Fake::gated(MemoryStore::new(), &[Action::Debit]);
    let limiter = Limiter::new(store.clone());
    let policy = Policy::new("tokens", Quota::per_day(1_000)).algorithm(FixedWindow::anchored());
    let decision = limiter.check(&policy, &Key::new("alice"), 10).await.unwrap();
    let reservation = Reservation::new(&limiter, &decision);
    let [larger, smaller] = [20, 15].map(|units| reservation.extend_to(units));
    permits.add_permits(1);
    assert_eq!(larger.await.unwrap().remaining(), Some(980));
    assert_eq!(smaller.await.unwrap().remaining(), Some(980));
}

#[tokio::test]
async fn a_call_that_needs_no_debit_after_one_that_fails_does_not_fail() {
    let gate = Arc::new(Semaphore::new(0));
    let opens = gate.clone();
    let store = Fake::new(MemoryStore::new(), move |store, action, charges| {
        if action != Action::Debit {
            return store.decide(action, charges);
        }
        let gate = opens.clone();
        fails_after(async move { gate.acquire().await.unwrap().forget() }, ErrorKind::StoreUnreachable)
    });
    let limiter = Limiter::new(store);
    let policy = day("tokens", 1_000).failure_mode(FailureMode::Closed);
    let decision = limiter.check(&policy, &Key::new("alice"), 10).await.unwrap();
    let reservation = Reservation::new(&limiter, &decision);
    let [larger, as_charged] = [20, 10].map(|units| reservation.settle(units));
    gate.add_permits(1);
    assert_eq!(larger.await.unwrap_err().kind(), ErrorKind::StoreUnreachable);
    assert_eq!(as_charged.await.unwrap().remaining(), Some(990));
}

/// Each call to a store that does not answer takes as long as its timeout.
#[tokio::test]
async fn a_settlement_makes_no_refund_after_one_whose_answer_is_lost() {
    let refunds = Arc::new(AtomicUsize::new(0));
    let asked = refunds.clone();
    let store = Fake::new(MemoryStore::new(), move |store, action, charges| {
        if action != Action::Refund {
            return store.decide(action, charges);
        }
        asked.fetch_add(1, Relaxed);
        fails(ErrorKind::StoreTimeout)
    });
    let limiter = Limiter::new(store);
    let policy = day("tokens", 1_000).failure_mode(FailureMode::Closed);
    let decision = limiter.check(&policy, &Key::new("alice"), 10).await.unwrap();
    let reservation = Reservation::new(&limiter, &decision);
    // A refund of all units is one call for each debit, and one for the estimate.
    for units in [100, 200] {
        reservation.settle(units).await.unwrap();
    }
    assert_eq!(reservation.settle(0).await.unwrap_err().kind(), ErrorKind::StoreTimeout);
    assert_eq!(refunds.load(Relaxed), 1);
}

#[tokio::test]
async fn a_settlement_after_a_refund_of_the_estimate_shows_what_remains() {
    let limiter = Limiter::new(MemoryStore::new());
    let policy = day("tokens", 1_000);
    let decision = limiter.check(&policy, &Key::new("alice"), 10).await.unwrap();
    let reservation = Reservation::new(&limiter, &decision);
    limiter.refund(&decision, 10).await.unwrap();
    assert_eq!(reservation.settle(0).await.unwrap().remaining(), Some(1_000));
}

/// The latest 16 debits are kept to refund them.
#[tokio::test]
async fn debits_that_were_refunded_do_not_displace_one_that_is_refunded_later() {
    let limiter = Limiter::new(MemoryStore::new());
    let policy = Policy::new("tokens", Quota::per_day(1_000)).algorithm(FixedWindow::anchored());
    let key = Key::new("alice");
    let decision = limiter.check(&policy, &key, 10).await.unwrap();
    let reservation = Reservation::new(&limiter, &decision);
    reservation.settle(100).await.unwrap();
    for _ in 0..20 {
        for units in [200, 100] {
            reservation.settle(units).await.unwrap();
        }
    }
    reservation.settle(0).await.unwrap();
    assert_eq!(limiter.peek(&policy, &key, 0).await.unwrap().remaining(), Some(1_000));
}

#[test]
fn a_settlement_waits_neither_for_a_kept_answer_nor_for_an_idle_runtime() {
    let runtime = || current_thread();
    let (driven, left) = (runtime(), runtime());
    for (name, first_in) in [("kept", None), ("not driven", Some(&left))] {
        for settled_in in [None, Some(&driven)] {
            let (store, permits) = Fake::gated(MemoryStore::new(), &[Action::Debit, Action::Refund]);
            permits.add_permits(9);
            let limiter = Limiter::new(store.clone());
            let policy = Policy::new("tokens", Quota::per_day(100)).algorithm(FixedWindow::anchored());
            let decision = driven.block_on(limiter.check(&policy, &Key::new("alice"), 10)).unwrap();
            let reservation = Reservation::new(&limiter, &decision);
            let settle = |runtime: Option<&tokio::runtime::Runtime>, units| {
                let _inside = runtime.map(tokio::runtime::Runtime::enter);
                reservation.settle(units)
            };
            let (first, mut second) = (settle(first_in, 20), settle(settled_in, 30));
            let mut poll = || (&mut second).now_or_never();
            let settled = (0..99).find_map(|_| match settled_in {
                Some(runtime) => runtime.block_on(async {
                    tokio::task::yield_now().await;
                    poll()
                }),
                None => poll(),
            });
            let settled = settled.and_then(|settled| settled.unwrap().remaining());
            let name = format!("{name}, {}", settled_in.is_some());
            assert_eq!(settled, Some(70), "{name}");
            assert_eq!(driven.block_on(first).unwrap().remaining(), Some(80), "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn drain_waits_for_reservations_and_their_calls_and_for_no_longer_than_the_deadline() {
    let (store, permits) = Fake::gated(MemoryStore::new(), &[Action::Debit, Action::Refund]);
    let limiter = Limiter::new(store.clone());
    let policy = Policy::new("tokens", Quota::per_day(100)).algorithm(FixedWindow::anchored());
    let key = Key::new("alice");
    let left = async || limiter.peek(&policy, &key, 0).await.unwrap().remaining();
    let late = async |open: usize| {
        let (started, deadline) = (tokio::time::Instant::now(), Duration::from_secs(3));
        let error = limiter.clone().drain(deadline).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreTimeout);
        let expected = format!("{open} reservations, refunds and releases of permits did not end within 3s");
        assert!(error.to_string().starts_with(&expected), "{error}");
        assert!(started.elapsed() >= deadline);
    };
    limiter.drain(Duration::ZERO).await.unwrap();

    let decision = limiter.check(&policy, &key, 10).await.unwrap();
    let reservation = Reservation::new(&limiter, &decision);
    late(1).await;
    reservation.record(30);
    late(1).await;
    // It settles in the background.
    drop(reservation);
    late(1).await;
    assert_eq!(left().await, Some(90));
    permits.add_permits(1);
    limiter.drain(PATIENT).await.unwrap();
    assert_eq!(left().await, Some(70));

    // A settled reservation is no longer waited for, and a settlement without a call does not count.
    let decision = limiter.check(&policy, &key, 10).await.unwrap();
    let [same, less] = [10, 4].map(|units| (Reservation::new(&limiter, &decision), units));
    late(2).await;
    drop(same.0.settle(same.1));
    late(1).await;
    drop(less.0.settle(less.1));
    permits.add_permits(1);
    limiter.drain(PATIENT).await.unwrap();
    assert_eq!(left().await, Some(66));
    drop((same, less));
}

#[tokio::test(start_paused = true)]
async fn drain_reports_what_an_outage_left_to_send() {
    let limiter = Limiter::new(Down);
    let decision = limiter.check(&day("tokens", 100), &Key::new("alice"), 10).await.unwrap();
    assert!(decision.is_admitted());
    let error = limiter.drain(Duration::from_secs(3)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreTimeout);
    let expected = "what was admitted or refunded in an outage was not sent within 3s";
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[test]
fn a_reservation_settles_on_the_runtime_of_its_drop_or_else_where_it_was_made() {
    let server = RedisServer::start();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let (first, second) = (runtime().unwrap(), runtime().unwrap());
    let limiter = Limiter::new(second.block_on(store(&server)));
    let policy = Policy::new("tokens", Quota::per_day(100)).algorithm(FixedWindow::anchored());
    let reserve = |user: &str, runtime: Option<&tokio::runtime::Runtime>| {
        let (limiter, policy, key) = (limiter.clone(), policy.clone(), Key::new(user));
        let decision = second.block_on(limiter.check(&policy, &key, 10)).unwrap();
        let reservation = match runtime {
            Some(runtime) => runtime.block_on(async { Reservation::new(&limiter, &decision) }),
            None => Reservation::new(&limiter, &decision),
        };
        reservation.record(40);
        reservation
    };
    let left = |user: &str| second.block_on(limiter.peek(&policy, &Key::new(user), 0)).unwrap().remaining();

    // The first runtime has ended when these are dropped.
    let inside = reserve("inside", Some(&first));
    let outside = reserve("outside", Some(&first));
    let nowhere = reserve("nowhere", None);
    let awaited = reserve("awaited", None);
    let made_in = reserve("made in", Some(&second));
    first.shutdown_background();
    second.block_on(async { drop(inside) });
    drop([outside, nowhere, made_in]);
    // Without a runtime, the answer makes the calls.
    let answer = awaited.settle(50);
    assert_eq!(second.block_on(answer).unwrap().remaining(), Some(50));
    second.block_on(limiter.drain(PATIENT)).unwrap();
    let users = ["inside", "outside", "nowhere", "awaited", "made in"];
    // What no runtime did before is done by the one that drains the limiter.
    assert_eq!(users.map(left), [Some(60), Some(60), Some(60), Some(50), Some(60)]);

    // What was not sent can be settled again.
    let unsent = reserve("unsent", None);
    drop(unsent.settle(5));
    drop(unsent.settle(80));
    second.block_on(async { unsent.settle(30).await }).unwrap();
    assert_eq!(left("unsent"), Some(70));
}

#[tokio::test]
async fn units_of_a_lost_answer_are_neither_debited_again_nor_refunded() {
    // The total whose answer is lost, a later one, and what is charged then of an estimate of 100. The call was made.
    let rows = [
        ("a debit, once more", 300, 300, 300),
        ("a debit, then more", 300, 350, 350),
        ("a debit, then less", 300, 60, 260),
        ("a refund, once more", 40, 40, 40),
        ("a refund, then more", 40, 120, 60),
        ("a refund, then less", 40, 10, 10),
    ];
    for mode in [FailureMode::Closed, FailureMode::Open] {
        for (name, lost, later, expected) in rows {
            let loses = Arc::new(AtomicBool::new(false));
            let is_lost = loses.clone();
            // Makes debits and refunds, and loses their answers.
            let store = Fake::new(MemoryStore::new(), move |store, action, charges| {
                let answer = store.decide(action, charges);
                let is_lost = is_lost.load(Relaxed) && matches!(action, Action::Debit | Action::Refund);
                if is_lost { fails(ErrorKind::StoreTimeout) } else { answer }
            });
            let limiter = Limiter::new(store.clone());
            let policy = Policy::new("tokens", Quota::per_day(1_000))
                .algorithm(FixedWindow::anchored())
                .failure_mode(mode);
            let key = Key::new("alice");
            let decision = limiter.check(&policy, &key, 100).await.unwrap();
            let reservation = Reservation::new(&limiter, &decision);
            loses.store(true, Relaxed);
            let settled = reservation.settle(lost).await;
            assert!(settled.map_or(true, |decision| decision.failure().is_some()), "{name}, {mode:?}");
            loses.store(false, Relaxed);
            reservation.settle(later).await.unwrap();
            let left = limiter.peek(&policy, &key, 0).await.unwrap().remaining().unwrap();
            assert_eq!(1_000 - left, expected, "{name}, {mode:?}");
        }
    }
}

#[tokio::test]
async fn each_policy_of_a_reservation_ends_at_the_total() {
    let server = RedisServer::start();
    let window = |name, limit| Policy::new(name, Quota::per_day(limit)).algorithm(FixedWindow::anchored());
    let policies = [window("small", 50), window("large", 1_000), window("shadow", 50).shadow()];
    let permits = Policy::concurrency("permits", 5);
    for limiter in [Limiter::new(MemoryStore::new()), Limiter::new(store(&server).await)] {
        let key = Key::new("alice");
        let costs = [10, 200, 10];
        let mut charges: Vec<Charge> =
            policies.iter().zip(costs).map(|(policy, cost)| Charge::new(policy, &key, cost)).collect();
        charges.insert(1, Charge::new(&permits, &key, 1));
        let decision = limiter.check_all(&charges).await.unwrap();
        let reservation = Reservation::new(&limiter, &decision);
        for (total, expected) in [(100, [50, 100, 50]), (30, [30, 30, 30]), (900, [50, 900, 50]), (0, [0; 3])]
        {
            reservation.settle(total).await.unwrap();
            let mut charged = Vec::new();
            for policy in &policies {
                let left = limiter.peek(policy, &key, 0).await.unwrap();
                charged.extend(left.outcomes().iter().chain(left.shadows()).map(|one| {
                    let capacity = one.policy().capacity();
                    capacity - one.remaining()
                }));
            }
            assert_eq!(charged, expected, "{limiter:?}, {total}");
            assert_eq!(limiter.peek(&permits, &key, 0).await.unwrap().remaining(), Some(4), "{total}");
        }
        drop(decision);
    }
}

#[tokio::test]
async fn more_is_charged_under_policies_that_count_and_takes_no_permits() {
    let limiter = Limiter::new(MemoryStore::new());
    let (tokens, permits) = (Policy::new("tokens", Quota::per_day(100)), Policy::concurrency("permits", 1));
    let key = Key::new("alice");
    let charges = [(&tokens, 10), (&permits, 1)].map(|(policy, cost)| Charge::new(policy, &key, cost));
    let decision = limiter.check_all(&charges).await.unwrap();
    let more = Reservation::new(&limiter, &decision).charge_more(3).await.unwrap();
    assert!(more.is_admitted());
    for (policy, left) in [(&tokens, 87), (&permits, 0)] {
        assert_eq!(limiter.peek(policy, &key, 0).await.unwrap().remaining(), Some(left), "{}", policy.name());
    }
    drop((more, decision));
}

#[tokio::test]
async fn a_debit_of_a_decision_with_permits_is_charged_under_the_other_policies() {
    let server = RedisServer::start();
    for (name, limiter) in memory_and_redis(&server).await {
        let (tokens, permits) =
            (Policy::new("tokens", Quota::per_day(100)), Policy::concurrency("permits", 2));
        let key = Key::new("alice");
        let charges = [(&tokens, 10), (&permits, 1)].map(|(policy, cost)| Charge::new(policy, &key, cost));
        let decision = limiter.check_all(&charges).await.unwrap();
        let debited = limiter.debit(&decision, 5).await.unwrap();
        assert!(debited.failure().is_none(), "{name}");
        for (policy, left) in [(&tokens, 85), (&permits, 1)] {
            assert_eq!(limiter.peek(policy, &key, 0).await.unwrap().remaining(), Some(left), "{name}");
        }
        drop((debited, decision));
    }
}

#[tokio::test]
async fn a_debit_in_an_outage_shows_what_remains_here() {
    let limiter = Limiter::new(Down);
    let policy = Policy::new("ten", Quota::new(10, PERIOD)).max_debt(5);
    let charged = limiter.check(&policy, &Key::new("alice"), 2).await.unwrap();
    assert!(charged.failure().is_some());
    let debited = limiter.debit(&charged, 3).await.unwrap();
    assert_eq!(debited.remaining(), Some(charged.remaining().unwrap() - 3));
}

#[tokio::test]
async fn a_refund_in_an_outage_shows_what_remains_here() {
    let limiter = Limiter::new(Down);
    let policy = Policy::new("ten", Quota::new(10, PERIOD));
    let charged = limiter.check(&policy, &Key::new("alice"), 6).await.unwrap();
    assert!(charged.failure().is_some());
    let refunded = limiter.refund(&charged, 4).await.unwrap();
    assert_eq!(refunded.remaining(), Some(charged.remaining().unwrap() + 4));
}
