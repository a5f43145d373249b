//! How much more than the limit three instances admit during an outage, for each failure mode.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{task::JoinSet, time::sleep};
use tower_ratelimit::{
    FailureMode, Key, Limiter, Policy, Quota, RedisStore,
    algorithm::{Algorithm, FixedWindow, Gcra, SlidingLog, SlidingWindow},
};

use crate::promises::Promises;
use support::RedisServer;

const INSTANCES: u32 = 3;
const LIMIT: u64 = 3_000;
/// Between the requests of an instance.
const PAUSE: Duration = Duration::from_millis(1);
const OUTAGE: Duration = Duration::from_secs(3);

/// What a key may be admitted beyond its limit.
enum Bound {
    Units(u64),
    None,
}

pub(crate) async fn print(promises: &mut Promises) {
    println!("## Admitted during an outage\n");
    println!(
        "{INSTANCES} instances, one key, a limit of {LIMIT} a day, a request every 1 to 2 ms from each instance. Redis \
         freezes for {} s before a quarter of the limit is used, and continues.\n",
        OUTAGE.as_secs()
    );
    println!(
        "| failure mode | algorithm | admitted before, during and after the outage | bound | left in Redis |"
    );
    println!("|---|---|---|---|---|");
    let shared = u64::from(INSTANCES) * LIMIT.div_ceil(u64::from(INSTANCES));
    let modes = [
        ("`Local { instances: 3 }`", FailureMode::Local { instances: INSTANCES }, Bound::Units(shared)),
        (
            "`Local { instances: 1 }`",
            FailureMode::Local { instances: 1 },
            Bound::Units(u64::from(INSTANCES) * LIMIT),
        ),
        ("`Open`", FailureMode::Open, Bound::None),
        ("`Closed`", FailureMode::Closed, Bound::Units(0)),
    ];
    for (name, mode, bound) in modes {
        row(name, "`Gcra`", Gcra::default(), mode, &bound, promises).await;
        row(name, "`FixedWindow`", FixedWindow::anchored(), mode, &bound, promises).await;
        row(name, "`SlidingWindow`", SlidingWindow::default(), mode, &bound, promises).await;
        row(name, "`SlidingLog`", SlidingLog::default(), mode, &bound, promises).await;
    }
}

async fn row(
    mode_name: &str,
    name: &str,
    algorithm: impl Algorithm,
    mode: FailureMode,
    bound: &Bound,
    promises: &mut Promises,
) {
    let server = RedisServer::start();
    let policy = Policy::new("p", Quota::per_day(LIMIT)).algorithm(algorithm).failure_mode(mode);
    let key = Key::new("alice");
    let (phase, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut instances = JoinSet::new();
    let mut first = None;
    for _ in 0..INSTANCES {
        let limiter = Limiter::new(RedisStore::connect(&server.url()).await.unwrap());
        first.get_or_insert_with(|| limiter.clone());
        let (policy, key, phase, stop) = (policy.clone(), key.clone(), phase.clone(), stop.clone());
        instances.spawn(async move {
            let mut running = JoinSet::new();
            while !stop.load(Ordering::Relaxed) {
                let (limiter, policy, key, phase) =
                    (limiter.clone(), policy.clone(), key.clone(), phase.load(Ordering::Relaxed));
                running.spawn(async move {
                    let decision = limiter.check(&policy, &key, 1).await;
                    (phase, decision.is_ok_and(|decision| decision.is_admitted()))
                });
                sleep(PAUSE).await;
            }
            let mut admitted = [0_u64; 3];
            for (phase, is_admitted) in running.join_all().await {
                admitted[usize::try_from(phase).unwrap()] += u64::from(is_admitted);
            }
            admitted
        });
    }
    sleep(Duration::from_millis(200)).await;
    server.signal("STOP");
    phase.store(1, Ordering::Relaxed);
    sleep(OUTAGE).await;
    server.signal("CONT");
    phase.store(2, Ordering::Relaxed);
    sleep(Duration::from_secs(2)).await;
    stop.store(true, Ordering::Relaxed);
    let mut admitted = [0; 3];
    for instance in instances.join_all().await {
        admitted.iter_mut().zip(instance).for_each(|(all, one)| *all += one);
    }
    let left = match first {
        Some(limiter) => limiter.peek(&policy, &key, 0).await.unwrap().remaining().unwrap_or_default(),
        None => 0,
    };
    let total: u64 = admitted.iter().sum();
    // Units that were replenished in the meantime.
    let replenished = LIMIT * 6 / 86_400 + 1;
    let (bound, text) = match bound {
        Bound::Units(units) => (LIMIT + units + replenished, (LIMIT + units).to_string()),
        Bound::None => (u64::MAX, "none".to_owned()),
    };
    let above =
        promises.check(total <= bound, || format!("{mode_name}, {name}: {total} admitted, at most {bound}"));
    let [before, during, after] = admitted;
    println!("| {mode_name} | {name} | {before} + {during} + {after} = {total}{above} | {text} | {left} |");
}
