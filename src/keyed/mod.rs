//! Rate limits for Tower services whose requests are not HTTP.

mod future;
mod layer;
mod rule;
mod service;

pub use self::{layer::KeyedRateLimitLayer, rule::KeyedRule, service::KeyedRateLimit};
