//! The cost of a Cluster: decisions a second, the CPU time of servers and client for each decision, and the decisions of
//! a call, on one server and on a Cluster of one and of three primaries, all on this machine. A number of shards is
//! compared with the default.
//!
//! ```text
//! cargo bench -p benches --bench cluster -- 8 32
//! ```

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program that prints measurements")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use support::{RedisServer, redis_cluster::RedisCluster};
use tokio::task::JoinSet;
use tower_ratelimit::{Key, Limiter, Policy, Quota, RedisStore, store::Servers};

const KEYS: u64 = 10_000;
const ROUND: Duration = Duration::from_secs(1);
const ROUNDS: usize = 5;

/// The results of one round.
#[derive(Clone, Copy)]
struct Seen {
    decisions_a_second: f64,
    /// Microseconds of CPU time for each decision.
    servers: f64,
    client: f64,
    /// Decisions a second if each server had its own core.
    with_a_core_each: f64,
    decisions_a_call: f64,
}

/// Runs `callers` tasks that each send one request after the other, over all keys.
async fn round(limiter: &Limiter, policy: &Policy, nodes: &[RedisServer], callers: usize) -> Seen {
    let (servers_before, client_before) = (each(nodes, cpu), client_cpu());
    let calls_before: f64 = each(nodes, calls).iter().sum();
    let (started, made, next) = (Instant::now(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut running = JoinSet::new();
    for _ in 0..callers {
        let (limiter, policy, made, next) = (limiter.clone(), policy.clone(), made.clone(), next.clone());
        running.spawn(async move {
            while started.elapsed() < ROUND {
                let key = Key::new(format!("user-{}", next.fetch_add(7919, Ordering::Relaxed) % KEYS));
                if limiter.check(&policy, &key, 1).await.is_ok_and(|decision| decision.is_admitted()) {
                    made.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    while running.join_next().await.is_some() {}
    let (made, took) = (made.load(Ordering::Relaxed) as f64, started.elapsed().as_secs_f64());
    let used = each(nodes, cpu).into_iter().zip(servers_before).map(|(after, before)| after - before);
    let (used, busiest) = used.fold((0.0, 0.0_f64), |(sum, most), one| (sum + one, most.max(one)));
    Seen {
        decisions_a_second: made / took,
        servers: used * 1e6 / made,
        client: (client_cpu() - client_before) * 1e6 / made,
        with_a_core_each: made / busiest,
        decisions_a_call: made / (each(nodes, calls).iter().sum::<f64>() - calls_before),
    }
}

fn each(nodes: &[RedisServer], what: fn(&RedisServer) -> f64) -> Vec<f64> {
    nodes.iter().map(what).collect()
}

/// Seconds of CPU time.
fn cpu(node: &RedisServer) -> f64 {
    let info: String = node.command(&["INFO", "cpu"]);
    let fields = ["used_cpu_user:", "used_cpu_sys:"];
    let field = |name| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    fields.into_iter().filter_map(field).sum()
}

fn calls(node: &RedisServer) -> f64 {
    node.script_calls() as f64
}

fn client_cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may have spaces in it; user and system time are the 14th and 15th field of all.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

#[tokio::main]
async fn main() -> Result<(), tower_ratelimit::Error> {
    let policy = Policy::new("bench", Quota::per_second(1_000_000));
    let server = [RedisServer::start()];
    let (one, three) = (RedisCluster::start(1), RedisCluster::start(3));
    let settings = || RedisStore::builder().deadline(Duration::from_secs(1));
    let mut setups =
        vec![("one server".to_owned(), &server[..], settings().connect(&server[0].url()).await?)];
    let numbers: Vec<u16> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    for cluster in [&one, &three] {
        let name = format!("a Cluster of {}", cluster.nodes.len());
        setups.push((
            name.clone(),
            &cluster.nodes,
            settings().connect(Servers::cluster(cluster.urls())).await?,
        ));
        for &shards in &numbers {
            let store = settings().cluster_shards(shards).connect(Servers::cluster(cluster.urls())).await?;
            setups.push((format!("{name}, {shards} shards"), &cluster.nodes, store));
        }
    }
    println!(
        "| | callers | decisions/s | servers, µs each | client, µs each | decisions/s with a core each | decisions a call |"
    );
    println!("|---|---|---|---|---|---|---|");
    for callers in [1, 64, 256] {
        let mut seen = vec![Vec::new(); setups.len()];
        for _ in 0..ROUNDS {
            for ((_, nodes, store), seen) in setups.iter().zip(&mut seen) {
                let limiter = Limiter::new(store.clone());
                seen.push(round(&limiter, &policy, nodes, callers).await);
            }
        }
        for ((name, ..), seen) in setups.iter().zip(&seen) {
            let of = |part: fn(&Seen) -> f64| median(seen.iter().map(part).collect());
            println!(
                "| {name} | {callers} | {:.0} | {:.1} | {:.1} | {:.0} | {:.1} |",
                of(|seen| seen.decisions_a_second),
                of(|seen| seen.servers),
                of(|seen| seen.client),
                of(|seen| seen.with_a_core_each),
                of(|seen| seen.decisions_a_call)
            );
        }
    }
    Ok(())
}
