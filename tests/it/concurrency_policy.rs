//! The algorithm `Concurrency`: units are in use until their permits are released.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use support::{
    Fake, RedisServer, day, eventually, inner, on_redis, pool, settings, store, stores_with_clock, units_left,
};
use tokio::sync::mpsc;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    Charge, Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer,
    algorithm::Concurrency,
    store::{Action, ManualClock, Store},
};

use crate::stores::stores;

fn policy(limit: u64, lease: Duration) -> Policy {
    Policy::new("in-flight", Quota::new(limit, lease)).algorithm(Concurrency::new())
}

const LEASE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_decision_holds_its_units_until_its_last_clone_is_dropped() {
    for (name, limiter) in stores("permits-decision-holds-units").await {
        let (policy, key) = (policy(3, LEASE), Key::new("all"));
        let two = limiter.check(&policy, &key, 2).await.unwrap();
        let one = limiter.check(&policy, &key, 1).await.unwrap();
        assert!(two.is_admitted() && one.is_admitted(), "{name}");
        let denied = limiter.check(&policy, &key, 1).await.unwrap();
        assert!(denied.retry_after().is_some_and(|wait| wait <= LEASE), "{name}");
        drop(denied);
        let clone = two.clone();
        drop(two);
        assert_eq!(units_left(&limiter, &policy).await, 0, "{name}");
        drop(clone);
        assert!(eventually(async || units_left(&limiter, &policy).await == 2).await, "{name}");
        drop(one);
        assert!(eventually(async || units_left(&limiter, &policy).await == 3).await, "{name}");
    }
}

#[tokio::test]
async fn a_response_holds_its_unit_until_its_body_ends_fails_or_is_dropped() {
    for (name, limiter) in stores("permits-response-holds-unit").await {
        for ending in ["ends", "fails", "is dropped"] {
            let policy = policy(1, LEASE);
            let (frames, body) = mpsc::unbounded_channel::<Result<http_body::Frame<Bytes>, std::io::Error>>();
            // The first request gets the only body.
            let body = std::sync::Arc::new(std::sync::Mutex::new(Some(body)));
            let service = service_fn(move |_: Request<String>| {
                let mut body = body.lock().unwrap().take().unwrap();
                let body = futures_util::stream::poll_fn(move |cx| body.poll_recv(cx));
                async { Ok::<_, Infallible>(Response::new(StreamBody::new(body))) }
            });
            let layer = RateLimitLayer::new(limiter.clone(), policy.clone(), Key::new("all"));
            let Ok(response) = layer.layer(service).oneshot(inner::get()).await;
            assert_eq!(response.headers()["ratelimit-policy"], r#""in-flight";q=1;qu="concurrent-requests""#);
            // The extensions of the response do not hold the permit.
            let (head, mut body) = response.into_parts();
            frames.send(Ok(http_body::Frame::data("a".into()))).unwrap();
            body.frame().await.unwrap().unwrap();
            assert_eq!(units_left(&limiter, &policy).await, 0, "{name}");
            match ending {
                "ends" => {
                    drop(frames);
                    assert!(body.frame().await.is_none());
                }
                "fails" => {
                    frames.send(Err(std::io::Error::other("broken"))).unwrap();
                    assert!(body.frame().await.unwrap().is_err());
                }
                _ => drop(body),
            }
            assert!(eventually(async || units_left(&limiter, &policy).await == 1).await, "{name}, {ending}");
            drop(head);
        }
    }
}

#[tokio::test]
async fn permits_that_a_handler_passes_on_are_held_until_its_body_ends() {
    let limiter = Limiter::new(MemoryStore::new());
    let (requests, exports) = (policy(9, LEASE), Policy::concurrency("exports", 1));
    let layer = || RateLimitLayer::new(limiter.clone(), requests.clone(), Key::new("all"));
    let layers = [("counted", layer()), ("exempt", layer().exempt_if(|_| true))];
    for (name, layer) in layers {
        let handler = {
            let (limiter, exports) = (limiter.clone(), exports.clone());
            service_fn(move |_: Request<String>| {
                let check = limiter.check(&exports, &Key::new("all"), 1);
                async {
                    let mut response = Response::new(String::from("much"));
                    response.extensions_mut().insert(check.await.unwrap());
                    Ok::<_, Infallible>(response)
                }
            })
        };
        let Ok(response) = layer.layer(handler).oneshot(inner::get()).await;
        let (head, body) = response.into_parts();
        assert_eq!(units_left(&limiter, &exports).await, 0, "{name}");
        assert_eq!(units_left(&limiter, &requests).await, 8 + u64::from(name == "exempt"), "{name}");
        body.collect().await.unwrap();
        assert!(eventually(async || units_left(&limiter, &exports).await == 1).await, "{name}");
        assert!(eventually(async || units_left(&limiter, &requests).await == 9).await, "{name}");
        drop(head);
    }
}

#[tokio::test]
async fn a_permit_is_renewed_while_it_is_held_and_expires_when_its_holder_is_killed() {
    let (server, limiter) = on_redis().await;
    // Renewed after two thirds of a second, so a busy machine may be late by more than a second.
    let (policy, key) = (policy(1, Duration::from_secs(2)), Key::new("all"));
    // Another instance, on its own runtime, that ends without releasing its permits.
    let url = server.url();
    let (taken, is_taken) = tokio::sync::oneshot::channel();
    let (kill, killed) = std::sync::mpsc::channel::<()>();
    let instance = {
        let policy = policy.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let store = settings().connect(&url).await.unwrap();
                let held = Limiter::new(store).check(&policy, &Key::new("all"), 1).await.unwrap();
                assert!(held.is_admitted());
                taken.send(()).unwrap();
                tokio::task::spawn_blocking(move || killed.recv()).await.unwrap().unwrap();
                // As with SIGKILL, nothing is dropped and nothing is released.
                std::mem::forget(held);
            });
            runtime.shutdown_background();
        })
    };
    is_taken.await.unwrap();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
    }
    kill.send(()).unwrap();
    instance.join().unwrap();
    assert!(eventually(async || limiter.check(&policy, &key, 1).await.unwrap().is_admitted()).await);
}

