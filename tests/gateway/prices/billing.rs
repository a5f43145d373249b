//! A proxy in front of a vendor over HTTP: what clients are charged in the end is what the vendor has billed.

use std::{
    collections::HashMap,
    future::ready,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, State},
    response::IntoResponse as _,
    routing::post,
};
use http::{Request, Response, StatusCode};
use serde_json::json;
use support::{
    Fake, PATIENT, RedisServer, day, eventually, memory_and_redis,
    pipes::{self, PipeClient},
    units_left,
};
use tokio::task::JoinSet;
use tower_ratelimit::{
    ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, RateLimitLayer, Rejection, Reservation, Rule,
    layer::Rules,
};
use tower_ratelimit_gateway::prices::{Api, Bill, Price, Prices, Usage, UsageMeter};

use super::vendor::{Invoice, Vendor};

const REQUESTS: u64 = 1_000;
/// A limit that no test reaches.
const PLENTY: u64 = 1_000_000_000;

#[derive(Clone)]
struct Proxy {
    meter: UsageMeter,
    vendor: PipeClient,
}

async fn forward(
    State(Proxy { meter, vendor }): State<Proxy>,
    Path(form): Path<String>,
    reservation: Reservation,
    body: Bytes,
) -> Result<Response<Body>, Rejection> {
    let api = match &*form {
        "chat" => Api::OpenAiChat,
        "responses" => Api::OpenAiResponses,
        "messages" => Api::AnthropicMessages,
        _ => Api::Gemini,
    };
    let text = String::from_utf8(body.to_vec()).unwrap();
    let vendor = if text.contains("no connection") { PipeClient::of_no_server() } else { vendor };
    let call = match meter.call(api, &body) {
        Ok(call) => call,
        Err(error) => return Ok((StatusCode::BAD_REQUEST, error.to_string()).into_response()),
    };
    call.charge(&reservation).await?.into_result()?;
    let request = Request::post(format!("/{form}")).header("host", "vendor").body(text).unwrap();
    match call.metered(reservation, vendor.send(request)).await {
        Ok(answer) => Ok(answer.map(Body::new)),
        Err(_) => Ok(StatusCode::BAD_GATEWAY.into_response()),
    }
}

/// A proxy whose clients share a limit of tokens and one of money.
struct Service {
    limiter: Limiter,
    tokens: Policy,
    money: Policy,
    vendor: Vendor,
    client: PipeClient,
    settled: Arc<Mutex<HashMap<String, Bill>>>,
}

/// The most that a call exceeds its estimate here, by far.
const DEBT: u64 = 1_000_000;

impl Service {
    fn new(limiter: Limiter, tokens: u64, micro_dollars: u64) -> Self {
        let policy =
            |name, limit| day(name, limit).max_debt(DEBT).failure_mode(FailureMode::Local { instances: 1 });
        let (tokens, money) = (policy("tokens", tokens), policy("money", micro_dollars));
        let rule = |policy: &Policy, unit| {
            Rule::new(policy.clone(), Key::new("all")).cost(|_| 0).unit(unit).reserve_or_refund()
        };
        let rules = Rules::new().always(rule(&tokens, "tokens")).always(rule(&money, "micro-dollars"));
        let (vendor, settled) = (Vendor::default(), Arc::<Mutex<HashMap<_, _>>>::default());
        let price = Price::new("2.5", "10.1").cached_input("1.25").cache_write("3.125").count_text();
        let notes = settled.clone();
        // Each model is the number of a request.
        let meter = UsageMeter::new(Prices::new("1").model("model-*", price)).on_settled(move |call| {
            assert!(notes.lock().unwrap().insert(call.model.clone(), call.clone()).is_none());
        });
        let proxy = Proxy { meter, vendor: vendor.serve() };
        let app = Router::new().route("/{form}", post(forward)).with_state(proxy);
        let client = pipes::serve(app.layer(RateLimitLayer::with_rules(limiter.clone(), rules)));
        Self { limiter, tokens, money, vendor, client, settled }
    }

