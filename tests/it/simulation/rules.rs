//! The policies of a schedule, and what the invariants know about them.

use std::time::Duration;

use tower_ratelimit::{
    FailureMode, Policy, Quota,
    algorithm::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow},
};

use super::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Units are replenished one by one.
    Bucket,
    Window,
    Concurrency,
}

pub(super) struct Rule {
    pub(super) policy: Policy,
    pub(super) kind: Kind,
    pub(super) mode: FailureMode,
    pub(super) limit: u64,
    pub(super) period: Duration,
    pub(super) leased: bool,
    /// The units by which debits may exceed the limit.
    pub(super) debt: u64,
}

const DAY: Duration = Duration::from_secs(86_400);

impl Rule {
    fn new(policy: Policy, kind: Kind, mode: FailureMode) -> Self {
        let (limit, period) = (policy.quota().limit(), policy.quota().period());
        let policy = policy.on_store_failure(mode);
        Self { policy, kind, mode, limit, period, leased: false, debt: 0 }
    }

    fn with_debt(self, debt: u64) -> Self {
        Self { policy: self.policy.debt(debt), debt, ..self }
    }

    /// Whether hardly anything is replenished during a schedule.
    pub(super) fn is_slow(&self) -> bool {
        self.period == DAY
    }

    /// The most that one instance admits while the store fails.
    pub(super) fn share(&self) -> u64 {
        match self.mode {
            FailureMode::Local { instances } => self.limit.div_ceil(u64::from(instances.max(1))),
            _ => 0,
        }
    }

    /// The most units of `limit` that are replenished in `time`.
    pub(super) fn replenished(&self, limit: u64, time: Duration) -> u64 {
        let periods = time.as_micros() / self.period.as_micros();
        match self.kind {
            Kind::Bucket => (time.as_micros() * u128::from(limit) / self.period.as_micros()) as u64 + 1,
            // A window that began before.
            Kind::Window if self.is_slow() => 0,
            Kind::Window => (periods as u64 + 1) * limit,
            Kind::Concurrency => 0,
        }
    }

    /// The key of `identity` in Redis.
    pub(super) fn key(&self, identity: &str) -> String {
        format!("rl:{}:{}:{{{identity}}}", self.policy.name(), self.algorithm())
    }

    fn algorithm(&self) -> String {
        let text = format!("{:?}", self.policy);
        let known = [
            ("FixedWindow", "fixed-window"),
            ("SlidingLog", "sliding-log"),
            ("SlidingWindow", "sliding-window"),
            ("Concurrency", "concurrency"),
            ("LeakyBucket", "leaky-bucket"),
        ];
        known.iter().find(|(name, _)| text.contains(name)).map_or("gcra", |(_, name)| name).into()
    }
}

/// A policy that takes part in some decisions, and must change none.
pub(super) fn shadow() -> Policy {
    Policy::new("shadow", Quota::new(5, DAY).unwrap()).algorithm(FixedWindow::anchored()).shadow()
}

/// The rules of a schedule with so many instances. The last one is leased.
pub(super) fn rules(random: &mut Random, instances: usize) -> Vec<Rule> {
    let mut rules = Vec::new();
    for number in 0..random.between(2, 4) {
        let name = format!("p{number}");
        let local = FailureMode::Local { instances: *random.pick(&[1, instances as u32]) };
        let mode = *random.pick(&[local, local, FailureMode::Open, FailureMode::Closed]);
        // Aligned to the wall clock of this process if it is counted locally.
        let aligned = if mode == local { FailureMode::Closed } else { mode };
        let limit = random.between(3, 40);
        let slow = Quota::new(limit, DAY).unwrap();
        let fast = Quota::new(limit, Duration::from_millis(random.between(100, 2_000))).unwrap();
        rules.push(match random.below(9) {
            0 | 1 => Rule::new(Policy::new(&name, slow), Kind::Bucket, mode),
            2 => Rule::new(Policy::new(&name, slow).algorithm(LeakyBucket::meter()), Kind::Bucket, mode),
            3 => Rule::new(Policy::new(&name, slow).algorithm(FixedWindow::anchored()), Kind::Window, mode),
            4 => Rule::new(Policy::new(&name, slow).algorithm(SlidingLog::new()), Kind::Window, mode),
            5 => Rule::new(Policy::new(&name, slow).algorithm(SlidingWindow::new()), Kind::Window, aligned),
            6 => Rule::new(Policy::new(&name, slow).algorithm(FixedWindow::aligned()), Kind::Window, aligned),
            7 => Rule::new(Policy::new(&name, fast), Kind::Bucket, mode),
            _ => Rule::new(Policy::new(&name, fast).algorithm(FixedWindow::anchored()), Kind::Window, mode),
        });
        if random.chance(400)
            && let Some(rule) = rules.pop()
        {
            rules.push(rule.with_debt(random.between(1, 20)));
        }
    }
    let mode = FailureMode::Local { instances: instances as u32 };
    let mode = *random.pick(&[mode, FailureMode::Closed]);
    let permits = random.between(2, 6);
    rules.push(Rule::new(Policy::concurrency("permits", permits), Kind::Concurrency, mode));
    let hot = Quota::new(random.between(100, 1_500), DAY).unwrap();
    let most = random.between(8, 100);
    let hot = match random.below(3) {
        0 => Rule::new(Policy::new("hot", hot).leased(most), Kind::Bucket, mode),
        1 => Rule::new(
            Policy::new("hot", hot).algorithm(FixedWindow::anchored()).leased(most),
            Kind::Window,
            mode,
        ),
        _ => Rule::new(
            Policy::new("hot", hot).algorithm(LeakyBucket::meter()).leased(most),
            Kind::Bucket,
            mode,
        ),
    };
    rules.push(Rule { leased: true, ..hot });
    rules
}
