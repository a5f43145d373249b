//! What faults cost callers of a real Envoy: `cargo test --release -p ratelimit-server --test faults`. Prints Markdown, and
//! ends with an error if a promise is broken. Arguments name the parts: `restarts`, `kill`, `frozen`, `flood`, which takes
//! `FLOOD_SECONDS` (600).

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "a report")]

#[allow(dead_code, reason = "of another program")]
mod envoy;
#[allow(dead_code, reason = "of another program")]
mod process;

use std::{
    env, fs,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use envoy::{Envoy, Settings, program};
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use process::{Files, Server, descriptor, request};
use support::{RedisServer, eventually, redis_server::free_port};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    runtime::Runtime,
    task::JoinSet,
    time::sleep,
};

const CALLERS: usize = 64;
/// What is limited, and by what: a bucket, a window of Envoy's unit, a calendar month.
const LIMITED: [&str; 3] = ["gcra", "window", "month"];

/// The limits, of `units` each.
fn limits(units: u32) -> String {
    format!(
        "
domain: d
descriptors:
  - {{ key: kind, value: gcra, rate_limit: {{ policy: gcra }} }}
  - {{ key: kind, value: window, rate_limit: {{ unit: year, requests_per_unit: {units} }} }}
  - {{ key: kind, value: month, rate_limit: {{ policy: month }} }}
"
    )
}

fn policies(units: u32) -> String {
    format!(
        "
[[policies]]
name = 'gcra'
quota = '{units}/52weeks'
[[policies]]
name = 'month'
quota = '{units}/month'
"
    )
}

/// Two servers on one Redis, and an Envoy that asks them.
struct Setup {
    files: Files,
    redis: RedisServer,
    addresses: [SocketAddr; 2],
    servers: [Option<Server>; 2],
    envoy: Envoy,
    policies: String,
}

impl Setup {
    async fn new(units: u32) -> Option<Self> {
        let program = program()?;
        let (files, redis) = (Files::new(&limits(units)), RedisServer::start());
        let policies = files.beside("policies.toml", &policies(units));
        // No connection from this host has these addresses, so the ports stay free while a server restarts.
        let addresses = [2, 3].map(|last| SocketAddr::from(([127, 0, 0, last], free_port())));
        let settings = Settings {
            servers: addresses.to_vec(),
            rate_limits: "[{ actions: [{ request_headers: { header_name: x-kind, descriptor_key: kind } }] }]",
            is_quick_to_check: true,
            ..Settings::default()
        };
        let envoy = Envoy::start(&program, &settings).await;
        let mut setup = Self { files, redis, addresses, servers: [None, None], envoy, policies };
        setup.start(0).await;
        setup.start(1).await;
        setup.envoy.sees(2).await;
        Some(setup)
    }

    async fn start(&mut self, at: usize) {
        let (url, address) = (self.redis.url(), self.addresses[at].to_string());
        let options =
            ["--redis", &url, "--policies", &self.policies, "--shutdown-delay", "2s", "--listen", &address];
        let server = Server::begin(&self.files, &options, &[]);
        server.is_ready(true).await;
        self.servers[at] = Some(server);
    }

    /// Changes all limits on both servers.
    async fn change(&self, units: u32) {
        self.files.write("limits.yaml", &limits(units));
        self.files.beside("policies.toml", &policies(units));
        let text = format!("{units}/");
        for server in self.servers.iter().flatten() {
            let applied = async || server.get("/config").await.1.matches(&text).count() == 3;
            assert!(eventually(applied).await, "{}", server.get("/config").await.1);
        }
    }
}

/// What callers saw.
#[derive(Default)]
struct Seen {
    admitted: [AtomicU64; 3],
    denied: [AtomicU64; 3],
    others: AtomicU64,
    /// In microseconds.
    longest: AtomicU64,
}

impl Seen {
    fn admitted(&self) -> [u64; 3] {
        [0, 1, 2].map(|at| self.admitted[at].load(Ordering::Relaxed))
    }

    /// Waits until each limit has denied this many more requests.
    async fn is_exhausted(&self) {
        let before = [0, 1, 2].map(|at| self.denied[at].load(Ordering::Relaxed));
        let all =
            eventually(async || (0..3).all(|at| self.denied[at].load(Ordering::Relaxed) > before[at] + 500));
        assert!(all.await, "{:?}", self.admitted());
    }
}

/// Callers that call until they are stopped.
struct Load {
    seen: Arc<Seen>,
    is_over: Arc<AtomicBool>,
    callers: JoinSet<()>,
}

