//! A new limit, step by step: first it only counts, then it is enforced for some clients, then for all.
//!
//! Run with
//!
//! ```text
//! cargo run --example shadow_rollout --features axum
//! ```
//!
//! and, in another terminal, run the lines right after each other. The old limit is 100 requests an hour for
//! each API key, the new one 2. `/denials` reports how often the new one has denied, or would have.
//!
//! ```text
//! curl -i -H 'x-api-key: k-ann' http://127.0.0.1:3000/
//!     200
//! curl -i -H 'x-api-key: k-ann' http://127.0.0.1:3000/
//!     200
//! curl -i -H 'x-api-key: k-ann' http://127.0.0.1:3000/
//!     200
//!     hello
//! curl -i http://127.0.0.1:3000/denials
//!     200
//!     0 denied, 1 would have been
//! curl -i -X PUT http://127.0.0.1:3000/share/1
//!     200
//!     enforced for 100 % of the keys
//! curl -i -H 'x-api-key: k-ann' http://127.0.0.1:3000/
//!     429
//!     retry-after: 1800
//! curl -i http://127.0.0.1:3000/denials
//!     200
//!     1 denied, 1 would have been
//! curl -i -X PUT http://127.0.0.1:3000/share/7
//!     400
//!     the share of keys must be from 0 to 1
//! ```
//!
//! A share contains the same keys on every instance, and a larger share contains all keys of a smaller one.
//! In a service, the share comes from a configuration: see the example `reload`.
//!
//! `PORT` (3000) is the port, 0 for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{
    env,
    error::Error as StdError,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    routing::{get, put},
};
use tokio::{net::TcpListener, sync::watch};
use tower_ratelimit::{
    Header, Limiter, MemoryStore, Policy, PolicySource, Quota, RateLimitLayer, Rule,
    layer::{DecisionEvent, DecisionKind},
};

/// How often the new limit has denied, and how often it would have.
#[derive(Default)]
struct Denials {
    denied: AtomicUsize,
    would_have: AtomicUsize,
}

impl Denials {
    fn count(&self, event: &DecisionEvent<'_>) {
        let Some(decision) = event.decision else { return };
        self.would_have.fetch_add(
            decision.shadows().iter().filter(|shadow| shadow.verdict().is_denied()).count(),
            Relaxed,
        );
        if event.kind == DecisionKind::Denied && event.policy() == Some("new") {
            self.denied.fetch_add(1, Relaxed);
        }
    }

    fn text(&self) -> String {
        format!("{} denied, {} would have been\n", self.denied.load(Relaxed), self.would_have.load(Relaxed))
    }
}

fn new_limit(share: f64) -> Policy {
    Policy::new("new", Quota::per_hour(2)).rollout(share)
}

async fn set_share(
    State(sender): State<watch::Sender<Policy>>,
    Path(share): Path<f64>,
) -> Result<String, (StatusCode, String)> {
    if !(0.0..=1.0).contains(&share) {
        return Err((StatusCode::BAD_REQUEST, "the share of keys must be from 0 to 1\n".to_owned()));
    }
    sender.send_replace(new_limit(share));
    Ok(format!("enforced for {} % of the keys\n", share * 100.0))
}

pub(crate) fn app(limiter: impl Into<Limiter>) -> Router {
    let denials = Arc::new(Denials::default());
    let counted = denials.clone();
    let old = Policy::new("old", Quota::per_hour(100));
    let (sender, new) = watch::channel(Policy::new("new", Quota::per_hour(2)).shadow());
    let layer = RateLimitLayer::new(limiter, old, Header::new("x-api-key"))
        .rule(Rule::new(PolicySource::watched(new), Header::new("x-api-key")))
        .on_decision(move |event| counted.count(event));
    Router::new()
        .route("/", get(async || "hello\n").layer(layer))
        .route("/denials", get(async move || denials.text()))
        .route("/share/{share}", put(set_share))
        .with_state(sender)
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
