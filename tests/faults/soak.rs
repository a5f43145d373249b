//! Random faults under load, with the limits checked at each admission.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use fastrand::Rng;
use tokio::{
    runtime::Handle,
    task::{JoinSet, block_in_place},
    time::{sleep, timeout},
};
use tower_ratelimit::{
    FailureMode, Key, Limiter, Policy, Quota, RedisStore,
    algorithm::{FixedWindow, SlidingLog},
};

use crate::{frozen::memory, promises::Promises};
use support::{
    RedisServer,
    proxy::{Network, Proxy},
    within,
};

const INSTANCES: usize = 2;
/// Callers of an instance.
const CALLERS: usize = 32;
const LIMIT: u64 = 2_000;
const PERMITS: u64 = 5;
/// The limits of this many clients are watched. Each is exhausted after a while.
const KEYS: usize = 512;
const GROWTH: usize = 64 << 20;

/// What was admitted, by all instances.
#[derive(Default)]
struct Counts {
    /// By key, for each of the policies.
    admitted: [Vec<AtomicU64>; 3],
    held: AtomicU64,
    requests: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    /// Admissions above a limit.
    above: AtomicU64,
}

struct Policies {
    /// Never more than the limit is admitted: closed, and nothing is lost by the faults.
    exact: [Policy; 3],
    permits: Policy,
    local: Policy,
}

impl Policies {
    fn new() -> Self {
        let closed = |name: &str| Policy::new(name, Quota::per_day(LIMIT)).failure_mode(FailureMode::Closed);
        Self {
            exact: [
                closed("window").algorithm(FixedWindow::anchored()),
                closed("log").algorithm(SlidingLog::default()),
                closed("leased").algorithm(FixedWindow::anchored()).max_lease(50),
            ],
            permits: Policy::concurrency("permits", PERMITS).failure_mode(FailureMode::Closed),
            local: Policy::new("local", Quota::per_minute(1_000)),
        }
    }
}

pub(crate) async fn print(promises: &mut Promises) {
    let (seconds, seed) =
        (crate::number("SOAK_SECONDS", 300), crate::number("SOAK_SEED", fastrand::u64(..1_000_000)));
    println!("## Soak\n");
    println!(
        "{seconds} s of random faults (`SOAK_SEED={seed}`), {INSTANCES} instances with {CALLERS} callers each.\n"
    );

    // Every write is on disk before its reply, so that a restart loses no charge.
    let mut server = RedisServer::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let proxy = Proxy::to(server.port()).await;
    let (counts, policies, stop) =
        (Arc::new(Counts::new()), Arc::new(Policies::new()), Arc::new(AtomicBool::new(false)));
    let mut limiters = Vec::new();
    for _ in 0..INSTANCES {
        limiters.push(Limiter::new(RedisStore::connect(&proxy.url()).await.unwrap()));
    }
    let (memory_before, tasks_before) = (memory(), Handle::current().metrics().num_alive_tasks());
    let mut callers = JoinSet::new();
    for caller in 0..INSTANCES * CALLERS {
        let (limiter, counts, policies, stop) =
            (limiters[caller % INSTANCES].clone(), counts.clone(), policies.clone(), stop.clone());
        let rng = Rng::with_seed(seed + caller as u64 + 1);
        callers.spawn(async move {
            let mut rng = rng;
            while !stop.load(Ordering::Relaxed) {
                request(&limiter, &policies, &counts, &mut rng).await;
            }
        });
    }
    let (mut rng, started, mut faults) = (Rng::with_seed(seed), Instant::now(), [0_u32; NAMES.len()]);
    while started.elapsed() < Duration::from_secs(seconds) {
        let fault = rng.usize(..NAMES.len());
        faults[fault] += 1;
        let lasts = Duration::from_millis(rng.u64(10..1_500));
        run(fault, lasts, &mut server, &proxy).await;
        sleep(Duration::from_millis(rng.u64(10..1_000))).await;
    }
    stop.store(true, Ordering::Relaxed);
    let callers_ended = timeout(Duration::from_secs(5), callers.join_all()).await.is_ok();

    let (names, times): (Vec<_>, Vec<_>) =
        NAMES.iter().zip(faults).map(|(name, count)| ((*name).to_owned(), count.to_string())).unzip();
    println!("| {} |\n|{}\n| {} |\n", names.join(" | "), "---|".repeat(names.len()), times.join(" | "));
    let normal = async || {
        let mut normal = true;
        for limiter in &limiters {
            let decision = limiter.check(&policies.local, &Key::new("probe"), 1).await;
            normal &= decision.is_ok_and(|decision| decision.failure().is_none());
        }
        normal
    };
    let is_normal = within(Duration::from_secs(2), normal).await;
    // Tasks that replace connections, return permits and leases.
    sleep(Duration::from_secs(3)).await;
    let connections = server.connections();
    let tasks = Handle::current().metrics().num_alive_tasks();
    let grown = memory().saturating_sub(memory_before);
    let held = limiters[0].peek(&policies.permits, &Key::new("all"), 0).await.unwrap().remaining();
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    println!("| | |\n|---|---|");
    println!("| requests | {} |", read(&counts.requests));
    println!("| dropped by their callers | {} |", read(&counts.dropped));
    println!("| decided without the store, or rejected | {} |", read(&counts.failed));
    let mut row = |name: &str, value: String, holds: bool| {
        let mark = promises.check(holds, || format!("soak, seed {seed}: {name}: {value}"));
        println!("| {name} | {value}{mark} |");
    };
    row("admissions above a limit", read(&counts.above).to_string(), read(&counts.above) == 0);
    row("callers that did not end within 5 s", (!callers_ended).to_string(), callers_ended);
    row("normal within 2 s", is_normal.to_string(), is_normal);
    row("permits free afterwards", format!("{held:?}"), held == Some(PERMITS));
    // Each instance has up to eight connections.
    row("connections afterwards", connections.to_string(), connections <= INSTANCES * 8);
    // A connection has a task on our side, and one in the proxy.
    row(
        "tasks before, afterwards",
        format!("{tasks_before}, {tasks}"),
        tasks <= tasks_before + 16 * INSTANCES * 2,
    );
    row("memory grew by, MB", (grown >> 20).to_string(), grown < GROWTH);
}

