//! The examples answer the curl lines in their doc comments with the responses written there, over real sockets.

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

/// Each file, its settings, and how many curl lines it has.
macro_rules! examples {
    ($($path:literal, $name:ident($($setting:expr),*), $test:ident, $lines:literal;)+) => {$(
        #[allow(dead_code, reason = "its `main` is not run here")]
        #[path = $path]
        mod $name;

        #[tokio::test]
        async fn $test() {
            says_what_is_written($name::app(store() $(, $setting)*), include_str!($path), $lines).await;
        }
    )+};
}

examples! {
    "../../examples/axum_extractor_key.rs", axum_extractor_key("at least 16 bytes"), axum_extractor_key_says_what_is_written, 3;
    "../../examples/behind_proxy.rs", behind_proxy(TrustedProxies::cidrs(["127.0.0.0/8"]).unwrap()), behind_proxy_says_what_is_written, 4;
    "../../examples/cors.rs", cors(), cors_says_what_is_written, 2;
    "../../examples/custom_response.rs", custom_response(), custom_response_says_what_is_written, 7;
    "../../examples/download_bytes.rs", download_bytes(), download_bytes_says_what_is_written, 3;
    "../../examples/llm_stream.rs", llm_stream(), llm_stream_says_what_is_written, 3;
    "../../examples/llm_tokens.rs", llm_tokens(), llm_tokens_says_what_is_written, 5;
    "../../examples/login_protection.rs", login_protection(), login_protection_says_what_is_written, 11;
    "../../examples/per_route.rs", per_route(), per_route_says_what_is_written, 8;
    "../../examples/shadow_rollout.rs", shadow_rollout(), shadow_rollout_says_what_is_written, 8;
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
