//! The policies: one from the options, or several from a file.

use std::{error::Error, path::Path, time::Duration};

use clap::{Args, ValueEnum};
use tower_ratelimit::{
    Policy, Quota,
    algorithm::{Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
    policy::Enforcement,
};
use tower_ratelimit_operate::live::LivePolicies;

/// The options that make one policy.
#[derive(Args)]
pub(crate) struct Shape {
    /// The algorithm.
    #[arg(long, value_enum, default_value = "gcra")]
    algorithm: Algorithm,
    /// Units per period.
    #[arg(long, required_unless_present_any = ["policies", "suggest"])]
    pub(crate) limit: Option<u64>,
    /// Such as 1s, 10min or 1day. For calendar months, write a file of policies.
    #[arg(long, value_parser = humantime::parse_duration, required_unless_present = "policies")]
    pub(crate) period: Option<Duration>,
    /// Units in one burst, if different from the limit.
    #[arg(long)]
    burst: Option<u64>,
    /// Segments of a sliding window.
    #[arg(long)]
    segments: Option<u32>,
    /// The longest wait in the queue of a leaky bucket; defaults to 1s.
    #[arg(long, value_parser = humantime::parse_duration)]
    max_wait: Option<Duration>,
    /// Units that a leaky bucket's queue does not delay.
    #[arg(long)]
    delay_after: Option<u64>,
    /// The interval at which a token bucket is refilled.
    #[arg(long, value_parser = humantime::parse_duration)]
    refill_every: Option<Duration>,
    /// Tokens that a new bucket holds.
    #[arg(long)]
    initial: Option<u64>,
    /// Align fixed windows to the clock.
    #[arg(long)]
    aligned: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Algorithm {
    Gcra,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
    LeakyBucket,
    LeakyBucketQueue,
    Concurrency,
}

impl Shape {
    /// The policy of these options, with `limit` units per period.
    pub(crate) fn policy(&self, limit: u64) -> Result<Policy, Box<dyn Error>> {
        self.check()?;
        let quota = Quota::try_new(limit, self.period.unwrap_or_default())?;
        let quota = self.burst.map_or(Ok(quota), |burst| quota.try_burst(burst))?;
        let policy = Policy::try_new("replay", quota)?;
        Ok(match self.algorithm {
            Algorithm::Gcra => policy,
            Algorithm::FixedWindow if self.aligned => policy.try_algorithm(FixedWindow::aligned())?,
            Algorithm::FixedWindow => policy.try_algorithm(FixedWindow::anchored())?,
            Algorithm::SlidingLog => policy.try_algorithm(SlidingLog::new())?,
            Algorithm::SlidingWindow => {
                policy.try_algorithm(SlidingWindow::new().segments(self.segments.unwrap_or(1)))?
            }
            Algorithm::TokenBucket => {
                let mut bucket = TokenBucket::new();
                if let Some(step) = self.refill_every {
                    bucket = bucket.refill_every(step);
                }
                if let Some(tokens) = self.initial {
                    bucket = bucket.starting_at(tokens);
                }
                policy.try_algorithm(bucket)?
            }
            Algorithm::LeakyBucket => policy.try_algorithm(LeakyBucket::meter())?,
            Algorithm::LeakyBucketQueue => {
                let queue = LeakyBucket::queue(self.max_wait.unwrap_or(Duration::from_secs(1)));
                policy.try_algorithm(queue.delay_after(self.delay_after.unwrap_or(1)))?
            }
            Algorithm::Concurrency => policy.try_algorithm(Concurrency::new())?,
        })
    }

    /// Rejects options that the algorithm does not use.
    fn check(&self) -> Result<(), String> {
        use Algorithm::{FixedWindow, LeakyBucketQueue, SlidingWindow, TokenBucket};
        let given = [
            ("--segments", self.segments.is_some(), matches!(self.algorithm, SlidingWindow)),
            ("--max-wait", self.max_wait.is_some(), matches!(self.algorithm, LeakyBucketQueue)),
            ("--delay-after", self.delay_after.is_some(), matches!(self.algorithm, LeakyBucketQueue)),
            ("--refill-every", self.refill_every.is_some(), matches!(self.algorithm, TokenBucket)),
            ("--initial", self.initial.is_some(), matches!(self.algorithm, TokenBucket)),
            ("--aligned", self.aligned, matches!(self.algorithm, FixedWindow)),
        ];
        match given.into_iter().find(|(_, given, used)| *given && !used) {
            Some((option, ..)) => Err(format!("{option} is of no use to this algorithm")),
            None => Ok(()),
        }
    }
}

/// The policies of the file at `path`, and its switch of enforcement.
pub(crate) fn read(path: &Path) -> Result<(Vec<Policy>, Enforcement), Box<dyn Error>> {
    let live = LivePolicies::file(path)?;
    Ok((live.current(), live.enforcement().get()))
}

/// `policy` with `limit` units per period. A burst changes in the same proportion.
pub(crate) fn with_limit(policy: &Policy, limit: u64) -> Result<Policy, tower_ratelimit::Error> {
    let old = policy.quota();
    let mut quota = old.with_limit(limit)?;
    if old.has_burst() {
        let burst = u128::from(old.capacity()) * u128::from(limit) / u128::from(old.limit());
        quota = quota.try_burst(u64::try_from(burst).unwrap_or(u64::MAX).max(1))?;
    }
    policy.with_quota(quota)
}