impl Counts {
    fn new() -> Self {
        let keys = || (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        Self { admitted: [keys(), keys(), keys()], ..Self::default() }
    }
}

async fn request(limiter: &Limiter, policies: &Policies, counts: &Counts, rng: &mut Rng) {
    counts.requests.fetch_add(1, Ordering::Relaxed);
    let patience = if rng.u8(..10) == 0 { Duration::from_micros(rng.u64(..3_000)) } else { Duration::MAX };
    let work = async {
        match rng.u8(..8) {
            choice @ 0..=4 => {
                let (policy, key) = (usize::from(choice) % 3, rng.usize(..KEYS));
                let decision = limiter.check(&policies.exact[policy], &Key::new(key.to_string()), 1).await;
                let is_admitted = decision.as_ref().is_ok_and(|decision| decision.is_admitted());
                if is_admitted && counts.admitted[policy][key].fetch_add(1, Ordering::Relaxed) >= LIMIT {
                    counts.above.fetch_add(1, Ordering::Relaxed);
                }
                decision.is_err()
            }
            5 => {
                let decision = limiter.check(&policies.permits, &Key::new("all"), 1).await;
                let Ok(decision) = decision else { return true };
                if decision.is_admitted() {
                    if counts.held.fetch_add(1, Ordering::Relaxed) >= PERMITS {
                        counts.above.fetch_add(1, Ordering::Relaxed);
                    }
                    let _held = Held(&counts.held);
                    sleep(Duration::from_millis(2)).await;
                }
                false
            }
            _ => {
                let key = Key::new(rng.u64(..10_000).to_string());
                let decision = limiter.check(&policies.local, &key, 1).await.unwrap();
                decision.failure().is_some()
            }
        }
    };
    match timeout(patience, work).await {
        Ok(failed) => drop(counts.failed.fetch_add(u64::from(failed), Ordering::Relaxed)),
        Err(_) => drop(counts.dropped.fetch_add(1, Ordering::Relaxed)),
    }
    // A caller whose decisions fail immediately must not take all the CPU.
    sleep(Duration::from_millis(5)).await;
}

/// Counts a permit until just before it is released.
struct Held<'a>(&'a AtomicU64);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

const NAMES: [&str; 8] = [
    "killed and restarted",
    "frozen",
    "network cut",
    "network slow",
    "connections killed",
    "scripts flushed",
    "out of memory",
    "demoted",
];

async fn run(fault: usize, lasts: Duration, server: &mut RedisServer, proxy: &Proxy) {
    let command = |server: &RedisServer, words: &[&str]| {
        block_in_place(|| {
            let _: redis::Value = server.command(words);
        });
    };
    match fault {
        0 => {
            block_in_place(|| server.kill());
            sleep(lasts).await;
            block_in_place(|| server.restart());
            let loaded = async || {
                let ping: redis::RedisResult<redis::Value> =
                    redis::cmd("PING").query(&mut server.connection());
                ping.is_ok()
            };
            assert!(within(Duration::from_secs(60), loaded).await, "Redis does not load its file");
        }
        1 => {
            server.signal("STOP");
            sleep(lasts).await;
            server.signal("CONT");
        }
        2 | 3 => {
            proxy.set(if fault == 2 { Network::DropsAll } else { Network::SlowBy5 });
            sleep(lasts).await;
            proxy.set(Network::Works);
        }
        4 => command(server, &["CLIENT", "KILL", "TYPE", "normal"]),
        5 => command(server, &["SCRIPT", "FLUSH"]),
        6 => {
            command(server, &["CONFIG", "SET", "maxmemory", "1"]);
            sleep(lasts).await;
            command(server, &["CONFIG", "SET", "maxmemory", "0"]);
        }
        _ => {
            // An address without a server, so that no data is replaced.
            command(server, &["REPLICAOF", "127.0.0.1", "1"]);
            sleep(lasts).await;
            command(server, &["REPLICAOF", "NO", "ONE"]);
        }
    }
}
