//! A client that uses every freedom of the wire, in front of a vendor that bills what it can: what is billed stays
//! within the limit.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{ConnectInfo, Path, State},
    response::IntoResponse as _,
    routing::post,
};
use futures_util::stream;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use support::{PATIENT, RedisServer, eventually, memory_and_redis};
use tokio::{sync::Semaphore, task::JoinSet};
use tower::ServiceExt as _;
use tower_ratelimit::{
    Key, Limiter, Policy, Quota, RateLimitLayer, Rejection, Reservation, algorithm::FixedWindow, layer::Rules,
};
use tower_ratelimit_gateway::prices::{Api, LearnedOutput, Price, Prices, UsageMeter};

use crate::examples::gateway;

const CALLS: u64 = 1_000;
/// The tokens of an answer to a request without a limit.
const UNLIMITED: u64 = 100_000;
const FORMS: [&str; 4] = ["chat", "responses", "messages", "gemini"];

/// A vendor that reads requests as leniently as any does, and bills a micro-dollar for a token of an answer: as many as
/// the request allows, most of which it does not send.
#[derive(Clone)]
struct Vendor {
    billed: Arc<AtomicU64>,
    begun: Arc<AtomicU64>,
    may_answer: Arc<Semaphore>,
}

/// The last member with this name, regardless of case, as Go's `encoding/json` finds it.
fn member<'a>(object: &'a [(String, Value)], name: &str) -> Option<&'a Value> {
    object.iter().rev().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// An object with all its members, even if one occurs twice.
struct Members(Vec<(String, Value)>);

impl<'de> serde::Deserialize<'de> for Members {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> serde::de::Visitor<'de> for All {
            type Value = Members;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(All)
    }
}

/// A number, however it is written.
fn number(value: &Value) -> Option<i64> {
    value
        .as_i64()
        .or_else(|| value.as_f64().map(|number| number as i64))
        .or_else(|| value.as_str()?.parse().ok())
}

fn is_true(value: Option<&Value>) -> bool {
    value.is_some_and(|value| *value == json!(true) || *value == json!("true") || *value == json!(1))
}

async fn answer(vendor: Vendor, form: &str, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let Ok(Members(request)) = serde_json::from_slice(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let generation: Members = match member(&request, "generationConfig") {
        Some(generation) => serde_json::from_value(generation.clone()).unwrap(),
        None => Members(Vec::new()),
    };
    let names = match form {
        "chat" => &["max_tokens", "max_completion_tokens"][..],
        "responses" => &["max_output_tokens"],
        "messages" => &["max_tokens"],
        _ => &["maxOutputTokens", "max_output_tokens"],
    };
    let object = if form == "gemini" { &generation.0 } else { &request };
    let limits: Vec<i64> = names.iter().filter_map(|name| number(member(object, name)?)).collect();
    // Some read 0 and -1 as no limit, also beside another one.
    let limit = match limits.iter().max() {
        Some(0) if form == "messages" => 0,
        Some(limit) if limits.iter().all(|limit| *limit > 0) => *limit as u64,
        _ => UNLIMITED,
    };
    let names = if form == "gemini" { &["candidateCount"][..] } else { &["n", "best_of"] };
    let choices = names.iter().filter_map(|name| number(member(object, name)?)).max();
    let choices = choices.filter(|_| matches!(form, "chat" | "gemini")).unwrap_or(1).max(1) as u64;
    let prompts = match member(&request, "prompt") {
        Some(Value::Array(prompts)) if form == "chat" => prompts.len() as u64,
        _ => 1,
    };
    // Google's interfaces read both spellings.
    let is = |name, value: &str| member(&request, name).is_some_and(|found| found == value);
    let is_dearer = is("service_tier", "priority")
        || is("serviceTier", "priority") && form == "gemini"
        || is("inference_geo", "us") && form == "messages";
    let tier = if is_dearer { 2 } else { 1 };
    let output = limit * choices * prompts;
    vendor.billed.fetch_add(output * tier, Ordering::Relaxed);
    vendor.begun.fetch_add(1, Ordering::Relaxed);
    // All calls are in flight together.
    vendor.may_answer.acquire().await.unwrap().forget();

    let hides = headers.contains_key("x-goog-fieldmask");
    let usage = match form {
        _ if hides => Value::Null,
        "chat" => json!({ "prompt_tokens": 0, "completion_tokens": output }),
        "responses" | "messages" => json!({ "input_tokens": 0, "output_tokens": output }),
        _ => {
            json!({ "promptTokenCount": 0, "candidatesTokenCount": 1, "thoughtsTokenCount": output.saturating_sub(1) })
        }
    };
    if headers.get_all(header::ACCEPT_ENCODING).iter().any(|value| value.to_str().unwrap().contains("gzip")) {
        return ([(header::CONTENT_ENCODING, "gzip")], vec![0; 269]).into_response();
    }
    let whole = match form {
        "chat" => json!({ "choices": [{ "message": { "content": "yes" } }], "usage": usage }),
        // One that goes on in the background.
        "responses" if is_true(member(&request, "background")) => {
            json!({ "status": "queued", "output": [], "usage": null })
        }
        "responses" => json!({ "output": [{ "content": [{ "text": "yes" }] }], "usage": usage }),
        "messages" => json!({ "type": "message", "content": [{ "text": "yes" }], "usage": usage }),
        _ => {
            json!({ "candidates": [{ "content": { "parts": [{ "text": "yes" }] } }], "usageMetadata": usage })
        }
    };
    if !is_true(member(&request, "stream")) {
        return axum::Json(whole).into_response();
    }
    let asks =
        member(&request, "stream_options").is_some_and(|options| is_true(options.get("include_usage")));
    let (word, last) = match form {
        "chat" => (
            json!({ "choices": [{ "delta": { "content": "word" } }], "usage": null }),
            asks.then(|| json!({ "choices": [], "usage": usage })),
        ),
        "responses" => (
            json!({ "type": "response.output_text.delta", "delta": "word" }),
            Some(json!({ "type": "response.completed", "response": { "usage": usage } })),
        ),
        "messages" => (
            json!({ "type": "content_block_delta", "delta": { "text": "word" } }),
            Some(json!({ "type": "message_delta", "delta": {}, "usage": usage })),
        ),
        _ => (json!({ "candidates": [{ "content": { "parts": [{ "text": "word" }] } }] }), Some(whole)),
    };
    let events = (0..3).map(move |_| word.clone()).chain(last).map(|event| format!("data: {event}\n\n"));
    let events = events.chain(["data: [DONE]\n\n".to_owned()]).map(Ok::<_, std::convert::Infallible>);
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(stream::iter(events))).into_response()
}

