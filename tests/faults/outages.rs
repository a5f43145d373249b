//! What several outages admit together, of processes that start and stop.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_ratelimit::{FailureMode, Key, Limiter, Policy, Quota, RedisStore};

use crate::promises::Promises;
use support::RedisServer;

const LIMIT: u64 = 3_000;
const OUTAGES: usize = 5;
const OUTAGE: Duration = Duration::from_millis(1_500);
const BETWEEN: Duration = Duration::from_secs(1);

pub(crate) async fn print(promises: &mut Promises) {
    println!("## Admitted over several outages\n");
    println!(
        "Three processes, one key, a limit of {LIMIT} a day, more requests than the limit. Redis freezes {OUTAGES} times for \
         1.5 s. After the second outage one process ends and another one starts.\n"
    );
    println!(
        "| failure mode | instances seen | admitted before, in each outage, between and after | bound |"
    );
    println!("|---|---|---|---|");
    row("`local`, the default", FailureMode::default(), promises).await;
    row("`local/1`", FailureMode::Local { instances: 1 }, promises).await;
}

struct Process {
    store: RedisStore,
    limiter: Limiter,
}

impl Process {
    async fn start(server: &RedisServer) -> Self {
        let store = RedisStore::connect(&server.url()).await.unwrap();
        Self { limiter: Limiter::new(store.clone()), store }
    }

    /// The most that it admits in all outages.
    fn share(&self, mode: FailureMode) -> u64 {
        match mode {
            FailureMode::Local { instances: 0 } => LIMIT.div_ceil(self.store.instances().unwrap_or(1).into()),
            FailureMode::Local { instances } => LIMIT.div_ceil(instances.into()),
            _ => 0,
        }
    }
}

/// Asks each process for `time`, and returns how many requests were admitted.
async fn ask(processes: &[Process], policy: &Policy, key: &str, time: Duration) -> u64 {
    let (started, key) = (Instant::now(), Key::new(key));
    let mut admitted = 0;
    while started.elapsed() < time {
        for process in processes {
            let decision = process.limiter.check(policy, &key, 1).await;
            admitted += u64::from(decision.is_ok_and(|decision| decision.is_admitted()));
        }
        sleep(Duration::from_micros(500)).await;
    }
    admitted
}

async fn row(name: &str, mode: FailureMode, promises: &mut Promises) {
    let server = RedisServer::start();
    let policy = Policy::new("p", Quota::per_day(LIMIT)).failure_mode(mode);
    let traffic = Policy::new("traffic", Quota::per_day(1_000_000));
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(Process::start(&server).await);
    }
    // Two announcements of each.
    ask(&processes, &traffic, "all", Duration::from_secs(12)).await;
    let seen: Vec<_> = processes.iter().map(|process| process.store.instances().unwrap_or(0)).collect();
    let mut bound = LIMIT + processes.iter().map(|process| process.share(mode)).sum::<u64>();
    let mut admitted = vec![ask(&processes, &policy, "alice", Duration::from_millis(200)).await];
    for outage in 0..OUTAGES {
        server.signal("STOP");
        admitted.push(ask(&processes, &policy, "alice", OUTAGE).await);
        server.signal("CONT");
        admitted.push(ask(&processes, &policy, "alice", BETWEEN).await);
        if outage == 1 {
            processes.remove(0);
            processes.push(Process::start(&server).await);
            bound += processes[2].share(mode);
        }
    }
    let total: u64 = admitted.iter().sum();
    // What was replenished since.
    let replenished = LIMIT * 30 / 86_400 + 1;
    let above =
        promises.check(total <= bound + replenished, || format!("{name}: {total} admitted, at most {bound}"));
    let each: Vec<String> = admitted.iter().map(u64::to_string).collect();
    println!("| {name} | {seen:?} | {} = {total}{above} | {bound} |", each.join(" + "));
}
