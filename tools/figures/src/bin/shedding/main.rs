//! Simulates a service at three times its capacity, a fifth of whose requests are critical, draws `docs/shedding.svg`, and prints
//! the table of the guide `overload`.
//!
//! Run with
//!
//! ```text
//! cargo run -p docs-figures --bin shedding
//! ```
//!
//! The controller, the meter and the decisions are this crate's own, on tokio's paused clock. The result depends on nothing but the
//! seeds, so each run gives the same.

#![allow(clippy::print_stdout, reason = "the tool prints its results")]

mod draw;
#[path = "../../picture.rs"]
mod picture;
mod service;

use std::{error::Error, path::Path};

use service::{CAPACITY, CLASSES, Protection, Request, SETTLED, run};

/// What each row of the picture and of the table shows.
const ROWS: [(Protection, &str); 4] = [
    (Protection::Criticality, "an adaptive limit with headroom"),
    (Protection::Equal, "the same limit without"),
    (Protection::Fixed, "a fixed rate"),
    (Protection::LoadShed, "tower's load_shed"),
];
/// The table has the mean of these, the picture the first one.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=5;

fn simulate(protection: Protection, seed: u64) -> Result<Vec<Request>, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    Ok(runtime.block_on(run(protection, seed))?)
}

/// The requests of the rush once the quota has settled.
fn settled(run: &[Request]) -> impl Iterator<Item = &Request> {
    run.iter().filter(|request| SETTLED.contains(&request.at))
}

/// The percentage of a class that is answered in time.
fn good(run: &[Request], class: usize) -> f64 {
    let of_class = || settled(run).filter(|request| request.class == class);
    100.0 * of_class().filter(|request| request.is_in_time()).count() as f64 / of_class().count() as f64
}

/// The 99th percentile of the seconds until an answer.
fn p99(run: &[Request], class: usize) -> f64 {
    let mut waits: Vec<f64> = settled(run)
        .filter(|request| request.class == class)
        .filter_map(|request| request.answered)
        .collect();
    waits.sort_by(f64::total_cmp);
    waits.get(waits.len() * 99 / 100).copied().unwrap_or_default()
}

/// The requests answered in time, in percent of those that are possible.
fn goodput(run: &[Request]) -> f64 {
    let possible = CAPACITY * (SETTLED.end - SETTLED.start);
    100.0 * settled(run).filter(|request| request.is_in_time()).count() as f64 / possible
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut drawn = Vec::new();
    let classes = CLASSES.map(|(criticality, _)| format!("{criticality} in time")).join(" | ");
    println!("| limit | {classes} | p99 of critical-plus | goodput of the capacity |");
    println!("|---|--:|--:|--:|--:|--:|");
    for (protection, name) in ROWS {
        let runs = SEEDS.map(|seed| simulate(protection, seed)).collect::<Result<Vec<_>, _>>()?;
        let mean = |value: &dyn Fn(&[Request]) -> f64| {
            runs.iter().map(|run| value(run)).sum::<f64>() / runs.len() as f64
        };
        let of_classes: Vec<String> =
            (0..CLASSES.len()).map(|class| format!("{:.0} %", mean(&|run| good(run, class)))).collect();
        println!(
            "| {name} | {} | {:.2} s | {:.0} % |",
            of_classes.join(" | "),
            mean(&|run| p99(run, 0)),
            mean(&goodput)
        );
        drawn.extend(runs.into_iter().take(1).map(|run| (name, run)));
    }
    draw::draw(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/shedding.svg"), &drawn)
}
