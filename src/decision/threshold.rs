//! [`ThresholdEvent`]: a key has used a share of a quota.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{Decision, DecisionSource, Outcome};
use crate::{algorithm::Replenishment, base::time::micros, key::Key, policy::Policy};

/// A key has used a share of a quota that its policy [notifies at](Policy::notify_at): for
/// [`Limiter::on_threshold`](crate::Limiter::on_threshold).
///
/// `Debug` does not show the identity.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct ThresholdEvent<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// The client that was charged. Its text is the identity as it is stored.
    pub key: &'a Key,
    /// The share of the quota that was reached, in percent.
    pub percent: u8,
    /// The units that are used, including [leased](Policy::max_lease) ones.
    pub used: u64,
    /// The units of the whole quota.
    pub limit: u64,
    /// When the window ends, by the clock of the store. `None` if the algorithm has no windows.
    pub ends: Option<SystemTime>,
    /// When the store made the charge, in microseconds since 1970.
    made: u64,
}

impl ThresholdEvent<'_> {
    /// 64 bits of the SHA-256 of the key, as 16 hex digits: the `key_hash` in the log and in the output of
    /// `ratelimit-admin`.
    #[must_use]
    pub fn key_hash(&self) -> String {
        self.key.digest()
    }

    /// A text that events share if they are about the same key, policy, limit, share and window: a receiver
    /// that keeps the latest ones can drop repeats, which follow refunds. It has no identity.
    ///
    /// Without windows, each event has a different one. A refund of all units of an
    /// [anchored](crate::algorithm::FixedWindow::anchored) window ends it: the next charge begins another one.
    #[must_use]
    pub fn id(&self) -> String {
        let Self { policy, percent, limit, ends, made, .. } = self;
        let window = ends.and_then(|ends| ends.duration_since(UNIX_EPOCH).ok()).map(|ends| ends.as_secs());
        let window = window.unwrap_or(*made);
        format!("{}:{}:{limit}:{percent}:{window}", policy.label(), self.key_hash())
    }

    /// When the store made the charge, in microseconds since 1970.
    pub(crate) const fn made(&self) -> u64 {
        self.made
    }
}

impl fmt::Debug for ThresholdEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThresholdEvent")
            .field("policy", &self.policy.name())
            .field("percent", &self.percent)
            .field("used", &self.used)
            .field("limit", &self.limit)
            .field("ends", &self.ends)
            .finish_non_exhaustive()
    }
}

/// Calls `report` for each share that the charges of `decision` have reached.
pub(crate) fn crossings(decision: &Decision, mut report: impl FnMut(&ThresholdEvent<'_>)) {
    // A denied request is not charged. In an outage, and from a lease, the store counts later or has counted
    // before. A lease has reported its units together with the charge.
    if decision.is_denied() || decision.source() != DecisionSource::Store || decision.has_lease() {
        return;
    }
    for outcome in decision.all_outcomes().iter().filter(|outcome| outcome.policy().notifies()) {
        of_outcome(outcome, 0, &mut report);
    }
}

/// Calls `report` for each share that the charge of `outcome` has reached, together with `leased` units, which
/// are among the remaining ones.
pub(crate) fn of_outcome(outcome: &Outcome, leased: u64, report: &mut impl FnMut(&ThresholdEvent<'_>)) {
    let policy = outcome.policy();
    let limit = policy.capacity_without_debt();
    let used = policy.capacity().saturating_sub(outcome.remaining_for_all().saturating_sub(leased));
    let before = used.saturating_sub(outcome.granted() + leased);
    let receipt = outcome.charge().receipt();
    let made = receipt.map_or(0, |receipt| receipt.made);
    let is_window = matches!(policy.replenishment(), Replenishment::InWindows);
    let counter = policy.settings().algorithm.counter();
    let ends =
        receipt.zip(counter).and_then(|(receipt, counter)| counter.window_ends(policy.arguments(), receipt));
    let ends = ends.unwrap_or_else(|| made + micros(outcome.reset_after()));
    let ends = UNIX_EPOCH + Duration::from_micros(ends);
    for &percent in &policy.settings().notify_at {
        let reaches = |used: u64| u128::from(used) * 100 >= u128::from(limit) * u128::from(percent);
        if reaches(used) && !reaches(before) {
            let (key, ends) = (outcome.key(), is_window.then_some(ends));
            report(&ThresholdEvent { policy, key, percent, used, limit, ends, made });
        }
    }
}
