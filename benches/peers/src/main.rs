//! Compares tower-ratelimit with its peers: every limiter around the same empty handler, in one process, on the same
//! Redis, in one run, so that the ratios are comparable. Prints one Markdown document.
//!
//! ```text
//! benches/peers/run                          # all of it; needs redis-server, and wrk for the second part
//! ROUNDS=1 MILLIS=200 ONLY=tower-ratelimit benches/peers/run
//! ```
//!
//! * `ROUNDS` (5): how often each is measured. Round 1 of all comes before round 2 of all, and each round begins
//!   with another contender, so that other load on the machine affects all equally. Medians are printed.
//! * `MILLIS` (700): how long one measurement takes, after a warm-up of a quarter of it.
//! * `ONLY`: leaves out all but the contenders whose names contain this, for a quick look.
//!
//! The first part uses no HTTP connection: a request is an `http::Request` passed to the service. So two rows differ
//! only by the limiter. The second part, [`whole_server`], shows how much of that is left in a
//! complete server.

mod apart;
mod bench;
mod contender;
mod contenders;
mod machine;
mod measure;
mod memory;
mod redis_server;
mod report;
mod request;
mod scenario;
mod targets;
mod verify;
mod whole_server;

use std::{
    collections::HashMap,
    env,
    error::Error,
    time::{Duration, Instant},
};

use bench::{Bench, Results};
use memory::KeySize;
use scenario::Scenario;
use verify::Verified;

fn main() -> Result<(), Box<dyn Error>> {
    apart::spin_if_asked();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(compare())
}

async fn compare() -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let rounds = number("ROUNDS", 5)?;
    let time = Duration::from_millis(number("MILLIS", 700)? as u64);
    let bench = Bench::start(rounds, time)?;
    let head = machine::head(&bench)?;

    let only = env::var("ONLY").unwrap_or_default();
    let mut contenders = contenders::all();
    contenders.retain(|contender| contender.name.contains(&only));

    // A contender that cannot be set up keeps its row, with the reason.
    let mut verified: HashMap<String, Result<Verified, String>> = HashMap::new();
    let mut services = Vec::new();
    for contender in &contenders {
        eprintln!("verifying {}", contender.name);
        let made = match bench.cell.as_ref() {
            Err(problem) if contender.place == contender::Place::RedisCell => Err(problem.clone()),
            _ => match verify::verify(&bench, contender).await {
                Ok(found) => match bench.services(contender).await {
                    Ok(made) => {
                        services.push((contender, made));
                        Ok(found)
                    }
                    Err(error) => Err(error.to_string()),
                },
                Err(error) => Err(error.to_string()),
            },
        };
        verified.insert(contender.name.clone(), made);
    }

    let mut results = Results::new();
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for scenario in Scenario::ALL {
            let first = round % services.len().max(1);
            for (contender, services) in services[first..].iter().chain(&services[..first]) {
                if scenario.is_for(contender.place) {
                    let rounds = results.entry((contender.name.clone(), scenario)).or_default();
                    bench.measure(contender, services, scenario, round, rounds).await?;
                }
            }
        }
    }
    services.clear();

    let mut sizes: HashMap<String, KeySize> = HashMap::new();
    let mut short = None;
    for contender in &contenders {
        if !matches!(verified.get(&contender.name), Some(Ok(_))) {
            continue;
        }
        if let Some(size) = memory::of(&bench, contender, "rl", "client-of-20-bytes-1").await? {
            sizes.insert(contender.name.clone(), size);
        }
        if contender.role == contender::Role::OurRedis {
            // Together with the prefix `rl` and the policy's name, a key of 20 bytes.
            short = memory::of(&bench, contender, "rl", "client-1").await?;
        }
    }

    let report =
        report::Report { contenders: &contenders, verified: &verified, results: &results, sizes: &sizes };
    println!("{head}\n{}", report.document(&bench));
    println!("{}", targets::table(&report, short.as_ref()));

    eprintln!("whole servers");
    println!("{}", whole_server::section(&bench.plain, rounds)?);
    println!("The whole run took {:.0} s.", started.elapsed().as_secs_f64());
    Ok(())
}

fn number(name: &str, default: usize) -> Result<usize, String> {
    match env::var(name) {
        Err(_) => Ok(default),
        Ok(text) => match text.parse() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("{name} must be a number above 0, not {text:?}")),
        },
    }
}
