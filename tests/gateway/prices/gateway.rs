//! The program `examples/gateway`, with its budgets of an organization, a team, its members and each model, in front of a vendor
//! that bills: what is charged under each budget is what was billed, or the estimate of a call whose usage was not
//! reported, also after two seconds without Redis.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Request},
    response::{IntoResponse as _, Response},
    routing::post,
};
use http::StatusCode;
use http_body_util::BodyExt as _;
use serde_json::json;
use support::{
    PATIENT, RedisServer, eventually,
    pipes::{self, PipeClient},
    proxy::Proxy,
    settings, store,
};
use tokio::{sync::Semaphore, task::JoinSet, time::sleep};
use tower_ratelimit::{Key, Limiter, Policy, Quota, algorithm::FixedWindow};

use super::vendor::{Invoice, Vendor};
use crate::examples::gateway;

const REQUESTS: u64 = 1_000;

/// The policy, the key, the micro-dollars of the limit, and which calls are charged.
const BUDGETS: [(&str, &str, u64, fn(&Call) -> bool); 6] = [
    ("organization", "acme", 1_000_000_000, |_| true),
    ("team", "research", 3_000_000, |_| true),
    ("member", "ann", 50_000_000, |call| call.member == "ann"),
    ("member", "bob", 2_000_000, |call| call.member == "bob"),
    ("model", "research:small", 5_000_000, |call| call.model == "small"),
    ("model", "research:large", 5_000_000, |call| call.model == "large"),
];

/// Answers calls of the gateway through the vendor's HTTP.
fn upstream(vendor: PipeClient) -> Router {
    let answer = async move |request: Request| {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        let vendor = if body.contains("no connection") { PipeClient::of_no_server() } else { vendor };
        let request = http::Request::post("/chat").header("host", "vendor").body(body).unwrap();
        match vendor.send(request).await {
            Ok(answer) => answer.map(Body::new),
            Err(_) => StatusCode::BAD_GATEWAY.into_response(),
        }
    };
    Router::new().route("/v1/chat/completions", post(answer))
}

struct Service {
    limiter: Limiter,
    vendor: Vendor,
    client: PipeClient,
}

impl Service {
    fn new(limiter: Limiter) -> Self {
        let vendor = Vendor::default();
        let app = gateway::app(limiter.clone(), upstream(vendor.serve()));
        // Each call comes from another address, because the gateway limits them too.
        let from = async |mut request: Request, next: axum::middleware::Next| -> Response {
            let number: u32 = request.headers()["number"].to_str().unwrap().parse().unwrap();
            let address = SocketAddr::from((u32::to_be_bytes(0x0a00_0000 + number), 1));
            request.extensions_mut().insert(ConnectInfo(address));
            next.run(request).await
        };
        let client = pipes::serve(app.layer(axum::middleware::from_fn(from)));
        Self { limiter, vendor, client }
    }

    /// The micro-dollars that are charged under a budget, with its debt.
    async fn charged(&self, (name, key, limit, _): (&str, &str, u64, fn(&Call) -> bool)) -> u64 {
        let windows = FixedWindow::aligned().time_zone("Europe/Berlin");
        let policy = Policy::new(name, Quota::per_month(limit)).algorithm(windows).max_debt(10_000_000);
        let key = Key::new(key);
        let left = self.limiter.peek(&policy, &key, 0).await.unwrap().remaining().unwrap();
        let owed = self.limiter.operator().owed(&policy, &key).await.unwrap();
        limit - left + owed
    }

    async fn all_charged(&self) -> Vec<u64> {
        self.limiter.drain(PATIENT).await.unwrap();
        let mut charged = Vec::new();
        for budget in BUDGETS {
            charged.push(self.charged(budget).await);
        }
        charged
    }