#[tokio::test]
async fn a_late_renewal_exceeds_the_limit_and_a_late_release_affects_no_other_holder() {
    let (_server, clock, redis, memory) = stores_with_clock().await;
    let stores: [(&str, &dyn Store); 2] = [("memory", &memory), ("redis", &redis)];
    for (name, store) in stores {
        let (policy, key) = (policy(1, LEASE), Key::new("all"));
        let [late, present] = [(); 2].map(|()| Charge::new(&policy, &key, 1));
        let decide =
            async |action, charge: &Charge| store.decide(action, std::slice::from_ref(charge)).await.unwrap();
        assert!(decide(Action::Charge, &late).await.is_admitted());
        clock.advance(LEASE);
        assert!(decide(Action::Charge, &present).await.is_admitted(), "{name}");
        decide(Action::Renew, &late).await;
        // Both are in use, so one release frees nothing.
        assert_eq!(decide(Action::Refund, &late).await.remaining(), Some(0), "{name}");
        assert_eq!(decide(Action::Refund, &late).await.remaining(), Some(0), "{name}");
        decide(Action::Renew, &late).await;
        assert!(!decide(Action::Charge, &Charge::new(&policy, &key, 1)).await.is_admitted(), "{name}");
        assert_eq!(decide(Action::Refund, &late).await.remaining(), Some(0), "{name}");
        assert_eq!(decide(Action::Refund, &present).await.remaining(), Some(1), "{name}");
    }
}

/// In a rolling deploy and after a live change, a request that runs renews its permit as often as its own policy demands.
#[tokio::test]
async fn a_shorter_period_does_not_shorten_the_permits_of_requests_that_run() {
    let (_server, clock, redis, memory) = stores_with_clock().await;
    let (long, short) = (policy(1, LEASE), policy(1, Duration::from_secs(1)));
    let key = Key::new("all");
    for (name, limiter) in [("memory", Limiter::new(memory)), ("redis", Limiter::new(redis))] {
        let running = limiter.check(&long, &key, 1).await.unwrap();
        assert!(running.is_admitted(), "{name}");
        for _ in 0..3 {
            // A denial must not write an earlier expiry, nor may a later decision count with one.
            let denied = limiter.check(&short, &key, 1).await.unwrap();
            assert!(!denied.is_admitted(), "{name}: two requests run under a limit of 1");
            clock.advance(Duration::from_millis(1_500));
        }
        drop(running);
        assert!(eventually(async || units_left(&limiter, &short).await == 1).await, "{name}");
    }
}

