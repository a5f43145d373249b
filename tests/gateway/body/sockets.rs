//! Over HTTP/1.1, with what only a client on a socket can do. HTTP/2 is in `tests/net/body.rs`.

use std::{net::SocketAddr, time::Duration};

use axum::{Router, body::Body, extract::Request, routing::post};
use http_body_util::BodyExt as _;
use support::{eventually, http::serve};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tower_ratelimit_gateway::body::{BodyBytes, BufferBodyLayer};

/// Answers with the length of `BodyBytes`, the body and its trailers.
async fn echo(request: Request) -> String {
    let known = request.extensions().get::<BodyBytes>().unwrap().get().unwrap().len();
    let collected = request.into_body().collect().await.unwrap();
    let trailers = collected.trailers().map_or(0, http::HeaderMap::len);
    let text = String::from_utf8(collected.to_bytes().to_vec()).unwrap();
    format!("{known} {trailers} {text}")
}

async fn serve_behind(layer: &BufferBodyLayer) -> SocketAddr {
    let app = Router::new().route("/", post(echo)).layer(layer.clone());
    serve(app).await
}

/// Sends `request`, and returns all that the server sends until it closes the connection.
async fn exchange(server: SocketAddr, request: &str) -> String {
    let mut socket = TcpStream::connect(server).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn chunks_and_trailers_arrive_as_they_were_sent() {
    let server = serve_behind(&BufferBodyLayer::new(1_000)).await;
    let answer = exchange(
        server,
        "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
         1\r\nh\r\n4\r\nello\r\n0\r\nx-sum: 7\r\n\r\n",
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n5 1 hello"), "{answer}");
}

#[tokio::test]
async fn a_client_that_expects_100_gets_it_only_if_its_body_is_read() {
    let server = serve_behind(&BufferBodyLayer::new(10)).await;
    // The client waits with its body, which the server never asks for, and closes the connection.
    let head = "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 11\r\n\r\n";
    let answer = exchange(server, head).await;
    assert!(answer.starts_with("HTTP/1.1 413 Payload Too Large\r\n"), "{answer}");
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");

    let mut socket = TcpStream::connect(server).await.unwrap();
    let head = "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut interim = [0; 25];
    socket.read_exact(&mut interim).await.unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    socket.write_all(b"hello").await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("5 0 hello"), "{answer}");
}

#[tokio::test]
async fn a_body_without_a_length_is_answered_when_it_is_too_large() {
    let server = serve_behind(&BufferBodyLayer::new(10)).await;
    // It does not end.
    let request = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nb\r\n01234567890\r\n";
    let answer = exchange(server, request).await;
    assert!(answer.starts_with("HTTP/1.1 413 Payload Too Large\r\n"), "{answer}");
}

#[tokio::test]
async fn a_body_that_ends_early_is_answered_with_400() {
    let server = serve_behind(&BufferBodyLayer::new(10)).await;
    let mut socket = TcpStream::connect(server).await.unwrap();
    socket.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhello").await.unwrap();
    // The client can still read.
    socket.shutdown().await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
}

#[tokio::test]
async fn a_slow_client_is_answered_with_408_on_a_connection_that_closes() {
    let server = serve_behind(&BufferBodyLayer::new(10).timeout(Duration::from_millis(1))).await;
    let answer = exchange(server, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhel").await;
    assert!(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{answer}");
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
}

#[tokio::test]
async fn a_client_that_disconnects_frees_its_memory() {
    let layer = BufferBodyLayer::new(10_000);
    let server = serve_behind(&layer).await;
    let mut socket = TcpStream::connect(server).await.unwrap();
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9000\r\n\r\n{}", "x".repeat(5_000));
    socket.write_all(head.as_bytes()).await.unwrap();
    assert!(eventually(async || layer.buffered_bytes() >= 5_000).await);
    drop(socket);
    assert!(eventually(async || layer.buffered_bytes() == 0).await);
}

#[tokio::test]
async fn a_connection_is_used_again_after_a_body_that_was_read() {
    let server = serve_behind(&BufferBodyLayer::new(10)).await;
    let first = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nfirst";
    let second = "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let answer = exchange(server, &format!("{first}{second}")).await;
    assert!(answer.contains("\r\n\r\n5 0 first") && answer.ends_with("\r\n\r\n0 0 "), "{answer}");
}

/// The types of a layer fit into axum on a router, a route and a nested router.
#[tokio::test]
async fn the_layer_fits_into_axum_wherever_a_layer_does() {
    let layer = BufferBodyLayer::new(10);
    let nested = Router::new().route("/", post(echo)).route_layer(layer.clone());
    let app = Router::new().nest("/a", nested).route("/b", post(echo).layer(layer.clone()));
    for path in ["/a", "/b"] {
        let request = http::Request::post(path).body(Body::from("hi")).unwrap();
        let response = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "2 0 hi", "{path}");
    }
}
