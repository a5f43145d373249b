//! Debits and reservations: what a request has cost is charged once it is known.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use support::{RedisServer, eventually, settings, store};
use tokio::task::JoinSet;
use tower_ratelimit::{
    Answer, Charge, Decision, Error, ErrorKind, FailureMode, Key, Limiter, ManualClock, MemoryStore, Policy,
    Quota, Reservation,
    algorithm::{Algorithm, FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    store::{Action, Store},
};

const PERIOD: Duration = Duration::from_secs(100);

fn ten(algorithm: impl Algorithm) -> Policy {
    Policy::new("ten", Quota::new(10, PERIOD).unwrap()).algorithm(algorithm)
}

/// A limiter in process and one on `server`, with one clock.
async fn both(server: &RedisServer, clock: &ManualClock) -> [(&'static str, Limiter); 2] {
    let redis = settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap();
    [("memory", Limiter::new(MemoryStore::with_clock(clock.clone()))), ("redis", Limiter::new(redis))]
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
            let policy = policy.clone().debt(debt);
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
                assert!(debited.is_allowed(), "{context}");
                let granted = |decision: &Decision| decision.outcomes()[0].granted();
                assert_eq!((granted(&debited), debited.remaining()), (left + debt, Some(0)), "{context}");
                let nothing = limiter.debit(&request, 1).await.unwrap();
                assert!(nothing.is_allowed() && granted(&nothing) == 0, "{context}");

                let denied = limiter.check(&policy, &key, 1).await.unwrap();
                let wait = denied.retry_after().unwrap_or_else(|| panic!("{context}: {denied:?}"));
                if unit > 0 {
                    assert_eq!(wait.as_secs(), (debt + 1) * unit, "{context}");
                } else {
                    assert!(wait >= PERIOD / 2, "{context}: {wait:?}");
                }
                clock.advance(wait);
                assert!(limiter.check(&policy, &key, 1).await.unwrap().is_allowed(), "{context}");
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

#[test]
fn a_debt_that_cannot_be_counted_is_an_error() {
    let rows = [
        (
            "permits",
            Policy::concurrency("permits", 5).try_debt(1),
            "this algorithm allows no debt: leave out `debt`, or use another built-in algorithm than `Concurrency`",
        ),
        (
            "too large",
            Policy::new("large", Quota::per_second(1)).try_debt(u64::MAX),
            "the debt is too large: quota and debt together must be within the bounds of a burst",
        ),
        (
            "takes a century",
            Policy::new("slow", Quota::per_day(1)).try_debt(40_000),
            "the debt is too large: quota and debt together must be within the bounds of a burst",
        ),
    ];
    for (name, policy, message) in rows {
        assert_eq!(policy.unwrap_err().to_string(), message, "{name}");
    }
    // Whichever is set first.
    let queue = Policy::new("queue", Quota::per_second(1)).debt(3);
    assert!(queue.try_algorithm(tower_ratelimit::algorithm::Concurrency::new()).is_err());
}

/// What a request does with its reservation.
#[derive(Clone, Debug)]
enum Step {
    Reserve(u64),
    Settle(usize, u64),
    Extend(usize, u64),
    Debit(usize, u64),
    Refund(usize, u64),
    Drop(usize),
}

/// A request and what of its charge can still be refunded.
struct Request {
    reservation: Option<Reservation>,
    decision: Decision,
    /// What its reservation is charged, as far as it knows.
    charged: u64,
    refundable: u64,
    settled: bool,
    refunds: bool,
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
                assert_eq!(decision.is_allowed(), used + units <= LIMIT, "{step:?} with {used} used");
                if decision.is_allowed() {
                    used += units;
                    let reservation = Reservation::new(limiter, &decision);
                    let refunds = units % 2 == 0;
                    let reservation = Some(if refunds { reservation.or_refund() } else { reservation });
                    let (charged, refundable, settled) = (units, units, false);
                    requests.push(Request { reservation, decision, charged, refundable, settled, refunds });
                }
            }
            Step::Settle(which, units) => {
                let Some(request) = requests.get_mut(which % number) else { continue };
                let Some(reservation) = &request.reservation else { continue };
                if units > request.charged {
                    debit(&mut used, units - request.charged);
                } else {
                    let refunded = (request.charged - units).min(request.refundable);
                    request.refundable -= refunded;
                    used -= refunded;
                }
                (request.charged, request.settled) = (units, true);
                reservation.settle(units).await.unwrap();
            }
            Step::Extend(which, units) => {
                let Some(request) = requests.get_mut(which % number) else { continue };
                let Some(reservation) = &request.reservation else { continue };
                debit(&mut used, units.saturating_sub(request.charged));
                request.charged = request.charged.max(units);
                reservation.extend_to(units).await.unwrap();
            }
            Step::Debit(which, units) => {
                let Some(request) = requests.get(which % number) else { continue };
                debit(&mut used, units);
                assert!(limiter.debit(&request.decision, units).await.unwrap().is_allowed());
            }
            Step::Refund(which, units) => {
                let Some(request) = requests.get_mut(which % number) else { continue };
                let refunded = units.min(request.refundable);
                request.refundable -= refunded;
                used -= refunded;
                limiter.refund(&request.decision, units).await.unwrap();
            }
            Step::Drop(which) => {
                let Some(request) = requests.get_mut(which % number) else { continue };
                if request.reservation.take().is_some() && request.refunds && !request.settled {
                    used -= request.refundable;
                    request.refundable = 0;
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
        1 => (which.clone(), units.clone()).prop_map(|(which, units)| Step::Extend(which, units)),
        1 => (which.clone(), units.clone()).prop_map(|(which, units)| Step::Debit(which, units)),
        1 => (which.clone(), units).prop_map(|(which, units)| Step::Refund(which, units)),
        2 => which.prop_map(Step::Drop),
    ];
    proptest::collection::vec(step, 1..40)
}

#[test]
fn the_count_is_right_after_debits_refunds_and_settlements_in_any_order() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = RedisServer::start();
    let redis = Limiter::new(runtime.block_on(store(&server)));
    let memory = Limiter::new(MemoryStore::new());
    let day = Quota::per_day(LIMIT);
    let policies = [
        Policy::new("log", day).algorithm(SlidingLog::new()).debt(DEBT),
        Policy::new("window", day).algorithm(FixedWindow::anchored()).debt(DEBT),
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

/// A store in memory. Its debits fail, unsent, while `fails` is set.
#[derive(Clone, Default)]
struct Unsteady {
    counts: MemoryStore,
    fails: Arc<AtomicBool>,
}

impl Store for Unsteady {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        if self.fails.load(Relaxed) && action != Action::Peek {
            return Answer::ready(Err(Error::new(ErrorKind::StoreUnreachable, "not sent")));
        }
        self.counts.decide(action, charges)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        self.counts.reset(policy, key)
    }
}

#[tokio::test]
async fn a_settlement_that_was_not_sent_can_be_made_again() {
    for mode in [FailureMode::Closed, FailureMode::Open] {
        for cost in [3, 30] {
            let store = Unsteady::default();
            let limiter = Limiter::new(store.clone());
            let policy = Policy::new("tokens", Quota::per_day(100))
                .algorithm(FixedWindow::anchored())
                .on_store_failure(mode);
            let decision = limiter.check(&policy, &Key::new("alice"), 10).await.unwrap();
            let reservation = Reservation::new(&limiter, &decision);
            store.fails.store(true, Relaxed);
            let settled = reservation.settle(cost).await;
            let failed = settled.map_or(true, |decision| decision.failure().is_some());
            assert!(failed, "{mode:?}, {cost}");
            store.fails.store(false, Relaxed);
            for _ in 0..2 {
                reservation.settle(cost).await.unwrap();
            }
            let left = limiter.peek(&policy, &Key::new("alice"), 0).await.unwrap().remaining();
            assert_eq!(left, Some(100 - cost), "{mode:?}, {cost}");
        }
    }
}

#[tokio::test]
async fn a_debit_while_the_store_fails_is_charged_in_process_and_handed_back() {
    let store = Unsteady::default();
    let limiter = Limiter::new(store.clone());
    let policy = Policy::new("tokens", Quota::per_day(100)).algorithm(FixedWindow::anchored()).debt(20);
    let alice = Key::new("alice");
    let decision = limiter.check(&policy, &alice, 10).await.unwrap();
    store.fails.store(true, Relaxed);
    let debited = limiter.debit(&decision, 500).await.unwrap();
    // The local count starts from zero, and has no room for debt.
    assert_eq!((debited.outcomes()[0].granted(), debited.remaining()), (100, Some(0)));
    assert!(!limiter.check(&policy, &alice, 1).await.unwrap().is_allowed());
    store.fails.store(false, Relaxed);
    let denied = async || !limiter.check(&policy, &alice, 1).await.unwrap().is_allowed();
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
    assert!(!reservation.is_settled());
    drop(reservation);
    let left = async || limiter.peek(&policy, &alice, 0).await.unwrap().remaining();
    assert!(runtime.block_on(eventually(async || left().await == Some(100))));
}
