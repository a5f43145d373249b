//! Calls a second of the server, over a server in the same protocol that answers without deciding: `cargo test --release -p
//! ratelimit-server --test speed`. Prints Markdown. The figures mean something only on a machine that does nothing else.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "a report")]

#[allow(dead_code, reason = "of another program")]
mod process;

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use envoy_types::pb::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::{Code, DescriptorStatus},
    rate_limit_service_client::RateLimitServiceClient,
    rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
};
use support::RedisServer;
use tokio::{runtime::Runtime, sync::Semaphore, task::JoinSet, time::sleep};
use tonic::{
    Request, Response, Status,
    transport::{Channel, Server as Tonic, server::TcpIncoming},
};

use crate::process::{Files, Server, descriptor, request};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(2);
const USERS: u64 = 10_000;
/// The connections of the callers: Envoy has one for each of its threads.
const CONNECTIONS: usize = 2;
const LIMITS: &str = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: hour, requests_per_unit: 1000000000 } }
  - { key: path, rate_limit: { unit: day, requests_per_unit: 4000000000 } }
";

/// Answers that all is well.
struct Floor;

#[tonic::async_trait]
impl RateLimitService for Floor {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let status = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
        let statuses = vec![status; request.get_ref().descriptors.len()];
        Ok(Response::new(RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses,
            ..RateLimitResponse::default()
        }))
    }
}

/// What a round saw.
#[derive(Clone, Copy, Default)]
struct Figures {
    /// Calls a second.
    rate: f64,
    p50: f64,
    p99: f64,
    /// Microseconds of processor time for a call, of the server and of Redis.
    server: f64,
    redis: f64,
}

fn main() {
    let runtime = Runtime::new().unwrap();
    if env::var_os("FLOOR").is_some() {
        return runtime.block_on(async {
            let incoming =
                TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap().with_nodelay(Some(true));
            println!("{}", incoming.local_addr().unwrap());
            let service = RateLimitServiceServer::new(Floor);
            Tonic::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
        });
    }
    runtime.block_on(report());
}

async fn report() {
    let (files, redis) = (Files::new(LIMITS), RedisServer::start());
    let url = redis.url();
    let server = Server::begin(&files, &["--redis", &url], &[]);
    server.is_ready(true).await;
    let mut floor =
        Command::new(env::current_exe().unwrap()).env("FLOOR", "1").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(floor.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let floor_address: SocketAddr = line.trim().parse().unwrap();
    let processes = [floor.id(), server.id()];
    println!(
        "| descriptors | in flight | floor, calls/s | server, calls/s | share | p50 | p99 | server, µs/call | floor, µs/call | Redis, µs/call |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for descriptors in [1, 2] {
        for in_flight in [1, 16, 64, 256] {
            let mut rounds = [Vec::new(), Vec::new()];
            for _ in 0..ROUNDS {
                for (side, address) in [floor_address, server.calls].into_iter().enumerate() {
                    let pids = (processes[side], redis.pid());
                    rounds[side].push(round(address, descriptors, in_flight, None, pids).await);
                }
            }
            let [floor, server] = rounds.map(median);
            println!(
                "| {descriptors} | {in_flight} | {:.0} | {:.0} | {:.2} | {:.2} ms | {:.2} ms | {:.1} | {:.1} | {:.1} |",
                floor.rate,
                server.rate,
                server.rate / floor.rate,
                server.p50,
                server.p99,
                server.server,
                floor.server,
                server.redis
            );
        }
    }
    println!(
        "\n| descriptors | half load, calls/s | p50 | p99 | p99 of the floor at this rate |\n|---|---|---|---|---|"
    );
    for descriptors in [1, 2] {
        let pids = (processes[1], redis.pid());
        let half = round(server.calls, descriptors, 64, None, pids).await.rate / 2.0;
        let mut rounds = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (side, address) in [floor_address, server.calls].into_iter().enumerate() {
                rounds[side].push(round(address, descriptors, 64, Some(half), pids).await);
            }
        }
        let [floor, server] = rounds.map(median);
        println!(
            "| {descriptors} | {:.0} | {:.2} ms | {:.2} ms | {:.2} ms |",
            server.rate, server.p50, server.p99, floor.p99
        );
    }
    let late = server.metric("ratelimit_store_errors_total{kind=\"timeout\"}").await;
    println!("\ndecisions that were late: {late:?}");
    stop(&mut floor);
}

