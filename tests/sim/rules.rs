//! The policies of a schedule, and what the invariants know about them.

use std::time::Duration;

use tower_ratelimit::{
    FailureMode, Policy, Quota,
    algorithm::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow},
    policy::Penalty,
};

use super::{bans::Strikes, random::Random};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Units are replenished one by one.
    Bucket,
    Window,
    Concurrency,
}

pub(super) struct Rule {
    pub(super) policy: Policy,
    /// The same policy with another quota, which instances change to and from at different times.
    pub(super) changed: Policy,
    pub(super) kind: Kind,
    pub(super) mode: FailureMode,
    pub(super) limit: u64,
    /// The larger limit of both quotas.
    pub(super) largest: u64,
    pub(super) period: Duration,
    /// The most units that an instance leases.
    pub(super) leased: u64,
    /// The units by which debits may exceed the limit.
    pub(super) debt: u64,
    pub(super) penalty: Option<Strikes>,
}

const DAY: Duration = Duration::from_secs(86_400);

impl Rule {
    /// A rule of policies that `make` makes of either quota.
    fn new(
        make: impl Fn(Quota) -> Policy,
        [quota, other]: [Quota; 2],
        kind: Kind,
        mode: FailureMode,
    ) -> Self {
        let make = |quota| {
            let policy = make(quota).failure_mode(mode);
            if kind == Kind::Concurrency { policy } else { policy.notify_at([10, 50, 90]) }
        };
        Self {
            policy: make(quota),
            changed: make(other),
            kind,
            mode,
            limit: quota.limit(),
            largest: quota.limit().max(other.limit()),
            period: quota.period(),
            leased: 0,
            debt: 0,
            penalty: None,
        }
    }

    fn with_debt(self, debt: u64) -> Self {
        Self { policy: self.policy.max_debt(debt), changed: self.changed.max_debt(debt), debt, ..self }
    }

    fn with_penalty(self, strikes: Strikes) -> Self {
        let Strikes { after, within, first, longest } = strikes;
        let penalty = Penalty::after(after, within).ban(first).up_to(longest);
        let (policy, changed) = (self.policy.penalty(penalty), self.changed.penalty(penalty));
        Self { policy, changed, penalty: Some(strikes), ..self }
    }

    /// The policy of an instance that has changed it, or has not.
    pub(super) const fn policy(&self, is_changed: bool) -> &Policy {
        if is_changed { &self.changed } else { &self.policy }
    }

    /// Whether hardly anything is replenished during a schedule.
    pub(super) fn is_slow(&self) -> bool {
        self.period == DAY
    }

    /// The least level after this many units were charged. If the quota changes, a bucket keeps units above the smaller one
    /// apart from its level, and a refund lowers the level. What was charged does not become a debt of the smaller one.
    pub(super) fn level(&self, charged: u64) -> u64 {
        let smallest = self.limit.min(self.changed.quota().limit());
        let is_cut = self.kind == Kind::Bucket && smallest < self.largest;
        if is_cut { charged.min(smallest) } else { charged }
    }

    /// Whether a debt ends with the period of its units, so that each period can have another one.
    pub(super) fn forgets_debt(&self) -> bool {
        matches!(self.policy.settings().algorithm.name(), "sliding-log" | "sliding-window")
    }

    pub(super) const fn is_leased(&self) -> bool {
        self.leased > 0
    }

    /// The longest time in which all units are replenished.
    pub(super) fn full(&self) -> Duration {
        self.replenished_in(self.limit.min(self.changed.quota().limit()))
    }

    /// The longest time in which all units are replenished at a quota of `limit`: of a bucket, also those above a
    /// lowered limit.
    pub(super) fn replenished_in(&self, limit: u64) -> Duration {
        self.period * (1 + (self.largest + self.debt).div_ceil(limit)) as u32
    }

