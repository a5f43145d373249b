//! The examples answer the curl lines in their doc comments with the responses written there, over real sockets.

#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/axum_extractor_key.rs"]
mod axum_extractor_key;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/behind_proxy.rs"]
mod behind_proxy;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/cors.rs"]
mod cors;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/custom_response.rs"]
mod custom_response;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/download_bytes.rs"]
mod download_bytes;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/llm_stream.rs"]
mod llm_stream;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/llm_tokens.rs"]
mod llm_tokens;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/login_protection.rs"]
mod login_protection;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/per_route.rs"]
mod per_route;
#[allow(dead_code, reason = "its `main` is not run here")]
#[path = "../../examples/shadow_rollout.rs"]
mod shadow_rollout;

use std::net::SocketAddr;

use axum::body::Body;
use http::Request;
use support::{
    PATIENT, RedisServer,
    examples::{says_what_is_written, store},
    http::{Client, serve},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tower::ServiceExt as _;
use tower_ratelimit::{Limiter, key::TrustedProxies};

#[tokio::test]
async fn per_route_says_what_is_written() {
    says_what_is_written(per_route::app(store()), include_str!("../../examples/per_route.rs"), 8).await;
}

#[tokio::test]
async fn behind_proxy_says_what_is_written() {
    let app = behind_proxy::app(store(), TrustedProxies::cidrs(["127.0.0.0/8"]).unwrap());
    says_what_is_written(app, include_str!("../../examples/behind_proxy.rs"), 4).await;
}

#[tokio::test]
async fn axum_extractor_key_says_what_is_written() {
    let app = axum_extractor_key::app(store(), "at least 16 bytes");
    says_what_is_written(app, include_str!("../../examples/axum_extractor_key.rs"), 3).await;
}

#[tokio::test]
async fn custom_response_says_what_is_written() {
    says_what_is_written(custom_response::app(store()), include_str!("../../examples/custom_response.rs"), 7)
        .await;
}

#[tokio::test]
async fn llm_tokens_says_what_is_written() {
    says_what_is_written(llm_tokens::app(store()), include_str!("../../examples/llm_tokens.rs"), 5).await;
}

#[tokio::test]
async fn llm_stream_says_what_is_written() {
    says_what_is_written(llm_stream::app(store()), include_str!("../../examples/llm_stream.rs"), 3).await;
}

#[tokio::test]
async fn llm_stream_charges_a_client_that_leaves_what_it_was_sent() {
    let redis = RedisServer::start();
    for limiter in [Limiter::new(store()), Limiter::new(support::store(&redis).await)] {
        let server = serve(llm_stream::app(limiter.clone())).await;
        let mut connection = TcpStream::connect(server).await.unwrap();
        let request = "POST /stream HTTP/1.1\r\nhost: test\r\nx-api-key: k-ann\r\nx-max-tokens: 900\r\n\
                       content-length: 9\r\n\r\nsay hello";
        connection.write_all(request.as_bytes()).await.unwrap();
        let words = |received: &[u8]| String::from_utf8_lossy(received).matches("hello").count() as u64;
        let mut received = Vec::new();
        while words(&received) < 3 {
            assert!(connection.read_buf(&mut received).await.unwrap() > 0);
        }
        drop(connection);
        limiter.drain(PATIENT).await.unwrap();
        let left = Client::new()
            .send(
                Request::get(format!("http://{server}/left"))
                    .header("x-api-key", "k-ann")
                    .body(String::new())
                    .unwrap(),
            )
            .await;
        let used = 1_000 - left.body().trim_end().parse::<u64>().unwrap();
        // The service may have sent a few more words until it saw that the client has left.
        assert!((2 + words(&received)..900).contains(&used), "{used} of {}", words(&received));
    }
}

#[tokio::test]
async fn login_protection_says_what_is_written() {
    let source = include_str!("../../examples/login_protection.rs");
    says_what_is_written(login_protection::app(store()), source, 11).await;
}

#[tokio::test]
async fn download_bytes_says_what_is_written() {
    says_what_is_written(download_bytes::app(store()), include_str!("../../examples/download_bytes.rs"), 3)
        .await;
}

#[tokio::test]
async fn shadow_rollout_says_what_is_written() {
    says_what_is_written(shadow_rollout::app(store()), include_str!("../../examples/shadow_rollout.rs"), 8)
        .await;
}

#[tokio::test]
async fn cors_says_what_is_written() {
    says_what_is_written(cors::app(store()), include_str!("../../examples/cors.rs"), 2).await;
}

#[tokio::test]
async fn behind_proxy_ignores_the_header_of_clients_that_bypass_the_proxy() {
    let app = behind_proxy::app(store(), TrustedProxies::cidrs(["10.0.0.0/8"]).unwrap());
    let mut statuses = Vec::new();
    for i in 0..3 {
        let request = Request::get("/").header("x-forwarded-for", format!("203.0.113.{i}"));
        let request =
            request.extension(SocketAddr::from(([192, 0, 2, 1], 4711))).body(Body::empty()).unwrap();
        statuses.push(app.clone().oneshot(request).await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 429]);
}
