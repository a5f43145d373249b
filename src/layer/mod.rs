//! Rate limits for HTTP services.

mod body;
mod charges;
mod config;
mod event;
#[cfg(feature = "axum")]
mod extract;
mod future;
mod gate;
mod identify;
#[expect(clippy::module_inception, reason = "the module's main type")]
mod layer;
mod notices;
mod pattern;
mod responder;
mod routes;
mod rule;
mod rules;
mod service;
mod settle;
mod settlement;
mod step;
mod table;
mod warnings;

pub use self::{
    body::ResponseBody,
    event::{DecisionEvent, DecisionKind},
    gate::Preflight,
    layer::RateLimitLayer,
    rule::Rule,
    rules::Rules,
    service::RateLimit,
    settlement::Settlement,
};
