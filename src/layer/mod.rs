//! Rate limits for HTTP services.

mod admit;
mod body;
mod config;
mod context;
mod event;
mod extensions;
#[cfg(feature = "axum")]
mod extract;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod layer;
mod notices;
mod pattern;
mod routes;
mod rule;
mod rules;
mod service;
mod settle;

/// The response future.
pub mod future {
    pub use super::service::ResponseFuture;
}

pub use self::{
    body::ResponseBody,
    event::{DecisionEvent, DecisionKind},
    layer::RateLimitLayer,
    rule::Rule,
    rules::Rules,
    service::RateLimit,
};