/// The expiry of each permit is part of its state: a decision under another policy neither shortens nor prolongs it.
#[tokio::test]
async fn permits_under_two_periods_expire_after_their_own() {
    let (_server, clock, redis, memory) = stores_with_clock().await;
    let stores: [(&str, &dyn Store); 2] = [("memory", &memory), ("redis", &redis)];
    let (long, short) = (policy(3, LEASE), policy(3, LEASE / 10));
    let key = Key::new("all");
    for (name, store) in stores {
        let decide =
            async |action, charge: &Charge| store.decide(action, std::slice::from_ref(charge)).await.unwrap();
        let [first, second] = [Charge::new(&long, &key, 1), Charge::new(&short, &key, 1)];
        let none = |policy| Charge::new(policy, &key, 0);
        // One call decides both.
        let both = tokio::join!(decide(Action::Charge, &first), decide(Action::Charge, &second));
        assert!(both.0.is_admitted() && both.1.is_admitted(), "{name}");
        let full = decide(Action::Peek, &none(&short)).await;
        assert_eq!((full.remaining(), full.outcomes()[0].reset_after()), (Some(1), LEASE), "{name}");
        clock.advance(LEASE / 10);
        assert_eq!(decide(Action::Peek, &none(&long)).await.remaining(), Some(2), "{name}");
        // Renewed for its own period, as is the other one, which has expired.
        decide(Action::Renew, &second).await;
        decide(Action::Renew, &first).await;
        clock.advance(LEASE / 10);
        assert_eq!(decide(Action::Peek, &none(&long)).await.remaining(), Some(2), "{name}");
        // After a step back, each lasts for its own period, and the denial that writes this down reports the shorter one.
        decide(Action::Renew, &second).await;
        clock.step_back(2 * LEASE);
        let denied = decide(Action::Charge, &Charge::new(&short, &key, 2)).await;
        assert_eq!(denied.retry_after(), Some(LEASE / 10), "{name}");
        clock.advance(LEASE / 10);
        assert_eq!(decide(Action::Peek, &none(&short)).await.remaining(), Some(2), "{name}");
        clock.advance(LEASE - LEASE / 10);
        assert_eq!(decide(Action::Peek, &none(&short)).await.remaining(), Some(3), "{name}");
    }
}

#[tokio::test]
async fn a_permit_removed_as_expired_stays_expired_when_the_clock_steps_back() {
    let (_server, clock, redis, memory) = stores_with_clock().await;
    let stores: [(&str, &dyn Store); 2] = [("memory", &memory), ("redis", &redis)];
    let key = Key::new("all");
    let (long, short) = (policy(5, 2 * LEASE), policy(5, LEASE / 10));
    for (name, store) in stores {
        let decide = async |action, policy: &Policy, cost| {
            store.decide(action, &[Charge::new(policy, &key, cost)]).await.unwrap()
        };
        assert!(decide(Action::Charge, &short, 1).await.is_admitted(), "{name}");
        clock.advance(LEASE);
        assert!(decide(Action::Charge, &long, 1).await.is_admitted(), "{name}");
        // The first permit has expired, and the second one lasts too long, so the denial rewrites the state.
        clock.step_back(LEASE / 2);
        assert!(!decide(Action::Charge, &long, 5).await.is_admitted(), "{name}");
        clock.step_back(LEASE / 2);
        assert_eq!(decide(Action::Peek, &long, 0).await.remaining(), Some(4), "{name}");
    }
}

#[tokio::test]
async fn a_check_that_is_dropped_before_it_is_done_leaves_no_permit() {
    for (name, limiter) in stores("permits-check-dropped-before").await {
        let policy = policy(4, LEASE);
        for _ in 0..20 {
            let mut check = Box::pin(limiter.check(&policy, &Key::new("all"), 1));
            std::future::poll_fn(|cx| {
                let _ = check.as_mut().poll(cx);
                std::task::Poll::Ready(())
            })
            .await;
        }
        assert!(eventually(async || units_left(&limiter, &policy).await == 4).await, "{name}");
    }
}

