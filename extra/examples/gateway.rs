//! A gateway to a language model with budgets in dollars a month: of the organization, the team, the member, and
//! each model of the team.
//!
//! Run with
//!
//! ```text
//! cargo run -p tower-ratelimit-extra --example gateway --features body,prices,time-zones,usage
//! ```
//!
//! and, in another terminal, run the lines right after each other. The vendor is part of this program, and its
//! answer always takes a million tokens. Bob may spend 2 dollars a month.
//!
//! ```text
//! curl -i -H 'x-api-key: k-bob' -d '{ "model": "small", "max_tokens": 1000000, "messages": [] }' http://127.0.0.1:3000/v1/chat/completions
//!     200
//!     {"choices":[],"usage":{"completion_tokens":1000000,"prompt_tokens":0}}
//! curl -i -H 'x-api-key: k-bob' -d '{ "model": "large", "max_tokens": 1000000, "messages": [] }' http://127.0.0.1:3000/v1/chat/completions
//!     429
//! curl -i -H 'x-api-key: k-ann' -d '{ "model": "small", "max_tokens": 1000000, "messages": [] }' http://127.0.0.1:3000/v1/chat/completions
//!     200
//! curl -i -H 'x-api-key: k-eve' -d '{ "model": "small", "messages": [] }' http://127.0.0.1:3000/v1/chat/completions
//!     400
//! ```
//!
//! `PORT` (3000) is the port, 0 for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{convert::Infallible, env, error::Error, net::SocketAddr};

use axum::{Extension, Json, Router, body::Body, http::Response, response::IntoResponse, routing::post};
use http::{StatusCode, request::Parts};
use serde_json::json;
use tokio::net::TcpListener;
use tower_ratelimit::{
    Key, Limiter, MemoryStore, PeerIp, Policy, PolicySource, Quota, RateLimitLayer, Reservation, Rule,
    algorithm::FixedWindow, key::from_fn, layer::Rules,
};
use tower_ratelimit_extra::{
    body::{BodyBytes, BufferBodyLayer},
    prices::{Api, Call, Price, Prices, UsageMeter},
    usage::Usage,
};

/// Who calls, and the dollars a month of each level. A gateway has them from its database: see the example
/// `tiers`.
struct Caller {
    names: [&'static str; 3],
    dollars: [u64; 3],
    zone: &'static str,
}

const CALLERS: [(&str, Caller); 2] = [
    ("k-ann", Caller { names: ["acme", "research", "ann"], dollars: [1_000, 3, 50], zone: "Europe/Berlin" }),
    ("k-bob", Caller { names: ["acme", "research", "bob"], dollars: [1_000, 3, 2], zone: "Europe/Berlin" }),
];

fn caller(request: &Parts) -> Option<&'static Caller> {
    let key = request.headers.get("x-api-key")?.to_str().ok()?;
    CALLERS.iter().find(|(known, _)| *known == key).map(|(_, caller)| caller)
}

/// A budget of this many dollars a calendar month, in the time zone of the customer.
fn month(name: &str, dollars: u64, caller: &Caller) -> Policy {
    let windows = FixedWindow::aligned().time_zone(caller.zone);
    let policy = Policy::new(name, Quota::per_month(dollars * 1_000_000)).algorithm(windows);
    policy.max_debt(10_000_000).notify_at([80, 100])
}

/// The rule of a budget. A call is charged what it may cost, and settled at what the vendor reports.
fn budget(policy: PolicySource, name: impl Fn(&Parts) -> Option<Key> + Send + Sync + 'static) -> Rule {
    let cost = |request: &Parts| request.extensions.get().map_or(0, Call::estimated_micro_dollars);
    Rule::new(policy, from_fn(name)).cost(cost).unit("micro-dollars").reserve_or_refund()
}

fn level(level: usize) -> Rule {
    let policy = move |request: &Parts, _: &Key| {
        let caller = caller(request)?;
        Some(month(["organization", "team", "member"][level], caller.dollars[level], caller))
    };
    budget(PolicySource::per_request(policy), move |request| Some(Key::new(caller(request)?.names[level])))
}

/// A team may spend 5 dollars a month for each model.
fn model() -> Rule {
    let policy = |request: &Parts, _: &Key| Some(month("model", 5, caller(request)?));
    budget(PolicySource::per_request(policy), |request| {
        // The price table has few models; others are rejected before.
        let model = request.extensions.get().map_or("", Call::model);
        Some(Key::new(format!("{}:{model}", caller(request)?.names[1])))
    })
}

/// Stands for the vendor. A gateway sends the request with its own HTTP client.
async fn vendor() -> Result<Response<Body>, Infallible> {
    let usage = json!({ "completion_tokens": 1_000_000, "prompt_tokens": 0 });
    Ok(Json(json!({ "choices": [], "usage": usage })).into_response())
}

async fn complete(Extension(call): Extension<Call>, reservation: Reservation) -> Response<Body> {
    match call.metered(reservation, vendor()).await {
        Ok(answer) => answer.map(Body::new),
        Err(_) => StatusCode::BAD_GATEWAY.into_response(),
    }
}

pub(crate) fn app(limiter: impl Into<Limiter>) -> Router {
    let limiter = limiter.into();
    let prices =
        Prices::new("2026-11").model("small", Price::new("0.15", "1")).model("large", Price::new("3", "15"));
    let meter = UsageMeter::new(prices).tokens_unit(None);
    let buffer = BufferBodyLayer::new(1 << 20).reject_unread().parse_with(move |body: &BodyBytes| {
        Ok::<_, Box<dyn Error>>(meter.call(Api::OpenAiChat, body.get()?)?)
    });
    let rules = Rules::new().always(level(0)).always(level(1)).always(level(2)).always(model());
    let budgets = RateLimitLayer::with_rules(limiter.clone(), rules);
    let addresses = RateLimitLayer::new(limiter, Policy::new("per-ip", Quota::per_minute(60)), PeerIp::new());
    let usage = Usage::new(&budgets).into_route();
    let calls = Router::new().route("/v1/chat/completions", post(complete)).layer(budgets).layer(buffer);
    calls.route("/usage", usage).layer(addresses)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app(MemoryStore::new()).into_make_service_with_connect_info::<SocketAddr>())
        .await?;
    Ok(())
}
