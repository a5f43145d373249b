//! Reports that keys have used shares of their quotas.

use std::sync::{Arc, RwLock};

use super::Action;
use crate::{
    base::sync::{read, write},
    decision::{Decision, Outcome, ThresholdEvent, threshold},
    policy::Policy,
};

type Hook = Arc<dyn Fn(&ThresholdEvent<'_>) + Send + Sync>;

/// Whom to inform. Shared by all limiters on a store.
#[derive(Default)]
pub(crate) struct Thresholds(RwLock<Vec<Hook>>);

impl Thresholds {
    /// Adds a function that is called for each event.
    pub(crate) fn inform(&self, hook: Hook) {
        write(&self.0).push(hook);
    }

    /// Reports the shares that the charges of `decision` have reached.
    #[inline]
    pub(crate) fn charged(&self, action: Action, decision: &Decision) {
        // Every decision asks, and most services have no such policy.
        if Policy::any_notifies() && action.charges_units() {
            threshold::crossings(decision, |event| self.report(event));
        }
    }

    /// Reports the shares that `charged` has reached: a charge of units of an outage, or one with which the
    /// instance leased units.
    pub(crate) fn charged_apart(&self, charged: &Outcome, leased: u64) {
        if charged.policy().notifies() {
            threshold::of_outcome(charged, leased, &mut |event| self.report(event));
        }
    }

    fn report(&self, event: &ThresholdEvent<'_>) {
        metric!(threshold_reached(event.policy.name(), event.percent, 1));
        log!(
            info,
            policy = event.policy.name(),
            key_hash = event.key_hash(),
            percent = event.percent,
            used = event.used,
            limit = event.limit,
            "a key has used {} % of its quota",
            event.percent
        );
        // Cloned, so that a function may add another one.
        let hooks: Vec<Hook> = read(&self.0).clone();
        hooks.iter().for_each(|hook| hook(event));
    }
}
