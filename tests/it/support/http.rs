//! Services and clients over real sockets.

use std::net::SocketAddr;

use axum::{Router, routing::get};
use reqwest::{Client, StatusCode};
use tokio::{net::TcpListener, task::JoinSet};
use tower_ratelimit::RateLimitLayer;

/// An app whose one route is behind `layer`.
pub(crate) fn app(layer: RateLimitLayer) -> Router {
    Router::new().route("/", get(async || "hello")).layer(layer)
}

/// Serves `app` on a free port, with connect info, until the runtime ends.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await.unwrap();
    });
    address
}

/// The number of responses of each kind.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) ok: usize,
    pub(crate) limited: usize,
    pub(crate) other: usize,
}

/// Sends `requests` requests to the servers in turn, over `connections` connections at once.
pub(crate) async fn hammer(servers: &[SocketAddr], connections: usize, requests: usize) -> Tally {
    let mut workers = JoinSet::new();
    for worker in 0..connections {
        let servers = servers.to_vec();
        let mine = (worker..requests).step_by(connections).count();
        workers.spawn(async move {
            let client = Client::builder().no_proxy().build().unwrap();
            let mut statuses = Vec::with_capacity(mine);
            for i in 0..mine {
                let server = servers[(worker + i) % servers.len()];
                statuses.push(client.get(format!("http://{server}/")).send().await.unwrap().status());
            }
            statuses
        });
    }
    let mut tally = Tally::default();
    for status in workers.join_all().await.into_iter().flatten() {
        match status {
            StatusCode::OK => tally.ok += 1,
            StatusCode::TOO_MANY_REQUESTS => tally.limited += 1,
            _ => tally.other += 1,
        }
    }
    tally
}