    /// What is charged of a policy, including its debt.
    async fn charged(&self, policy: &Policy, limit: u64) -> u64 {
        let owed = self.limiter.operator().owed(policy, &Key::new("all")).await.unwrap();
        limit - units_left(&self.limiter, policy).await + owed
    }
}

impl Service {
    /// The tokens and the micro-dollars that the vendor has billed until now.
    fn billed(&self) -> (u64, u64) {
        let bills = self.vendor.bills();
        let sum = |of: fn(Invoice) -> u64| bills.values().copied().map(of).sum::<u64>();
        (sum(Invoice::tokens), sum(Invoice::micro_dollars))
    }

    /// The number of calls that are settled.
    fn settled(&self) -> u64 {
        self.settled.lock().unwrap().len() as u64
    }

    /// Waits until all calls are settled, and asserts that each and all of them cost what the vendor has billed.
    async fn assert_even(&self, store: &str, limit: u64) {
        // The server of the proxy notices later that a client has left.
        assert!(eventually(async || self.settled() == REQUESTS).await, "{store}: {}", self.settled());
        self.limiter.drain(PATIENT).await.unwrap();
        for number in 0..REQUESTS {
            let (call, bill) = (Call::new(number), self.vendor.bill(number));
            let settled = self.settled.lock().unwrap()[&format!("model-{number}")].clone();
            let Usage { input, cached_input: cached, cache_write: written, output, .. } = settled.usage;
            let charged = Invoice { input, cached, written, output };
            assert_eq!(charged, bill, "{store}: {number}, {}, {}, {:?}", call.form, call.end, settled.basis);
            assert_eq!(settled.micro_dollars, bill.micro_dollars(), "{store}: {number}");
        }
        // The layer has another handle on a reservation until the body is dropped.
        let charged = async || {
            self.limiter.drain(PATIENT).await.unwrap();
            (self.charged(&self.tokens, limit).await, self.charged(&self.money, limit).await)
        };
        let is_even = async || charged().await == self.billed();
        assert!(eventually(is_even).await, "{store}: {:?} of {:?}", charged().await, self.billed());
    }

    /// Asserts that no more is billed than the limits, and what calls have exceeded their estimates.
    fn assert_within(&self, store: &str, tokens: u64, micro_dollars: u64, estimates: &[Invoice]) {
        let (mut most, mut billed) = ((tokens, micro_dollars), (0, 0));
        for (number, bill) in self.vendor.bills() {
            let estimate = estimates[number as usize];
            let excess_of = |one: fn(Invoice) -> u64| one(bill).saturating_sub(one(estimate));
            let excess = (excess_of(Invoice::tokens), excess_of(Invoice::micro_dollars));
            most = (most.0 + excess.0, most.1 + excess.1);
            billed = (billed.0 + bill.tokens(), billed.1 + bill.micro_dollars());
        }
        assert!(billed.0 <= most.0 && billed.1 <= most.1, "{store}: {billed:?} of {most:?}");
    }
}

/// A request: its number decides its form, its length, its estimate, and how it ends.
struct Call {
    number: u64,
    form: &'static str,
    streams: bool,
    end: &'static str,
    output: u64,
    max_tokens: u64,
}

impl Call {
    fn new(number: u64) -> Self {
        let form = ["chat", "responses", "messages", "gemini"][(number % 4) as usize];
        let (streams, end) = match number / 4 % 10 {
            0 | 1 => (false, "completes"),
            2 | 3 => (true, "completes"),
            4 | 5 => (true, "hangs"),
            6 => (true, "breaks off"),
            7 if form == "chat" || form == "responses" => (true, "completes without a usage"),
            7 => (true, "hangs"),
            8 => (true, ["status 500", "status 429", "status 400"][(number % 3) as usize]),
            _ if number.is_multiple_of(2) => (true, "breaks off before a byte"),
            _ => (true, "no connection"),
        };
        // Some answers are longer than their estimate.
        Self { number, form, streams, end, output: 1 + number * 7 % 50, max_tokens: 10 + number * 13 % 40 }
    }

