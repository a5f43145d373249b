//! Rate limits for HTTP services.

mod admit;
mod body;
mod config;
mod context;
mod cost;
mod degraded;
mod delayed;
mod handlers;
pub(crate) mod layer;
mod observe;
mod pattern;
mod routes;
pub(crate) mod rule;
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
    cost::IntoCost,
    degraded::Degraded,
    observe::{DecisionEvent, DecisionKind},
    rules::Rules,
    service::RateLimit,
};
