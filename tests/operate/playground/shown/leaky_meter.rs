use std::time::Duration;

use tower_ratelimit::algorithm::LeakyBucket;
use tower_ratelimit::{FailureMode, Header, Limiter, Policy, Quota, RateLimitLayer};

pub fn limit(store: impl Into<Limiter>) -> RateLimitLayer {
    let quota = Quota::new(10, Duration::from_secs(30 * 86_400));
    let algorithm = LeakyBucket::meter();
    let policy = Policy::new("api", quota).algorithm(algorithm);
    let policy = policy.failure_mode(FailureMode::Open);
    RateLimitLayer::new(store, policy, Header::new("x-api-key"))
}
