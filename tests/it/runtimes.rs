//! One store in several runtimes: each has its own connections, and none waits for another.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        LazyLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use futures_util::FutureExt as _;
use support::{Fake, PATIENT, RedisServer, current_thread, day, eventually, settings};
use tokio::{
    runtime::{Builder, Runtime},
    task::{JoinSet, yield_now},
    time::sleep,
};
use tower_ratelimit::{
    Error, ErrorKind, FailureMode, Key, Limiter, Policy, Quota, RedisStore, Reservation,
    algorithm::FixedWindow, policy::Penalty, store::Store,
};

fn closed(name: &str) -> Policy {
    Policy::new(name, Quota::per_day(1_000_000)).failure_mode(FailureMode::Closed)
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A limiter whose decisions have two seconds, that `runtime` connected.
fn limiter(server: &RedisServer, runtime: &Runtime) -> Limiter {
    let settings = RedisStore::builder().deadline(Duration::from_secs(2)).deny_cache(Duration::ZERO);
    Limiter::new(runtime.block_on(settings.connect(&server.url())).unwrap())
}

/// Makes `count` decisions one after the other, in each of four tasks. Returns the errors.
async fn decide(limiter: &Limiter, count: usize) -> Vec<String> {
    let mut callers = JoinSet::new();
    for caller in 0..4 {
        let limiter = limiter.clone();
        callers.spawn(async move {
            let (policy, mut failed) = (closed("p"), Vec::new());
            for _ in 0..count {
                let decided = limiter.check(&policy, &Key::new(format!("user-{caller}")), 1).await;
                failed.extend(decided.err().map(|error| error.to_string()));
                if failed.len() > 4 {
                    break;
                }
            }
            failed
        });
    }
    callers.join_all().await.concat()
}

/// Leaves the processors to other tests in between.
async fn decide_and_pause(limiter: &Limiter) -> Vec<String> {
    let failed = decide(limiter, 10).await;
    sleep(Duration::from_millis(5)).await;
    failed
}

/// Polls `futures` once in `runtime`, lets its other tasks run a few times, and leaves it. Returns those that have not ended.
fn leave<F: Future + Unpin>(runtime: &Runtime, futures: impl IntoIterator<Item = F>, turns: u32) -> Vec<F> {
    runtime.block_on(async {
        let mut futures: Vec<F> = futures.into_iter().collect();
        futures.retain_mut(|future| future.now_or_never().is_none());
        for _ in 0..turns {
            yield_now().await;
        }
        futures
    })
}

const NONE: [String; 0] = [];

#[test]
fn a_runtime_that_is_not_driven_fails_no_decision_of_another() {
    let server = RedisServer::start();
    for turns in [0, 1, 3, 10] {
        // One that has connected, and one that begins to.
        for connected in [true, false] {
            let (idle, driven) = (current_thread(), multi_thread());
            let limiter = limiter(&server, if connected { &idle } else { &driven });
            let stuck =
                leave(&idle, (0..8).map(|_| limiter.check(&closed("p"), &Key::new("stuck"), 1)), turns);
            assert!(!stuck.is_empty());
            assert_eq!(driven.block_on(decide(&limiter, 50)), NONE, "{turns} turns, connected: {connected}");
            // It goes on when it is driven again.
            for stuck in stuck {
                assert!(idle.block_on(stuck).unwrap().is_admitted());
            }
        }
    }
}

#[test]
fn commands_of_a_runtime_that_is_not_driven_keep_no_connection_from_another() {
    let server = RedisServer::start();
    for turns in [0, 1, 3, 10] {
        let (idle, driven) = (current_thread(), current_thread());
        let limiter = limiter(&server, &driven);
        let (policy, key) = (closed("p"), Key::new("stuck"));
        let operator = limiter.operator();
        let resets = (0..16).map(|_| Box::pin(operator.reset(&policy, &key)));
        let stuck = leave(&idle, resets, turns);
        assert!(!stuck.is_empty());
        assert_eq!(driven.block_on(decide(&limiter, 50)), NONE, "{turns} turns");
    }
}

#[test]
fn a_list_of_a_runtime_that_is_not_driven_delays_none_of_another() {
    let server = RedisServer::start();
    let (idle, driven) = (current_thread(), current_thread());
    let store = driven.block_on(settings().connect(&server.url())).unwrap();
    let (policies, operator) = ([closed("p")], Limiter::new(store).operator());
    let list = || Box::pin(operator.keys(&policies, 1_000));
    let stuck = leave(&idle, [list()], 0);
    assert_eq!(stuck.len(), 1);
    let listed = driven.block_on(async { tokio::time::timeout(PATIENT, list()).await });
    assert!(listed.expect("it waits for the other runtime").unwrap().is_complete);
}

/// A decision that is suspended starts the probe that closes the breaker.
#[test]
fn a_probe_of_a_runtime_that_is_not_driven_delays_no_recovery() {
    let server = RedisServer::start();
    let (idle, driven) = (current_thread(), current_thread());
    let settings = RedisStore::builder().deadline(Duration::from_millis(50));
    let limiter = Limiter::new(driven.block_on(settings.connect(&server.url())).unwrap());
    let (policy, key) = (closed("p"), Key::new("a"));
    server.signal("STOP");
    let suspended = async || {
        let decided = limiter.check(&policy, &key, 1).await;
        decided.is_err_and(|error| error.kind() == ErrorKind::StoreSuspended)
    };
    assert!(driven.block_on(eventually(suspended)));
    for _ in 0..5 {
        // Until the next probe is due.
        thread::sleep(Duration::from_millis(150));
        assert!(idle.block_on(suspended()));
    }
    server.signal("CONT");
    let decides = async || limiter.check(&policy, &key, 1).await.is_ok();
    assert!(driven.block_on(eventually(decides)), "it waits for the probe of the other runtime");
    assert!(idle.block_on(eventually(decides)));
}

/// Blocks each thread of `runtime` for `time` with decisions in flight, in turn with decisions of `other`.
fn block(runtime: &Runtime, threads: usize, time: Duration, other: &Runtime, limiter: &Limiter) {
    let own: Vec<_> = (0..16)
        .map(|_| {
            let limiter = limiter.clone();
            runtime.spawn(async move { limiter.check(&closed("own"), &Key::new("own"), 1).await })
        })
        .collect();
    let blocked = AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            runtime.block_on(async {
                // Decisions are under way, and lanes are open.
                sleep(Duration::from_micros(100)).await;
                let blocking = (1..threads).map(|_| tokio::spawn(async move { thread::sleep(time) }));
                let blocking: Vec<_> = blocking.collect();
                thread::sleep(time);
                for thread in blocking {
                    thread.await.unwrap();
                }
                blocked.store(false, Ordering::Release);
            });
        });
        let mut decisions = 0;
        while blocked.load(Ordering::Acquire) {
            assert_eq!(other.block_on(decide_and_pause(limiter)), NONE, "after {decisions}");
            decisions += 40;
        }
        assert!(decisions > 0);
    });
    for own in own {
        assert!(runtime.block_on(own).unwrap().unwrap().is_admitted(), "time in which it was blocked counts");
    }
}

