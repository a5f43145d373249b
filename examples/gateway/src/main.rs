//! A gateway to a language model with budgets in dollars a month: of the organization, the team, the member, and
//! each model of the team.
//!
//! Run with
//!
//! ```text
//! cargo run -p example-gateway
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
//! curl -i -H 'x-api-key: k-max' -d '{ "model": "small", "messages": [] }' http://127.0.0.1:3000/v1/chat/completions
//!     401
//! ```
//!
//! `PORT` (3000) is the port, 0 for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{env, error::Error, net::SocketAddr};

use axum::extract::{Extension, Request};
use axum::http::{Response, StatusCode, request::Parts};
use axum::{Json, Router, body::Body, response::IntoResponse as _, routing::post};
use serde_json::json;
use tokio::net::TcpListener;
use tower::ServiceExt as _;
use tower_ratelimit::{
    ErrorKind, Key, Limiter, MemoryStore, PeerIp, Policy, PolicySource, Quota, RateLimitLayer, Reservation,
    Rule, algorithm::FixedWindow, key::from_fn, layer::Rules,
};
use tower_ratelimit_gateway::body::{BodyBytes, BufferBodyLayer};
use tower_ratelimit_gateway::prices::{Api, ApiErrors, Call, Price, Prices, UsageMeter};
use tower_ratelimit_operate::usage::UsageRoute;

/// Who calls with a key: the time zone of the organization, and the dollars a month of the organization, the team
/// and the member. A gateway has them from its database: see the example `tiers`.
const CALLERS: [(&str, &str, [(&str, u64); 3]); 3] = [
    ("k-ann", "Europe/Berlin", [("acme", 1_000), ("research", 3), ("ann", 50)]),
    ("k-bob", "Europe/Berlin", [("acme", 1_000), ("research", 3), ("bob", 2)]),
    ("k-max", "Europe/Berlin", [("acme", 1_000), ("research", 3), ("max", 0)]),
];
const LEVELS: [&str; 4] = ["organization", "team", "member", "model"];

/// The time zone and the four budgets of a request. A team may spend 5 dollars for each model.
fn budgets(request: &Parts) -> Option<(&'static str, [(Key, u64); 4])> {
    let api_key = request.headers.get("x-api-key")?.to_str().ok()?;
    let (_, zone, [organization, team, member]) = CALLERS.iter().find(|(known, ..)| *known == api_key)?;
    let model = request.extensions.get().map_or("", Call::model);
    let of = |&(name, dollars): &(&str, u64)| (Key::new(name), dollars);
    Some((zone, [of(organization), of(team), of(member), (Key::new(format!("{}:{model}", team.0)), 5)]))
}

/// A call is charged its estimate under each level, all or nothing, and settled at what the vendor reports. The
/// next months pay for a debt.
fn rule(meter: &UsageMeter, level: usize) -> Rule {
    let policy = PolicySource::per_request(move |request, _| {
        let Some((zone, budgets)) = budgets(request) else { return Ok(None) };
        let budget = budgets[level].1 * 1_000_000;
        // No quota has a limit of 0.
        if budget == 0 {
            let problem = format!("the budget of the {} is 0 dollars", LEVELS[level]);
            return Err(tower_ratelimit::Error::new(ErrorKind::UnknownIdentity, problem));
        }
        let windows = FixedWindow::aligned().time_zone(zone);
        let policy = Policy::new(LEVELS[level], Quota::per_month(budget)).algorithm(windows);
        // The bound of a debt is 24 budgets.
        Ok(Some(policy.max_debt(budget.min(10_000_000)).notify_at([80, 100])))
    });
    meter.money_rule(policy, from_fn(move |request| Some(budgets(request)?.1[level].0.clone())))
}

/// Asks the vendor for an answer that reports its usage, regardless of what the client asks for. The answer passes
/// unchanged, and is charged what it reports.
async fn complete(
    Extension(mut call): Extension<Call>,
    Extension(vendor): Extension<Router>,
    reservation: Reservation,
    request: Request,
) -> Response<Body> {
    let (mut head, _) = request.into_parts();
    // The buffer has read the body, and rejects what it does not read.
    let Ok(mut body) = BodyBytes::of(&head).cloned() else { return StatusCode::BAD_REQUEST.into_response() };
    if let Err(error) = call.prepare(&mut head.headers, &mut body) {
        return (StatusCode::BAD_REQUEST, error.to_string()).into_response();
    }
    let request = Request::from_parts(head, Body::from(body));
    let Ok(answer) = call.metered(reservation, vendor.oneshot(request)).await;
    answer.map(Body::new)
}

pub(crate) fn app(limiter: impl Into<Limiter>, vendor: Router) -> Router {
    let limiter = limiter.into();
    let prices =
        Prices::new("2026-11").model("small", Price::new("0.15", "1")).model("large", Price::new("3", "15"));
    let meter = UsageMeter::new(prices).tokens_unit(None);
    let rules = (0..4).fold(Rules::new(), |rules, level| rules.always(rule(&meter, level)));
    // Clients show why a call is rejected, and do not sleep until the end of the month.
    let errors = ApiErrors::new(Api::OpenAiChat);
    let budgets = RateLimitLayer::with_rules(limiter.clone(), rules).response(errors);
    let addresses = RateLimitLayer::new(limiter, Policy::new("per-ip", Quota::per_minute(60)), PeerIp::new());
    let usage = UsageRoute::new(&budgets).without("model").into_route();
    let buffer = BufferBodyLayer::new(1 << 20)
        .reject_unread()
        .parse_with(meter.parser(Api::OpenAiChat))
        .response(move |rejection, _| errors.error(rejection.status(), &rejection.to_string()));
    let calls = Router::new().route("/v1/chat/completions", post(complete)).layer(budgets).layer(buffer);
    calls.route("/usage", usage).layer(addresses).layer(Extension(vendor))
}

/// Stands for the vendor. A gateway sends the request with its own HTTP client.
pub(crate) fn vendor() -> Router {
    let usage = json!({ "completion_tokens": 1_000_000, "prompt_tokens": 0 });
    let answer = Json(json!({ "choices": [], "usage": usage }));
    Router::new().route("/v1/chat/completions", post(answer))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let app = app(MemoryStore::new(), vendor());
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
