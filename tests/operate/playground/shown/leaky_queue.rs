use std::time::Duration;

use tower_ratelimit::algorithm::LeakyBucket;
use tower_ratelimit::{FailureMode, Header, Limiter, Policy, Quota, RateLimitLayer};

pub fn limit(store: impl Into<Limiter>) -> RateLimitLayer {
    let quota = Quota::new(10, Duration::from_secs(10));
    let algorithm = LeakyBucket::queue(quota.period());
    let policy = Policy::new("api", quota).algorithm(algorithm);
    let policy = policy.failure_mode(FailureMode::Local { instances: 2 });
    RateLimitLayer::new(store, policy, Header::new("x-api-key"))
}