    /// What the vendor has billed of each budget. Of a call whose usage was not reported, the estimate, if it is more.
    fn all_billed(&self, call_of: fn(u64) -> Call) -> Vec<u64> {
        let bills = self.vendor.bills();
        let billed = |of: fn(&Call) -> bool| {
            let calls = bills.iter().map(|(&number, &bill)| (call_of(number), bill));
            calls.filter(|(call, _)| of(call)).map(|(call, bill)| call.cost(call.charged(bill))).sum()
        };
        BUDGETS.map(|(.., of)| billed(of)).to_vec()
    }

    /// Waits until each budget is charged what was billed.
    async fn assert_even(&self, call_of: fn(u64) -> Call) {
        let is_even = async || self.all_charged().await == self.all_billed(call_of);
        let (charged, billed) = (self.all_charged(), self.all_billed(call_of));
        assert!(eventually(is_even).await, "{:?} of {billed:?}", charged.await);
    }
}

/// A request: its number decides who sends it, its model, its length, its estimate, and how it ends.
struct Call {
    number: u64,
    member: &'static str,
    model: &'static str,
    streams: bool,
    end: &'static str,
    output: u64,
    max_tokens: u64,
}

impl Call {
    fn new(number: u64) -> Self {
        let (streams, end) = match number / 4 % 10 {
            0 | 1 => (false, "completes"),
            2 | 3 => (true, "completes"),
            4 | 5 => (true, "hangs"),
            6 => (true, "breaks off"),
            7 => (true, "completes without a usage"),
            8 => (true, ["status 500", "status 400", "no connection"][(number % 3) as usize]),
            _ => (true, "breaks off before a byte"),
        };
        let member = if number.is_multiple_of(3) { "bob" } else { "ann" };
        let model = if number.is_multiple_of(2) { "small" } else { "large" };
        // Some answers are longer than their estimate.
        let (output, max_tokens) = (1 + number * 7 % 50, 10 + number * 13 % 40);
        Self { number, member, model, streams, end, output, max_tokens }
    }

    /// What is charged of this bill.
    fn charged(&self, bill: Invoice) -> Invoice {
        match self.end {
            "hangs" | "breaks off" | "completes without a usage" => {
                Invoice { output: bill.output.max(self.max_tokens), ..bill }
            }
            _ => bill,
        }
    }

    /// A call that uses up the budgets, and is settled before its client has the end of the answer.
    fn large(number: u64) -> Self {
        let end = if number % 10 == 9 { "status 500" } else { "completes" };
        let (output, max_tokens) = (500 + number * 701 % 3_000, 1_000 + number * 1_301 % 2_000);
        Self { streams: false, end, output, max_tokens, ..Self::new(number) }
    }

    fn body(&self) -> String {
        let Self { number, model, streams, end, output, max_tokens, .. } = self;
        let prompt = "x".repeat((number * 11 % 300) as usize);
        json!({
            "model": model, "prompt": prompt, "stream": streams, "max_tokens": max_tokens,
            "metadata": { "number": number, "output": output, "end": end },
        })
        .to_string()
    }

    const fn cost(&self, bill: Invoice) -> u64 {
        match self.model.as_bytes() {
            b"small" => bill.cost([150, 150, 150, 1_000]),
            _ => bill.cost([3_000, 3_000, 3_000, 15_000]),
        }
    }

    /// The micro-dollars that it is estimated at.
    fn estimate(&self) -> u64 {
        let input = (self.body().len() as u64).div_ceil(4);
        self.cost(Invoice { input, output: self.max_tokens, ..Invoice::default() })
    }

    /// Sends it, and reads the answer as [`Vendor::read`] does, with a permit of `may_end`. Returns the status.
    async fn run(self, client: PipeClient, vendor: Vendor, may_end: Arc<Semaphore>) -> u16 {
        let request = http::Request::post("/v1/chat/completions")
            .header("host", "gateway")
            .header("x-api-key", format!("k-{}", self.member))
            .header("number", self.number)
            .body(self.body())
            .unwrap();
        let response = client.send(request).await.unwrap();
        let may_end = async { may_end.acquire().await.unwrap().forget() };
        vendor.read(response, self.number, self.end, self.output, may_end).await
    }
}

