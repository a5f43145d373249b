//! What decides while the store fails: the failure modes and the circuit breaker.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::Semaphore;

use support::{
    Down, Fake, InLua, RedisServer, current_thread, day, eventually, fails, http, let_others_run, settings,
};
use tower_ratelimit::{
    Answer, Charge, Decision, ErrorKind, FailureMode, Key, Limiter, MemoryStore, PeerIp, Policy, Quota,
    RateLimitLayer, RedisStore, decision::DecisionSource, store::Action,
};

/// Calls to a server that does not answer fail after this time, so a breaker opens soon.
async fn store(server: &RedisServer) -> RedisStore {
    settings().deadline(Duration::from_millis(300)).connect(&server.url()).await.unwrap()
}

async fn admitted(limiter: &Limiter, policy: &Policy, key: &Key, requests: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += usize::from(limiter.check(policy, key, 1).await.unwrap().is_admitted());
    }
    admitted
}

/// Waits until the breaker is open, which takes three calls.
async fn suspended(limiter: &Limiter, policy: &Policy) {
    for _ in 0..100 {
        let decision = limiter.peek(policy, &Key::new("bob"), 1).await.unwrap();
        if decision.failure().is_some_and(|failure| failure.kind() == ErrorKind::StoreSuspended) {
            return;
        }
    }
    panic!("the breaker does not open");
}

/// Waits until the store decides again.
async fn back(limiter: &Limiter, policy: &Policy) {
    let is_back = async || limiter.peek(policy, &Key::new("bob"), 1).await.unwrap().failure().is_none();
    assert!(eventually(is_back).await, "the store is not asked again");
}

#[tokio::test]
async fn a_share_of_each_local_policy_is_enforced_while_the_store_fails() {
    let rows = [
        ("the default", FailureMode::default(), 8),
        ("one instance", FailureMode::Local { instances: 1 }, 8),
        ("a share", FailureMode::Local { instances: 2 }, 4),
        ("rounded up", FailureMode::Local { instances: 3 }, 3),
        ("at least one", FailureMode::Local { instances: 1_000 }, 1),
        ("no number", FailureMode::Local { instances: 0 }, 8),
        ("open", FailureMode::Open, 20),
    ];
    for (name, mode, expected) in rows {
        let limiter = Limiter::new(Down);
        for (algorithm, policy) in [
            ("window", day("p", 8)),
            ("gcra", Policy::new("p", Quota::per_day(8))),
            ("burst", Policy::new("q", Quota::per_day(100).burst(8))),
        ] {
            let policy = policy.failure_mode(mode);
            let key = Key::new(algorithm);
            assert_eq!(admitted(&limiter, &policy, &key, 20).await, expected, "{name}, {algorithm}");
        }
    }
}

#[tokio::test]
async fn a_local_decision_is_complete_and_names_its_failure() {
    let limiter = Limiter::new(Down);
    let (policy, key) = (day("p", 4).failure_mode(FailureMode::Local { instances: 2 }), Key::new("a"));
    let decision = limiter.check(&policy, &key, 1).await.unwrap();
    assert_eq!(decision.failure().unwrap().kind(), ErrorKind::StoreUnreachable);
    assert_eq!((decision.remaining(), decision.outcomes()[0].granted()), (Some(1), 1));
    assert_eq!(decision.outcomes()[0].policy(), &policy);
    assert_eq!(limiter.peek(&policy, &key, 0).await.unwrap().remaining(), Some(1));
    let up_to = limiter.check_up_to(&policy, &key, 5).await.unwrap();
    assert_eq!(up_to.outcomes()[0].granted(), 1);
    let denied = limiter.check(&policy, &key, 1).await.unwrap();
    assert!(!denied.is_admitted() && denied.retry_after().is_some());
    // A refund returns what this process counted.
    let refunded = limiter.refund(&decision, 1).await.unwrap();
    assert_eq!((refunded.source(), refunded.remaining()), (DecisionSource::Local, Some(1)));
    assert_eq!(limiter.refund(&decision, 1).await.unwrap().remaining(), Some(1));
}

