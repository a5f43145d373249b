//! What looks at decisions once they are made: reports that keys have used shares of their quotas, and the log of
//! denials.

use std::sync::{Arc, Mutex, OnceLock, RwLock, atomic::AtomicBool};

#[cfg(feature = "redis")]
use tokio::runtime::Handle;

use super::{Action, reported::Reported};
use crate::{
    base::{
        panics::observe,
        sync::{lock, read, write},
        watched,
    },
    decision::{Decision, DenialLog, Outcome, ThresholdEvent, threshold},
};

type Hook = Arc<dyn Fn(&ThresholdEvent<'_>) + Send + Sync>;

/// What to inform. Shared by all limiters on a store.
#[derive(Default)]
pub(crate) struct Watchers {
    hooks: RwLock<Vec<Hook>>,
    /// Whether a hook has panicked.
    has_panicked: AtomicBool,
    denials: OnceLock<DenialLog>,
    reported: Mutex<Reported>,
}

impl Watchers {
    /// Adds a function that is called for each event.
    pub(crate) fn inform(&self, hook: Hook) {
        write(&self.hooks).push(hook);
    }

    /// The log of denials, which begins with the first call.
    pub(crate) fn denials(&self) -> DenialLog {
        let denials = self.denials.get_or_init(DenialLog::new).clone();
        watched::watch(watched::DENIALS);
        denials
    }

    /// Reports the shares that the charges of `decision` have reached, and records its denials.
    #[inline]
    pub(crate) fn charged(&self, action: Action, decision: &Decision) {
        // Every decision asks, and most services look at none.
        let reasons = watched::reasons();
        if reasons != 0 && action.charges_units() {
            if reasons & watched::DENIALS != 0 {
                self.record(decision);
            }
            if reasons & watched::THRESHOLDS != 0 {
                self.report_crossings(decision);
            }
        }
    }

    // Both are apart, so that they cost other services no instruction.
    #[cold]
    #[inline(never)]
    fn record(&self, decision: &Decision) {
        if let Some(denials) = self.denials.get() {
            denials.record(decision);
        }
    }

    #[cold]
    fn report_crossings(&self, decision: &Decision) {
        threshold::crossings(decision, |event| self.report(event));
    }

    /// Reports the shares that `charged` has reached, a charge with which the instance leased units: in a thread for
    /// blocking work, because the caller is a lane, which other decisions wait for.
    #[cfg(feature = "redis")]
    pub(crate) fn leased(self: &Arc<Self>, charged: &Outcome, units: u64) {
        if charged.policy().notifies()
            && let Ok(runtime) = Handle::try_current()
        {
            let (watchers, charged) = (self.clone(), charged.clone());
            drop(runtime.spawn_blocking(move || watchers.charged_apart(&charged, units)));
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
        if !lock(&self.reported).is_new(event) {
            return;
        }
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
        let hooks: Vec<Hook> = read(&self.hooks).clone();
        let call = |hook: &Hook| {
            observe(&self.has_panicked, "the function of `on_threshold`", || hook(event));
        };
        hooks.iter().for_each(call);
    }
}