impl Load {
    fn begin(envoy: &Envoy) -> Self {
        let (seen, is_over) = (Arc::new(Seen::default()), Arc::new(AtomicBool::new(false)));
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (seen, is_over, url) = (seen.clone(), is_over.clone(), envoy.url("/"));
            callers.spawn(async move {
                let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
                let mut turn = caller;
                while !is_over.load(Ordering::Relaxed) {
                    let at = turn % 3;
                    turn += 1;
                    let request =
                        Request::get(&url).header("x-kind", LIMITED[at]).body(Empty::new()).unwrap();
                    let sent = Instant::now();
                    let status = match client.request(request).await {
                        Ok(response) => {
                            let status = response.status().as_u16();
                            let _ = response.into_body().collect().await;
                            status
                        }
                        Err(_) => 0,
                    };
                    seen.longest.fetch_max(sent.elapsed().as_micros() as u64, Ordering::Relaxed);
                    match status {
                        200 => &seen.admitted[at],
                        429 => &seen.denied[at],
                        _ => &seen.others,
                    }
                    .fetch_add(1, Ordering::Relaxed);
                    sleep(Duration::from_millis(30)).await;
                }
            });
        }
        Self { seen, is_over, callers }
    }

    async fn end(self) -> Arc<Seen> {
        self.is_over.store(true, Ordering::Relaxed);
        self.callers.join_all().await;
        self.seen
    }
}

async fn print_row(name: &str, limit: u64, seen: &Seen, envoy: &Envoy) {
    let admitted = seen.admitted().map(|units| format!("{:+}", units as i64 - limit as i64)).join(", ");
    let (others, longest) = (seen.others.load(Ordering::Relaxed), seen.longest.load(Ordering::Relaxed));
    let errors = envoy.stat("cluster.service.ratelimit.error").await;
    let requests: u64 = seen.denied.iter().map(|denied| denied.load(Ordering::Relaxed)).sum::<u64>()
        + seen.admitted().iter().sum::<u64>();
    let longest = longest as f64 / 1_000.0;
    if errors > 0 {
        eprintln!("{}", envoy.stats("cluster.limits").await);
    }
    println!("| {name} | {limit} | {admitted} | {requests} | {others} | {errors} | {longest:.0} ms |");
}

fn main() {
    let chosen: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let runs = |part: &str| chosen.is_empty() || chosen.iter().any(|chosen| chosen == part);
    let runtime = Runtime::new().unwrap();
    if ["restarts", "kill", "frozen"].iter().any(|part| runs(part)) {
        println!(
            "| fault | limit | admitted beyond the limit: bucket, window, month | requests | errors of clients | calls that failed | longest request |"
        );
        println!("|---|---|---|---|---|---|---|");
    }
    if runs("restarts") {
        runtime.block_on(restarts());
    }
    if runs("kill") {
        runtime.block_on(kill());
    }
    if runs("frozen") {
        runtime.block_on(frozen());
    }
    if runs("flood") {
        runtime.block_on(flood());
    }
}

/// Graceful restarts of both servers in turn, and limits that are raised and lowered.
async fn restarts() {
    let Some(mut setup) = Setup::new(2_000).await else { return };
    let load = Load::begin(&setup.envoy);
    let mut limit = 2_000;
    for (round, next) in [3_000, 2_500, 5_000, 6_000].into_iter().enumerate() {
        let at = round % 2;
        let mut stopping = setup.servers[at].take().unwrap();
        let code = tokio::task::spawn_blocking(move || stopping.stop()).await.unwrap();
        assert_eq!(code, Some(0));
        setup.start(at).await;
        setup.envoy.sees(2).await;
        load.seen.is_exhausted().await;
        print_row("restart", limit, &load.seen, &setup.envoy).await;
        assert_eq!(load.seen.admitted(), [limit; 3]);
        setup.change(next).await;
        // A lower limit admits nothing.
        limit = limit.max(next.into());
    }
    load.seen.is_exhausted().await;
    let seen = load.end().await;
    print_row("restarts, raised and lowered", limit, &seen, &setup.envoy).await;
    assert_eq!(seen.admitted(), [limit; 3]);
}

/// A server is killed, and starts again.
async fn kill() {
    let Some(mut setup) = Setup::new(20_000).await else { return };
    let load = Load::begin(&setup.envoy);
    for _ in 0..3 {
        sleep(Duration::from_secs(1)).await;
        setup.servers[0].take().unwrap().signal("KILL");
        sleep(Duration::from_secs(1)).await;
        setup.start(0).await;
        setup.envoy.sees(2).await;
    }
    load.seen.is_exhausted().await;
    let seen = load.end().await;
    print_row("kill -9, three times", 20_000, &seen, &setup.envoy).await;
    let most = 3 * CALLERS as u64;
    assert!(seen.admitted().iter().all(|units| units.abs_diff(20_000) <= most), "{:?}", seen.admitted());
}

/// Redis does not answer for five seconds.
async fn frozen() {
    let Some(setup) = Setup::new(20_000).await else { return };
    let load = Load::begin(&setup.envoy);
    sleep(Duration::from_secs(1)).await;
    setup.redis.signal("STOP");
    let before = load.seen.admitted();
    sleep(Duration::from_secs(5)).await;
    let within: Vec<u64> =
        load.seen.admitted().iter().zip(before).map(|(after, before)| after - before).collect();
    setup.redis.signal("CONT");
    load.seen.is_exhausted().await;
    let seen = load.end().await;
    print_row(&format!("Redis frozen for 5 s, {within:?} admitted then"), 20_000, &seen, &setup.envoy).await;
    assert_eq!(seen.others.load(Ordering::Relaxed), 0);
}