impl Vendor {
    fn new() -> Self {
        Self { billed: Arc::default(), begun: Arc::default(), may_answer: Arc::new(Semaphore::new(0)) }
    }

    /// The vendor of the gateway.
    fn router(&self) -> Router {
        let vendor = self.clone();
        let answer = async move |headers, body| answer(vendor, "chat", headers, body).await;
        Router::new().route("/v1/chat/completions", post(answer))
    }

    fn billed(&self) -> u64 {
        self.billed.load(Ordering::Relaxed)
    }
}

/// What a client may write into its request and its headers, and how many frames of the answer it reads.
const BODIES: [&str; 33] = [
    r#""max_tokens": 100000"#,
    r#""max_tokens": 1, "max_completion_tokens": 100000"#,
    r#""max_tokens": 1, "Max_Tokens": 100000"#,
    r#""max_token\u017f": 100000, "max_tokens": 1"#,
    r#""max_tokens": 1, "max_tokens": 100000"#,
    r#""max_tokens": 1, "\u006dax_tokens": 100000"#,
    r#""max_tokens": 0"#,
    r#""max_tokens": 0, "max_completion_tokens": 5"#,
    r#""max_tokens": 5, "max_completion_tokens": 0"#,
    r#""max_tokens": -1"#,
    r#""max_tokens": 1e5"#,
    r#""max_tokens": "100000""#,
    r#""max_tokens": null"#,
    r#""max_output_tokens": 1"#,
    r#""max_tokens": 1000, "n": 100"#,
    r#""max_tokens": 1000, "n": 1, "N": 100"#,
    r#""max_tokens": 1000, "best_of": 100"#,
    r#""max_tokens": 1000, "n": "100""#,
    r#""max_tokens": 50000, "prompt": ["a", "b"]"#,
    r#""max_tokens": 100000, "service_tier": "priority""#,
    r#""serviceTier": "priority""#,
    r#""max_tokens": 100000, "inference_geo": "us""#,
    r#""max_tokens": 10000, "Model": "large""#,
    r#""max_tokens": 99999, "stream_options": null"#,
    r#""stop": []"#,
    r#""max_output_tokens": 0"#,
    r#""max_output_tokens": 100000, "background": true"#,
    r#""max_output_tokens": 1, "Max_Output_Tokens": 100000"#,
    r#""generationConfig": { "maxOutputTokens": 100000 }"#,
    r#""generationConfig": { "maxOutputTokens": 0, "candidateCount": 8 }"#,
    r#""generationConfig": { "maxOutputTokens": 1, "maxoutputtokens": 100000 }"#,
    r#""generationConfig": { "maxOutputTokens": 1 }, "GenerationConfig": { "maxOutputTokens": 100000 }"#,
    r#""generationConfig": null, "speed": "fast""#,
];
const STREAMS: [&str; 7] = [
    r#""stream": false"#,
    r#""stream": true"#,
    r#""stream": "true""#,
    r#""stream": 1"#,
    r#""stream": false, "Stream": true"#,
    r#""stream": true, "stream_options": { "include_usage": false }"#,
    r#""stream": true, "stream_options": { "include_usage": true, "Include_Usage": false }"#,
];
const HEADERS: [(&str, &str); 8] = [
    ("accept", "*/*"),
    ("accept-encoding", "gzip"),
    ("accept-encoding", "identity, gzip"),
    ("x-goog-fieldmask", "choices"),
    ("te", "gzip"),
    ("range", "bytes=0-1"),
    ("content-type", "text/plain"),
    ("expect", "100-continue"),
];
const FRAMES: [usize; 4] = [usize::MAX, 0, 1, 2];