#[test]
fn a_runtime_that_is_blocked_fails_no_decision_on_any_runtime() {
    let server = RedisServer::start();
    for time in [Duration::from_millis(300), Duration::from_secs(3)] {
        for (name, runtime, threads) in
            [("current_thread", current_thread(), 1), ("multi_thread", multi_thread(), 2)]
        {
            let other = current_thread();
            let limiter = limiter(&server, &other);
            block(&runtime, threads, time, &other, &limiter);
            assert_eq!(runtime.block_on(decide(&limiter, 10)), NONE, "{name}");
        }
    }
}

#[test]
fn a_runtime_that_is_blocked_while_it_connects_fails_no_decision() {
    let server = RedisServer::start();
    let connected = current_thread();
    let limiter = limiter(&server, &connected);
    thread::scope(|scope| {
        // Connecting takes several round trips.
        for yields in 0..12 {
            let limiter = limiter.clone();
            scope.spawn(move || {
                let runtime = current_thread();
                let decided = runtime.block_on(async {
                    let own =
                        tokio::spawn(async move { limiter.check(&closed("own"), &Key::new("own"), 1).await });
                    for _ in 0..yields {
                        sleep(Duration::from_micros(20)).await;
                    }
                    // Longer than any step of connecting may take.
                    thread::sleep(Duration::from_secs(3));
                    own.await.unwrap()
                });
                assert!(decided.unwrap().is_admitted(), "after {yields} yields");
            });
        }
    });
}

#[test]
fn a_worker_that_is_blocked_fails_no_decision_of_another_worker() {
    let server = RedisServer::start();
    let runtime = multi_thread();
    let limiter = limiter(&server, &runtime);
    let blocked = {
        let limiter = limiter.clone();
        runtime.spawn(async move {
            for _ in 0..10 {
                // Blocks the worker as soon as the decision is under way.
                let mut decision = limiter.check(&closed("own"), &Key::new("own"), 1);
                let decided = (&mut decision).now_or_never();
                thread::sleep(Duration::from_millis(300));
                // On a busy machine, Redis may have replied within the first poll.
                match decided {
                    Some(decided) => decided.unwrap(),
                    None => decision.await.unwrap(),
                };
            }
        })
    };
    while !blocked.is_finished() {
        assert_eq!(runtime.block_on(decide_and_pause(&limiter)), NONE);
    }
    runtime.block_on(blocked).unwrap();
}

