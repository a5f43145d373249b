use tower_ratelimit::algorithm::Concurrency;
use tower_ratelimit::{Header, Limiter, Policy, Quota, RateLimitLayer};

pub fn limit(store: impl Into<Limiter>) -> RateLimitLayer {
    let quota = Quota::per_minute(3);
    let algorithm = Concurrency::new();
    let policy = Policy::new("api", quota).algorithm(algorithm);
    RateLimitLayer::new(store, policy, Header::new("x-api-key"))
}
