//! Rate limits for Tower services whose requests are not HTTP.

mod config;
mod future;
mod layer;
mod patience;
mod rule;
mod service;

pub use self::{
    future::KeyedResponseFuture, layer::KeyedRateLimitLayer, rule::KeyedRule, service::KeyedRateLimit,
};