#[tokio::test]
async fn the_strictest_mode_of_several_policies_decides() {
    let limiter = Limiter::new(Down);
    let key = Key::new("alice");
    let local = |name, limit| day(name, limit);
    let open = day("open", 1).failure_mode(FailureMode::Open);
    let closed = day("closed", 1).failure_mode(FailureMode::Closed);
    let check = async |policies: &[&Policy]| {
        let charges: Vec<_> = policies.iter().map(|policy| Charge::new(policy, &key, 1)).collect();
        limiter.check_all(&charges).await
    };
    // All or nothing: the second policy is exhausted first, and the first one is not charged any more.
    let (many, few) = (local("many", 9), local("few", 2));
    for expected in [true, true, false, false] {
        let decision = check(&[&many, &open, &few]).await.unwrap();
        assert_eq!(decision.is_admitted(), expected);
        let names: Vec<_> = decision.outcomes().iter().map(|one| one.policy().name()).collect();
        assert_eq!(names, ["many", "few"]);
    }
    assert_eq!(limiter.peek(&many, &key, 0).await.unwrap().remaining(), Some(7));
    assert!(check(&[&many, &closed]).await.is_err());
    assert!(check(&[&open]).await.unwrap().outcomes().is_empty());
}

#[tokio::test]
async fn permits_are_counted_locally_and_released() {
    let limiter = Limiter::new(Down);
    let (policy, key) = (Policy::concurrency("running", 2), Key::new("alice"));
    let held =
        [limiter.check(&policy, &key, 1).await.unwrap(), limiter.check(&policy, &key, 1).await.unwrap()];
    assert!(held.iter().all(|decision| decision.is_admitted() && decision.failure().is_some()));
    assert!(!limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
    drop(held);
    assert!(limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
}

#[tokio::test]
async fn an_algorithm_without_a_twin_is_counted_by_gcra() {
    let limiter = Limiter::new(Down);
    let policy = Policy::new("p", Quota::per_day(3)).algorithm(InLua::new("only-lua", "return {}"));
    assert_eq!(admitted(&limiter, &policy, &Key::new("alice"), 9).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_limits_over_http_and_grants_no_second_quota() {
    let mut server = RedisServer::start();
    let store = store(&server).await;
    let policy = day("api", 5);
    let app = http::serve(http::app(RateLimitLayer::new(store, policy, PeerIp::new()))).await;
    server.kill();
    let client = http::Client::new();
    let mut statuses = Vec::new();
    for _ in 0..8 {
        let response = client.get(&format!("http://{app}/")).await;
        assert!(response.headers()["ratelimit"].to_str().unwrap().starts_with("\"api\";r="), "{response:?}");
        statuses.push(response.status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 429]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_is_dropped_during_an_outage_is_released_afterwards() {
    let server = RedisServer::start();
    let limiter = Limiter::new(store(&server).await);
    let (policy, alice) = (Policy::concurrency("running", 2), Key::new("alice"));
    let held =
        [limiter.check(&policy, &alice, 1).await.unwrap(), limiter.check(&policy, &alice, 1).await.unwrap()];
    assert!(held.iter().all(|decision| decision.failure().is_none()));
    server.signal("STOP");
    suspended(&limiter, &policy).await;
    drop(held);
    // The release fails immediately.
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.signal("CONT");
    // Long before they expire after 30 seconds.
    let free = async || {
        let decision = limiter.peek(&policy, &alice, 0).await.unwrap();
        decision.failure().is_none() && decision.remaining() == Some(2)
    };
    assert!(eventually(free).await, "the permits are still held");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_admitted_during_an_outage_is_charged_afterwards() {
    let server = RedisServer::start();
    let limiter = Limiter::new(store(&server).await);
    let (policy, alice) = (day("api", 20), Key::new("alice"));
    let exhausted = Key::new("carol");
    assert_eq!(admitted(&limiter, &policy, &alice, 3).await, 3);
    server.signal("STOP");
    suspended(&limiter, &policy).await;
    assert_eq!(admitted(&limiter, &policy, &alice, 4).await, 4);
    assert_eq!(admitted(&limiter, &policy, &exhausted, 30).await, 20);
    server.signal("CONT");
    back(&limiter, &policy).await;
    let mut remaining = [None; 2];
    let is_charged = async || {
        for (remaining, key) in remaining.iter_mut().zip([&alice, &exhausted]) {
            *remaining = limiter.peek(&policy, key, 0).await.unwrap().remaining();
        }
        remaining == [Some(13), Some(0)]
    };
    assert!(eventually(is_charged).await, "3 and 4 units, and 20 units, but {remaining:?} remain");
}

/// A store whose decisions and whose reconciliation fail independently, and the units that it has reconciled.
#[derive(Clone)]
struct Unsteady {
    store: Fake,
    /// The failure of decisions.
    decisions: Arc<Mutex<Option<ErrorKind>>>,
    reconciling: Arc<AtomicBool>,
    reconciled: Arc<AtomicU64>,
}

impl Unsteady {
    fn new() -> Self {
        Self::over(Fake::default())
    }

    /// Reconciling asks `store`.
    fn over(store: Fake) -> Self {
        let decisions = Arc::<Mutex<Option<ErrorKind>>>::default();
        let (reconciling, reconciled) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (failure, fails_now, units) = (decisions.clone(), reconciling.clone(), reconciled.clone());
        let store = Fake::new(store, move |store, action, charges| match *failure.lock().unwrap() {
            Some(kind) if action != Action::ChargeUpTo => fails(kind),
            None if action != Action::ChargeUpTo => Answer::ready(Ok(Decision::new([]))),
            _ if fails_now.load(Relaxed) => fails(ErrorKind::StoreSuspended),
            _ => {
                let (answer, units, cost) = (store.decide(action, charges), units.clone(), charges[0].cost());
                Answer::pending(async move {
                    let decision = answer.await?;
                    units.fetch_add(cost, Relaxed);
                    Ok(decision)
                })
            }
        });
        Self { store, decisions, reconciling, reconciled }
    }

    fn limiter(&self) -> Limiter {
        Limiter::new(self.store.clone())
    }

    fn fail(&self, kind: impl Into<Option<ErrorKind>>) {
        *self.decisions.lock().unwrap() = kind.into();
    }
}

fn unsteady() -> (Unsteady, Limiter, Policy, Key) {
    let store = Unsteady::new();
    let limiter = store.limiter();
    (store, limiter, day("api", 20), Key::new("alice"))
}

#[tokio::test]
async fn what_could_not_be_reconciled_is_reconciled_later() {
    let (store, limiter, policy, alice) = unsteady();
    store.fail(ErrorKind::StoreSuspended);
    store.reconciling.store(true, Relaxed);
    assert_eq!(admitted(&limiter, &policy, &alice, 3).await, 3);
    // A decision succeeds, and then Redis is unavailable again.
    store.fail(None);
    limiter.check(&policy, &alice, 1).await.unwrap();
    tokio::task::yield_now().await;
    store.reconciling.store(false, Relaxed);
    let is_reconciled = async || {
        limiter.check(&policy, &alice, 1).await.unwrap();
        store.reconciled.load(Relaxed) == 3
    };
    assert!(eventually(is_reconciled).await, "{} of 3 units", store.reconciled.load(Relaxed));
}

#[tokio::test]
async fn units_that_were_replenished_during_an_outage_are_not_reconciled() {
    let store = Unsteady::new();
    let limiter = store.limiter();
    let policy = Policy::new("api", Quota::per_second(100));
    store.fail(ErrorKind::StoreSuspended);
    assert_eq!(admitted(&limiter, &policy, &Key::new("alice"), 100).await, 100);
    // Half of the units are replenished in this time, and more of them on a slow machine.
    tokio::time::sleep(Duration::from_millis(500)).await;
    store.fail(None);
    limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
    limiter.drain(Duration::from_secs(10)).await.unwrap();
    let reconciled = store.reconciled.load(Relaxed);
    assert!(reconciled <= 50, "{reconciled} of at most 50 units");
}

#[tokio::test]
async fn what_the_store_certainly_did_not_charge_is_reconciled() {
    let rows = [
        (ErrorKind::StoreSuspended, 3),
        (ErrorKind::StoreBusy, 3),
        (ErrorKind::StoreUnreachable, 3),
        (ErrorKind::StoreFailed, 3),
        (ErrorKind::ForeignValue, 3),
        (ErrorKind::StoreTimeout, 0),
        (ErrorKind::StoreDisconnected, 0),
        (ErrorKind::StoreReply, 0),
    ];
    for (kind, expected) in rows {
        let (store, limiter, policy, alice) = unsteady();
        store.fail(kind);
        assert_eq!(admitted(&limiter, &policy, &alice, 3).await, 3);
        store.fail(None);
        limiter.check(&policy, &alice, 1).await.unwrap();
        let_others_run().await;
        assert_eq!(store.reconciled.load(Relaxed), expected, "{kind:?}");
    }
}

#[tokio::test]
async fn what_was_admitted_under_a_raised_quota_is_reconciled() {
    let store = Unsteady::new();
    let limiter = store.limiter();
    let alice = Key::new("alice");
    store.fail(ErrorKind::StoreSuspended);
    for (limit, expected) in [(3, 3), (20, 17)] {
        assert_eq!(admitted(&limiter, &day("api", limit), &alice, 30).await, expected);
    }
    store.fail(None);
    limiter.check(&day("api", 20), &alice, 1).await.unwrap();
    let_others_run().await;
    assert_eq!(store.reconciled.load(Relaxed), 20);
}

#[tokio::test]
async fn drain_charges_what_was_admitted_in_an_outage_or_fails() {
    let (store, limiter, policy, alice) = unsteady();
    store.fail(ErrorKind::StoreSuspended);
    store.reconciling.store(true, Relaxed);
    assert_eq!(admitted(&limiter, &policy, &alice, 3).await, 3);
    let error = limiter.drain(Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreTimeout, "{error}");
    // It is back, and no decision shows it.
    store.reconciling.store(false, Relaxed);
    limiter.drain(Duration::from_secs(20)).await.unwrap();
    assert_eq!(store.reconciled.load(Relaxed), 3);
}

#[tokio::test]
async fn units_that_are_admitted_while_others_are_reconciled_still_count() {
    let (gated, gate) = Fake::gated(MemoryStore::new(), &[Action::ChargeUpTo]);
    let store = Unsteady::over(gated);
    let limiter = store.limiter();
    let (policy, alice) = (day("api", 20), Key::new("alice"));
    store.fail(ErrorKind::StoreSuspended);
    assert_eq!(admitted(&limiter, &policy, &alice, 15).await, 15);
    store.fail(None);
    limiter.check(&policy, &alice, 1).await.unwrap();
    tokio::task::yield_now().await;
    store.fail(ErrorKind::StoreSuspended);
    assert_eq!(admitted(&limiter, &policy, &alice, 5).await, 5);
    gate.add_permits(1);
    assert!(eventually(async || store.reconciled.load(Relaxed) == 15).await);
    tokio::task::yield_now().await;
    assert_eq!(admitted(&limiter, &policy, &alice, 30).await, 15);
}

#[tokio::test]
async fn what_is_owed_to_a_part_of_the_store_is_not_sent_again_for_each_admission() {
    let is_down = Arc::new(AtomicBool::new(true));
    let fails_now = is_down.clone();
    let store = Fake::new(MemoryStore::new(), move |store, action, charges| {
        if charges[0].key() == &Key::new("down") && fails_now.load(Relaxed) {
            return fails(ErrorKind::StoreSuspended);
        }
        store.decide(action, charges)
    });
    let limiter = Limiter::new(store.clone());
    let (policy, down, up) = (day("api", 10_000), Key::new("down"), Key::new("up"));
    for _ in 0..1_000 {
        assert_eq!(admitted(&limiter, &policy, &down, 1).await, 1);
        assert_eq!(admitted(&limiter, &policy, &up, 1).await, 1);
        tokio::task::yield_now().await;
    }
    let calls = store.asked(Action::ChargeUpTo).iter().filter(|key| **key == down).count();
    assert!((1..=1_000).contains(&calls), "{calls} calls for 1,000 units");
    is_down.store(false, Relaxed);
    limiter.drain(Duration::from_secs(60)).await.unwrap();
    for key in [&down, &up] {
        assert_eq!(limiter.peek(&policy, key, 0).await.unwrap().remaining(), Some(9_000), "{key:?}");
    }
}

#[test]
fn a_round_that_ends_with_its_runtime_loses_only_calls_under_way_and_repeats_none() {
    let (gated, gate) = Fake::gated(MemoryStore::new(), &[Action::ChargeUpTo]);
    let store = Unsteady::over(gated);
    let limiter = store.limiter();
    let policy = day("api", 20);
    let runtime = || current_thread();
    let mut keys: Vec<_> = (0..1_000).map(|i| Key::new(i.to_string())).collect();
    let asked = || store.store.asked(Action::ChargeUpTo);
    runtime().block_on(async {
        store.fail(ErrorKind::StoreSuspended);
        for key in &keys {
            assert_eq!(admitted(&limiter, &policy, key, 1).await, 1);
        }
        store.fail(None);
        limiter.check(&policy, &Key::new("bob"), 1).await.unwrap();
        while asked().is_empty() {
            tokio::task::yield_now().await;
        }
    });
    let under_way = asked().len();
    assert!(under_way < keys.len());
    assert!(keys.starts_with(&asked()), "the oldest first");
    gate.add_permits(keys.len());
    runtime().block_on(limiter.drain(Duration::from_secs(60))).unwrap();
    assert_eq!(store.reconciled.load(Relaxed), (keys.len() - under_way) as u64);
    let mut asked = asked();
    keys.sort();
    asked.sort();
    assert!(asked == keys, "each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_is_not_asked_until_it_answers_a_probe() {
    let mut server = RedisServer::start();
    let limiter = Limiter::new(store(&server).await);
    let policy = day("api", 1_000_000);
    assert_eq!(admitted(&limiter, &policy, &Key::new("alice"), 3).await, 3);
    server.kill();
    suspended(&limiter, &policy).await;
    let failing = limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
    let failure = failing.failure().unwrap();
    assert!(failure.to_string().starts_with("Redis is not asked until it answers again: "), "{failure}");
    server.restart();
    back(&limiter, &policy).await;
    assert!(limiter.check(&policy, &Key::new("alice"), 1).await.unwrap().failure().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_is_sent_a_few_calls_and_then_probes() {
    let server = RedisServer::start();
    let limiter = Limiter::new(store(&server).await);
    let policy = day("api", 1_000_000).failure_mode(FailureMode::Open);
    assert_eq!(admitted(&limiter, &policy, &Key::new("alice"), 3).await, 3);
    let () = server.command(&["CONFIG", "RESETSTAT"]);
    server.signal("STOP");
    suspended(&limiter, &policy).await;
    for i in 0..10_000 {
        assert!(limiter.check(&policy, &Key::new(i.to_string()), 1).await.unwrap().is_admitted());
    }
    server.signal("CONT");
    back(&limiter, &policy).await;
    let calls = server.script_calls();
    assert!(calls < 30, "{calls}");
}

/// Connections to a demoted server are replaced, but not so often that decisions wait for one.
#[tokio::test(flavor = "multi_thread")]
async fn decisions_of_a_demoted_server_fail_immediately() {
    let server = RedisServer::start();
    // A decision that waited for its deadline would fail with another kind.
    let limiter = Limiter::new(store(&server).await);
    let () = server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let policy = day("api", 1_000_000);
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        running.spawn(async move {
            for _ in 0..20 {
                let decision = limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
                let failure = decision.failure().unwrap();
                assert_eq!(failure.kind(), ErrorKind::StoreFailed, "{failure}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }
    running.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn error_replies_do_not_open_the_breaker() {
    let server = RedisServer::start();
    let limiter = Limiter::new(store(&server).await);
    let policy = day("api", 10);
    let () = server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..20 {
        let failure = limiter.check(&policy, &Key::new("alice"), 1).await.unwrap();
        assert_eq!(failure.failure().unwrap().kind(), ErrorKind::StoreFailed);
    }
}

/// A store that is down, and where reconciliation waits for a permit of the gate.
fn gated() -> (Fake, Arc<Semaphore>) {
    let (store, gate) = Fake::gated(MemoryStore::new(), &[Action::ChargeUpTo]);
    store.fail(ErrorKind::StoreSuspended);
    (store, gate)
}

#[tokio::test]
async fn a_reset_ends_what_is_being_reconciled() {
    let (store, gate) = gated();
    let limiter = Limiter::new(store.clone());
    let (policy, alice) = (day("api", 10), Key::new("alice"));
    assert_eq!(admitted(&limiter, &policy, &alice, 10).await, 10);
    store.fail(None);
    // The store decides again, and is charged what it missed.
    limiter.check(&policy, &Key::new("bob"), 1).await.unwrap();
    assert!(eventually(async || store.asked(Action::ChargeUpTo).len() == 1).await);
    let operator = limiter.operator();
    let (policy_of_reset, key) = (policy.clone(), alice.clone());
    let reset = tokio::spawn(async move { operator.reset(&policy_of_reset, &key).await });
    let_others_run().await;
    gate.add_permits(1);
    reset.await.unwrap().unwrap();
    limiter.drain(Duration::from_secs(10)).await.unwrap();
    assert_eq!(limiter.peek(&policy, &alice, 0).await.unwrap().remaining(), Some(10));
}

#[tokio::test]
async fn a_reset_during_an_outage_fails_and_forgets_what_this_process_has_counted() {
    let (store, gate) = gated();
    let limiter = Limiter::new(store.clone());
    let (policy, alice) = (day("api", 10), Key::new("alice"));
    assert_eq!(admitted(&limiter, &policy, &alice, 10).await, 10);
    assert_eq!(admitted(&limiter, &policy, &alice, 1).await, 0);
    let failed = limiter.operator().reset(&policy, &alice).await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::StoreSuspended);
    assert_eq!(admitted(&limiter, &policy, &alice, 10).await, 10);
    // The store is charged for the requests after the reset.
    store.fail(None);
    gate.add_permits(10);
    limiter.drain(Duration::from_secs(10)).await.unwrap();
    assert_eq!(limiter.peek(&policy, &alice, 0).await.unwrap().remaining(), Some(0));
}

#[tokio::test]
async fn a_reset_forgets_refunds_that_are_still_to_be_sent() {
    let store = Fake::default();
    let limiter = Limiter::new(store.clone());
    // Its refunds do not detect a reset.
    let (policy, alice) = (Policy::new("api", Quota::per_day(10)), Key::new("alice"));
    let before = limiter.check(&policy, &alice, 6).await.unwrap();
    store.fail(ErrorKind::StoreSuspended);
    limiter.refund(&before, 6).await.unwrap();
    store.fail(None);
    limiter.operator().reset(&policy, &alice).await.unwrap();
    // A later request's units.
    limiter.check(&policy, &alice, 7).await.unwrap();
    limiter.drain(Duration::from_secs(10)).await.unwrap();
    assert_eq!(limiter.peek(&policy, &alice, 0).await.unwrap().remaining(), Some(3));
}