#[tokio::test]
async fn two_decisions_on_one_charge_hold_two_permits() {
    for (name, limiter) in stores("permits-two-decisions-on").await {
        let policy = policy(2, LEASE);
        let charge = [Charge::new(&policy, &Key::new("all"), 1)];
        let held = [limiter.check_all(&charge).await.unwrap(), limiter.check_all(&charge).await.unwrap()];
        assert!(!limiter.check_all(&charge).await.unwrap().is_admitted(), "{name}");
        let [first, second] = held;
        drop(first);
        assert!(eventually(async || units_left(&limiter, &policy).await == 1).await, "{name}");
        drop(second);
        assert!(eventually(async || units_left(&limiter, &policy).await == 2).await, "{name}");
    }
}

#[tokio::test]
async fn a_charge_that_reaches_a_store_twice_holds_its_permits_once() {
    let server = RedisServer::start();
    let memory = MemoryStore::new();
    let redis = store(&server).await;
    let stores: [(&str, &dyn Store); 2] = [("memory", &memory), ("redis", &redis)];
    for (name, store) in stores {
        let (policy, key) = (policy(5, LEASE), Key::new("all"));
        let charge = [Charge::new(&policy, &key, 2)];
        for _ in 0..2 {
            assert!(store.decide(Action::Charge, &charge).await.unwrap().is_admitted(), "{name}");
        }
        let peeked = store.decide(Action::Peek, &[Charge::new(&policy, &key, 0)]).await.unwrap();
        assert_eq!(peeked.remaining(), Some(3), "{name}");
    }
}

