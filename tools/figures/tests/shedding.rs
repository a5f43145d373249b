//! The simulation of `cargo run -p docs-figures --bin shedding`: what the guide `overload` says holds.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../src/bin/shedding/service.rs"]
mod service;

use service::{CAPACITY, CLASSES, END, Protection, RUSH, Request, SETTLED, run};

fn simulate(protection: Protection, seed: u64) -> Vec<Request> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(run(protection, seed)).unwrap()
}

/// The percentage of each class that is answered in time, and the goodput in percent of the capacity.
fn seen(protection: Protection, seed: u64) -> ([f64; CLASSES.len()], f64) {
    let requests = simulate(protection, seed);
    let settled = || requests.iter().filter(|request| SETTLED.contains(&request.at));
    let of_class = |class: usize| {
        let all = settled().filter(|request| request.class == class).count() as f64;
        let good = settled().filter(|request| request.class == class && request.is_in_time()).count() as f64;
        100.0 * good / all
    };
    let good = settled().filter(|request| request.is_in_time()).count() as f64;
    ([0, 1, 2].map(of_class), 100.0 * good / (CAPACITY * (SETTLED.end - SETTLED.start)))
}

#[test]
fn the_most_critical_requests_are_answered_and_nothing_is_wasted_for_it() {
    let ([critical, plus, sheddable], goodput) = seen(Protection::Criticality, 1);
    assert!(critical > 97.0, "{critical}");
    assert!(plus > sheddable, "{plus} {sheddable}");
    assert!(goodput > 85.0, "{goodput}");
    for protection in [Protection::Equal, Protection::Fixed, Protection::LoadShed] {
        let ([critical, ..], _) = seen(protection, 1);
        assert!(critical < 60.0, "{protection:?}: {critical}");
    }
}

#[test]
fn before_and_after_the_rush_all_are_answered() {
    let requests = simulate(Protection::Criticality, 1);
    let quiet = |at: f64| at < RUSH.start || (RUSH.end + 10.0..END).contains(&at);
    let quiet: Vec<_> = requests.iter().filter(|request| quiet(request.at)).collect();
    let good = quiet.iter().filter(|request| request.is_in_time()).count();
    assert!(good * 100 >= quiet.len() * 99, "{good} of {}", quiet.len());
}
