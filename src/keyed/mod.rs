//! Rate limits for Tower services whose requests are not HTTP.

mod layer;
mod service;

pub use self::{layer::KeyedRateLimitLayer, service::KeyedRateLimit};
