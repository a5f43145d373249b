//! A run: sends the requests of a traffic through the layers of both sides, and reports what clients get.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use http::{Request, Response, StatusCode, response};
use serde_json::{Value, json};
use tokio::{
    runtime,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::spawn_blocking,
    time::{Instant, sleep, sleep_until},
};
use tower::{BoxError, Layer as _, ServiceExt as _, service_fn, util::BoxCloneService};
use tower_ratelimit::{
    Charge, Header, Limiter, RateLimitLayer,
    layer::{DecisionEvent, DecisionKind},
    store::ManualClock,
};

use super::{
    setup::{Algorithm, Limit, Setup, Time},
    stores::Stores,
    traffic::{Arrival, FRAMES, START},
};

/// What a run simulates.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) setup: Setup,
    pub(crate) limits: Vec<Limit>,
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) stores: Stores,
}

/// Runs `plan` on its own thread and runtime, whose time is paused unless the plan is for real time: Tokio advances
/// it to the next timer when there is nothing else to do, so the delays of a queue take no time. The run ends early
/// if the receiver of the lines is dropped.
pub(crate) fn start(plan: Plan, lines: UnboundedSender<String>) {
    spawn_blocking(move || {
        let is_simulated = plan.setup.time != Time::Real;
        let runtime = runtime::Builder::new_current_thread().enable_all().start_paused(is_simulated).build();
        let result = runtime.map_err(BoxError::from).and_then(|runtime| runtime.block_on(run(&plan, &lines)));
        if let Err(error) = result {
            // The receiver may be gone, which ended the run.
            drop(lines.send(line(&json!({ "error": error.to_string() }))));
        }
    });
}

