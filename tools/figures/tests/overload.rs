//! The simulation of `cargo run -p docs-figures --bin overload`: what `docs/adaptive.md` says holds.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

#[path = "../src/bin/overload/service.rs"]
mod service;

use std::{sync::Arc, time::Duration};

use service::{END, Fate, Protection, RUSH, Request, SLOW, Sum, TIMEOUT, run};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep},
};
use tower_ratelimit::{Key, Limiter, MemoryStore, Policy};
use tower_ratelimit_extra::adaptive::{Adaptive, Aimd, LoadMeter};

fn simulate(protection: Protection, seed: u64) -> Vec<Request> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(run(protection, seed)).unwrap()
}

/// The requests that are answered in time, in percent of what is possible.
fn good(requests: &[Request], time: std::ops::Range<f64>) -> f64 {
    let sum = Sum::of(requests, time.start, time.end);
    100.0 * sum.in_time / sum.possible
}

#[test]
fn without_a_limit_an_overload_outlives_its_cause_and_a_fixed_quota_helps_against_one_cause_only() {
    let (nothing, fixed) = (simulate(Protection::Nothing, 1), simulate(Protection::Fixed, 1));
    assert!(good(&nothing, 0.0..RUSH.start) > 95.0);
    assert!(good(&nothing, RUSH.end..SLOW.start) < 1.0);
    assert!(good(&fixed, RUSH) > 85.0);
    assert!(good(&fixed, SLOW.start + 5.0..SLOW.end) < 5.0);
    assert!(Sum::of(&nothing, 0.0, END).p95 > 10.0 * TIMEOUT);
}

#[test]
fn adaptive_limits_hold_the_goodput_for_each_cause_of_overload() {
    for (protection, all, rush, slow, p95) in [
        (Protection::AimdRate, 85.0, 80.0, 65.0, 1.2),
        (Protection::AimdInFlight, 95.0, 95.0, 90.0, 0.5),
        (Protection::Vegas, 93.0, 93.0, 80.0, 0.5),
        (Protection::Gradient, 93.0, 93.0, 80.0, 0.5),
        (Protection::VegasRate, 85.0, 80.0, 55.0, 1.2),
        (Protection::GradientRate, 85.0, 80.0, 55.0, 1.2),
    ] {
        for seed in 1..=2 {
            let requests = simulate(protection, seed);
            let of = |time| good(&requests, time);
            let seen = (of(0.0..END), of(RUSH), of(SLOW), Sum::of(&requests, 0.0, END).p95);
            let holds = seen.0 > all && seen.1 > rush && seen.2 > slow && seen.3 < p95;
            assert!(holds, "{protection:?}, seed {seed}: {seen:?}");
        }
    }
}

#[test]
fn the_queue_stays_short_and_nothing_is_denied_before_and_after_an_overload() {
    for protection in [Protection::AimdInFlight, Protection::Vegas, Protection::Gradient] {
        let requests = simulate(protection, 3);
        let in_rush = requests.iter().filter(|request| (40.0..RUSH.end).contains(&request.at));
        let mut waits: Vec<f64> = in_rush
            .filter_map(|request| match request.fate {
                Fate::Answered(after) => Some(after),
                Fate::Denied => None,
            })
            .collect();
        waits.sort_by(f64::total_cmp);
        let median = waits[waits.len() / 2];
        assert!(median < 0.25, "{protection:?}: {median}");
        for time in [0.0..RUSH.start, RUSH.end + 10.0..SLOW.start, SLOW.end + 10.0..END] {
            let denied = Sum::of(&requests, time.start, time.end).denied;
            assert_eq!(denied, 0.0, "{protection:?}, {time:?}");
        }
    }
}

#[test]
fn a_simulation_depends_on_nothing_but_its_seed() {
    let of = |seed| simulate(Protection::AimdRate, seed);
    let first = of(4);
    assert!(first == of(4));
    assert!(first != of(5));
}

/// Two instances in front of one database. The second one starts when the first one has it all.
#[tokio::test(start_paused = true)]
async fn aimd_converges_to_a_fair_share() {
    let database = Arc::new(Semaphore::new(20));
    let mut instances = JoinSet::new();
    for instance in 0..2 {
        let database = database.clone();
        instances.spawn(async move {
            sleep(Duration::from_secs(instance * 20)).await;
            let meter = LoadMeter::new();
            let policy = Adaptive::new(Policy::concurrency("in-flight", 200))
                .floor(0.01)
                .follow(Aimd::new(&meter, Duration::from_millis(150)))
                .start()
                .unwrap();
            let (limiter, key) = (Limiter::new(MemoryStore::new()), Key::new("all"));
            let mut answers = JoinSet::new();
            let (started, mut admitted) = (Instant::now(), 0);
            // 500 requests a second, where 400 are possible for both.
            while started.elapsed() < Duration::from_secs(100 - instance * 20) {
                sleep(Duration::from_millis(2)).await;
                let decision = limiter.check(&policy.policy(), &key, 1).await.unwrap();
                if decision.is_admitted() {
                    let (measured, database) = (meter.begin(), database.clone());
                    if started.elapsed() > Duration::from_secs(60 - instance * 20) {
                        admitted += 1;
                    }
                    answers.spawn(async move {
                        let turn = database.acquire_owned().await;
                        sleep(Duration::from_millis(50)).await;
                        drop((turn, decision));
                        measured.succeeded();
                    });
                }
            }
            admitted
        });
    }
    let admitted = instances.join_all().await;
    let (sum, least) = (admitted.iter().sum::<u32>(), *admitted.iter().min().unwrap());
    assert!(sum > 400 * 40 * 9 / 10, "{admitted:?}");
    assert!(f64::from(least) > 0.3 * f64::from(sum), "{admitted:?}");
}
