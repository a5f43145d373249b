//! Two processes start and are flooded immediately.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Instant,
};

use crate::promises::Promises;
use support::RedisServer;

const LIMIT: u64 = 1_000;
const SECONDS: u64 = 4;

struct Quickstart {
    process: Child,
    url: String,
    /// What it logged about outages.
    log: Arc<Mutex<Vec<String>>>,
}

impl Quickstart {
    fn start(redis: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_quickstart-under-faults"))
            .env("PORT", "0")
            .env("REDIS_URL", redis)
            .env("LIMIT", LIMIT.to_string())
            .env("PERIOD_SECS", "3600")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let url = lines.by_ref().find_map(|line| {
            let line = line.unwrap();
            line.contains("listening on").then(|| format!("http://{}/", address(&line)))
        });
        // Reads it all, so that the process never waits for a full pipe.
        let log = Arc::new(Mutex::new(Vec::new()));
        let outages = log.clone();
        std::thread::spawn(move || {
            let outage = lines.map_while(Result::ok).filter(|line| line.contains("outage"));
            outage.for_each(|line| outages.lock().unwrap().push(line));
        });
        Self { process, log, url: url.unwrap_or_else(|| panic!("the quickstart ended")) }
    }
}

impl Drop for Quickstart {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn address(line: &str) -> &str {
    let rest = line.split("http://").nth(1).unwrap_or_default();
    rest.split(',').next().unwrap_or_default()
}

pub(crate) fn print(promises: &mut Promises) {
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    println!("## Cold start\n");
    println!(
        "Two processes of the quickstart ({profile}) on one Redis, with the defaults of the crate, a limit of {LIMIT} an \
         hour, and wrk for {SECONDS} s from the moment they listen. One unit is replenished every 3.6 s.\n"
    );
    println!("| connections | requests | admitted |");
    println!("|---|---|---|");
    for connections in [64, 256, 1024] {
        let redis = RedisServer::start();
        let processes = [Quickstart::start(&redis.url()), Quickstart::start(&redis.url())];
        let started = Instant::now();
        let clients = processes.each_ref().map(|process| {
            Command::new("wrk")
                .args([
                    "-t1",
                    &format!("-c{}", connections / 2),
                    &format!("-d{SECONDS}s"),
                    "--timeout",
                    "20s",
                ])
                .arg(&process.url)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap_or_else(|error| panic!("cannot run wrk, which `make test-faults` installs: {error}"))
        });
        let mut requests = 0;
        let mut rejected = 0;
        for client in clients {
            let output = String::from_utf8(client.wait_with_output().unwrap().stdout).unwrap();
            requests += number_before(&output, " requests in");
            rejected += output
                .lines()
                .find_map(|line| line.trim().strip_prefix("Non-2xx or 3xx responses: "))
                .map_or(0, |number| number.trim().parse().unwrap());
        }
        let most = LIMIT + started.elapsed().as_millis() as u64 / 3_600 + 1;
        let admitted = requests - rejected;
        let mark = promises.check((LIMIT..=most).contains(&admitted), || {
            let logs = processes.each_ref().map(|process| process.log.lock().unwrap().join("\n"));
            format!("{connections} connections: {admitted} admitted, at most {most}\n{}", logs.join("\n"))
        });
        println!("| {connections} | {requests} | {admitted}{mark} |");
    }
}

fn number_before(text: &str, words: &str) -> u64 {
    let line = text.lines().find_map(|line| line.split(words).next().filter(|start| *start != line));
    line.unwrap_or_else(|| panic!("wrk prints no total: {text}")).trim().parse().unwrap()
}
