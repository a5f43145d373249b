use tower_ratelimit::algorithm::FixedWindow;
use tower_ratelimit::{FailureMode, Header, Limiter, Policy, Quota, RateLimitLayer};

pub fn limit(store: impl Into<Limiter>) -> RateLimitLayer {
    let quota = Quota::per_week(5);
    let algorithm = FixedWindow::aligned();
    let policy = Policy::new("api", quota).algorithm(algorithm);
    let policy = policy.failure_mode(FailureMode::Closed);
    RateLimitLayer::new(store, policy, Header::new("x-api-key"))
}
