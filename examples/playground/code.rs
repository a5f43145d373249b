//! A limit as the code and as the configuration of a service.

use super::setup::{Algorithm, Failure, Limit, Period};

impl Limit {
    /// A function that makes the layer.
    pub(crate) fn rust(&self) -> String {
        let (path, expression) = self.algorithm_code();
        let failure = match self.failure {
            Failure::Local => None,
            Failure::LocalHalf => Some("FailureMode::Local { instances: 2 }"),
            Failure::Open => Some("FailureMode::Open"),
            Failure::Closed => Some("FailureMode::Closed"),
        };
        let mut names = vec!["Header", "Limiter", "Policy", "Quota", "RateLimitLayer"];
        if failure.is_some() {
            names.insert(0, "FailureMode");
        }
        let quota = self.quota_code();
        let mut lines = Vec::new();
        if quota.contains("Duration") {
            lines.extend(["use std::time::Duration;".to_owned(), String::new()]);
        }
        if let Some(path) = path {
            lines.push(format!("use tower_ratelimit::algorithm::{path};"));
        }
        lines.push(format!("use tower_ratelimit::{{{}}};", names.join(", ")));
        lines.push(String::new());
        lines.push("pub fn limit(store: impl Into<Limiter>) -> RateLimitLayer {".to_owned());
        lines.push(format!("    let quota = {quota};"));
        if path.is_some() {
            lines.push(format!("    let algorithm = {expression};"));
            lines.push("    let policy = Policy::new(\"api\", quota).algorithm(algorithm);".to_owned());
        } else {
            lines.push("    let policy = Policy::new(\"api\", quota);".to_owned());
        }
        if let Some(mode) = failure {
            lines.push(format!("    let policy = policy.failure_mode({mode});"));
        }
        lines.push("    RateLimitLayer::new(store, policy, Header::new(\"x-api-key\"))".to_owned());
        lines.push("}".to_owned());
        lines.join("\n") + "\n"
    }

    fn quota_code(&self) -> String {
        let limit = self.limit;
        let quota = match self.period {
            Period::Second => format!("Quota::per_second({limit})"),
            Period::TenSeconds => format!("Quota::new({limit}, Duration::from_secs(10))"),
            Period::Minute => format!("Quota::per_minute({limit})"),
            Period::Hour => format!("Quota::per_hour({limit})"),
            Period::Day => format!("Quota::per_day({limit})"),
            Period::Week => format!("Quota::per_week({limit})"),
            Period::ThirtyDays => format!("Quota::new({limit}, Duration::from_secs(30 * 86_400))"),
            Period::Month => format!("Quota::per_month({limit})"),
        };
        match self.burst {
            Some(burst) => format!("{quota}.burst({burst})"),
            None => quota,
        }
    }

    /// The type to import, unless the policy has this algorithm by default, and an expression.
    const fn algorithm_code(&self) -> (Option<&'static str>, &'static str) {
        match self.algorithm {
            Algorithm::Gcra => (None, ""),
            Algorithm::TokenBucket => (Some("TokenBucket"), "TokenBucket::new()"),
            Algorithm::TokenBucketInSteps => {
                (Some("TokenBucket"), "TokenBucket::new().refill_every(quota.period())")
            }
            Algorithm::LeakyMeter => (Some("LeakyBucket"), "LeakyBucket::meter()"),
            Algorithm::LeakyQueue => (Some("LeakyBucket"), "LeakyBucket::queue(quota.period())"),
            Algorithm::FixedWindow => (Some("FixedWindow"), "FixedWindow::anchored()"),
            Algorithm::AlignedWindow => (Some("FixedWindow"), "FixedWindow::aligned()"),
            Algorithm::SlidingWindow => (Some("SlidingWindow"), "SlidingWindow::new()"),
            Algorithm::SlidingSegments => (Some("SlidingWindow"), "SlidingWindow::new().segments(10)"),
            Algorithm::SlidingLog => (Some("SlidingLog"), "SlidingLog::new()"),
            Algorithm::Concurrency => (Some("Concurrency"), "Concurrency::new()"),
        }
    }

    /// A file for `LivePolicies` of `tower-ratelimit-operate`. Each table is also a `PolicyConfig`.
    pub(crate) fn toml(&self) -> Result<String, tower_ratelimit::Error> {
        let period = format!("{}s", self.period.length().as_secs());
        let algorithm = match self.algorithm {
            Algorithm::Gcra => "\"gcra\"".to_owned(),
            Algorithm::TokenBucket => "\"token-bucket\"".to_owned(),
            Algorithm::TokenBucketInSteps => {
                format!("{{ name = \"token-bucket\", refill_every = \"{period}\" }}")
            }
            Algorithm::LeakyMeter => "\"leaky-bucket\"".to_owned(),
            Algorithm::LeakyQueue => format!("{{ name = \"leaky-bucket\", max_wait = \"{period}\" }}"),
            Algorithm::FixedWindow => "\"fixed-window\"".to_owned(),
            Algorithm::AlignedWindow => "{ name = \"fixed-window\", aligned = true }".to_owned(),
            Algorithm::SlidingWindow => "\"sliding-window\"".to_owned(),
            Algorithm::SlidingSegments => "{ name = \"sliding-window\", segments = 10 }".to_owned(),
            Algorithm::SlidingLog => "\"sliding-log\"".to_owned(),
            Algorithm::Concurrency => "\"concurrency\"".to_owned(),
        };
        let (quota, policy) = (self.quota()?, self.policy()?);
        let failure = policy.settings().failure_mode;
        Ok(format!(
            "[[policies]]\nname = \"api\"\nquota = \"{quota}\"\nalgorithm = {algorithm}\nfailure_mode = \"{failure}\"\n"
        ))
    }
}