fn stop(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Calls with `in_flight` callers that call again immediately, or at `rate` calls a second.
async fn round(
    address: SocketAddr,
    descriptors: usize,
    in_flight: usize,
    rate: Option<f64>,
    (server, redis): (u32, u32),
) -> Figures {
    let mut channels = Vec::new();
    for _ in 0..CONNECTIONS.min(in_flight) {
        channels.push(Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap());
    }
    let (is_over, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut callers = JoinSet::new();
    let due = Arc::new(Semaphore::new(0));
    if let Some(rate) = rate {
        pace(rate, due.clone(), is_over.clone());
    }
    for caller in 0..in_flight {
        let mut client = RateLimitServiceClient::new(channels[caller % channels.len()].clone());
        let (is_over, calls, due) = (is_over.clone(), calls.clone(), due.clone());
        callers.spawn(async move {
            let mut times = Vec::with_capacity(1 << 14);
            while !is_over.load(Ordering::Relaxed) {
                if rate.is_some() {
                    due.acquire().await.unwrap().forget();
                }
                let mut asked = vec![descriptor(&format!("user={}", fastrand::u64(..USERS)))];
                if descriptors == 2 {
                    asked.push(descriptor(&format!("path={}", fastrand::u64(..USERS))));
                }
                let sent = Instant::now();
                let answer = client.should_rate_limit(request("d", &asked)).await.unwrap().into_inner();
                times.push(sent.elapsed().as_secs_f64() * 1_000.0);
                assert_eq!(answer.overall_code(), Code::Ok);
                calls.fetch_add(1, Ordering::Relaxed);
            }
            times
        });
    }
    // The first calls of a connection are slower.
    sleep(ROUND / 4).await;
    let before = (cpu(server), cpu(redis), calls.load(Ordering::Relaxed), Instant::now());
    sleep(ROUND).await;
    let made = (calls.load(Ordering::Relaxed) - before.2) as f64;
    let rate = made / before.3.elapsed().as_secs_f64();
    let (server, redis) = ((cpu(server) - before.0) / made, (cpu(redis) - before.1) / made);
    is_over.store(true, Ordering::Relaxed);
    let mut times: Vec<f64> = callers.join_all().await.into_iter().flatten().collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    Figures { rate, p50: at(0.5), p99: at(0.99), server, redis }
}

/// Lets `rate` calls a second begin, evenly: the timers of tokio would begin the calls of a millisecond together.
fn pace(rate: f64, due: Arc<Semaphore>, is_over: Arc<AtomicBool>) {
    thread::spawn(move || {
        let (begun, mut sent) = (Instant::now(), 0_u64);
        // The callers end too.
        while !is_over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_micros(50));
            let wanted = (begun.elapsed().as_secs_f64() * rate) as u64;
            due.add_permits((wanted - sent) as usize);
            sent = wanted;
        }
        due.add_permits(10_000);
    });
}

/// The processor time of a process in microseconds.
fn cpu(process: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // In hundredths of a second.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) * 10_000.0
}

fn median(mut rounds: Vec<Figures>) -> Figures {
    let mut of = |field: fn(&Figures) -> f64| {
        rounds.sort_by(|one, other| field(one).total_cmp(&field(other)));
        field(&rounds[rounds.len() / 2])
    };
    Figures {
        rate: of(|one| one.rate),
        p50: of(|one| one.p50),
        p99: of(|one| one.p99),
        server: of(|one| one.server),
        redis: of(|one| one.redis),
    }
}
