//! Rate limits for HTTP services.

mod body;
mod charges;
mod config;
mod event;
#[cfg(feature = "axum")]
mod extract;
mod future;
mod identify;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod layer;
mod limits;
mod pattern;
mod routes;
mod rule;
mod rules;
mod service;
mod settle;
mod step;
mod warnings;

pub use self::{
    body::ResponseBody,
    event::{DecisionEvent, DecisionKind},
    future::ResponseFuture,
    layer::RateLimitLayer,
    limits::RateLimits,
    rule::Rule,
    rules::Rules,
    service::RateLimit,
};
