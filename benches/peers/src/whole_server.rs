//! The second part: an axum server in its own process, under load from wrk, without a limit, with `MemoryStore` and
//! with `RedisStore`. Shows the cost of the limiter relative to sockets, HTTP and the router.
//!
//! The server, wrk and Redis share the machine's cores, as on a small host. All three servers run for the whole
//! time, and wrk visits one after the other.

use std::{
    env,
    error::Error,
    fmt::Write,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Instant,
};

use crate::{bench::median, redis_server::RedisServer, report::rate};

const CONNECTIONS: &str = "64";
const SECONDS: &str = "2s";
const WARM_UP: &str = "1s";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/wrk.lua");

const KINDS: [(&str, &str); 3] =
    [("none", "no layer"), ("memory", "with `MemoryStore`"), ("redis", "with `RedisStore`")];

pub(crate) fn section(redis: &RedisServer, rounds: usize) -> Result<String, Box<dyn Error>> {
    let mut text = format!(
        "## Whole server\n\nAn axum server in its own process, {CONNECTIONS} connections from wrk, 10 000 keys, all \
         allowed; medians; rounds: {rounds}, of {SECONDS}, interleaved.\n\n"
    );
    let version = match Command::new("wrk").arg("--version").output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned(),
        Err(error) => {
            let _ = writeln!(text, "Not measured: wrk does not start ({error}).");
            return Ok(text);
        }
    };
    let started = Instant::now();
    let servers = KINDS.map(|(kind, _)| Server::start(kind, &redis.url()));
    let mut servers = servers.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut runs: Vec<Vec<Run>> = servers.iter().map(|_| Vec::new()).collect();
    for server in &servers {
        wrk(server, WARM_UP)?;
    }
    for _ in 0..rounds {
        for (server, runs) in servers.iter().zip(&mut runs) {
            runs.push(wrk(server, SECONDS)?);
        }
    }
    servers.clear();

    text +=
        "| | requests/s | of no layer | p50 | p99 | answers other than 2xx |\n|---|---|---|---|---|---|\n";
    let rates: Vec<f64> = runs.iter().map(|runs| middle(runs, |run| run.rate)).collect();
    for (((_, name), runs), &requests) in KINDS.iter().zip(&runs).zip(&rates) {
        let _ = writeln!(
            text,
            "| {name} | {} | {:.2} | {:.0} us | {:.0} us | {:.0} |",
            rate(requests),
            requests / rates[0],
            middle(runs, |run| run.p50),
            middle(runs, |run| run.p99),
            runs.iter().map(|run| run.failed).sum::<f64>(),
        );
    }
    let _ = writeln!(text, "\n{version}; {:.0} s.", started.elapsed().as_secs_f64());
    Ok(text)
}

struct Server {
    process: Child,
    url: String,
}

impl Server {
    /// Starts the binary `server` from the folder of this binary. It ends when its standard input closes.
    fn start(kind: &str, redis: &str) -> Result<Self, Box<dyn Error>> {
        let mut process = Command::new(env::current_exe()?.with_file_name("server"))
            .args([kind, redis])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut url = String::new();
        if let Some(stdout) = process.stdout.take() {
            BufReader::new(stdout).read_line(&mut url)?;
        }
        Ok(Self { process, url: url.trim().to_owned() })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Run {
    rate: f64,
    /// Microseconds.
    p50: f64,
    p99: f64,
    failed: f64,
}

fn middle(runs: &[Run], of: fn(&Run) -> f64) -> f64 {
    median(&runs.iter().map(of).collect::<Vec<_>>())
}

fn wrk(server: &Server, time: &str) -> Result<Run, Box<dyn Error>> {
    let output = Command::new("wrk")
        .args(["--threads", "1", "--connections", CONNECTIONS, "--duration", time, "--latency"])
        .args(["--script", SCRIPT, &server.url])
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let field = |label: &str| text.lines().find_map(|line| line.trim().strip_prefix(label)).map(str::trim);
    let missing = || format!("wrk says: {text}{}", String::from_utf8_lossy(&output.stderr));
    // Requests without a response: "connect 0, read 0, write 0, timeout 0".
    let unanswered: f64 = field("Socket errors:")
        .map_or(0.0, |errors| errors.split([' ', ',']).filter_map(|word| word.parse::<f64>().ok()).sum());
    Ok(Run {
        rate: field("Requests/sec:").ok_or_else(missing)?.parse()?,
        p50: microseconds(field("50%").ok_or_else(missing)?)?,
        p99: microseconds(field("99%").ok_or_else(missing)?)?,
        failed: unanswered + field("Non-2xx or 3xx responses:").map_or(Ok(0.0), str::parse)?,
    })
}

/// Reads `843.00us`, `1.25ms` and `1.02s`.
fn microseconds(text: &str) -> Result<f64, Box<dyn Error>> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    for (unit, factor) in units {
        if let Some(number) = text.strip_suffix(unit) {
            return Ok(number.parse::<f64>()? * factor);
        }
    }
    Err(format!("{text:?} is no time").into())
}
