use tower_ratelimit::{Header, Limiter, Policy, Quota, RateLimitLayer};

pub fn limit(store: impl Into<Limiter>) -> RateLimitLayer {
    let quota = Quota::per_second(10).burst(20);
    let policy = Policy::new("api", quota);
    RateLimitLayer::new(store, policy, Header::new("x-api-key"))
}
