//! Runs the contenders.

use std::env;

use crate::{
    Failure,
    callgrind::{self, Counts},
    figures::Measured,
    guarded::Guarded,
    redis_server::RedisServer,
};

const FEW: u32 = 6_400;
const MANY: u32 = 38_400;
const IN_FLIGHT: u32 = 64;
/// Batches form differently in each run, so a single round varies by 1 %.
const ROUNDS: usize = 3;

/// Instructions and allocations for a decision.
struct PerDecision {
    instructions: f64,
    allocations: f64,
}

/// The figures of `contenders`.
pub(crate) fn all(contenders: &[&str]) -> Result<Measured, Failure> {
    let mut measured = Measured::new();
    eprintln!("counting: none");
    let none = client("none", 1, None)?;
    for contender in contenders {
        eprintln!("counting: {contender}");
        if *contender == "memory" {
            for (verdict, contender) in [("allowed", "memory"), ("denied", "memory-denied")] {
                let client = client(contender, 1, None)?;
                let above = client.instructions - none.instructions;
                measured.insert(format!("memory, {verdict}"), above.round());
                let above = client.allocations - none.allocations;
                measured.insert(format!("memory, {verdict}, allocations"), tenths(above));
            }
            continue;
        }
        let is_alone = contender.starts_with("alone");
        let server = RedisServer::start()?;
        let client = client(contender, if is_alone { 1 } else { IN_FLIGHT }, Some(server.url()))?;
        server.stop()?;
        measured.insert(format!("{contender}, client"), client.instructions.round());
        let above = client.allocations - none.allocations;
        measured.insert(format!("{contender}, allocations"), tenths(above));
        if is_alone {
            continue;
        }
        measured.insert(format!("{contender}, Redis"), redis(contender)?.instructions.round());
    }
    Ok(measured)
}

fn client(contender: &str, in_flight: u32, url: Option<String>) -> Result<PerDecision, Failure> {
    let url = url.map(|url| ("REDIS_URL", url));
    difference(|decisions| {
        let program = callgrind::command(work(contender, in_flight, decisions)?);
        Counts::of(&Guarded::start(&program, url.as_slice())?.wait()?)
    })
}

fn redis(contender: &str) -> Result<PerDecision, Failure> {
    difference(|decisions| {
        let server = RedisServer::start_counted()?;
        let work = work(contender, IN_FLIGHT, decisions)?;
        Guarded::start(&work, &[("REDIS_URL", server.url())])?.wait()?;
        Counts::of(&server.stop()?)
    })
}

/// The counted program, which `cargo build` puts beside this one.
pub(crate) fn work(contender: &str, in_flight: u32, decisions: u32) -> Result<Vec<String>, Failure> {
    let program = env::current_exe()?.with_file_name("workload");
    if !program.exists() {
        return Err(format!("there is no {}: use `make bench-instructions`", program.display()).into());
    }
    let program = program.display().to_string();
    Ok(vec![program, contender.to_owned(), in_flight.to_string(), decisions.to_string()])
}

/// The medians of the differences of a run of [`MANY`] and one of [`FEW`].
fn difference(run: impl Fn(u32) -> Result<Counts, Failure>) -> Result<PerDecision, Failure> {
    let (mut instructions, mut allocations) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let few = run(FEW)?;
        let more = run(MANY)? - few;
        instructions.push(more.instructions);
        allocations.push(more.allocations);
    }
    let median = |mut counts: Vec<u64>| {
        counts.sort_unstable();
        counts[ROUNDS / 2] as f64 / f64::from(MANY - FEW)
    };
    Ok(PerDecision { instructions: median(instructions), allocations: median(allocations) })
}

fn tenths(count: f64) -> f64 {
    (count * 10.0).round() / 10.0
}
