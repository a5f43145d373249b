use tower_ratelimit::algorithm::SlidingWindow;
use tower_ratelimit::{FailureMode, Header, Limiter, Policy, Quota, RateLimitLayer};

pub fn limit(store: impl Into<Limiter>) -> RateLimitLayer {
    let quota = Quota::per_minute(10);
    let algorithm = SlidingWindow::new();
    let policy = Policy::new("api", quota).algorithm(algorithm);
    let policy = policy.failure_mode(FailureMode::Local { instances: 2 });
    RateLimitLayer::new(store, policy, Header::new("x-api-key"))
}