fn line(value: &Value) -> String {
    format!("{value}\n")
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
enum Verdict {
    Admitted,
    Delayed,
    Denied,
    /// The store failed, and the failure mode rejects.
    Unavailable,
}

/// The number of requests per [`Verdict`].
type Counts = [u64; 4];

/// A response that a client got.
struct Received {
    side: usize,
    client: usize,
    verdict: Verdict,
    parts: response::Parts,
}

/// In the extensions of a request: whether the layer delayed it.
#[derive(Clone, Default)]
struct WasDelayed(Arc<AtomicBool>);

type Service = BoxCloneService<Request<String>, Response<()>, BoxError>;

/// The time of a run.
#[derive(Clone)]
struct RunTime {
    began: Instant,
    clock: Option<ManualClock>,
}

impl RunTime {
    /// Waits until `at`, counted from the start of the run.
    async fn reach(&self, at: Duration) {
        sleep_until(self.began + at).await;
        self.show(at);
    }

    fn show(&self, at: Duration) {
        if let Some(clock) = &self.clock
            && clock.now() < START + at
        {
            clock.set(START + at);
        }
    }
}

/// A side of the page: an instance of the service for each limiter.
struct Side {
    instances: Vec<Service>,
    /// For each client, the charge of its requests and the limiter that makes it.
    clients: Vec<(RateLimitLayer, Charge)>,
}

async fn run(plan: &Plan, lines: &UnboundedSender<String>) -> Result<(), BoxError> {
    let Plan { setup, limits, arrivals, stores } = plan;
    let time = RunTime { began: Instant::now(), clock: stores.clock.clone() };
    time.show(Duration::ZERO);
    let mut sides = Vec::new();
    for (limit, limiters) in limits.iter().zip(&stores.limiters) {
        sides.push(Side::new(setup, limit, limiters, &time).await?);
    }
    let (sender, mut received) = unbounded_channel();
    let mut totals = vec![vec![Counts::default(); setup.traffic.clients().len()]; sides.len()];
    let mut arrivals = arrivals.iter().copied().peekable();
    if lines.send(line(&heading(plan)?)).is_err() {
        return Ok(());
    }
    for frame in 0..FRAMES {
        let end = setup.period.frame(frame + 1);
        let fails = stores.set_outage(setup.traffic.outage().contains(&frame));
        while let Some(arrival) = arrivals.next_if(|arrival| arrival.at < end) {
            time.reach(arrival.at).await;
            for (number, side) in sides.iter().enumerate() {
                side.send(number, setup, arrival.client, &sender);
            }
        }
        time.reach(end).await;
        let mut reports = Vec::new();
        for (side, report) in sides.iter().zip(receive(&mut received, &mut totals)) {
            reports.push(side.report(report).await);
        }
        let value = json!({ "frame": frame, "at": end.as_millis() as u64, "fails": fails, "sides": reports });
        if lines.send(line(&value)).is_err() {
            return Ok(());
        }
        // Blocks the thread on purpose: the paused time must not advance.
        thread::sleep(setup.time.length() / FRAMES as u32);
    }
    Ok(())
}

/// The first line of a run.
fn heading(plan: &Plan) -> Result<Value, BoxError> {
    let Plan { setup, limits, arrivals, .. } = plan;
    let mut peak = 0;
    let mut rest = &arrivals[..];
    for frame in 1..=FRAMES {
        let (before, after) =
            rest.split_at(rest.partition_point(|arrival| arrival.at < setup.period.frame(frame)));
        (peak, rest) = (peak.max(before.len()), after);
    }
    let mut sides = Vec::new();
    for limit in limits {
        let policy = limit.policy()?;
        sides.push(json!({
            "title": limit.algorithm.label(), "policy": policy.to_string(), "capacity": policy.capacity(),
            "notes": limit.notes, "rust": limit.rust(), "toml": limit.toml()?,
        }));
    }
    let edges: Vec<_> = setup.period.edges().iter().map(|edge| edge.as_millis() as u64).collect();
    let clients: Vec<_> = setup.traffic.clients().iter().map(|client| client.label).collect();
    Ok(json!({
        "setup": setup.to_string(), "sides": sides, "clients": clients, "requests": arrivals.len(), "peak": peak,
        "frames": FRAMES, "span": setup.period.span().as_millis() as u64, "edges": edges,
        "shown": setup.time.length().as_millis() as u64, "start": (setup.time != Time::Real).then_some(START.as_secs()),
    }))
}

impl Side {
    async fn new(
        setup: &Setup,
        limit: &Limit,
        limiters: &[Limiter],
        time: &RunTime,
    ) -> Result<Self, BoxError> {
        let policy = limit.policy()?;
        let layers: Vec<_> = limiters
            .iter()
            .map(|limiter| {
                RateLimitLayer::new(limiter.clone(), policy.clone(), Header::new("x-api-key"))
                    .on_decision(note_delay)
            })
            .collect();
        let work = work(limit);
        let instances = layers.iter().map(|layer| {
            let time = time.clone();
            let service = service_fn(move |_: Request<String>| handle(work, time.clone()));
            BoxCloneService::new(
                layer.layer(service).map_response(|response| response.map(drop)).map_err(BoxError::from),
            )
        });
        let mut clients = Vec::new();
        for client in setup.traffic.clients() {
            let layer = layers.get(client.instance).ok_or("a client of a missing instance")?;
            let (parts, _) = request(client.api_key)?.into_parts();
            let charges = layer.charges(&parts).await.map_err(|_| "a client without a key")?;
            let (charge, _) = charges.into_iter().next().ok_or("a client without a limit")?;
            clients.push((layer.clone(), charge));
        }
        Ok(Self { instances: instances.collect(), clients })
    }

    /// Sends a request, whose response `sender` receives.
    fn send(&self, side: usize, setup: &Setup, client: usize, sender: &UnboundedSender<Received>) {
        let Some(sent_by) = setup.traffic.clients().get(client) else { return };
        let (Some(service), Ok(mut request)) =
            (self.instances.get(sent_by.instance), request(sent_by.api_key))
        else {
            return;
        };
        let (service, sender, was_delayed) = (service.clone(), sender.clone(), WasDelayed::default());
        request.extensions_mut().insert(was_delayed.clone());
        tokio::spawn(async move {
            let Ok(response) = service.oneshot(request).await else { return };
            let (parts, ()) = response.into_parts();
            let verdict = match parts.status {
                StatusCode::OK if was_delayed.0.load(Ordering::Relaxed) => Verdict::Delayed,
                StatusCode::OK => Verdict::Admitted,
                StatusCode::TOO_MANY_REQUESTS => Verdict::Denied,
                _ => Verdict::Unavailable,
            };
            // The run may be over.
            drop(sender.send(Received { side, client, verdict, parts }));
        });
    }

    /// Adds the clients' levels to the report of a frame.
    async fn report(&self, mut report: Report) -> Value {
        let mut levels = Vec::new();
        for (layer, charge) in &self.clients {
            let peeked = layer.limiter().peek_all(&[charge.clone().with_cost(0)]).await;
            levels.push(peeked.ok().and_then(|decision| decision.remaining()));
        }
        let text = |response: Option<response::Parts>| response.map(|parts| head(&parts));
        json!({
            "counts": report.counts, "totals": report.totals, "levels": levels,
            "admission": text(report.admission.take()), "rejection": text(report.rejection.take()),
        })
    }
}

/// What the clients of a side got in a frame.
#[derive(Default)]
struct Report {
    counts: Counts,
    /// For each client, since the start.
    totals: Vec<Counts>,
    /// The last response of each kind.
    admission: Option<response::Parts>,
    rejection: Option<response::Parts>,
}

/// Counts the responses that have arrived.
fn receive(received: &mut UnboundedReceiver<Received>, totals: &mut [Vec<Counts>]) -> Vec<Report> {
    let mut reports: Vec<Report> = totals.iter().map(|_| Report::default()).collect();
    while let Ok(Received { side, client, verdict, parts }) = received.try_recv() {
        let (Some(report), Some(total)) = (reports.get_mut(side), totals[side].get_mut(client)) else {
            continue;
        };
        for counts in [&mut report.counts, total] {
            counts[verdict as usize] += 1;
        }
        let last = match verdict {
            Verdict::Admitted | Verdict::Delayed => &mut report.admission,
            Verdict::Denied | Verdict::Unavailable => &mut report.rejection,
        };
        *last = Some(parts);
    }
    for (report, totals) in reports.iter_mut().zip(totals) {
        report.totals.clone_from(totals);
    }
    reports
}

fn request(api_key: &str) -> Result<Request<String>, http::Error> {
    Request::get("/").header("x-api-key", api_key).body(String::new())
}

/// How long the service works on a request. It matters only for a limit on concurrency: a period, less a
/// millisecond, so that each request ends before those that come a period after it.
fn work(limit: &Limit) -> Duration {
    match limit.algorithm {
        Algorithm::Concurrency => limit.period.length().saturating_sub(Duration::from_millis(1)),
        _ => Duration::ZERO,
    }
}

/// Marks a request that the layer delays.
fn note_delay(event: &DecisionEvent<'_>) {
    let mark = event.request.and_then(|request| request.extensions.get::<WasDelayed>());
    if let Some(WasDelayed(was_delayed)) = mark {
        was_delayed.store(event.kind == DecisionKind::Delayed, Ordering::Relaxed);
    }
}

/// The limited service.
async fn handle(work: Duration, time: RunTime) -> Result<Response<String>, Infallible> {
    time.show(time.began.elapsed());
    if !work.is_zero() {
        sleep(work).await;
        time.show(time.began.elapsed());
    }
    Ok(Response::new("hello\n".to_owned()))
}

/// The status line and the headers of a response.
fn head(parts: &response::Parts) -> String {
    let line = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes()))
    };
    let headers: String = parts.headers.iter().map(line).collect();
    format!("HTTP/1.1 {}\n{headers}", parts.status)
}
