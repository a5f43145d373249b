//! What faults cost: `make test-faults`. Starts real servers, stops, freezes, starves and restarts them under load, and
//! prints what was measured as Markdown. Ends with an error if a promise of docs/reliability.md was broken.
//!
//! Arguments name the parts to run, such as `table frozen`; without any, all run. `SOAK_SECONDS` (300) and
//! `IDENTITIES` (10,000,000) change the long ones, and `ROWS=15,16` makes only these rows of the table.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, reason = "a report of tests")]

use std::time::{Duration, Instant};

mod cold_start;
mod faults;
mod frozen;
mod guarantees;
mod identities;
mod load;
mod outages;
mod over_admission;
mod promises;
mod recovery;
mod silence;
mod soak;
mod table;

use promises::Promises;

const PARTS: [&str; 10] = [
    "table",
    "frozen",
    "recovery",
    "silence",
    "over-admission",
    "guarantees",
    "outages",
    "cold-start",
    "identities",
    "soak",
];

/// Requests a second, unless a part says otherwise.
const RATE: u32 = 2_000;
/// The default deadline of a decision.
const DEADLINE: Duration = Duration::from_millis(50);

fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let Some(unknown) = chosen.iter().find(|part| !PARTS.contains(&part.as_str())) {
        panic!("there is no part {unknown:?}; choose from {PARTS:?}");
    }
    let mut promises = Promises::default();
    for part in PARTS {
        if !chosen.is_empty() && !chosen.iter().any(|chosen| chosen == part) {
            continue;
        }
        let started = Instant::now();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        match part {
            "table" => runtime.block_on(table::print(&mut promises)),
            "frozen" => runtime.block_on(frozen::print(&mut promises)),
            "recovery" => runtime.block_on(recovery::print(&mut promises)),
            "silence" => runtime.block_on(silence::print(&mut promises)),
            "over-admission" => runtime.block_on(over_admission::print(&mut promises)),
            "guarantees" => runtime.block_on(guarantees::print(&mut promises)),
            "outages" => runtime.block_on(outages::print(&mut promises)),
            "cold-start" => cold_start::print(&mut promises),
            "identities" => runtime.block_on(identities::print(&mut promises)),
            _ => runtime.block_on(soak::print(&mut promises)),
        }
        println!("\nThis part took {} s.\n", started.elapsed().as_secs());
        runtime.shutdown_background();
    }
    promises.report();
}

/// The number in an environment variable, or the usual one.
fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}"))
    })
}