/// Streams begin before the outage and end in it, calls begin and end in it, and others begin in it and end later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_four_budgets_are_charged_after_two_seconds_without_redis_is_what_was_billed() {
    let redis = RedisServer::start();
    let mut network = Proxy::to(redis.port()).await;
    let service = Service::new(Limiter::new(settings().connect(network.url()).await.unwrap()));
    let mut calls = JoinSet::new();
    let may_end: [_; 3] = std::array::from_fn(|_| Arc::new(Semaphore::new(0)));
    let mut begin = |numbers: std::ops::Range<u64>, may_end: &Arc<Semaphore>| {
        for number in numbers {
            let (client, vendor) = (service.client.clone(), service.vendor.clone());
            calls.spawn(Call::new(number).run(client, vendor, may_end.clone()));
        }
    };
    // Waits until the vendor has billed what it bills before a stream may end.
    let have_begun = async |count: u64| {
        let is_billed = |number: &u64| {
            let call = Call::new(*number);
            let is_failure =
                !matches!(call.end, "hangs" | "breaks off") && !call.end.starts_with("completes");
            is_failure || service.vendor.bill(*number).output == call.output
        };
        assert!(eventually(async || (0..count).all(|number| is_billed(&number))).await);
    };

    begin(0..400, &may_end[0]);
    have_begun(400).await;
    // No call is in flight when the network is cut. One whose reply is lost may stay charged in addition.
    network.is_quiet().await;
    network.cut().await;
    let probe = Policy::new("probe", Quota::per_day(1));
    let is_down = async || {
        let peeked = service.limiter.peek(&probe, &Key::new("all"), 0).await.unwrap();
        peeked.failure().is_some_and(|error| !error.kind().may_have_charged())
    };
    assert!(eventually(is_down).await);
    may_end[0].add_permits(400);
    begin(400..600, &may_end[1]);
    have_begun(600).await;
    may_end[1].add_permits(200);
    begin(600..700, &may_end[2]);
    have_begun(700).await;
    sleep(Duration::from_secs(2)).await;
    network.mend().await;
    begin(700..REQUESTS, &may_end[2]);
    may_end[2].add_permits(400);
    let statuses = calls.join_all().await;
    assert!(!statuses.contains(&429) && !statuses.contains(&503), "{statuses:?}");
    service.assert_even(Call::new).await;
    assert!(service.all_billed(Call::new).iter().all(|billed| *billed > 1_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_budget_is_exceeded_but_by_what_calls_cost_above_their_estimates() {
    let redis = RedisServer::start();
    let service = Service::new(Limiter::new(store(&redis).await));
    let mut calls = JoinSet::new();
    for number in 0..REQUESTS {
        let (client, vendor) = (service.client.clone(), service.vendor.clone());
        calls.spawn(Call::large(number).run(client, vendor, Arc::new(Semaphore::new(0))));
    }
    let estimated: Vec<_> = (0..REQUESTS).map(Call::large).map(|call| (call.estimate(), call)).collect();
    let mut denied = 0;
    while let Some(status) = calls.join_next().await {
        denied += usize::from(status.unwrap() == 429);
        let bills = service.vendor.bills();
        for (name, key, limit, of) in BUDGETS {
            let (mut billed, mut most) = (0, limit);
            for (&number, &bill) in &bills {
                let (estimate, call) = &estimated[number as usize];
                if of(call) {
                    let cost = call.cost(bill);
                    (billed, most) = (billed + cost, most + cost.saturating_sub(*estimate));
                }
            }
            assert!(billed <= most, "{name} {key}: {billed} of {most}");
        }
    }
    assert!(denied > 500, "only {denied} were denied");
    service.assert_even(Call::large).await;
    // What calls cost less than their estimates was left of the team's budget at the end.
    assert!(service.all_billed(Call::large)[1] > 1_500_000);
}
