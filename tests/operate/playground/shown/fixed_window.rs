use tower_ratelimit::algorithm::FixedWindow;
use tower_ratelimit::{Header, Limiter, Policy, Quota, RateLimitLayer};

pub fn limit(store: impl Into<Limiter>) -> RateLimitLayer {
    let quota = Quota::per_day(1000);
    let algorithm = FixedWindow::anchored();
    let policy = Policy::new("api", quota).algorithm(algorithm);
    RateLimitLayer::new(store, policy, Header::new("x-api-key"))
}
