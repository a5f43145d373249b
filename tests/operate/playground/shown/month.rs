use tower_ratelimit::algorithm::FixedWindow;
use tower_ratelimit::{Header, Limiter, Policy, Quota, RateLimitLayer};

pub fn limit(store: impl Into<Limiter>) -> RateLimitLayer {
    let quota = Quota::per_month(300);
    let algorithm = FixedWindow::aligned();
    let policy = Policy::new("api", quota).algorithm(algorithm);
    RateLimitLayer::new(store, policy, Header::new("x-api-key"))
}
