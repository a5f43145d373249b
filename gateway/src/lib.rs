//! For gateways in front of language models, MCP servers and other services whose requests say in their body what they
//! cost. Optional parts of [`tower_ratelimit`].
//!
//! | feature | module | what it has |
//! |---|---|---|
//! | | [`body`] | a bounded reader of request bodies, so that keys and costs can depend on them; MCP and JSON-RPC |
//! | `prices` (default) | `prices` | prices of language models, calls that are charged the tokens and the money that their answers report, rejections in the form of a vendor's errors |
//!
//! `tracing` records logs, and `tonic` keeps the `NamedService` of a buffered gRPC service. `prices`, `tracing` and the
//! default features of `tower-ratelimit` are on by default. `tonic` also turns on the same feature of the core, which
//! [changes](tower_ratelimit#features) what gRPC clients receive.
//!
//! What it follows, the interfaces of vendors and MCP, changes often. So it has its own version, and uses the public API of
//! `tower-ratelimit` alone, which it re-exports as [`tower_ratelimit`].
//!
//! # Example
//!
//! ```
//! # #[cfg(feature = "prices")] {
//! use tower_ratelimit_gateway::prices::{Price, Prices, Usage};
//!
//! let prices = Prices::new("2025-06").model("gpt-4o", Price::new("2.50", "10").cached_input("1.25"));
//! let price = prices.price("gpt-4o").unwrap();
//! assert_eq!(price.micro_dollars(&Usage::new(1_000, 200)), 4_500);
//! # }
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

pub mod body;
mod panics;
#[cfg(feature = "prices")]
#[cfg_attr(docsrs, doc(cfg(feature = "prices")))]
pub mod prices;
mod strict_names;

pub use tower_ratelimit;
