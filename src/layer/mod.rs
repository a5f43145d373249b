//! Rate limits for HTTP services.

mod admit;
mod body;
mod config;
mod context;
mod delayed;
mod handlers;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod layer;
mod observe;
mod pattern;
mod routes;
mod rule;
mod rules;
mod service;
mod settle;

pub(crate) use self::delayed::unready;

/// The response future.
pub mod future {
    pub use super::service::ResponseFuture;
}

pub use self::{
    body::ResponseBody,
    layer::RateLimitLayer,
    observe::{DecisionEvent, DecisionKind},
    rule::Rule,
    rules::Rules,
    service::RateLimit,
};
