//! A login that slows down guessing: only failed logins count, per user name and per address, and an address
//! that keeps trying is banned.
//!
//! Run with
//!
//! ```text
//! cargo run --example login_protection --features axum
//! ```
//!
//! and, in another terminal, run the lines right after each other. In any minute, each user name may fail
//! twice, and each address four times. An address that is denied three times within ten minutes is banned for
//! an hour. Each further ban is twice as long, up to a day.
//!
//! ```text
//! curl -i -d '{"user":"bob","password":"secret"}' http://127.0.0.1:3000/login
//!     200
//!     welcome, bob
//! curl -i -d '{"user":"ann","password":"guess"}' http://127.0.0.1:3000/login
//!     401
//! curl -i -d '{"user":"Ann","password":"guess"}' http://127.0.0.1:3000/login
//!     401
//! curl -i -d '{"user":"ann","password":"secret"}' http://127.0.0.1:3000/login
//!     429
//!     retry-after: 60
//! curl -i -d '{"user":"cem","password":"guess"}' http://127.0.0.1:3000/login
//!     401
//! curl -i -d '{"user":"dan","password":"guess"}' http://127.0.0.1:3000/login
//!     401
//! curl -i -d '{"user":"eve","password":"guess"}' http://127.0.0.1:3000/login
//!     429
//!     retry-after: 60
//! curl -i -d '{"user":"fay","password":"guess"}' http://127.0.0.1:3000/login
//!     429
//!     retry-after: 60
//! curl -i -d '{"user":"gus","password":"guess"}' http://127.0.0.1:3000/login
//!     429
//!     retry-after: 3600
//!     {"type":"https://iana.org/assignments/http-problem-types#abnormal-usage-detected","title":"Request not satisfied due to detection of abnormal request pattern","status":429,"detail":"The client is banned. Try again in 1 hour.","violated-policies":["address"]}
//! curl -i -d '{"user":"bob","password":"secret"}' http://127.0.0.1:3000/login
//!     429
//!     retry-after: 3600
//! curl -i -d 'user=bob' http://127.0.0.1:3000/login
//!     400
//!     the body must be JSON with `user` and `password`
//! ```
//!
//! A limit per user name stops guesses from many addresses, but lets anyone lock a user out for a minute:
//! keep its waits short, and give it no penalty. Behind a proxy, use `ClientIp` instead of `PeerIp`, or one
//! client gets everyone banned.
//!
//! `PORT` (3000) is the port, 0 for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{env, error::Error as StdError, net::SocketAddr, time::Duration};

use axum::{
    Extension, Router,
    body::{Body, to_bytes},
    extract::Request,
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::post,
};
use http::StatusCode;
use serde_json::Value;
use tokio::net::TcpListener;
use tower_ratelimit::{
    FailureMode, Limiter, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer, Rule, algorithm::SlidingLog,
    key::from_extension, policy::Penalty,
};

/// What a client sends to log in.
#[derive(Clone)]
struct Login {
    user: String,
    password: String,
}

impl Login {
    fn parse(body: &[u8]) -> Option<Self> {
        let body: Value = serde_json::from_slice(body).ok()?;
        let text = |name: &str| body.get(name).and_then(Value::as_str);
        // In one form, or each spelling of a name could be guessed again.
        Some(Self { user: text("user")?.trim().to_lowercase(), password: text("password")?.to_owned() })
    }
}

const MAX_BODY: usize = 8 * 1024;

/// Reads the body, because the rate limit sees only the head of a request, and puts the login into its
/// extensions.
async fn read_login(request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    // Before the limit, so the size is bounded.
    let Ok(body) = to_bytes(body, MAX_BODY).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let Some(login) = Login::parse(&body) else {
        return (StatusCode::BAD_REQUEST, "the body must be JSON with `user` and `password`\n")
            .into_response();
    };
    parts.extensions.insert(login);
    next.run(Request::from_parts(parts, Body::from(body))).await
}

async fn log_in(Extension(login): Extension<Login>) -> Response {
    // In a service, this compares a hash in a database.
    if login.password == "secret" {
        return format!("welcome, {}\n", login.user).into_response();
    }
    (StatusCode::UNAUTHORIZED, "wrong user name or password\n").into_response()
}

pub(crate) fn app(limiter: impl Into<Limiter>) -> Router {
    let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3_600));
    let penalty = Penalty::after(3, 10 * minute).ban(hour).up_to(24 * hour);
    // Exact in any minute. Without Redis, logins are rejected: the limits protect passwords.
    let exact = |name, failures| {
        Policy::new(name, Quota::per_minute(failures))
            .algorithm(SlidingLog::new())
            .failure_mode(FailureMode::Closed)
    };
    let address = exact("address", 4).penalty(penalty);
    let user = exact("user", 2);
    let failed = |response: &http::response::Parts| response.status == StatusCode::UNAUTHORIZED;
    let user = Rule::new(user, from_extension(|login: &Login| login.user.clone())).count_if(failed);
    let layer =
        RateLimitLayer::with_rules(limiter, Rule::new(address, PeerIp::new()).count_if(failed)).rule(user);
    Router::new().route("/login", post(log_in).layer(layer).layer(middleware::from_fn(read_login)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn StdError>> {
    tracing_subscriber::fmt().init();
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app(MemoryStore::new()).into_make_service_with_connect_info::<SocketAddr>())
        .await?;
    Ok(())
}