/// The request `number` to `path`. Numbers go through all combinations of what the client may choose.
fn request(number: u64, path: &str) -> (Request<Body>, usize) {
    let at = |every: usize, length: usize| number as usize / every % length;
    let (body, stream) = (BODIES[at(1, BODIES.len())], STREAMS[at(3, STREAMS.len())]);
    let (name, value) = HEADERS[at(7, HEADERS.len())];
    let body = format!(r#"{{ "model": "small", "messages": [], {body}, {stream} }}"#);
    let peer = ConnectInfo(SocketAddr::from((u32::to_be_bytes(0x0a00_0000 + number as u32), 1)));
    let request = Request::post(path).extension(peer).header("x-api-key", "k-bob");
    (request.header(name, value).body(body.into()).unwrap(), FRAMES[at(5, FRAMES.len())])
}

/// Sends these requests together, lets the vendor answer once it has all that it gets, and reads of each answer what the
/// client reads. Returns how many were admitted.
async fn attack(
    app: &Router,
    limiter: &Limiter,
    vendor: &Vendor,
    requests: impl IntoIterator<Item = (Request<Body>, usize)>,
) -> usize {
    let (mut calls, rejected) = (JoinSet::new(), Arc::new(AtomicU64::new(0)));
    let begun = vendor.begun.load(Ordering::Relaxed);
    for (request, frames) in requests {
        let (app, rejected) = (app.clone(), rejected.clone());
        calls.spawn(async move {
            let response = app.oneshot(request).await.unwrap();
            let (status, mut body) = (response.status(), response.into_body());
            if status != StatusCode::OK {
                rejected.fetch_add(1, Ordering::Relaxed);
                return status;
            }
            for _ in 0..frames {
                if body.frame().await.is_none() {
                    break;
                }
            }
            status
        });
    }
    let decided = || vendor.begun.load(Ordering::Relaxed) - begun + rejected.load(Ordering::Relaxed);
    assert!(eventually(async || decided() == calls.len() as u64).await, "{} of {}", decided(), calls.len());
    vendor.may_answer.add_permits(calls.len());
    let statuses = calls.join_all().await;
    let left = vendor.may_answer.available_permits();
    vendor.may_answer.forget_permits(left);
    limiter.drain(PATIENT).await.unwrap();
    assert!(statuses.iter().all(|status| [200, 400, 429].contains(&status.as_u16())), "{statuses:?}");
    statuses.iter().filter(|status| **status == StatusCode::OK).count()
}

/// Bob may spend two dollars a month, and owe ten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_client_of_the_gateway_is_billed_at_most_its_limit() {
    let redis = RedisServer::start();
    for (store, limiter) in memory_and_redis(&redis).await {
        let vendor = Vendor::new();
        let app = gateway::app(limiter.clone(), vendor.router());
        let mut admitted = 0;
        // Twice, because what the first calls were charged is settled only then.
        for _ in 0..2 {
            let requests = (0..CALLS).map(|number| request(number, "/v1/chat/completions"));
            admitted += attack(&app, &limiter, &vendor, requests).await;
        }
        let billed = vendor.billed();
        eprintln!("{store}: {admitted} of {} calls admitted, {billed} of 2,000,000 billed", 2 * CALLS);
        assert!((1_000_000..=2_000_000).contains(&billed), "{store}: {billed} by {admitted}");
    }
}

const LIMIT: u64 = 1_000_000;