    /// The most that one instance admits while the store fails. Without a number of instances, one that does not know any
    /// other admits as much as the limit.
    pub(super) fn share(&self) -> u64 {
        match self.mode {
            FailureMode::Local { instances } => self.largest.div_ceil(u64::from(instances.max(1))),
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
    Policy::new("shadow", Quota::new(5, DAY)).algorithm(FixedWindow::anchored()).shadow()
}

/// Two quotas of a period: the same twice, or a limit that instances change to and from.
fn quotas(random: &mut Random, [least, most]: [u64; 2], period: Duration) -> [Quota; 2] {
    let limit = random.between(least, most);
    let other = if random.chance(300) { random.between(least, most) } else { limit };
    [limit, other].map(|limit| Quota::new(limit, period))
}

fn strikes(random: &mut Random) -> Strikes {
    let first = Duration::from_millis(random.between(50, 3_000));
    let short = Duration::from_millis(random.between(100, 5_000));
    Strikes {
        after: random.between(1, 6),
        within: *random.pick(&[DAY, short]),
        first,
        longest: first * *random.pick(&[1, 3, 8]),
    }
}

/// The rules of a schedule with this many instances. The last one is leased.
pub(super) fn rules(random: &mut Random, instances: usize) -> Vec<Rule> {
    let mut rules = Vec::new();
    for number in 0..random.between(2, 4) {
        let name = format!("p{number}");
        let local = FailureMode::Local { instances: *random.pick(&[0, 1, instances as u32]) };
        let mode = *random.pick(&[local, local, FailureMode::Open, FailureMode::Closed]);
        // Aligned to the wall clock of this process if it is counted locally.
        let aligned = if mode == local { FailureMode::Closed } else { mode };
        let slow = quotas(random, [3, 40], DAY);
        let fast = Duration::from_millis(random.between(100, 2_000));
        let fast = quotas(random, [3, 40], fast);
        let policy = |quota| Policy::new(&name, quota);
        let anchored = |quota| policy(quota).algorithm(FixedWindow::anchored());
        let mut rule = match random.below(9) {
            0 | 1 => Rule::new(policy, slow, Kind::Bucket, mode),
            2 => Rule::new(|quota| policy(quota).algorithm(LeakyBucket::meter()), slow, Kind::Bucket, mode),
            3 => Rule::new(anchored, slow, Kind::Window, mode),
            4 => Rule::new(|quota| policy(quota).algorithm(SlidingLog::new()), slow, Kind::Window, mode),
            5 => {
                Rule::new(|quota| policy(quota).algorithm(SlidingWindow::new()), slow, Kind::Window, aligned)
            }
            6 => Rule::new(
                |quota| policy(quota).algorithm(FixedWindow::aligned()),
                slow,
                Kind::Window,
                aligned,
            ),
            7 => Rule::new(policy, fast, Kind::Bucket, mode),
            _ => Rule::new(anchored, fast, Kind::Window, mode),
        };
        if random.chance(400) {
            rule = rule.with_debt(random.between(1, 20));
        }
        if random.chance(400) {
            rule = rule.with_penalty(strikes(random));
        }
        rules.push(rule);
    }
    let mode = FailureMode::Local { instances: instances as u32 };
    let mode = *random.pick(&[mode, FailureMode::Closed]);
    let permits = Policy::concurrency("permits", random.between(2, 6)).quota();
    rules.push(Rule::new(
        |quota| Policy::concurrency("permits", quota.limit()),
        [permits; 2],
        Kind::Concurrency,
        mode,
    ));
    let hot = quotas(random, [100, 1_500], DAY);
    let most = random.between(8, 100);
    let leased = |quota| Policy::new("hot", quota).max_lease(most);
    let hot = match random.below(3) {
        0 => Rule::new(leased, hot, Kind::Bucket, mode),
        1 => Rule::new(|quota| leased(quota).algorithm(FixedWindow::anchored()), hot, Kind::Window, mode),
        _ => Rule::new(|quota| leased(quota).algorithm(LeakyBucket::meter()), hot, Kind::Bucket, mode),
    };
    rules.push(Rule { leased: most, ..hot });
    rules
}
