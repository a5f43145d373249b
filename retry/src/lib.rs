//! Retries for clients of rate-limited services, over HTTP and gRPC: a [`RetryPolicy`] for [`tower::retry`]
//! that waits as long as the server asks for.
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
//! [`BufferedRetryLayer`] has an example that runs, and `cargo run -p example-client-retry --bin
//! example-client-retry-tonic` is one with a server.
//!
//! # reqwest
//!
//! A `reqwest::Client` is a Tower service of `reqwest::Request`s. A request with a streaming body is sent
//! once.
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
//! # Large APIs
//!
//! The rejections of large APIs, as they document them, and how long [`RetryPolicy`] waits before it retries. "Returned"
//! means without a retry. So is every rejection with a wait above [`RetryPolicy::max_wait`], by default 60 seconds.
//!
//! | API | status | what is read | wait |
//! |---|---|---|---|
//! | Anthropic | 429 | `Retry-After: 34` | 34 s |
//! | | 429 | `anthropic-ratelimit-tokens-remaining: 0`, `-tokens-reset: 2027-01-01T00:00:42Z` | until then |
//! | Atlassian (Jira) | 429 | `Retry-After: 5` | 5 s |
//! | | 429 | `X-RateLimit-Remaining: 0`, `X-RateLimit-Reset: 2027-01-01T00:01Z` | until then |
//! | AWS | 429, 503 | none; S3's 503 only for idempotent methods | backoff |
//! | Azure Cosmos DB | 429 | `x-ms-retry-after-ms: 2341` | 2.341 s |
//! | Azure OpenAI | 429 | `retry-after-ms: 1500`, `Retry-After: 2` | 2 s |
//! | Azure Resource Manager, Microsoft Graph | 429 | `Retry-After: 17` | 17 s |
//! | Cloudflare | 429 | `Retry-After: 30`, `Ratelimit: "default";r=0;t=30` | 30 s |
//! | Discord | 429 | `Retry-After: 65` | 65 s |
//! | | 429 | `X-RateLimit-Reset-After: 64.57`, `X-RateLimit-Reset: 1798761664.57` | 65 s |
//! | GitHub, primary limit | 403, 429 | `x-ratelimit-remaining: 0`, `x-ratelimit-reset: 1798761640` | until then |
//! | GitHub, secondary limit | 403, 429 | `Retry-After: 60` | 60 s |
//! | | 429 | units left, no `Retry-After` | longest backoff |
//! | | 403 | units left, no `Retry-After` | returned |
//! | GitLab | 429 | `Retry-After: 30` | 30 s |
//! | | 429 | `RateLimit-Remaining: 0`, `RateLimit-Reset: 1798761630` | until then |
//! | Google | 429, 503 | `Retry-After: 30` | 30 s |
//! | | 429 | none | backoff |
//! | | 403 | the limit is in the body, which is not read | returned |
//! | HubSpot | 429 | none | backoff |
//! | Linear | 429 | `X-RateLimit-Requests-Remaining: 0`, `X-RateLimit-Requests-Reset: 1798761609000` | until then |
//! | Notion | 429 | `Retry-After: 12` | 12 s |
//! | Okta | 429 | `X-Rate-Limit-Remaining: 0`, `X-Rate-Limit-Reset: 1798761651` | until then |
//! | OpenAI | 429 | `retry-after-ms: 2000`, `Retry-After: 2` | 2 s |
//! | | 429 | `x-ratelimit-remaining-tokens: 0`, `x-ratelimit-reset-tokens: 6m0s` | 6 min |
//! | Reddit | 429 | `x-ratelimit-remaining: 0.0`, `x-ratelimit-reset: 28` | 28 s |
//! | Shopify | 429 | `Retry-After: 2.0` | 2 s |
//! | Slack | 429 | `Retry-After: 30` | 30 s |
//! | Stripe | 429 | none | backoff |
//! | Twilio | 429 | none | backoff |
//! | X | 429 | `x-rate-limit-remaining: 0`, `x-rate-limit-reset: 1798761655` | until then |
//! | Zendesk | 429 | `Retry-After: 53` | 53 s |
//!
//! Other statuses are returned, such as a 529 of Anthropic, or the 400 that a GraphQL API may use for its limits.
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

/// The response future.
pub mod future {
    pub use crate::layer::ResponseFuture;
}

pub use self::{
    body::{BufferedBody, ReplayBody, RetryBody},
    layer::{BufferedRetry, BufferedRetryLayer},
    policy::RetryPolicy,
};
