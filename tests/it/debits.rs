//! Debits and reservations: what a request has cost is charged once it is known.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use support::{
    Down, Fake, PATIENT, RedisServer, current_thread, day, eventually, fails_after, settings, store,
};
use tokio::{sync::Semaphore, task::JoinSet};
use tower_ratelimit::{
    Decision, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, Quota, Reservation,
    algorithm::{Algorithm, FixedWindow, SlidingLog, TokenBucket},
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

/// Ten units in each window of a hundred seconds, a day or a month, with a debt of 25.
pub(crate) fn windows() -> [(&'static str, Policy, [u64; 5]); 4] {
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

/// What a refund leaves of carried units does not become the units of the window's own charges.
#[tokio::test]
async fn a_refund_of_an_earlier_window_leaves_the_charges_of_this_one_refundable() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let policy = Policy::new("p", Quota::per_hour(10)).algorithm(FixedWindow::anchored()).max_debt(20);
    for (store, limiter) in both(&server, &clock).await {
        let key = Key::new(store);
        let first = limiter.check(&policy, &key, 9).await.unwrap();
        let debited = limiter.debit(&first, 5).await.unwrap();
        clock.advance(Duration::from_secs(3_600));
        // Four are carried into this window.
        let own = limiter.check(&policy, &key, 3).await.unwrap();
        assert_eq!(own.remaining(), Some(3), "{store}");
        assert_eq!(limiter.refund(&debited, 2).await.unwrap().remaining(), Some(5), "{store}");
        assert_eq!(limiter.refund(&own, 3).await.unwrap().remaining(), Some(8), "{store}");
    }
}

/// Under a lower quota, the rest of a debt of a bucket that refills in steps.
#[tokio::test]
async fn a_debt_of_a_stepped_bucket_drains_in_its_steps() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let second = Duration::from_secs(1);
    // Two units every twenty seconds.
    let policy =
        ten(TokenBucket::new().refill_every(20 * second)).failure_mode(FailureMode::Closed).max_debt(10);
    let lowered = policy.with_quota(Quota::new(4, 40 * second)).unwrap();
    for (store, limiter) in both(&server, &clock).await {
        let key = Key::new(store);
        let charged = limiter.check(&policy, &key, 10).await.unwrap();
        limiter.debit(&charged, 8).await.unwrap();
        clock.advance(60 * second);
        // Of the eight units that are owed, two are left, and four fill the bucket.
        let denied = limiter.check(&lowered, &key, 1).await.unwrap();
        assert_eq!(denied.retry_after(), Some(40 * second), "{store}");
    }
}