#[tokio::test]
async fn a_denial_by_another_policy_holds_no_permit() {
    for (name, limiter) in stores("permits-denial-by-another").await {
        let in_flight = policy(2, LEASE);
        let daily = day("daily", 1);
        let key = Key::new("all");
        let both = || [Charge::new(&in_flight, &key, 1), Charge::new(&daily, &key, 1)];
        let first = limiter.check_all(&both()).await.unwrap();
        assert!(first.is_admitted(), "{name}");
        assert!(!limiter.check_all(&both()).await.unwrap().is_admitted(), "{name}");
        assert_eq!(units_left(&limiter, &in_flight).await, 1, "{name}");
        drop(first);
        assert!(eventually(async || units_left(&limiter, &in_flight).await == 2).await, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn never_more_concurrent_tasks_than_the_limit() {
    let server = RedisServer::start();
    let policy = policy(7, LEASE);
    let instances = [Limiter::new(store(&server).await), Limiter::new(store(&server).await)];
    let at_work = std::sync::Arc::new(std::sync::atomic::AtomicI64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..40 {
        let (limiter, policy, at_work) = (instances[i % 2].clone(), policy.clone(), at_work.clone());
        tasks.spawn(async move {
            let mut worked = 0;
            while worked < 5 {
                let decision = limiter.check(&policy, &Key::new("all"), 1).await.unwrap();
                assert!(decision.failure().is_none());
                if !decision.is_admitted() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    continue;
                }
                let others = at_work.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                assert!(others < 7, "{others}");
                tokio::time::sleep(Duration::from_millis(1)).await;
                at_work.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                drop(decision);
                worked += 1;
            }
        });
    }
    tasks.join_all().await;
    assert!(eventually(async || units_left(&instances[0], &policy).await == 7).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_the_limit_of_simultaneous_checks_is_admitted() {
    let server = RedisServer::start();
    let policy = policy(23, LEASE);
    let instances = [Limiter::new(store(&server).await), Limiter::new(store(&server).await)];
    let asking: tokio::task::JoinSet<_> = (0..200)
        .map(|i| {
            let (limiter, policy) = (instances[i % 2].clone(), policy.clone());
            async move { limiter.check(&policy, &Key::new("all"), 1).await.unwrap() }
        })
        .collect();
    // All decisions are kept, so that no permit is released.
    let decisions = asking.join_all().await;
    assert!(decisions.iter().all(|decision| decision.failure().is_none()));
    assert_eq!(decisions.iter().filter(|decision| decision.is_admitted()).count(), 23);
}

#[tokio::test]
async fn units_that_were_not_granted_are_not_held() {
    for (name, limiter) in stores("permits-units-were-not").await {
        let policy = policy(3, LEASE);
        let key = Key::new("all");
        let all = limiter.check_up_to(&policy, &key, u64::MAX).await.unwrap();
        assert_eq!(all.outcomes()[0].granted(), 3, "{name}");
        assert!(!limiter.check(&policy, &key, u64::MAX).await.unwrap().is_admitted(), "{name}");
        drop(all);
        assert!(eventually(async || units_left(&limiter, &policy).await == 3).await, "{name}");
    }
}

#[tokio::test]
async fn a_permit_can_be_dropped_on_a_thread_without_a_runtime() {
    for (name, limiter) in stores("permits-permit-can-be").await {
        let policy = policy(1, LEASE);
        let held = limiter.check(&policy, &Key::new("all"), 1).await.unwrap();
        std::thread::spawn(move || drop(held)).join().unwrap();
        assert!(eventually(async || units_left(&limiter, &policy).await == 1).await, "{name}");
    }
}

// ===== the differential test, with holders =====

#[derive(Clone, Debug)]
enum Step {
    Advance(u64),
    SetBack(u64),
    Take(u64),
    Peek(u64),
    /// The index of the holder, counted back from the latest charge.
    Release(usize),
    Renew(usize),
    SetQuota(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..4_u64).prop_map(Step::Take),
        2 => (0..7_u64).prop_map(Step::Peek),
        3 => (0..6_usize).prop_map(Step::Release),
        2 => (0..6_usize).prop_map(Step::Renew),
        4 => prop_oneof![1..2_000_000_u64, Just(1), Just(1_000_000)].prop_map(Step::Advance),
        1 => (1..3_000_000_u64).prop_map(Step::SetBack),
        1 => (1..7_u64, 500_000..3_000_000_u64).prop_map(|(limit, lease)| Step::SetQuota(limit, lease)),
    ];
    proptest::collection::vec(step, 20..80)
}

/// A unit in use.
struct Unit {
    expires: u64,
    /// How long it lasts after a renewal.
    lease: u64,
    holder: usize,
}

#[derive(Default)]
struct Model(Vec<Unit>);

impl Model {
    /// The expected outcome for `cost` units (admitted, remaining, reset, retry).
    fn say(&self, limit: u64, now: u64, cost: u64) -> (bool, u64, u64, Option<u64>) {
        let back = self.clock_stepped_back(now);
        let cut = |unit: &Unit| if back { unit.expires.min(now + unit.lease) } else { unit.expires };
        let mut expires: Vec<u64> = self.0.iter().filter(|unit| unit.expires > now).map(cut).collect();
        expires.sort_unstable();
        let free = limit.saturating_sub(expires.len() as u64);
        // The wait until enough units have expired.
        let retry = (cost > free && cost <= limit)
            .then(|| {
                expires
                    .iter()
                    .find(|at| expires.iter().filter(|other| other > at).count() as u64 + cost <= limit)
            })
            .flatten()
            .map(|at| at - now);
        let reset = expires.last().map_or(0, |at| at - now);
        (cost <= free, free, reset, retry)
    }

    /// Whether the unit that expires last does so later than its lease from `now`.
    fn clock_stepped_back(&self, now: u64) -> bool {
        self.0.iter().max_by_key(|unit| unit.expires).is_some_and(|unit| unit.expires > now + unit.lease)
    }

    /// Rewrites the units as of `now`: expired ones are removed, and if the clock stepped back, none expires later than its
    /// lease from `now`.
    fn rewrite(&mut self, now: u64) {
        let back = self.clock_stepped_back(now);
        self.0.retain(|unit| unit.expires > now);
        for unit in self.0.iter_mut().filter(|_| back) {
            unit.expires = unit.expires.min(now + unit.lease);
        }
    }

    /// Adds the units of a holder.
    fn add(&mut self, units: u64, expires: u64, lease: u64, holder: usize) {
        self.0.extend((0..units).map(|_| Unit { expires, lease, holder }));
    }
}

#[test]
fn redis_memory_and_model_agree_to_the_microsecond() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = RedisServer::start();
    let pool = runtime.block_on(pool(&server));
    let steps_wanted =
        std::env::var("DIFFERENTIAL_STEPS").map_or(4_000, |steps| steps.parse::<u32>().unwrap());
    let config = Config { cases: steps_wanted.div_ceil(50), failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&steps(), |steps| {
            let () = server.command(&["FLUSHALL"]);
            let clock = ManualClock::new();
            let redis = settings().manual_clock(clock.clone()).build(pool.clone()).unwrap();
            let memory = MemoryStore::with_clock(clock.clone());
            runtime.block_on(contest(&clock, [("memory", &memory), ("redis", &redis)], steps));
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

async fn contest(clock: &ManualClock, stores: [(&str, &dyn Store); 2], steps: Vec<Step>) {
    let (mut limit, mut lease) = (3, 1_000_000);
    let key = Key::new("all");
    let mut model = Model::default();
    let mut takes: Vec<Charge> = Vec::new();
    for step in steps {
        let now = u64::try_from(clock.now().as_micros()).unwrap();
        let policy = policy(limit, Duration::from_micros(lease));
        let (action, charge, expected) = match step {
            Step::Advance(by) => {
                clock.advance(Duration::from_micros(by));
                continue;
            }
            Step::SetBack(by) => {
                clock.step_back(Duration::from_micros(by));
                continue;
            }
            Step::SetQuota(new_limit, new_lease) => {
                (limit, lease) = (new_limit, new_lease);
                continue;
            }
            Step::Peek(cost) => (Action::Peek, Charge::new(&policy, &key, cost), model.say(limit, now, cost)),
            Step::Take(cost) => {
                let charge = Charge::new(&policy, &key, cost);
                let mut said = model.say(limit, now, cost);
                if cost > 0 && said.0 {
                    model.rewrite(now);
                    model.add(cost, now + lease, lease, takes.len());
                    said = model.say(limit, now, 0);
                } else if cost > 0 && model.clock_stepped_back(now) {
                    model.rewrite(now);
                }
                takes.push(charge.clone());
                (Action::Charge, charge, said)
            }
            Step::Release(ago) | Step::Renew(ago) => {
                let Some(holder) = takes.len().checked_sub(ago + 1) else { continue };
                // Under the quota of the original charge, as the limiter does.
                let charge = takes[holder].clone();
                let quota = charge.policy().quota();
                let (limit, lease) = (quota.limit(), u64::try_from(quota.period().as_micros()).unwrap());
                model.0.retain(|unit| unit.holder != holder);
                let mut action = Action::Refund;
                if matches!(step, Step::Renew(_)) {
                    // In use again, even if it has expired, was released or denied.
                    model.add(charge.cost(), now + lease, lease, holder);
                    action = Action::Renew;
                }
                (action, charge, model.say(limit, now, 0))
            }
        };
        for (name, store) in stores {
            let decision = store.decide(action, std::slice::from_ref(&charge)).await.unwrap();
            let outcome = &decision.outcomes()[0];
            let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap();
            let said = (
                !outcome.verdict().is_denied(),
                outcome.remaining(),
                micros(outcome.reset_after()),
                outcome.verdict().retry_after().map(micros),
            );
            assert_eq!(said, expected, "{name}, {action:?} of {} at {now}", charge.cost());
        }
    }
}

#[test]
fn a_permit_that_is_granted_from_outside_the_runtime_is_renewed() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (period, key) = (Duration::from_millis(30), Key::new("all"));
    let clock = ManualClock::new();
    let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
    let policy = Policy::new("exports", Quota::new(1, period)).algorithm(Concurrency::new());
    // `check` is called here, outside the runtime, and awaited inside.
    let held = runtime.block_on(limiter.check(&policy, &key, 1)).unwrap();
    assert!(held.is_admitted());
    // More than a period in all, with a renewal in between. Each renewal restarts the period.
    for _ in 0..3 {
        clock.advance(period / 2);
        let renewed = async || {
            let peek = limiter.peek(&policy, &key, 0).await.unwrap();
            peek.outcomes()[0].reset_after() == period
        };
        assert!(runtime.block_on(eventually(renewed)));
    }
    assert!(!runtime.block_on(limiter.check(&policy, &key, 1)).unwrap().is_admitted());
    drop(held);
    // A renewal under way releases it at its end.
    let released = async || limiter.check(&policy, &key, 1).await.unwrap().is_admitted();
    assert!(runtime.block_on(eventually(released)));
}

/// At ten thousand requests a second, tasks that wait for the next renewal would be a hundred thousand.
#[tokio::test]
async fn one_task_renews_all_permits_and_none_is_left_when_they_are_released() {
    let limiter = Limiter::new(MemoryStore::new());
    let policy = Policy::concurrency("held", 1_000);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let mut held = Vec::new();
    for _ in 0..1_000 {
        held.push(limiter.check(&policy, &Key::new("all"), 1).await.unwrap());
    }
    assert_eq!(tasks(), before + 1, "permits are renewed");
    drop(held);
    // They are renewed after ten seconds.
    assert!(eventually(async || tasks() == before).await, "{} tasks", tasks());
}

#[tokio::test]
async fn a_released_permit_keeps_no_store_alive() {
    let store = std::sync::Arc::new(());
    let owned = store.clone();
    let limiter = Limiter::new(Fake::new(MemoryStore::new(), move |store, action, charges| {
        let _ = &owned;
        store.decide(action, charges)
    }));
    let held = limiter.check(&Policy::concurrency("exports", 1), &Key::new("all"), 1).await.unwrap();
    drop((held, limiter));
    assert_eq!(std::sync::Arc::strong_count(&store), 1);
}

/// The decisions of a call see the permits that were stored before it, which expire first, and the ones that it adds.
#[test]
fn a_denial_in_a_batch_waits_for_the_permits_that_expire_first() {
    let runtime = support::current_thread();
    runtime.block_on(async {
        let server = RedisServer::start();
        let clock = ManualClock::new();
        let redis = settings().manual_clock(clock.clone()).build(pool(&server).await).unwrap();
        for limiter in [Limiter::new(redis), Limiter::new(MemoryStore::with_clock(clock.clone()))] {
            let (policy, key) = (policy(2, LEASE), Key::new("all"));
            let stored = limiter.check(&policy, &key, 1).await.unwrap();
            clock.advance(LEASE / 3);
            let ask = |cost| limiter.check(&policy, &key, cost);
            let (_, added, both, one) =
                tokio::join!(limiter.peek(&policy, &Key::new("alone"), 0), ask(1), ask(2), ask(1));
            let waits = [&both, &one].map(|denied| denied.as_ref().unwrap().retry_after());
            assert!(added.as_ref().unwrap().is_admitted());
            assert_eq!(waits, [Some(LEASE), Some(LEASE * 2 / 3)], "{limiter:?}");
            drop((stored, added));
        }
    });
}

/// The longest name of a holder: a million permits for 400 days.
#[tokio::test]
async fn the_most_permits_for_the_longest_time_are_counted() {
    let server = RedisServer::start();
    let limiter = Limiter::new(store(&server).await);
    let (policy, key) = (policy(1_000_000, Duration::from_secs(400 * 86_400)), Key::new("all"));
    let all = limiter.check(&policy, &key, 1_000_000).await.unwrap();
    let denied = limiter.check(&policy, &key, 1).await.unwrap();
    assert!(all.is_admitted() && denied.is_denied() && denied.failure().is_none(), "{denied:?}");
}

/// A decision reads at most 1,000 holders.
#[tokio::test]
async fn more_holders_than_a_decision_reads_expire_in_time() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let redis = settings().manual_clock(clock.clone()).build(pool(&server).await).unwrap();
    let limiter = Limiter::new(redis);
    let (policy, key) = (policy(2_000, LEASE), Key::new("all"));
    let mut held = Vec::new();
    for _ in 0..1_500 {
        held.push(limiter.check(&policy, &key, 1).await.unwrap());
    }
    // Needs 1,300 of them.
    let denied = limiter.check(&policy, &key, 1_800).await.unwrap();
    assert_eq!(denied.retry_after(), Some(LEASE));
    clock.advance(LEASE);
    // The first decision removes 1,000 that have expired.
    let denied = limiter.check(&policy, &key, 1_800).await.unwrap();
    assert_eq!(denied.retry_after(), Some(Duration::from_micros(1)));
    assert!(limiter.check(&policy, &key, 1_800).await.unwrap().is_admitted());
    held.clear();
}
