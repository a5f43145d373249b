//! The guarantees during failures of Redis, tested with a real server.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    future::{pending, ready},
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use http::Response;
use redis::{
    Cmd, Pipeline, RedisError, RedisFuture, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use support::{
    Down, PATIENT, RedisServer, closes_received, current_thread, day, eventually, http as client,
    inner::{ask, get},
    on_redis, settings, store,
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tower_ratelimit::{
    ErrorKind, FailureMode, Key, Limiter, PeerIp, Policy, Quota, RateLimitLayer, RedisStore, Rejection,
    bb8_redis::{
        RedisConnectionManager,
        bb8::{ManageConnection, Pool},
    },
    decision::DecisionSource,
};

/// A closed policy, so that a failed decision is an error and not an admission.
fn closed(limit: u64) -> Policy {
    // A window, so that no units are replenished during the test and charges can be counted.
    day("closed", limit).failure_mode(FailureMode::Closed)
}

/// No decision takes as long, on any machine: a pool would wait for 30 s.
const HANGS: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
struct Counts {
    admitted: usize,
    denied: usize,
    failed: usize,
    /// Why they failed.
    failures: BTreeSet<String>,
    longest: Duration,
}

impl Counts {
    /// Whether each one that failed did so by the deadline of 50 ms, or without waiting. A reply alone would have half a
    /// second.
    fn failed_in_time(&self) -> bool {
        let in_time = |failure: &String| !failure.contains("within") || failure.contains("within 50ms");
        self.failures.iter().all(in_time) && self.longest < HANGS
    }
}

/// Runs `tasks` tasks that each make `checks` checks on one key.
async fn load(limiter: &Limiter, policy: &Policy, tasks: usize, checks: usize) -> Counts {
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        running.spawn(async move {
            let mut counts = Counts::default();
            for _ in 0..checks {
                let asked = Instant::now();
                match limiter.check(&policy, &Key::new("alice"), 1).await {
                    Ok(decision) if decision.is_admitted() => counts.admitted += 1,
                    Ok(_) => counts.denied += 1,
                    Err(error) => {
                        counts.failed += 1;
                        counts.failures.insert(error.to_string());
                    }
                }
                counts.longest = counts.longest.max(asked.elapsed());
            }
            counts
        });
    }
    running.join_all().await.into_iter().fold(Counts::default(), |mut all, mut one| Counts {
        admitted: all.admitted + one.admitted,
        denied: all.denied + one.denied,
        failed: all.failed + one.failed,
        failures: {
            all.failures.append(&mut one.failures);
            all.failures
        },
        longest: all.longest.max(one.longest),
    })
}

/// Twenty attempts, 50 ms apart, so about a second on any machine.
async fn is_normal_again(limiter: &Limiter, policy: &Policy) -> bool {
    for _ in 0..20 {
        sleep(Duration::from_millis(50)).await;
        if limiter.check(policy, &Key::new("bob"), 0).await.is_ok_and(|decision| decision.failure().is_none())
        {
            return true;
        }
    }
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn script_flush_in_a_loop_fails_no_decision_and_loses_none() {
    let (server, limiter) = on_redis().await;
    let (done, flushes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let flushing = {
        let (mut connection, done, flushes) = (server.connection(), done.clone(), flushes.clone());
        std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut connection).unwrap();
                flushes.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let counts = load(&limiter, &closed(500), 32, 100).await;
    while flushes.load(Ordering::Relaxed) <= 10 {
        assert!(limiter.check(&closed(500), &Key::new("alice"), 1).await.unwrap().failure().is_none());
    }
    done.store(true, Ordering::Relaxed);
    flushing.join().unwrap();
    assert_eq!((counts.admitted, counts.denied, counts.failed), (500, 2_700, 0), "{flushes:?} flushes");
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_without_the_scripts_send_their_text_once_for_each_lane() {
    let (server, limiter) = on_redis().await;
    let () = server.command(&["SCRIPT", "FLUSH"]);
    let () = server.command(&["CONFIG", "RESETSTAT"]);
    let counts = load(&limiter, &closed(1_000), 200, 1).await;
    assert_eq!((counts.admitted, counts.failed), (200, 0));
    let stats: String = server.command(&["INFO", "commandstats"]);
    let texts = stats.lines().find(|line| line.starts_with("cmdstat_eval:"));
    let calls = texts.and_then(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok());
    // Six lanes, and two scripts: the one for takes, and the one for all decisions, for batches with a repeated key.
    assert!(calls.is_some_and(|calls| calls <= 12), "{stats}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_connection_fails_only_its_pending_decisions() {
    let server = RedisServer::start();
    let pool = Pool::builder()
        .max_size(8)
        .test_on_check_out(false)
        .build(RedisConnectionManager::new(server.url()).unwrap())
        .await
        .unwrap();
    let stores =
        [("the default pool", store(&server).await), ("a custom pool", settings().build(pool).unwrap())];
    for (name, store) in stores {
        let () = server.command(&["FLUSHALL"]);
        let limiter = Limiter::new(store);
        let policy = closed(100_000);
        let killing = {
            let mut connection = server.connection();
            tokio::task::spawn_blocking(move || {
                let me: u64 = redis::cmd("CLIENT").arg("ID").query(&mut connection).unwrap();
                let mut killed = 0;
                for _ in 0..10 {
                    std::thread::sleep(Duration::from_millis(10));
                    let list: String = redis::cmd("CLIENT")
                        .arg("LIST")
                        .arg("TYPE")
                        .arg("normal")
                        .query(&mut connection)
                        .unwrap();
                    // The youngest, so that connections that replace killed ones are killed too.
                    let id = |line: &str| line.split(['=', ' ']).nth(1).and_then(|id| id.parse::<u64>().ok());
                    if let Some(victim) = list.lines().filter_map(id).filter(|id| *id != me).max() {
                        killed += redis::cmd("CLIENT")
                            .arg("KILL")
                            .arg("ID")
                            .arg(victim)
                            .query::<usize>(&mut connection)
                            .unwrap();
                    }
                }
                killed
            })
        };
        let mut counts = Counts::default();
        while !killing.is_finished() {
            let more = load(&limiter, &policy, 16, 20).await;
            counts.admitted += more.admitted;
            counts.failed += more.failed;
            counts.failures.extend(more.failures);
        }
        let killed = killing.await.unwrap();
        assert!(killed > 0, "{name}");
        assert!(counts.admitted > 0, "{name}");
        // The last killed connection may be used only now.
        counts.failed += load(&limiter, &policy, 16, 50).await.failed;
        // A batch carries the decisions that came during the batch before it: no more than there are tasks.
        assert!(counts.failed <= 16 * killed, "{name}: {killed} killed, {counts:?}");
        // Every broken connection was replaced.
        assert_eq!(load(&limiter, &policy, 16, 50).await.failed, 0, "{name}");
    }
}

/// A killed connection loses at most the decisions of its batch, and a lease that was being fetched.
#[tokio::test(flavor = "multi_thread")]
async fn leases_over_killed_connections_never_exceed_the_limit_and_lose_few_units() {
    let server = RedisServer::start();
    let instances = [Limiter::new(store(&server).await), Limiter::new(store(&server).await)];
    let (limit, most) = (100_000, 500);
    let policy = closed(limit).max_lease(most);
    let loads: Vec<_> = instances
        .iter()
        .map(|limiter| {
            let (limiter, policy) = (limiter.clone(), policy.clone());
            tokio::spawn(async move { load(&limiter, &policy, 16, 4_000).await })
        })
        .collect();
    let mut killed = 0;
    for _ in 0..10 {
        sleep(Duration::from_millis(5)).await;
        killed += server.command::<usize>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
    let mut admitted = 0;
    for load in loads {
        admitted += load.await.unwrap().admitted;
    }
    assert!(killed > 10, "{killed}");
    // Longer than an instance keeps unused leases.
    sleep(Duration::from_secs(2)).await;
    let plain = closed(limit);
    let left = instances[0].peek(&plain, &Key::new("alice"), 0).await.unwrap().outcomes()[0].remaining();
    let charged = usize::try_from(limit - left).unwrap();
    assert!(admitted <= charged, "{admitted} admitted, {charged} charged");
    let lost = charged - admitted;
    assert!(lost <= killed * (usize::try_from(most).unwrap() + 16), "{lost} lost, {killed} killed");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_were_closed_while_they_were_idle_fail_no_decision() {
    let (server, limiter) = on_redis().await;
    let policy = closed(1_000_000);
    for _ in 0..5 {
        let counts = load(&limiter, &policy, 64, 5).await;
        assert_eq!(counts.failed, 0, "{counts:?}");
        let killed: usize = server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        assert!(killed > 0, "{killed}");
        closes_received(&server).await;
    }
    let left = limiter.peek(&policy, &Key::new("alice"), 0).await.unwrap().outcomes()[0].remaining();
    assert_eq!(left, 1_000_000 - 5 * 64 * 5);
}

/// What the next calls on [`Scripted`] connections find.
#[derive(Clone, Copy)]
enum Finds {
    NoReply,
    Closed,
}

/// Opens connections whose next calls find what is listed, one after another. The others reach the server.
struct Scripted {
    client: redis::Client,
    next: Arc<Mutex<VecDeque<Finds>>>,
}

struct ScriptedConnection(MultiplexedConnection, Arc<Mutex<VecDeque<Finds>>>);

impl ManageConnection for Scripted {
    type Connection = ScriptedConnection;
    type Error = RedisError;

    async fn connect(&self) -> Result<ScriptedConnection, RedisError> {
        let connection = self.client.get_multiplexed_async_connection().await?;
        Ok(ScriptedConnection(connection, self.next.clone()))
    }

    async fn is_valid(&self, _: &mut ScriptedConnection) -> Result<(), RedisError> {
        Ok(())
    }

    fn has_broken(&self, _: &mut ScriptedConnection) -> bool {
        false
    }
}

impl ConnectionLike for ScriptedConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        let next = self.1.lock().unwrap().pop_front();
        match next {
            Some(Finds::NoReply) => pending().boxed(),
            Some(Finds::Closed) => ready(Err(io::Error::from(io::ErrorKind::BrokenPipe).into())).boxed(),
            None => self.0.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        unreachable!("a batch is one command")
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// A limiter on [`Scripted`] connections.
async fn scripted(server: &RedisServer, deadline: Duration, next: &Arc<Mutex<VecDeque<Finds>>>) -> Limiter {
    let client = redis::Client::open(server.url()).unwrap();
    let manager = Scripted { client, next: Arc::clone(next) };
    let pool = Pool::builder().max_size(8).test_on_check_out(false).build(manager).await.unwrap();
    Limiter::new(RedisStore::builder().deadline(deadline).build(pool).unwrap())
}

/// What may be sent again is, on another connection. The refund, which may not be, has failed by then.
#[tokio::test]
async fn a_refund_on_a_closed_connection_does_not_wait_for_a_check_that_is_sent_again() {
    let server = RedisServer::start();
    let next = Arc::default();
    let limiter = scripted(&server, Duration::from_millis(200), &next).await;
    let (policy, key) = (closed(10), Key::new("alice"));
    let made = limiter.check(&policy, &key, 1).await.unwrap();
    // The first check is alone in its batch, so the refund and the second check share one.
    next.lock().unwrap().extend([Finds::NoReply, Finds::Closed, Finds::NoReply]);
    let first = tokio::spawn(limiter.check(&policy, &key, 1));
    let mut both = JoinSet::new();
    let (refund, check) = (limiter.refund(&made, 1), limiter.check(&policy, &key, 1));
    both.spawn(async { ("the refund", refund.await) });
    both.spawn(async { ("the check", check.await) });
    let ended = [both.join_next().await, both.join_next().await];
    let ended = ended.map(|ended| {
        let (name, answer) = ended.unwrap().unwrap();
        (name, answer.unwrap_err().kind())
    });
    let expected = [("the refund", ErrorKind::StoreDisconnected), ("the check", ErrorKind::StoreTimeout)];
    assert_eq!(ended, expected);
    assert_eq!(first.await.unwrap().unwrap_err().kind(), ErrorKind::StoreTimeout);
}

/// Redis may have refunded.
#[tokio::test]
async fn a_refund_whose_connection_closes_ends_the_cached_denial() {
    let server = RedisServer::start();
    let next = Arc::default();
    let limiter = scripted(&server, PATIENT, &next).await;
    let (policy, key) = (closed(1), Key::new("alice"));
    let made = limiter.check(&policy, &key, 1).await.unwrap();
    for source in [DecisionSource::Store, DecisionSource::DenyCache] {
        assert_eq!(limiter.check(&policy, &key, 1).await.unwrap().source(), source);
    }
    next.lock().unwrap().push_back(Finds::Closed);
    let refund = limiter.refund(&made, 1).await;
    assert_eq!(refund.unwrap_err().kind(), ErrorKind::StoreDisconnected);
    assert_eq!(limiter.check(&policy, &key, 1).await.unwrap().source(), DecisionSource::Store);
}

#[test]
fn checks_of_idle_connections_continue_after_their_runtime_ends() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let limiter = Limiter::new(runtime.block_on(store(&server)));
    let policy = closed(1_000_000);
    let kill = |which: &[&str]| {
        assert_eq!(runtime.block_on(load(&limiter, &policy, 64, 5)).failed, 0);
        let () = redis::cmd("CLIENT").arg("KILL").arg(which).query(&mut server.connection()).unwrap();
        runtime.block_on(closes_received(&server));
    };
    kill(&["TYPE", "normal", "SKIPME", "yes"]);
    let short = current_thread();
    short.block_on(async {
        assert!(limiter.check(&policy, &Key::new("alice"), 1).now_or_never().is_none());
    });
    // The task that checks ends with the runtime.
    drop(short);
    assert_eq!(runtime.block_on(load(&limiter, &policy, 64, 5)).failed, 0);
    let () = server.command(&["CONFIG", "RESETSTAT"]);
    let list: String = server.command(&["CLIENT", "LIST", "TYPE", "normal"]);
    let oldest = list.split(['=', ' ']).nth(1).unwrap();
    kill(&["ID", oldest]);
    // The connections take turns, and the others are idle when the killed one is used.
    let checked = async || {
        assert_eq!(load(&limiter, &policy, 1, 1).await.failed, 0);
        server.command::<String>(&["INFO", "commandstats"]).contains("cmdstat_ping:")
    };
    assert!(runtime.block_on(eventually(checked)));
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_share_a_pool_of_one_connection_with_other_commands_and_return_it() {
    let server = RedisServer::start();
    let manager = RedisConnectionManager::new(server.url()).unwrap();
    let pool = Pool::builder().max_size(1).test_on_check_out(false).build(manager).await.unwrap();
    let limiter = Limiter::new(settings().build(pool.clone()).unwrap());
    let policy = closed(1_000_000);
    let under_load = load(&limiter, &policy, 64, 100);
    let resets = async {
        for _ in 0..20 {
            limiter.operator().reset(&policy, &Key::new("bob")).await.unwrap();
        }
    };
    let (counts, ()) = tokio::join!(under_load, resets);
    assert_eq!((counts.admitted, counts.failed), (6_400, 0));
    // A lane that keeps its connection would fail this checkout.
    drop(pool.get().await.unwrap());
}

/// A runtime whose `block_on` has returned runs no lane, so callers of other runtimes must not rely on its lanes.
#[test]
fn a_runtime_that_is_not_driven_delays_no_deadline_of_another_one() {
    let server = RedisServer::start();
    let policy = closed(1_000_000);
    for yields in [0, 1, 10] {
        let runtime = || current_thread();
        let (idle, busy) = (runtime(), runtime());
        let limiter =
            busy.block_on(async { Limiter::new(RedisStore::connect(&server.url()).await.unwrap()) });
        let check = || limiter.check(&policy, &Key::new("alice"), 1);
        // They open both lanes.
        let mut stuck: Vec<_> = (0..8).map(|_| Box::pin(check())).collect();
        idle.block_on(async {
            stuck.iter_mut().for_each(|check| assert!(check.now_or_never().is_none()));
            for _ in 0..yields {
                tokio::task::yield_now().await;
            }
        });
        let bounded = |check| busy.block_on(async { timeout(Duration::from_secs(20), check).await });
        // Another lane opens. It may wait for a connection that the idle runtime was making.
        match bounded(Box::pin(check())).expect("no lane answers it") {
            Ok(decision) => assert!(decision.is_admitted(), "{yields} yields"),
            Err(error) => {
                let kinds = [ErrorKind::StoreBusy, ErrorKind::StoreTimeout];
                assert!(kinds.contains(&error.kind()), "{yields} yields: {error}");
            }
        }
        // Shutting it down fails its own decisions.
        drop(idle);
        for check in stuck {
            let _ = bounded(check).expect("a lane that was dropped still owes an answer");
        }
        assert!(busy.block_on(is_normal_again(&limiter, &policy)), "{yields} yields");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_one_decision_does_not_affect_others_in_its_batch() {
    let (server, limiter) = on_redis().await;
    let () = server.command(&["RPUSH", "rl:closed:fixed-window:{mallory}", "x"]);
    let policy = closed(1_000_000);
    let ask = |key: &'static str| {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        async move {
            for _ in 0..200 {
                let decided = limiter.check(&policy, &Key::new(key), 1).await;
                assert_eq!(decided.is_err(), key == "mallory", "{decided:?}");
            }
        }
    };
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        tasks.spawn(ask("mallory"));
        tasks.spawn(ask("alice"));
    }
    tasks.join_all().await;
    let left = limiter.peek(&policy, &Key::new("alice"), 0).await.unwrap().outcomes()[0].remaining();
    assert_eq!(left, 1_000_000 - 16 * 200);
    let calls: String = server.command(&["INFO", "commandstats"]);
    let calls = calls.split("cmdstat_evalsha:calls=").nth(1).unwrap().split(',').next().unwrap();
    let calls: usize = calls.parse().unwrap();
    assert!(calls < 32 * 200, "the decisions did not share batches: {calls} calls");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_failure_mode_decides_until_a_server_that_is_down_has_restarted() {
    let mut server = RedisServer::start();
    let limiter = Limiter::new(RedisStore::connect(&server.url()).await.unwrap());
    let open = Policy::new("open", Quota::per_day(1_000_000)).failure_mode(FailureMode::Open);
    let closed = closed(1_000_000);

    let loaded = {
        let (limiter, closed) = (limiter.clone(), closed.clone());
        tokio::spawn(async move { load(&limiter, &closed, 16, 60).await })
    };
    sleep(Duration::from_millis(5)).await;
    server.kill();
    let counts = loaded.await.unwrap();
    assert!(counts.failed_in_time(), "{counts:?}");
    assert_eq!(counts.admitted + counts.failed, 16 * 60);
    assert!(counts.failed > 0);

    let admitted = limiter.check(&open, &Key::new("alice"), 1).await.unwrap();
    assert!(admitted.is_admitted());
    assert!(admitted.outcomes().is_empty());
    let failure = admitted.failure().unwrap().kind();
    let failures = [ErrorKind::StoreTimeout, ErrorKind::StoreUnreachable, ErrorKind::StoreSuspended];
    assert!(failures.contains(&failure), "{failure:?}");
    assert!(limiter.check(&closed, &Key::new("alice"), 1).await.is_err());

    server.restart();
    assert!(is_normal_again(&limiter, &closed).await);
    // The restarted server has neither the script nor the counts.
    let patient = limiter.check(&closed, &Key::new("alice"), 1).await.unwrap();
    assert_eq!(patient.outcomes()[0].remaining(), 999_999);
}

/// Decisions would wait for an hour if they waited for a connection.
#[tokio::test(flavor = "multi_thread")]
async fn decisions_do_not_wait_for_a_server_that_cannot_be_reached() {
    let mut server = RedisServer::start();
    let limiter =
        Limiter::new(settings().deadline(Duration::from_secs(3_600)).connect(&server.url()).await.unwrap());
    assert!(limiter.check(&closed(1_000), &Key::new("alice"), 1).await.unwrap().is_admitted());
    server.kill();
    let mut callers = JoinSet::new();
    for _ in 0..50 {
        let limiter = limiter.clone();
        callers.spawn(async move { limiter.check(&closed(1_000), &Key::new("alice"), 1).await });
    }
    let expected = [ErrorKind::StoreUnreachable, ErrorKind::StoreDisconnected, ErrorKind::StoreSuspended];
    while let Some(decision) = timeout(PATIENT, callers.join_next()).await.expect("no decision waits") {
        let error = decision.unwrap().unwrap_err();
        assert!(expected.contains(&error.kind()), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_store_is_200_without_headers_or_503_over_http() {
    let mut server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let layer = |policy| RateLimitLayer::new(store.clone(), policy, PeerIp::new());
    let open = Policy::new("open", Quota::per_day(1)).failure_mode(FailureMode::Open);
    let open = client::serve(client::app(layer(open))).await;
    let closed = client::serve(client::app(layer(closed(1)))).await;
    server.kill();
    let client = client::Client::new();
    for _ in 0..3 {
        let response = client.get(&format!("http://{open}/")).await;
        assert_eq!(response.status(), 200);
        assert!(!response.headers().contains_key("ratelimit"));
        let response = client.get(&format!("http://{closed}/")).await;
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["cache-control"], "no-store");
        let body = response.into_body();
        assert!(body.contains("temporary-reduced-capacity") && !body.contains("Redis"), "{body}");
    }
}

#[tokio::test]
async fn a_503_names_a_wait_that_differs_between_clients() {
    let layer = RateLimitLayer::new(Down, closed(1), Key::new("all"));
    let mut waits = HashSet::new();
    for _ in 0..100 {
        let response = ask(&layer, get()).await;
        assert_eq!(response.status(), 503);
        waits.insert(response.headers()["retry-after"].to_str().unwrap().parse::<u64>().unwrap());
    }
    assert!(waits.len() > 1 && waits.iter().all(|wait| (1..=5).contains(wait)), "{waits:?}");
    // A mapper's own is kept.
    let layer = layer.response(|_: &Rejection, _: &http::request::Parts| {
        Response::builder().status(503).header("retry-after", "60").body(String::new()).unwrap()
    });
    assert_eq!(ask(&layer, get()).await.headers()["retry-after"], "60");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_server_is_unavailable_and_its_late_replies_reach_no_other_request() {
    let server = RedisServer::start();
    let limiter = Limiter::new(RedisStore::connect(&server.url()).await.unwrap());
    let policy = closed(1_000_000);
    load(&limiter, &policy, 16, 10).await;
    let () = server.command(&["CONFIG", "RESETSTAT"]);
    server.signal("STOP");
    let stopped = load(&limiter, &policy, 64, 3).await;
    assert_eq!((stopped.admitted, stopped.failed), (0, 192));
    assert!(stopped.failed_in_time(), "{stopped:?}");
    server.signal("CONT");
    // Each lane had sent a batch. Until Redis replies, later decisions wait and send nothing, so no commands pile up.
    let stats: String = server.command(&["INFO", "commandstats"]);
    let calls = stats.split("cmdstat_evalsha:calls=").nth(1).and_then(|rest| rest.split(',').next());
    let calls: usize = calls.unwrap().parse().unwrap();
    assert!((1..=6).contains(&calls), "{calls}");
    assert!(is_normal_again(&limiter, &policy).await);
    let left = limiter.peek(&policy, &Key::new("alice"), 0).await.unwrap().outcomes()[0].remaining();
    let charged = 1_000_000 - left;
    assert!((160..=160 + 192).contains(&charged), "{charged}");
    // A late reply to another request would show the wrong number of remaining units.
    for i in 1..=50 {
        let decision = limiter.check(&policy, &Key::new("carol"), 1).await.unwrap();
        assert_eq!(decision.outcomes()[0].remaining(), 1_000_000 - i);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_request_leaves_the_connection_in_step() {
    let (_server, limiter) = on_redis().await;
    let policy = closed(1_000_000);
    for round in 0..200 {
        // Dropped after one poll, when the command may be under way.
        for _ in 0..8 {
            let mut check = std::pin::pin!(limiter.check(&policy, &Key::new("dropped"), 1));
            std::future::poll_fn(|cx| {
                let _ = check.as_mut().poll(cx);
                std::task::Poll::Ready(())
            })
            .await;
        }
        let decision = limiter.check(&policy, &Key::new("kept"), 1).await.unwrap();
        assert_eq!(decision.outcomes()[0].remaining(), 999_999 - round);
    }
}

#[tokio::test]
async fn an_error_reply_of_redis_is_a_failure_and_no_panic() {
    let (server, limiter) = on_redis().await;
    let key = Key::new("alice");
    let policy = closed(10);

    // Another program's data under our key.
    let () = server.command(&["RPUSH", "rl:closed:fixed-window:{alice}", "x"]);
    let error = limiter.check(&policy, &key, 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ForeignValue);
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    let () = server.command(&["SET", "rl:closed:fixed-window:{alice}", "nonsense"]);
    let error = limiter.check(&policy, &key, 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ForeignValue);
    assert!(error.to_string().contains("the limiter did not write"), "{error}");
    let () = server.command(&["DEL", "rl:closed:fixed-window:{alice}"]);
    assert!(limiter.check(&policy, &key, 1).await.unwrap().is_admitted());

    let () = server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = limiter.check(&policy, &key, 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreFailed);
    let () = server.command(&["CONFIG", "SET", "maxmemory", "0"]);

    let () = server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let error = limiter.check(&policy, &key, 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreFailed);
    let () = server.command(&["REPLICAOF", "NO", "ONE"]);
    assert!(limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
}
