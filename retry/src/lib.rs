//! Retries for clients of rate-limited services, over HTTP and gRPC: a [`RetryPolicy`] for [`tower::retry`] that waits
//! as long as the server asks for.
//!
//! # Which layer
//!
//! | client | layer | feature |
//! |---|---|---|
//! | a tonic `Channel` | [`BufferedRetryLayer`] | `tonic` |
//! | a `reqwest::Client` | [`tower::retry::RetryLayer`] with a [`RetryPolicy`] | `reqwest` |
//! | any service of `http::Request<B>` with a body that is `Clone` | the same | |
//! | one with the body `BoxBody` or `UnsyncBoxBody` of `http_body_util` | [`BufferedRetryLayer`] | |
//! | a service of `tonic::Request<T>` with a message that is `Clone` | [`tower::retry::RetryLayer`] with a [`RetryPolicy`] | `tonic` |
//!
//! # tonic
//!
//! ```text
//! let channel = Channel::from_static("http://greeter:50051").connect_lazy();
//! let channel = ServiceBuilder::new().layer(BufferedRetryLayer::new(RetryPolicy::new())).service(channel);
//! let mut client = GreeterClient::new(channel);
//! ```
//!
//! [`BufferedRetryLayer`] has an example that runs, and `cargo run -p example-client-retry --bin example-client-retry-tonic`
//! is one with a server.
//!
//! # reqwest
//!
//! A `reqwest::Client` is a Tower service of `reqwest::Request`s. A request with a streaming body is sent once.
//!
#![cfg_attr(not(feature = "reqwest"), doc = "```ignore")]
#![cfg_attr(feature = "reqwest", doc = "```")]
//! use reqwest::{Client, Method, Request};
//! use tower::{Service, ServiceBuilder, ServiceExt, retry::RetryLayer};
//! use tower_ratelimit_retry::RetryPolicy;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let url = format!("http://{}/", server.local_addr()?);
//! # tokio::spawn(async move {
//! #     use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! #     for answer in ["429 Too Many Requests\r\nretry-after: 1", "200 OK"] {
//! #         let (mut socket, _) = server.accept().await.unwrap();
//! #         let _ = socket.read(&mut [0; 1024]).await;
//! #         let head = format!("HTTP/1.1 {answer}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
//! #         socket.write_all(head.as_bytes()).await.unwrap();
//! #     }
//! # });
//! let client = Client::new();
//! # let client = Client::builder().no_proxy().build()?;
//! let mut client = ServiceBuilder::new().layer(RetryLayer::new(RetryPolicy::new())).service(client);
//! // The server first answers 429 with `Retry-After: 1`.
//! let response = client.ready().await?.call(Request::new(Method::GET, url.parse()?)).await?;
//! assert_eq!(response.status(), 200);
//! # Ok(())
//! # }
//! ```
//!
//! # Versions
//!
//! This crate neither depends on `tower-ratelimit` nor re-exports it. They share no types, only the standard formats of
//! a server's responses. So versions cannot mismatch, a client compiles none of the server's dependencies, and any
//! server that sends these formats works.
//!
//! # Features
//!
//! | name | what it adds | default |
//! |---|---|---|
//! | `reqwest` | [`RetryPolicy`] for a `reqwest::Client` 0.13 | no |
//! | `tonic` | [`BufferedRetryLayer`] for a `Channel` of tonic 0.14; [`RetryPolicy`] for services of `tonic::Request` | no |
//! | `tracing` | Logs at debug: each retry, and each one skipped because the budget is used up | yes |
#![cfg_attr(docsrs, feature(doc_cfg))]

/// Logs at debug if the feature `tracing` is on.
macro_rules! log {
    ($($fields:tt)+) => {
        #[cfg(feature = "tracing")]
        tracing::debug!(target: "tower_ratelimit_retry", $($fields)+);
    };
}

mod advice;
mod body;
mod details;
mod layer;
mod policy;

pub use self::{
    body::{BufferedBody, ReplayBody, RetryBody},
    layer::{BufferedRetry, BufferedRetryLayer},
    policy::RetryPolicy,
};
