//! Simulates an overloaded service with and without limits, draws `docs/overload.svg`, and prints the table
//! of `docs/adaptive.md`.
//!
//! Run with
//!
//! ```text
//! cargo run -p docs-figures --bin overload
//! ```
//!
//! The controllers, the meter and the decisions are this crate's own, on tokio's paused clock. The result
//! depends on nothing but the seeds, so each run gives the same.

#![allow(clippy::print_stdout, reason = "the tool prints its results")]

mod draw;
#[path = "../../picture.rs"]
mod picture;
mod service;

use std::{error::Error, path::Path};

use service::{END, Protection, RUSH, Request, SLOW, Sum, run};

/// What each row of the picture and of the table shows.
const ROWS: [(Protection, &str, &str); 8] = [
    (Protection::Nothing, "no limit", "the queue outlives the rush"),
    (Protection::Fixed, "a fixed rate", "180 a second, right on a good day"),
    (Protection::AimdRate, "Aimd on a rate", "the median within 250 ms"),
    (Protection::AimdInFlight, "Aimd in flight", "the median within 250 ms"),
    (Protection::Vegas, "Vegas in flight", "a short queue"),
    (Protection::Gradient, "Gradient in flight", "1.5 times the usual latency"),
    (Protection::VegasRate, "Vegas on a rate", ""),
    (Protection::GradientRate, "Gradient on a rate", ""),
];
/// The others are only in the table.
const DRAWN: usize = 6;
/// The table has the mean of these, the picture the first one.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=5;

fn simulate(protection: Protection, seed: u64) -> Result<Vec<Request>, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    Ok(runtime.block_on(run(protection, seed))?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut drawn = Vec::new();
    println!(
        "| limit | answered in time, of what is possible | in the rush | while the database is slow | p95 | late |"
    );
    println!("|---|---|---|---|---|---|");
    for (protection, name, says) in ROWS {
        let runs = SEEDS.map(|seed| simulate(protection, seed)).collect::<Result<Vec<_>, _>>()?;
        let mean = |from: f64, to: f64, value: fn(&Sum) -> f64| {
            let values = runs.iter().map(|run| value(&Sum::of(run, from, to)));
            values.sum::<f64>() / runs.len() as f64
        };
        let good = |sum: &Sum| 100.0 * sum.in_time / sum.possible;
        println!(
            "| {name} | {:.0} % | {:.0} % | {:.0} % | {:.2} s | {:.0} % |",
            mean(0.0, END, good),
            mean(RUSH.start, RUSH.end, good),
            mean(SLOW.start, SLOW.end, good),
            mean(0.0, END, |sum| sum.p95),
            mean(0.0, END, |sum| 100.0 * sum.late / (sum.late + sum.in_time + sum.denied)),
        );
        drawn.extend(runs.into_iter().take(1).map(|run| (name, says, run)));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/overload.svg");
    draw::draw(&path, &drawn[..DRAWN])
}
