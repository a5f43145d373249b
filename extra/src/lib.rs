//! What services need now and then beside [`tower_ratelimit`]. Each part is a feature, and none is on by default.
//!
//! | feature | module | what it has |
//! |---|---|---|
//! | `adaptive` | `adaptive` | quotas that follow the load of the service, or any other signal |
//! | `admin` | `admin` | an axum router with which operators look at limits, reset, refund and ban |
//! | `explain` | `explain` | what would be decided about a key or a request, and why, as text and as JSON |
//! | `live` | `live` | policies that change while the service runs, from a file or from Redis |
//! | `lookup` | `lookup` | asynchronous lookups of clients and their policies, cached |
//! | `testing` | `testing` | tests for a custom algorithm: its Lua file and its twin in Rust, on random steps |
//!
//! Other features add to these: `metrics` and `tracing` record what happens, `redis` is for what instances share, `serde`
//! serializes explanations, and `tonic` measures gRPC services. `redis` and `tracing` are on by default, and so are the
//! default features of `tower-ratelimit`.
//!
//! # Versions
//!
//! Each version needs exactly the same version of `tower-ratelimit`, which it re-exports as [`tower_ratelimit`].
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
//! let login = Policy::new("login", Quota::per_minute(5));
//! let alice = Key::new("alice");
//!
//! limiter.check(&login, &alice, 5).await?;
//! let explanation = Explanation::of(&limiter, &login, &alice, 1).await?;
//! assert!(!explanation.decision().is_allowed());
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
        tracing::$level!(target: "tower_ratelimit", $($fields)+);
    };
}

#[cfg(feature = "adaptive")]
#[cfg_attr(docsrs, doc(cfg(feature = "adaptive")))]
pub mod adaptive;
#[cfg(feature = "admin")]
#[cfg_attr(docsrs, doc(cfg(feature = "admin")))]
pub mod admin;
mod base;
#[cfg(feature = "explain")]
#[cfg_attr(docsrs, doc(cfg(feature = "explain")))]
pub mod explain;
#[cfg(feature = "live")]
#[cfg_attr(docsrs, doc(cfg(feature = "live")))]
pub mod live;
#[cfg(feature = "lookup")]
#[cfg_attr(docsrs, doc(cfg(feature = "lookup")))]
pub mod lookup;
#[cfg(feature = "testing")]
#[cfg_attr(docsrs, doc(cfg(feature = "testing")))]
pub mod testing;

pub use tower_ratelimit;
