//! Requests and the statuses of their responses in one text.
//!
//! The steps of `POST /login from=192.0.2.1 x-api-key=k 200 429; PREFLIGHT / 200` are made one after the other: two requests
//! with a peer and a header, and a preflight. A request is a `GET` of `/` unless its step has another method or path.

use std::net::{IpAddr, SocketAddr};

use axum::{Router, body::Body};
use http::{Method, Request};
use tower::ServiceExt as _;
use tower_ratelimit::RateLimitLayer;

use crate::inner::ask;

fn is_status(word: &str) -> bool {
    word.len() == 3 && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// The request of a step: all of its words that are not statuses.
pub fn request(step: &str) -> Request<String> {
    let mut request = Request::get("/");
    for word in step.split_whitespace().filter(|word| !is_status(word)) {
        request = match word.split_once('=') {
            _ if word.starts_with(['/', '*']) => request.uri(word),
            Some(("from", peer)) => request.extension(SocketAddr::new(peer.parse::<IpAddr>().unwrap(), 1)),
            Some((name, value)) => request.header(name, value),
            None if word == "PREFLIGHT" => request
                .method(Method::OPTIONS)
                .header("origin", "https://page.example")
                .header("access-control-request-method", "POST"),
            None if word.contains(':') => request.uri(word),
            None => request.method(word),
        };
    }
    request.body(String::new()).unwrap()
}

/// Makes the requests of `script`, and asserts that `ask` returns the statuses in it.
pub async fn check_with(name: &str, script: &str, mut ask: impl AsyncFnMut(Request<String>) -> u16) {
    let (mut expected, mut seen) = (Vec::new(), Vec::new());
    for step in script.split(';') {
        for word in step.split_whitespace() {
            expected.push(word.to_owned());
            seen.push(if is_status(word) { ask(request(step)).await.to_string() } else { word.to_owned() });
        }
    }
    assert_eq!(seen.join(" "), expected.join(" "), "{name}");
}

/// [`check_with`] the statuses of a service behind `layer`.
pub async fn check(name: &str, layer: &RateLimitLayer, script: &str) {
    check_with(name, script, async |request| ask(layer, request).await.status().as_u16()).await;
}

/// [`check_with`] the statuses of `app`.
pub async fn check_app(name: &str, app: &Router, script: &str) {
    let ask = async |request: Request<String>| {
        app.clone().oneshot(request.map(Body::from)).await.unwrap().status().as_u16()
    };
    check_with(name, script, ask).await;
}