#[test]
fn runtimes_of_all_kinds_decide_at_the_same_time_and_exactly() {
    let server = RedisServer::start();
    let first = current_thread();
    let limiter = limiter(&server, &first);
    let limited = day("limited", 500).failure_mode(FailureMode::Closed);
    let ask = async |limiter: Limiter, limited: Policy| {
        let mut admitted = 0;
        for _ in 0..200 {
            let decision = limiter.check(&limited, &Key::new("all"), 1).await.unwrap();
            admitted += usize::from(decision.is_admitted());
        }
        admitted
    };
    // One for each core, as in a server with a runtime for each.
    let runtimes = [first, current_thread(), current_thread(), current_thread(), multi_thread()];
    let admitted: usize = thread::scope(|scope| {
        let threads: Vec<_> = runtimes
            .iter()
            .map(|runtime| {
                let (limiter, limited) = (limiter.clone(), limited.clone());
                scope.spawn(move || runtime.block_on(ask(limiter, limited)))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(admitted, 500);
}

#[test]
fn a_store_in_a_static_decides_in_one_runtime_after_another_and_keeps_nothing() {
    static SERVER: LazyLock<RedisServer> = LazyLock::new(RedisServer::start);
    static LIMITER: LazyLock<Limiter> =
        LazyLock::new(|| Limiter::new(settings().connect_lazy(SERVER.url()).unwrap()));
    for round in 0..20 {
        let runtime = if round % 2 == 0 { current_thread() } else { multi_thread() };
        let check = || LIMITER.check(&closed("p"), &Key::new("a"), 1);
        if round % 3 == 0 {
            // It ends with decisions in flight.
            drop(leave(&runtime, (0..8).map(|_| check()), round));
        }
        assert!(runtime.block_on(check()).unwrap().is_admitted(), "round {round}");
        runtime.shutdown_timeout(PATIENT);
    }
    let runtime = current_thread();
    assert!(runtime.block_on(eventually(async || SERVER.connections() == 0)), "connections are left");
    // A server that ends with the process is not stopped.
    let _: Result<(), _> = redis::cmd("SHUTDOWN").arg("NOSAVE").query(&mut SERVER.connection());
}

#[test]
fn what_is_owed_is_not_lost_with_the_runtime_in_which_the_store_answers_first() {
    for (ends, drains) in [(true, true), (true, false), (false, true), (false, false)] {
        let store = Fake::default();
        store.fail(ErrorKind::StoreUnreachable);
        let limiter = Limiter::new(store.clone());
        // Nothing is replenished in the meantime.
        let policy = day("p", 100);
        let alice = Key::new("alice");
        for _ in 0..5 {
            assert!(current_thread().block_on(limiter.check(&policy, &alice, 1)).unwrap().is_admitted());
        }
        store.fail(None);
        let first = current_thread();
        let decided = first.block_on(async { limiter.check(&policy, &Key::new("bob"), 1).await });
        assert!(decided.unwrap().failure().is_none());
        let first = (!ends).then_some(first);
        let later = current_thread();
        if drains {
            later.block_on(limiter.drain(PATIENT)).unwrap();
        }
        let is_charged = async || limiter.peek(&policy, &alice, 0).await.unwrap().remaining() == Some(95);
        let charged =
            later.block_on(async { if drains { is_charged().await } else { eventually(is_charged).await } });
        assert!(charged, "the runtime ends: {ends}, `drain` is called: {drains}");
        drop(first);
    }
}

#[test]
fn decisions_of_a_runtime_that_ends_fail_and_do_not_hang() {
    let server = RedisServer::start();
    let (ends, stays) = (current_thread(), current_thread());
    let limiter = limiter(&server, &stays);
    let stuck = leave(&ends, (0..8).map(|_| limiter.check(&closed("p"), &Key::new("a"), 1)), 1);
    drop(ends);
    for stuck in stuck {
        let ended = stays.block_on(async { tokio::time::timeout(PATIENT, stuck).await });
        assert!(ended.expect("a decision hangs").is_err());
    }
    assert_eq!(stays.block_on(decide(&limiter, 10)), NONE);
}

#[test]
fn leases_of_a_runtime_that_is_driven_are_returned_independently_of_others() {
    let server = RedisServer::start();
    let (idle, driven) = (current_thread(), current_thread());
    let store = driven.block_on(settings().connect(&server.url())).unwrap();
    let limiter = Limiter::new(store.clone());
    // Nothing is replenished in the meantime.
    let policy = closed("leased").algorithm(FixedWindow::anchored()).max_lease(100);
    // Returns how many it charged.
    let lease = async |key: &str, checks: u64, until_leased: bool| {
        for check in 0..checks {
            if until_leased && store.lease_status().units > 0 {
                return check;
            }
            assert!(limiter.check(&policy, &Key::new(key), 1).await.unwrap().is_admitted());
        }
        checks
    };
    idle.block_on(lease("first", 1_000, true));
    let charged = driven.block_on(lease("second", 1_000, false));
    let left = async || limiter.peek(&policy, &Key::new("second"), 0).await.unwrap().remaining();
    let returned = async || left().await == Some(1_000_000 - charged);
    assert!(driven.block_on(eventually(returned)), "{:?}", store.lease_status());
}

#[tokio::test(start_paused = true)]
async fn under_a_paused_clock_connecting_says_what_to_do() {
    let server = RedisServer::start();
    // The replies may be faster than the runtime is idle.
    let Err(error) = RedisStore::connect(&server.url()).await else { return };
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("the clock of Tokio is paused"), "{error}");
}

type Outside = Pin<Box<dyn Future<Output = Option<ErrorKind>>>>;

fn outside<T>(future: impl Future<Output = Result<T, Error>> + 'static) -> Outside {
    Box::pin(async { future.await.err().map(|error| error.kind()) })
}

#[test]
fn without_a_runtime_each_method_returns_an_error() {
    let server = RedisServer::start();
    let runtime = current_thread();
    let store = runtime.block_on(settings().connect(&server.url())).unwrap();
    let limiter = Limiter::new(store.clone());
    let (policy, key) = (closed("p"), Key::new("a"));
    let charged = runtime.block_on(limiter.check(&policy, &key, 1)).unwrap();
    let leased = closed("leased").max_lease(100);
    let banning = policy.clone().penalty(Penalty::manual());
    // Each call has its own copies, so that its future can be kept.
    macro_rules! outside {
        (|$on:ident| $call:expr) => {{
            let $on = (limiter.clone(), store.clone(), policy.clone(), banning.clone());
            outside(async move { $call.await })
        }};
    }
    let methods: Vec<(&str, Outside)> = vec![
        ("check", outside(limiter.check(&policy, &key, 1))),
        (
            "a policy that is local in an outage",
            outside(limiter.check(&Policy::new("q", Quota::per_day(5)), &key, 1)),
        ),
        ("peek", outside(limiter.peek(&policy, &key, 1))),
        ("refund", outside(limiter.refund(&charged, 1))),
        ("refund of a lease", outside(limiter.operator().refund_latest(&leased, &key, 1))),
        ("settle", outside(Reservation::new(&limiter, &charged).settle(2))),
        ("reset", outside!(|on| on.0.operator().reset(&on.2, &Key::new("a")))),
        ("bans", outside!(|on| on.0.operator().bans(&on.3))),
        ("owed", outside!(|on| on.0.operator().owed(&on.2.max_debt(5), &Key::new("a")))),
        ("drain", outside!(|on| on.0.drain(PATIENT))),
        ("probe", outside!(|on| on.1.probe())),
        ("probe_policy", outside!(|on| on.1.probe_policy(&on.2))),
        ("keys", outside!(|on| on.0.operator().keys(&[on.2], 10))),
        ("drain of the store", outside!(|on| on.1.drain())),
    ];
    for (name, method) in methods {
        let error = method.now_or_never().unwrap_or_else(|| panic!("{name} waits"));
        assert_eq!(error, Some(ErrorKind::MissingSetup), "{name}");
    }
    // A refund that was not sent is not used up, also of a policy that is local in an outage.
    let local = day("local", 5);
    let made = runtime.block_on(limiter.check(&local, &key, 2)).unwrap();
    let refund = limiter.refund(&made, 2).now_or_never().unwrap();
    assert_eq!(refund.unwrap_err().kind(), ErrorKind::MissingSetup);
    assert_eq!(runtime.block_on(limiter.refund(&made, 2)).unwrap().remaining(), Some(5));
    let lazily = RedisStore::builder().connect_lazy(server.url()).unwrap();
    let decided = runtime.block_on(Limiter::new(lazily).check(&policy, &key, 1));
    assert!(decided.unwrap().is_admitted(), "a store may be made outside a runtime");
    let connected = RedisStore::connect(&server.url()).now_or_never();
    assert_eq!(connected.unwrap().unwrap_err().kind(), ErrorKind::MissingSetup);
}