/// A proxy for all interfaces, whose clients share a budget.
#[derive(Clone)]
struct Proxy {
    meter: UsageMeter,
    learned: Option<LearnedOutput>,
    vendor: Vendor,
}

async fn forward(
    State(Proxy { meter, learned, vendor }): State<Proxy>,
    Path(form): Path<String>,
    reservation: Reservation,
    mut headers: HeaderMap,
    mut body: Bytes,
) -> Result<Response<Body>, Rejection> {
    let api = match &*form {
        "chat" => Api::OpenAiChat,
        "responses" => Api::OpenAiResponses,
        "messages" => Api::AnthropicMessages,
        _ => Api::Gemini,
    };
    let prepared = meter.call_of(api, "small", &body).and_then(|mut call| {
        call.prepare(&mut headers, &mut body)?;
        Ok(call)
    });
    let Ok(mut call) = prepared else { return Ok(StatusCode::BAD_REQUEST.into_response()) };
    if let Some(learned) = &learned {
        call = call.learned(learned, &Key::new("bob"));
    }
    call.charge(&reservation).await?.into_result()?;
    let sent = async { Ok::<_, std::convert::Infallible>(answer(vendor, &form, headers, body).await) };
    match call.metered(reservation, sent).await {
        Ok(answer) => Ok(answer.map(Body::new)),
    }
}

fn proxy(limiter: &Limiter, vendor: &Vendor, learned: Option<LearnedOutput>) -> Router {
    let meter = UsageMeter::new(Prices::new("1").model("small", Price::new("0", "1"))).tokens_unit(None);
    let money =
        Policy::new("money", Quota::per_month(LIMIT)).algorithm(FixedWindow::aligned()).max_debt(100_000);
    let rule = tower_ratelimit::Rule::new(money, Key::new("bob")).cost(|_| 0).unit("micro-dollars");
    let layer = RateLimitLayer::with_rules(limiter.clone(), Rules::new().always(rule.reserve_or_refund()));
    let proxy = Proxy { meter, learned, vendor: vendor.clone() };
    Router::new().route("/{form}", post(forward)).layer(layer).with_state(proxy)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_client_of_any_interface_is_billed_at_most_its_limit() {
    let redis = RedisServer::start();
    for form in FORMS {
        for (store, limiter) in memory_and_redis(&redis).await {
            limiter
                .operator()
                .reset(&Policy::new("money", Quota::per_month(LIMIT)), &Key::new("bob"))
                .await
                .unwrap();
            let vendor = Vendor::new();
            let app = proxy(&limiter, &vendor, None);
            let mut admitted = 0;
            for _ in 0..2 {
                let requests = (0..CALLS).map(|number| request(number, &format!("/{form}")));
                admitted += attack(&app, &limiter, &vendor, requests).await;
            }
            let billed = vendor.billed();
            eprintln!(
                "{form}, {store}: {admitted} of {} calls admitted, {billed} of {LIMIT} billed",
                2 * CALLS
            );
            assert!((LIMIT / 2..=LIMIT).contains(&billed), "{form}, {store}: {billed} by {admitted}");
        }
    }
}

/// Ten short answers, then requests for long ones. A quarter of what each allows is the least estimate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_teaches_short_answers_is_billed_at_most_four_times_its_limit() {
    let redis = RedisServer::start();
    for (store, limiter) in memory_and_redis(&redis).await {
        for (learned, most) in [(LearnedOutput::new(), 4), (LearnedOutput::new().at_least(50), 2)] {
            limiter
                .operator()
                .reset(&Policy::new("money", Quota::per_month(LIMIT)), &Key::new("bob"))
                .await
                .unwrap();
            let vendor = Vendor::new();
            let app = proxy(&limiter, &vendor, Some(learned));
            let short = r#"{ "model": "small", "max_tokens": 1 }"#;
            let long = r#"{ "model": "small", "max_tokens": 100000 }"#;
            let request =
                |body: &'static str| (Request::post("/chat").body(body.into()).unwrap(), usize::MAX);
            let begun = attack(&app, &limiter, &vendor, (0..10).map(|_| request(short))).await;
            assert_eq!((begun, vendor.billed()), (10, 10));
            let mut admitted = 0;
            for _ in 0..2 {
                admitted += attack(&app, &limiter, &vendor, (0..500).map(|_| request(long))).await;
            }
            let billed = vendor.billed();
            eprintln!(
                "{store}: {admitted} of 1,000 calls admitted, {billed} of {LIMIT} billed, at most {most} times"
            );
            assert!(billed <= most * LIMIT && billed > LIMIT, "{store}: {billed} by {admitted}");
        }
    }
}
