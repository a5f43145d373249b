//! Rate limits for Tower services whose requests are not HTTP.

mod layer;
mod service;

/// The response future.
pub mod future {
    pub use super::service::ResponseFuture;
}

pub use self::{layer::KeyedRateLimitLayer, service::KeyedRateLimit};
