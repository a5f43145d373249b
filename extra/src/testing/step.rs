//! The random steps of a test, and their text in a report.

use std::fmt;

use tower_ratelimit::{Policy, store::Action};

use super::random::Random;

/// The number of keys.
pub(super) const KEYS: u64 = 3;
/// More than the decisions of a round.
const ANY: u64 = 1_000_000;

/// One random step.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Move the clock forward, by microseconds.
    Advance(u64),
    /// Move the clock back.
    SetBack(u64),
    /// Wait exactly as long as the last denial said.
    WaitForRetry,
    /// Wait exactly until the last decision's reset.
    WaitForReset,
    /// One decision: a charge, a charge of up to the cost, or a peek.
    Decide { action: Action, key: u64, cost: u64 },
    /// A charge in one decision with another policy.
    Together { key: u64, cost: u64 },
    /// Charges at the same time: for each key how many, and their cost.
    Batch(Vec<(u64, u64)>),
    /// Refund units of an earlier decision, or release its permits.
    Refund { which: u64, percent: u64 },
    /// Renew the permits of an earlier decision.
    Renew { which: u64 },
    /// Refund the latest units of a key.
    RefundLatest { key: u64, units: u64 },
    /// Remove the state of a key.
    Reset { key: u64 },
}

impl Step {
    /// A step whose times and costs match the scale of `policy`.
    pub(super) fn random(random: &mut Random, policy: &Policy) -> Self {
        let key = random.up_to(KEYS - 1);
        match random.up_to(99) {
            0..14 => Self::Advance(time(random, policy)),
            14..18 => Self::SetBack(time(random, policy)),
            18..26 => Self::WaitForRetry,
            26..28 => Self::WaitForReset,
            28..60 => Self::Decide { action: Action::Charge, key, cost: cost(random, policy) },
            60..65 => Self::Decide { action: Action::ChargeUpTo, key, cost: cost(random, policy) },
            65..68 => Self::Decide { action: Action::Peek, key, cost: cost(random, policy) },
            68..74 => Self::Together { key, cost: cost(random, policy) },
            74..82 => Self::Batch((0..KEYS).map(|_| (random.up_to(4), cost(random, policy))).collect()),
            82..92 => Self::Refund { which: random.up_to(ANY), percent: random.up_to(140) },
            92..95 if policy.has_permits() => Self::Renew { which: random.up_to(ANY) },
            92..97 => Self::RefundLatest { key, units: cost(random, policy) },
            _ => Self::Reset { key },
        }
    }
}

/// The quota's period in microseconds, at most 400 days.
pub(super) fn period_micros(policy: &Policy) -> u64 {
    policy.quota().period().as_micros() as u64
}

fn time(random: &mut Random, policy: &Policy) -> u64 {
    let (period, limit) = (period_micros(policy), policy.quota().limit());
    match random.up_to(9) {
        0 => 1,
        1 => period / limit,
        2 => period,
        3 | 4 => random.up_to(3 * (period / limit)),
        5 | 6 => random.up_to(period / 10),
        7 | 8 => random.up_to(period + period / 2),
        _ => random.up_to(30 * period),
    }
}

fn cost(random: &mut Random, policy: &Policy) -> u64 {
    let capacity = policy.capacity();
    match random.up_to(9) {
        0 => 0,
        1..=3 => 1,
        4 => capacity,
        5 => capacity + 1,
        6 => 1 + random.up_to(capacity / 4),
        _ => 1 + random.up_to(capacity - 1),
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Advance(by) => write!(f, "advance by {by} µs"),
            Self::SetBack(by) => write!(f, "step back by {by} µs"),
            Self::WaitForRetry => write!(f, "wait until the last denial ends"),
            Self::WaitForReset => write!(f, "wait until the reset of the last decision"),
            Self::Decide { action: Action::Peek, key, cost } => write!(f, "peek {cost} units of key-{key}"),
            Self::Decide { action: Action::ChargeUpTo, key, cost } => {
                write!(f, "charge up to {cost} units of key-{key}")
            }
            Self::Decide { key, cost, .. } => write!(f, "charge {cost} units of key-{key}"),
            Self::Together { key, cost } => {
                write!(f, "charge {cost} units of key-{key} together with another policy")
            }
            Self::Batch(batch) => {
                write!(f, "charge at the same time:")?;
                for (key, (count, cost)) in batch.iter().enumerate() {
                    write!(f, " {count} x {cost} units of key-{key}")?;
                }
                Ok(())
            }
            Self::Refund { percent, .. } => write!(f, "refund {percent} % of an earlier charge"),
            Self::Renew { .. } => write!(f, "renew the permits of an earlier charge"),
            Self::RefundLatest { key, units } => write!(f, "refund the latest {units} units of key-{key}"),
            Self::Reset { key } => write!(f, "reset key-{key}"),
        }
    }
}
