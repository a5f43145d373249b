//! The second part: an axum server in its own process, under load from wrk, without a limit, with `MemoryStore`, with
//! `RedisStore` and with the layer of tower-redis-cell. Shows the cost of the limiter relative to sockets, HTTP and the
//! router.
//!
//! The server, wrk and Redis share the machine's cores, as on a small host. All servers run for the whole time, and wrk
//! visits one after the other.

use std::{
    env,
    error::Error,
    fmt::Write,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use serde::Serialize;

use crate::{
    bench::{Bench, median},
    format::rate,
    redis_server::RedisServer,
};

const CONNECTIONS: [u32; 5] = [4, 8, 16, 32, 64];
const SECONDS: &str = "2s";
const WARM_UP: &str = "1s";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/wrk.lua");

const KINDS: [(&str, &str); 4] = [
    ("none", "no layer"),
    ("memory", "with `MemoryStore`"),
    ("redis", "with `RedisStore`"),
    ("module", "tower-redis-cell, TCP_NODELAY"),
];

/// The median of each kind, or why it is missing.
pub(crate) struct WholeServer {
    pub(crate) rows: Result<Vec<Row>, String>,
    rounds: usize,
    wrk: String,
}

#[derive(Serialize)]
pub(crate) struct Row {
    kind: &'static str,
    name: &'static str,
    connections: u32,
    /// The part of the requests a second without a layer.
    share: f64,
    run: Run,
}

pub(crate) fn measure(bench: &Bench) -> Result<WholeServer, Box<dyn Error>> {
    let rounds = bench.rounds;
    let version = match Command::new("wrk").arg("--version").output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned(),
        Err(error) => {
            let rows = Err(format!("wrk does not start ({error})"));
            return Ok(WholeServer { rows, rounds, wrk: String::new() });
        }
    };
    let module = bench.cell.as_ref().ok().map(RedisServer::url);
    let kinds = KINDS.iter().filter(|(kind, _)| *kind != "module" || module.is_some());
    let servers = kinds.map(|&(kind, name)| {
        let url = if kind == "module" { module.clone() } else { Some(bench.plain.url()) };
        Ok((kind, name, Server::start(kind, &url.unwrap_or_default())?))
    });
    let servers = servers.collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    for (.., server) in &servers {
        wrk(server, 64, WARM_UP)?;
    }
    let mut rows = Vec::new();
    for connections in CONNECTIONS {
        let mut runs: Vec<Vec<Run>> = servers.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for ((.., server), runs) in servers.iter().zip(&mut runs) {
                runs.push(wrk(server, connections, SECONDS)?);
            }
        }
        let rates: Vec<f64> = runs.iter().map(|runs| middle(runs, |run| run.rate)).collect();
        rows.extend(servers.iter().zip(&runs).zip(&rates).map(|((&(kind, name, _), runs), &rate)| Row {
            kind,
            name,
            connections,
            share: rate / rates[0],
            run: Run {
                rate,
                p50: middle(runs, |run| run.p50),
                p99: middle(runs, |run| run.p99),
                failed: runs.iter().map(|run| run.failed).sum(),
            },
        }));
    }
    Ok(WholeServer { rows: Ok(rows), rounds, wrk: version })
}

impl WholeServer {
    /// The row of a kind of server, if all its answers were right.
    fn row(&self, kind: &str, connections: u32) -> Option<&Row> {
        let mut rows = self.rows.as_ref().ok()?.iter();
        rows.find(|row| row.kind == kind && row.connections == connections && row.run.failed == 0.0)
    }

    pub(crate) fn share(&self, kind: &str) -> Option<f64> {
        self.row(kind, 64).map(|row| row.share)
    }

    /// Requests/s with `RedisStore` over those with the module's layer.
    pub(crate) fn over_module(&self, connections: u32) -> Option<f64> {
        Some(self.row("redis", connections)?.run.rate / self.row("module", connections)?.run.rate)
    }

    pub(crate) fn section(&self) -> String {
        let mut text = format!(
            "## Whole server\n\nAn axum server in its own process, 10,000 keys, all allowed; medians; rounds: {}, of \
             {SECONDS}, interleaved.\n\n",
            self.rounds
        );
        let rows = match &self.rows {
            Ok(rows) => rows,
            Err(problem) => {
                let _ = writeln!(text, "Not measured: {problem}.");
                return text;
            }
        };
        text += "| connections from wrk | | requests/s | of no layer | p50 | p99 | answers other than 2xx |\n\
                 |---|---|---|---|---|---|---|\n";
        for Row { name, connections, share, run, .. } in rows {
            let _ = writeln!(
                text,
                "| {connections} | {name} | {} | {share:.2} | {:.0} µs | {:.0} µs | {:.0} |",
                rate(run.rate),
                run.p50,
                run.p99,
                run.failed,
            );
        }
        let _ = writeln!(text, "\n{}", self.wrk);
        text
    }
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

#[derive(Serialize)]
struct Run {
    /// Requests a second.
    rate: f64,
    /// Microseconds.
    p50: f64,
    p99: f64,
    failed: f64,
}

fn middle(runs: &[Run], of: fn(&Run) -> f64) -> f64 {
    median(&runs.iter().map(of).collect::<Vec<_>>())
}

fn wrk(server: &Server, connections: u32, time: &str) -> Result<Run, Box<dyn Error>> {
    let output = Command::new("wrk")
        .args(["--threads", "1", "--connections", &connections.to_string(), "--duration", time, "--latency"])
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
    Err(format!("{text:?} is not a time").into())
}
