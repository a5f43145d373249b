//! Services and clients over real sockets.

use std::net::SocketAddr;

use axum::{Router, routing::get};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::{
    client::legacy::{Client as Connections, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{net::TcpListener, task::JoinSet};
use tower_ratelimit::RateLimitLayer;

/// An app whose one route is behind `layer`.
pub fn app(layer: RateLimitLayer) -> Router {
    Router::new().route("/", get(async || "hello")).layer(layer)
}

/// Serves `app` on a free port, with connect info, until the runtime ends.
pub async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await.unwrap();
    });
    address
}

/// A client with its own connections.
#[derive(Clone, Debug)]
pub struct Client(Connections<HttpConnector, Full<Bytes>>);

impl Client {
    pub fn new() -> Self {
        Self(Connections::builder(TokioExecutor::new()).build_http())
    }

    pub async fn get(&self, url: &str) -> Response<String> {
        self.send(Request::get(url).body(String::new()).unwrap()).await
    }

    /// Sends a request whose URL is absolute.
    pub async fn send(&self, request: Request<String>) -> Response<String> {
        let request = request.map(|body| Full::new(Bytes::from(body)));
        let (parts, body) = self.0.request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Response::from_parts(parts, String::from_utf8(body.to_vec()).unwrap())
    }
}

/// The number of responses of each kind.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub ok: usize,
    pub limited: usize,
    pub other: usize,
}

/// Sends `requests` requests to the servers in turn, over `connections` concurrent connections.
pub async fn hammer(servers: &[SocketAddr], connections: usize, requests: usize) -> Tally {
    let mut workers = JoinSet::new();
    for worker in 0..connections {
        let servers = servers.to_vec();
        let mine = (worker..requests).step_by(connections).count();
        workers.spawn(async move {
            let client = Client::new();
            let mut statuses = Vec::with_capacity(mine);
            for i in 0..mine {
                let server = servers[(worker + i) % servers.len()];
                statuses.push(client.get(&format!("http://{server}/")).await.status());
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
