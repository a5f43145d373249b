//! Ten clients that try to lower the limits of twenty others, over real sockets.

use std::{
    net::SocketAddr,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::Path,
    routing::{get, post},
};
use bytes::Bytes;
use http::StatusCode;
use support::http::{Client, serve};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::{advance, sleep},
};
use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, store::ManualClock};
use tower_ratelimit_extra::adaptive::{Adaptive, AdaptivePolicy, Aimd, Gradient, LoadMeter, Signal, Vegas};

const MILLI: Duration = Duration::from_millis(1);
const TARGET: Duration = Duration::from_millis(400);
/// More than ten seconds, after which `Gradient` and `Vegas` renew their baseline.
const ATTACK: Duration = Duration::from_secs(14);

/// Each law on 200 requests in flight and on 1000 requests a second. They hold, or they deny, so one service can have all.
struct Limits {
    policies: Vec<AdaptivePolicy>,
    clock: ManualClock,
}

impl Limits {
    fn new() -> (Self, Vec<LoadMeter>) {
        let meters: Vec<_> = (0..6).map(|_| LoadMeter::new()).collect();
        let signals: [Signal; 6] = [
            Aimd::new(&meters[0], TARGET).into(),
            Aimd::new(&meters[1], TARGET).into(),
            Gradient::new(&meters[2]).into(),
            Gradient::new(&meters[3]).into(),
            Vegas::new(&meters[4]).into(),
            Vegas::new(&meters[5]).into(),
        ];
        let quotas = ["aimd", "gradient", "vegas"].into_iter().flat_map(|law| {
            let rate = Quota::per_second(1_000);
            [Policy::concurrency(&format!("{law} in flight"), 200), Policy::new(&format!("{law} rate"), rate)]
        });
        let follow = |(policy, signal): (_, Signal)| Adaptive::new(policy).follow(signal).start().unwrap();
        (Self { policies: quotas.zip(signals).map(follow).collect(), clock: ManualClock::new() }, meters)
    }

    /// A service behind all limits.
    async fn serve(&self, meters: Vec<LoadMeter>) -> SocketAddr {
        // More than the buffers of a connection hold.
        static LARGE: LazyLock<Bytes> = LazyLock::new(|| vec![0; 16 << 20].into());
        let hello = async || {
            sleep(TARGET / 2).await;
            "hello"
        };
        let status = async |Path(status): Path<u16>| StatusCode::from_u16(status).unwrap();
        let mut app = Router::new()
            .route("/", get(hello))
            .route("/upload", post(async |_: String| "thanks"))
            .route("/large", get(async || LARGE.clone()))
            .route("/status/{status}", get(status));
        for meter in meters {
            app = app.layer(meter);
        }
        let store = MemoryStore::with_clock(self.clock.clone());
        for policy in &self.policies {
            app = app.layer(RateLimitLayer::new(store.clone(), policy, Key::new("all")));
        }
        serve(app).await
    }

    /// Lets time pass in small steps, each as long as the sockets need, however fast the machine is.
    async fn pass(&self, time: Duration) {
        const STEP: Duration = Duration::from_millis(5);
        for _ in 0..time.as_micros() / STEP.as_micros() {
            // The runtime does not move its clock while this runs.
            let pause = || std::thread::sleep(Duration::from_micros(200));
            tokio::task::spawn_blocking(pause).await.unwrap();
            self.clock.advance(STEP);
            advance(STEP).await;
        }
    }
}

