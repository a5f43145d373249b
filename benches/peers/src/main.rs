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
//! * `ONLY`: leaves out all but the contenders whose names contain this, or one of these between `|`, for a quick look.
//! * `SCENARIOS`: leaves out the scenarios of `loopback` that are not named, such as `stored8,eager8`.
//! * `PARTS` (`loopback,network,calls,growth,server`): leaves out the other parts.
//! * `DATA`: a file for all results as JSON, from which `draw` makes the pictures of docs/performance.md.
//!
//! The parts: `loopback` compares the contenders on one host. [`network`] does so with a network in between. [`calls`]
//! shows what a decision costs Redis by the size of its call, [`growth`] by the number of keys, the limit and the
//! policies. These use no HTTP connection: a request is an `http::Request` passed to the service. So two rows differ
//! only by the limiter. The last part, [`whole_server`], shows how much of that is left in a complete server.
//!
//! CPU time is measured for Redis's process and for this one, which is the client ([`cpu`]). What else runs on a
//! machine of few cores makes requests wait, but does not count as CPU time of either.

mod apart;
mod bench;
mod calls;
mod contender;
mod contenders;
mod counted;
mod cpu;
mod data;
mod figures;
mod format;
mod growth;
mod machine;
mod measure;
mod memory;
mod network;
mod proxy;
mod recorder;
mod redis_server;
mod report;
mod request;
mod scenario;
mod sections;
mod targets;
mod verify;
mod whole_server;

use std::{
    collections::HashMap,
    env,
    error::Error,
    fs,
    time::{Duration, Instant},
};

use bench::{Bench, Results, Services};
use contender::Contender;
use figures::Figures;
use memory::KeySize;
use scenario::Scenario;
use verify::Verified;

const PARTS: [&str; 5] = ["loopback", "network", "calls", "growth", "server"];

fn main() -> Result<(), Box<dyn Error>> {
    apart::spin_if_asked();
    proxy::forward_if_asked()?;
    counted::count_if_asked()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(compare())
}

async fn compare() -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let rounds = number("ROUNDS", 5)?;
    let time = Duration::from_millis(number("MILLIS", 700)? as u64);
    let parts = env::var("PARTS").unwrap_or_else(|_| PARTS.join(","));
    if let Some(unknown) = parts.split(',').find(|part| !PARTS.contains(part)) {
        return Err(format!("PARTS: {unknown:?} is not one of {}", PARTS.join(", ")).into());
    }
    let part = |name: &str| {
        let wanted = parts.split(',').any(|part| part == name);
        if wanted {
            eprintln!("{:4.0} s: {name}", started.elapsed().as_secs_f64());
        }
        wanted
    };
    let bench = Bench::start(rounds, time)?;
    let head = machine::head(&bench)?;

    let only = env::var("ONLY").unwrap_or_default();
    let mut contenders = contenders::all();
    contenders.retain(|contender| only.split('|').any(|part| contender.name.contains(part)));
    let (verified, services) = set_up(&bench, &contenders).await;

    let mut figures = Figures {
        contenders: &contenders,
        verified: &verified,
        results: Results::new(),
        networks: Vec::new(),
        calls: Vec::new(),
        growth: Vec::new(),
        sizes: HashMap::new(),
        short_key: None,
        whole_server: None,
    };
    if part("loopback") {
        figures.results = loopback(&bench, &services).await?;
        (figures.sizes, figures.short_key) = sizes(&bench, &services).await?;
    }
    if part("network") {
        let able: Vec<&Contender> = services.iter().map(|(contender, _)| *contender).collect();
        for round_trip in network::ROUND_TRIPS {
            figures.networks.push(network::measure(&bench, &able, round_trip).await?);
        }
    }
    drop(services);
    if part("calls") {
        figures.calls = tokio::task::block_in_place(|| calls::measure(&bench))?;
    }
    if part("growth") {
        figures.growth = growth::measure(&bench).await?;
    }
    if part("server") {
        figures.whole_server = Some(whole_server::measure(&bench)?);
    }

    let targets = targets::targets(&figures);
    println!("{head}\n{}{}", figures.document(&bench), targets::section(&targets));
    if let Some(server) = &figures.whole_server {
        println!("{}", server.section());
    }
    println!("The whole run took {:.0} s.", started.elapsed().as_secs_f64());
    if let Ok(path) = env::var("DATA") {
        let data = data::json(&figures, &bench, &head, &targets);
        fs::write(path, serde_json::to_string(&data)? + "\n")?;
    }
    Ok(())
}

type Set<'a> = Vec<(&'a Contender, Services)>;

/// A contender that cannot be set up keeps its row, with the reason.
async fn set_up<'a>(
    bench: &Bench,
    contenders: &'a [Contender],
) -> (HashMap<String, Result<Verified, String>>, Set<'a>) {
    let mut verified: HashMap<String, Result<Verified, String>> = HashMap::new();
    let mut services = Vec::new();
    for contender in contenders {
        eprintln!("verifying {}", contender.name);
        let made = match bench.cell.as_ref() {
            Err(problem) if contender.place == contender::Place::RedisCell => Err(problem.clone()),
            _ => match verify::verify(bench, contender).await {
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
    (verified, services)
}

async fn loopback(bench: &Bench, services: &Set<'_>) -> Result<Results, Box<dyn Error>> {
    let mut results = Results::new();
    let only = env::var("SCENARIOS").unwrap_or_default();
    let only: Vec<&str> = only.split(',').filter(|name| !name.is_empty()).collect();
    for round in 0..bench.rounds {
        eprintln!("round {} of {}", round + 1, bench.rounds);
        for scenario in Scenario::ALL {
            if !only.is_empty()
                && !only.iter().any(|name| name.eq_ignore_ascii_case(&format!("{scenario:?}")))
            {
                continue;
            }
            let first = round % services.len().max(1);
            for (contender, services) in services[first..].iter().chain(&services[..first]) {
                if scenario.is_for(contender.role) {
                    let rounds = results.entry((contender.name.clone(), scenario)).or_default();
                    bench.measure(contender, services, scenario, round, rounds).await?;
                }
            }
        }
    }
    Ok(results)
}

/// The memory of a key in Redis: by contender, and of a key of 20 bytes of ours.
async fn sizes(
    bench: &Bench,
    services: &Set<'_>,
) -> Result<(HashMap<String, KeySize>, Option<KeySize>), Box<dyn Error>> {
    let mut sizes: HashMap<String, KeySize> = HashMap::new();
    let mut short = None;
    for (contender, _) in services {
        if let Some(size) = memory::of(bench, contender, "rl", "client-of-20-bytes-1").await? {
            sizes.insert(contender.name.clone(), size);
        }
        if contender.role == contender::Role::OurRedis {
            // Together with the prefix `rl` and the policy's name, a key of 20 bytes.
            short = memory::of(bench, contender, "rl", "client-1").await?;
        }
    }
    Ok((sizes, short))
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
