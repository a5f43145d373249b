//! Fault schedules in a deterministic simulation: instances, callers and a Redis server in this process, on a paused
//! clock and without sockets. A seed determines everything that happens, and the invariants are checked at every
//! decision and at the end. Further runtimes of an instance run on the same clock, in turn with the schedule: [`sides`].
//!
//! The store is the real one, on a pool whose [connections](connection) lead to a [server](server) that runs the real
//! scripts in an embedded Lua. [`against_redis`] compares that server with a real one.
//!
//! `README.md` says what a schedule is, which faults exist, what is checked, and how to repeat a seed.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod account;
mod against_redis;
mod asked;
mod bans;
mod callers;
mod connection;
mod end;
mod faults;
mod foreign;
mod holders;
mod instance;
mod keyspace;
mod ledger;
mod log;
mod lua;
mod network;
mod operators;
mod permits;
mod random;
mod rules;
mod schedule;
mod server;
mod sides;
mod usage;

use std::{
    cell::Cell,
    collections::BTreeMap,
    env,
    panic::{catch_unwind, set_hook, take_hook},
    sync::{
        Mutex, Once,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use self::schedule::{Report, run};

const SEEDS: u64 = 150;

thread_local! {
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the panics of this thread, except those that a schedule makes: Tokio catches the panics of tasks.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = take_hook();
        set_hook(Box::new(move |panic| {
            let is_on_purpose = panic
                .payload()
                .downcast_ref::<String>()
                .is_some_and(|text| text == foreign::ON_PURPOSE)
                || panic.payload().downcast_ref::<&str>().is_some_and(|text| *text == foreign::ON_PURPOSE);
            if is_on_purpose {
                return;
            }
            PANICS.with(|panics| panics.set(panics.get() + 1));
            hook(panic);
        }));
    });
}

/// How the schedule went, and what is wrong with it.
fn try_seed(seed: u64, prints: bool) -> (Option<Report>, Option<String>) {
    count_panics();
    PANICS.with(|panics| panics.set(0));
    let report = catch_unwind(|| run(seed, prints)).ok();
    let panicked = PANICS.with(Cell::get) > 0;
    let violation = report.as_ref().and_then(|report| report.violation.clone());
    (report, violation.or_else(|| panicked.then(|| "a panic".to_owned())))
}

#[derive(Default)]
struct Total {
    steps: u64,
    decisions: u64,
    faults: BTreeMap<&'static str, u64>,
    failed: Vec<(u64, String)>,
}

#[test]
fn invariants_hold_in_every_fault_schedule() {
    let number = |name| env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    if let Some(seed) = number("SIMULATION_SEED") {
        let violation = try_seed(seed, true).1;
        assert!(violation.is_none(), "seed {seed}: {}", violation.unwrap_or_default());
        return;
    }
    let seeds = number("SIMULATION_SEEDS").unwrap_or(SEEDS);
    let first = number("SIMULATION_FIRST").unwrap_or_default();
    let (next, total, started) = (AtomicU64::new(first), Mutex::new(Total::default()), Instant::now());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + seeds {
                return;
            }
            let (report, violation) = try_seed(seed, false);
            let total = &mut *total.lock().unwrap();
            if let Some(report) = report {
                total.steps += report.steps;
                total.decisions += report.decisions;
                report
                    .faults
                    .iter()
                    .for_each(|(name, count)| *total.faults.entry(name).or_default() += count);
            }
            total.failed.extend(violation.map(|violation| (seed, violation)));
        }
    };
    thread::scope(|scope| {
        (0..thread::available_parallelism().map_or(1, usize::from)).for_each(|_| drop(scope.spawn(work)));
    });
    let mut total = total.into_inner().unwrap();
    let (steps, decisions, time) = (total.steps, total.decisions, started.elapsed());
    eprintln!("{seeds} seeds from {first} on, {steps} steps, {decisions} decisions, {time:.1?}");
    total.faults.iter().for_each(|(name, count)| eprintln!("{count:>10} {name}"));
    total.failed.sort();
    for (seed, violation) in total.failed.iter().take(20) {
        eprintln!("seed {seed}: {violation}");
    }
    let failed = total.failed.len();
    let repeat = "cargo test -p tests-sim -- --nocapture";
    if let Some((seed, violation)) = total.failed.first() {
        panic!(
            "{failed} of {seeds} seeds fail; seed {seed} {violation}\nrepeat: SIMULATION_SEED={seed} {repeat}"
        );
    }
}

#[test]
fn a_seed_repeats_all_that_happens() {
    for seed in 0..10 {
        let run = || try_seed(seed, false).0.map(|report| (report.hash, report.steps));
        assert_eq!(run(), run(), "seed {seed}");
    }
}
