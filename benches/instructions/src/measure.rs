//! Runs the contenders.

use std::env;

use crate::{
    Failure,
    callgrind::{self, Counts},
    guarded::Guarded,
    redis_server::RedisServer,
    results::Results,
};

const IN_FLIGHT: u32 = 64;
/// How many decisions are in each call of the contenders `stored` and `idle`.
const CALLS: &[u32] = &[1, 4, 16, 64];
/// The decisions of two runs, whose difference counts.
struct Runs {
    few: u32,
    many: u32,
    /// How often both run. The median counts.
    rounds: usize,
}

/// Batches form differently in each run, so a single round varies by 1 %.
const USUAL: Runs = Runs { few: 6_400, many: 38_400, rounds: 3 };
/// The 17th to 23rd charges of each of 256 keys. A stored key lives for twice the time until its quota is full again, so of
/// the next charges only those that double that time set the key again. None of these does: they are written in place.
/// All batches have the same size, so single rounds differ by less than 1 %.
const IN_PLACE: Runs = Runs { few: 16 * 256, many: 23 * 256, rounds: 1 };

/// What is counted for a decision.
struct PerDecision {
    instructions: f64,
    allocations: f64,
    script_calls: f64,
}

/// The figures of `contenders`.
pub(crate) fn all(contenders: &[&str]) -> Result<Results, Failure> {
    let mut results = Results::default();
    eprintln!("counting: none");
    let none = client("none", 1, None)?;
    for contender in contenders {
        eprintln!("counting: {contender}");
        match *contender {
            "memory" => {
                for (verdict, contender) in [
                    ("allowed", "memory"),
                    ("denied", "memory-denied"),
                    ("denied, recorded", "memory-denied-recorded"),
                    ("denied, many", "memory-denied-many"),
                    ("denied, many, recorded", "memory-denied-many-recorded"),
                    ("denied, flood", "memory-denied-flood"),
                    ("denied, flood, recorded", "memory-denied-flood-recorded"),
                ] {
                    let client = client(contender, 1, None)?;
                    let above = client.instructions - none.instructions;
                    results.figures.insert(format!("memory, {verdict}"), above.round());
                    let above = client.allocations - none.allocations;
                    results.figures.insert(format!("memory, {verdict}, allocations"), tenths(above));
                }
            }
            "memory-info" | "memory-spans" => {
                let above = client(contender, 1, None)?.instructions - none.instructions;
                results.figures.insert(format!("{contender}, allowed"), above.round());
            }
            "alone" => {
                results.count_client(contender, 1, &none)?;
                results.count_calls("idle", &[1])?;
            }
            "alone-stored" => {
                results.count_client(contender, 1, &none)?;
                results.count_calls("stored", &[1])?;
            }
            "stored" | "stored-pair" | "stored-window" | "stored-month" | "idle" | "idle-pair" => {
                results.count_calls(contender, CALLS)?;
            }
            "shared" | "shared-pair" | "pool" => results.count_calls(contender, &[4, 16, 64])?,
            "stored-headroom" | "denied" | "denied-headroom" | "denied-below" => {
                results.count_calls(contender, &[1, 64])?;
            }
            _ => {
                results.count_client(contender, IN_FLIGHT, &none)?;
                results.count_redis(format!("{contender}, Redis"), contender, IN_FLIGHT, &USUAL)?;
            }
        }
    }
    Ok(results)
}

impl Results {
    /// Counts what the service does for a decision of `contender`.
    fn count_client(&mut self, contender: &str, in_flight: u32, none: &PerDecision) -> Result<(), Failure> {
        let server = RedisServer::start()?;
        let client = client(contender, in_flight, Some(server.url()))?;
        server.stop()?;
        self.figures.insert(format!("{contender}, client"), client.instructions.round());
        let above = client.allocations - none.allocations;
        self.figures.insert(format!("{contender}, allocations"), tenths(above));
        Ok(())
    }

    /// Counts what Redis does for a decision of `contender` with each of these numbers of decisions in a call.
    fn count_calls(&mut self, contender: &str, sizes: &[u32]) -> Result<(), Failure> {
        for size in sizes {
            self.count_redis(format!("{contender}, {size} a call, Redis"), contender, *size, &IN_PLACE)?;
        }
        Ok(())
    }

    /// Counts what Redis does for a decision of `contender`, unless another contender has the same figure.
    fn count_redis(
        &mut self,
        name: String,
        contender: &str,
        in_flight: u32,
        runs: &Runs,
    ) -> Result<(), Failure> {
        if self.figures.contains_key(&name) {
            return Ok(());
        }
        let redis = difference(runs, |decisions| {
            let server = RedisServer::start_counted()?;
            let work = work(contender, in_flight, decisions)?;
            Guarded::start(&work, &[("REDIS_URL", server.url())])?.wait()?;
            let script_calls = server.script_calls()?;
            Ok(Counts { script_calls, ..Counts::of(&server.stop()?)? })
        })?;
        self.batches.insert(name.clone(), tenths(1.0 / redis.script_calls));
        self.figures.insert(name, redis.instructions.round());
        Ok(())
    }
}

fn client(contender: &str, in_flight: u32, url: Option<String>) -> Result<PerDecision, Failure> {
    let url = url.map(|url| ("REDIS_URL", url));
    difference(&USUAL, |decisions| {
        let program = callgrind::command(work(contender, in_flight, decisions)?);
        Counts::of(&Guarded::start(&program, url.as_slice())?.wait()?)
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

/// The medians of the differences of the two `runs`.
fn difference(runs: &Runs, run: impl Fn(u32) -> Result<Counts, Failure>) -> Result<PerDecision, Failure> {
    let (mut instructions, mut allocations, mut script_calls) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs.rounds {
        let few = run(runs.few)?;
        let more = run(runs.many)? - few;
        instructions.push(more.instructions);
        allocations.push(more.allocations);
        script_calls.push(more.script_calls);
    }
    let median = |mut counts: Vec<u64>| {
        counts.sort_unstable();
        counts[runs.rounds / 2] as f64 / f64::from(runs.many - runs.few)
    };
    Ok(PerDecision {
        instructions: median(instructions),
        allocations: median(allocations),
        script_calls: median(script_calls),
    })
}

fn tenths(count: f64) -> f64 {
    (count * 10.0).round() / 10.0
}
