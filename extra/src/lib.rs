//! Optional parts of [`tower_ratelimit`]. Each part is a feature, and none is on by default.
//!
//! | feature | module | what it has |
//! |---|---|---|
//! | `adaptive` | `adaptive` | quotas that follow the load of the service, or any other signal |
//! | `admin` | `admin` | an axum router for operators: why a client is denied, reset, refund, ban |
//! | `body` | `body` | a bounded reader of request bodies, so that keys and costs can depend on them; MCP and JSON-RPC |
//! | `explain` | `explain` | what would be decided about a key or a request, and why, as text and as JSON; which keys are banned |
//! | `live` | `live` | policies that change while the service runs, from a file or from Redis; networks that operators block |
//! | `lookup` | `lookup` | asynchronous lookups of clients and their policies, cached |
//! | `prices` | `prices` | prices of language models, and calls that are charged the tokens and the money that their answers report |
//! | `serde` | `config` | policies in configuration files; explanations are serialized |
//! | `streamed-credentials` | `credentials` | a credentials provider of redis-rs, such as the one of Entra ID, for a `RedisStore` |
//! | `testing` | `testing` | tests that compare a custom algorithm's Lua file with its Rust twin on random steps |
//! | `usage` | `usage` | a route on which clients see their own limits: used, remaining, until when |
//!
//! Other features add to these: `metrics` and `tracing` record what happens, `redis` shares state between
//! instances, and `tonic` measures gRPC services. `redis`, `tracing` and the default features of
//! `tower-ratelimit` are on by default. If another dependency turns a feature of this crate on, only logs and
//! metrics are added; `tonic` also turns on the same feature of the core, which
//! [changes](tower_ratelimit#features) what gRPC clients receive.
//!
//! # Versions
//!
//! Each version needs exactly the same version of `tower-ratelimit`, because it uses items that are not part
//! of the API. It re-exports this version as [`tower_ratelimit`].
//!
//! # Example
//!
//! ```
//! # #[cfg(feature = "explain")]
//! use tower_ratelimit_extra::{
//!     explain::Explanation,
//!     tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota},
//! };
//!
//! # #[cfg(feature = "explain")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_ratelimit::Error> {
//! let limiter = Limiter::new(MemoryStore::new());
//! let api = Policy::new("api", Quota::per_minute(5));
//! let alice = Key::new("alice");
//!
//! limiter.check(&api, &alice, 5).await?;
//! let explanation = Explanation::of(&limiter, &api, &alice, 1).await?;
//! assert!(!explanation.decision().is_admitted());
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "explain"))]
//! # fn main() {}
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

/// Logs if the feature `tracing` is on. Never pass an identity.
#[allow(unused_macros, reason = "not every part logs")]
macro_rules! log {
    ($level:ident, $($fields:tt)+) => {
        #[cfg(feature = "tracing")]
        {
            // A subscriber that panics changes nothing.
            let _ = crate::panics::caught(|| tracing::$level!(target: "tower_ratelimit", $($fields)+));
        }
    };
}

#[cfg(feature = "adaptive")]
#[cfg_attr(docsrs, doc(cfg(feature = "adaptive")))]
pub mod adaptive;
#[cfg(feature = "admin")]
#[cfg_attr(docsrs, doc(cfg(feature = "admin")))]
pub mod admin;
#[cfg(feature = "body")]
#[cfg_attr(docsrs, doc(cfg(feature = "body")))]
pub mod body;
#[cfg(all(feature = "metrics", any(feature = "adaptive", feature = "live")))]
mod capacity;
#[cfg(feature = "serde")]
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
pub mod config;
#[cfg(feature = "streamed-credentials")]
#[cfg_attr(docsrs, doc(cfg(feature = "streamed-credentials")))]
pub mod credentials;
#[cfg(feature = "explain")]
#[cfg_attr(docsrs, doc(cfg(feature = "explain")))]
pub mod explain;
#[cfg(feature = "live")]
#[cfg_attr(docsrs, doc(cfg(feature = "live")))]
pub mod live;
#[cfg(feature = "lookup")]
#[cfg_attr(docsrs, doc(cfg(feature = "lookup")))]
pub mod lookup;
#[cfg(any(feature = "adaptive", feature = "lookup"))]
mod outage;
mod panics;
#[cfg(feature = "prices")]
#[cfg_attr(docsrs, doc(cfg(feature = "prices")))]
pub mod prices;
#[cfg(any(feature = "admin", feature = "usage"))]
mod reply;
#[cfg(any(feature = "body", feature = "prices"))]
mod strict_names;
#[cfg(feature = "testing")]
#[cfg_attr(docsrs, doc(cfg(feature = "testing")))]
pub mod testing;
#[cfg(feature = "usage")]
#[cfg_attr(docsrs, doc(cfg(feature = "usage")))]
pub mod usage;

pub use tower_ratelimit;
