use tower_ratelimit::algorithm::TokenBucket;
use tower_ratelimit::{Header, Limiter, Policy, Quota, RateLimitLayer};

pub fn limit(store: impl Into<Limiter>) -> RateLimitLayer {
    let quota = Quota::per_day(10);
    let algorithm = TokenBucket::new().refill_every(quota.period());
    let policy = Policy::new("api", quota).algorithm(algorithm);
    RateLimitLayer::new(store, policy, Header::new("x-api-key"))
}