/// Hostile callers, beside one that is not.
async fn flood() {
    let time = env::var("FLOOD_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(600);
    let end = Instant::now() + Duration::from_secs(time);
    let files = Files::new(
        "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 10 } }
  - { key: good, rate_limit: { unit: second, requests_per_unit: 1000000 } }
",
    );
    let redis = RedisServer::start();
    let url = redis.url();
    let server = Server::begin(&files, &["--redis", &url], &[("RUST_BACKTRACE", "1")]);
    server.is_ready(true).await;
    let good = server.caller().await;
    let calls = server.calls;
    let (hostile, other) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut callers = JoinSet::new();
    for _ in 0..16 {
        // Descriptors that were never seen, and limits of the request's own.
        let (caller, hostile) = (server.caller().await, hostile.clone());
        callers.spawn(async move {
            while Instant::now() < end {
                let mut new = descriptor(&format!("user={:x}", fastrand::u128(..)));
                if fastrand::bool() {
                    new = process::with_limit(&format!("user={:x}", fastrand::u128(..)), fastrand::u32(..), envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit::Minute);
                }
                let _ = caller.call(request("d", &vec![new; fastrand::usize(1..80)])).await;
                hostile.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Calls that are too large.
        let (caller, hostile) = (server.caller().await, other.clone());
        callers.spawn(async move {
            let large = descriptor(&format!("user={}", "a".repeat(3_000_000)));
            while Instant::now() < end {
                assert!(caller.call(request("d", std::slice::from_ref(&large))).await.is_err());
                hostile.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    for number in 0..200 {
        let hostile = other.clone();
        callers.spawn(async move {
            while Instant::now() < end {
                let Ok(mut stream) = TcpStream::connect(calls).await else { continue };
                hostile.fetch_add(1, Ordering::Relaxed);
                match number % 4 {
                    // Silence, until the server ends it.
                    0 => drop(stream.read(&mut [0; 64]).await),
                    // Bytes without frames.
                    1 => {
                        let bytes: Vec<u8> = (0..4_096).map(|_| fastrand::u8(..)).collect();
                        let _ = stream.write_all(&bytes).await;
                        let _ = stream.read(&mut [0; 64]).await;
                    }
                    // A preface, then broken frames.
                    2 => {
                        let _ =
                            stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
                        let frame: Vec<u8> = (0..9).map(|_| fastrand::u8(..)).collect();
                        let _ = stream.write_all(&[&[0, 0, 64][..], &frame[3..], &[7; 64]].concat()).await;
                        let _ = stream.read(&mut [0; 64]).await;
                    }
                    // Streams that begin a large message, slowly, and an answer that is not read.
                    _ => slow(&mut stream, end).await,
                }
            }
        });
    }
    let (mut served, mut failed, mut longest, mut most) = (0_u64, 0_u64, Duration::ZERO, 0);
    while Instant::now() < end {
        let sent = Instant::now();
        let answer = good.call(request("d", &[descriptor("good=1")])).await;
        longest = longest.max(sent.elapsed());
        match answer {
            Ok(_) => served += 1,
            Err(status) => {
                failed += 1;
                eprintln!("{status}");
            }
        }
        most = most.max(memory(server.id()));
        sleep(Duration::from_millis(20)).await;
    }
    callers.join_all().await;
    let used: String = redis.command(&["INFO", "memory"]);
    let used =
        used.lines().find_map(|line| line.strip_prefix("used_memory_peak_human:")).unwrap_or("?").to_owned();
    println!(
        "| flood | new descriptors | other hostile acts | most memory of the server | of Redis | calls of another caller | failed | longest | panics |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let panics = server.log().matches("panicked").count();
    println!(
        "| {time} s | {} calls | {} | {} MB | {used} | {served} | {failed} | {longest:.1?} | {panics} |",
        hostile.load(Ordering::Relaxed),
        other.load(Ordering::Relaxed),
        most / 1_024
    );
    assert!(failed == 0 && panics == 0);
}

/// Opens streams with headers of a call, and sends a byte of their messages now and then.
async fn slow(stream: &mut TcpStream, end: Instant) {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    let path = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    for id in (1_u32..200).step_by(2) {
        // Literal headers without Huffman: method POST, scheme http, a path, an authority, a content type.
        let mut block = vec![0x83, 0x86, 0x04, path.len() as u8];
        block.extend(path);
        block.extend([0x01, 1, b'a', 0x0f, 0x10, 16]);
        block.extend(b"application/grpc");
        bytes.extend([0, 0, block.len() as u8, 1, 4]);
        bytes.extend(id.to_be_bytes());
        bytes.extend(block);
        // A message of 32,000 bytes begins.
        bytes.extend([0, 0, 5, 0, 0]);
        bytes.extend(id.to_be_bytes());
        bytes.extend([0, 0, 0, 0x7d, 0]);
    }
    if stream.write_all(&bytes).await.is_err() {
        return;
    }
    for _ in 0..10 {
        sleep(Duration::from_secs(1)).await;
        if Instant::now() > end || stream.write_all(&[0, 0, 1, 0, 0, 0, 0, 0, 1, 0]).await.is_err() {
            return;
        }
    }
}

/// The memory of a process in KB.
fn memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