/// Runs ten times what `attack` does with the address of the service and a number, until it is over. Asserts that others are
/// served and that no quota falls.
async fn honest_clients_are_served_during<A, F>(attack: A)
where
    A: Fn(SocketAddr, u64) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let (limits, meters) = Limits::new();
    let server = limits.serve(meters).await;
    let (served, denied) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut clients = JoinSet::new();
    for _ in 0..20 {
        let (served, denied) = (served.clone(), denied.clone());
        clients.spawn(async move {
            let (client, url) = (Client::new(), format!("http://{server}/"));
            loop {
                let response = client.get(&url).await;
                if response.status() == StatusCode::OK {
                    served.fetch_add(1, Relaxed);
                } else {
                    denied.fetch_add(1, Relaxed);
                    sleep(TARGET / 2).await;
                }
            }
        });
    }
    limits.pass(MILLI * 1_000).await;
    for number in 0..10 {
        clients.spawn(attack(server, number));
    }
    let mut least = vec![1.0_f64; limits.policies.len()];
    for _ in 0..ATTACK.as_millis() / 250 {
        limits.pass(MILLI * 250).await;
        least.iter_mut().zip(&limits.policies).for_each(|(least, policy)| *least = least.min(policy.share()));
    }
    let (served, denied) = (served.load(Relaxed), denied.load(Relaxed));
    let names = limits.policies.iter().map(|policy| policy.policy().name().to_owned());
    let shares: Vec<_> = names.zip(&least).collect();
    let seen = format!("served {served}, denied {denied}; least shares {shares:?}");
    assert!(served > 1_000 && denied * 20 <= served, "{seen}");
    assert!(least.iter().all(|share| *share > 0.95), "{seen}");
}

/// Sends the head of a request on a separate connection.
async fn begin(server: SocketAddr, head: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut connection = socket.connect(server).await.unwrap();
    let head = format!("{head}\r\nhost: test\r\nconnection: close\r\n");
    connection.write_all(head.as_bytes()).await.unwrap();
    connection
}

const UPLOAD: &str = "POST /upload HTTP/1.1";

#[tokio::test(start_paused = true)]
async fn slow_uploads_of_a_few_clients_do_not_lower_the_quota_of_others() {
    honest_clients_are_served_during(async |server, _| {
        loop {
            let mut upload = begin(server, UPLOAD).await;
            upload.write_all(b"content-length: 2\r\n\r\n1").await.unwrap();
            sleep(MILLI * 500).await;
            // If it was denied, the connection is closed.
            let _ = upload.write_all(b"2").await;
            let _ = upload.read_to_end(&mut Vec::new()).await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn slow_reads_of_a_few_clients_do_not_lower_the_quota_of_others() {
    honest_clients_are_served_during(async |server, number| {
        loop {
            let mut download = begin(server, "GET /large HTTP/1.1").await;
            download.write_all(b"\r\n").await.unwrap();
            for _ in 0..=number {
                sleep(MILLI * 250).await;
                let _ = download.read(&mut [0; 1_000]).await;
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn aborted_requests_of_a_few_clients_do_not_lower_the_quota_of_others() {
    honest_clients_are_served_during(async |server, number| {
        loop {
            let (head, rest, patience) = match number % 3 {
                0 => ("GET / HTTP/1.1", "\r\n", 20),
                1 => (UPLOAD, "content-length: 2\r\n\r\n1", 20),
                _ => (UPLOAD, "content-length: 2\r\n\r\n1", 300),
            };
            let mut aborted = begin(server, head).await;
            aborted.write_all(rest.as_bytes()).await.unwrap();
            sleep(MILLI * patience).await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn errors_that_a_few_clients_cause_do_not_lower_the_quota_of_others() {
    honest_clients_are_served_during(async |server, number| {
        let status = [400, 401, 403, 404, 408, 413, 415, 422, 429, 501][number as usize];
        let (client, url) = (Client::new(), format!("http://{server}/status/{status}"));
        // For a second, and then not: what was quick in between does not measure others.
        loop {
            for _ in 0..50 {
                client.get(&url).await;
                sleep(MILLI * 20).await;
            }
            sleep(MILLI * 1_000).await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn failures_that_a_few_clients_cause_do_not_lower_the_quota_of_others() {
    honest_clients_are_served_during(async |server, _| {
        let (client, url) = (Client::new(), format!("http://{server}/status/500"));
        loop {
            client.get(&url).await;
            sleep(MILLI * 40).await;
        }
    })
    .await;
}