    fn body(&self) -> String {
        let Self { number, streams, end, output, max_tokens, .. } = self;
        let prompt = "x".repeat((number * 11 % 300) as usize);
        json!({
            "model": format!("model-{number}"), "prompt": prompt, "stream": streams,
            "max_tokens": max_tokens, "max_output_tokens": max_tokens,
            "generationConfig": { "maxOutputTokens": max_tokens },
            "metadata": { "number": number, "output": output, "end": end },
        })
        .to_string()
    }

    /// The least that it is estimated at.
    fn estimate(&self) -> Invoice {
        let prompt = (self.body().len() as u64).div_ceil(4);
        Invoice { input: prompt, output: self.max_tokens, ..Invoice::default() }
    }

    /// Sends it, and reads the answer as [`Vendor::read`] does. Returns the status.
    async fn run(self, client: PipeClient, vendor: Vendor) -> u16 {
        let request =
            Request::post(format!("/{}", self.form)).header("host", "proxy").body(self.body()).unwrap();
        let response = client.send(request).await.unwrap();
        vendor.read(response, self.number, self.end, self.output, ready(())).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_concurrent_clients_are_charged_is_what_the_vendor_has_billed() {
    let redis = RedisServer::start();
    for (store, limiter) in memory_and_redis(&redis).await {
        let service = Service::new(limiter, PLENTY, PLENTY);
        let mut calls = JoinSet::new();
        for number in 0..REQUESTS {
            calls.spawn(Call::new(number).run(service.client.clone(), service.vendor.clone()));
        }
        calls.join_all().await;
        service.assert_even(store, PLENTY).await;
    }
}

/// The store fails once a part of the calls has begun, and answers again once others have been settled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_are_charged_after_an_outage_is_what_the_vendor_has_billed() {
    let store = Fake::over(MemoryStore::new());
    let service = Service::new(Limiter::new(store.clone()), PLENTY, PLENTY);
    let mut calls = JoinSet::new();
    for number in 0..REQUESTS {
        calls.spawn(Call::new(number).run(service.client.clone(), service.vendor.clone()));
        match number {
            300 => assert!(eventually(async || service.settled() >= 100).await),
            301 => store.fail(ErrorKind::StoreUnreachable),
            700 => assert!(eventually(async || service.settled() >= 400).await),
            701 => store.fail(None),
            _ => {}
        }
    }
    calls.join_all().await;
    service.assert_even("after an outage", PLENTY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_clients_use_no_more_than_the_limit_and_what_their_calls_exceed_their_estimates() {
    let (tokens, money) = (20_000, 200_000);
    let redis = RedisServer::start();
    let estimates: Vec<_> = (0..REQUESTS).map(|number| Call::new(number).estimate()).collect();
    for (store, limiter) in memory_and_redis(&redis).await {
        let service = Service::new(limiter, tokens, money);
        let mut calls = JoinSet::new();
        for number in 0..REQUESTS {
            calls.spawn(Call::new(number).run(service.client.clone(), service.vendor.clone()));
        }
        let mut denied = 0;
        while let Some(status) = calls.join_next().await {
            denied += usize::from(status.unwrap() == 429);
            service.assert_within(store, tokens, money, &estimates);
        }
        assert!(denied > 100, "{store}: only {denied} were denied");
        let charged = async || {
            (service.charged(&service.tokens, tokens).await, service.charged(&service.money, money).await)
        };
        let is_even = async || {
            service.limiter.drain(PATIENT).await.unwrap();
            charged().await == service.billed()
        };
        assert!(eventually(is_even).await, "{store}: {:?}, {:?}", charged().await, service.billed());
    }
}
