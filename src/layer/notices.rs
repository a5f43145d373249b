//! What a layer logs of the requests that it rejects, and once of mistakes in its settings that requests show.

use std::sync::atomic::{AtomicBool, Ordering};

use http::StatusCode;

use crate::{
    base::{ErrorKind, Outage},
    decision::{Decision, Outcome, Verdict},
    policy::Enforcement,
    response::Rejection,
};

/// What was logged, or looked for, each once.
#[derive(Default)]
pub(super) struct Notices {
    /// Whether the settings were looked at.
    pub(super) settings: AtomicBool,
    setup_error: AtomicBool,
    cost: AtomicBool,
    charged_twice: AtomicBool,
    /// The outage of the extractors, if there is one.
    outage: Outage,
}

/// Whether this is the first call for `flag`.
pub(super) fn is_first(flag: &AtomicBool) -> bool {
    // Nearly always this is one load.
    !flag.load(Ordering::Relaxed) && !flag.swap(true, Ordering::Relaxed)
}

impl Notices {
    /// Logs a rejection of a request with this `enforcement`.
    pub(super) fn rejected(&self, rejection: &Rejection, enforcement: Enforcement) {
        match rejection {
            Rejection::Unidentified(error) | Rejection::Unavailable(error)
                if matches!(error.kind(), ErrorKind::MissingSetup | ErrorKind::InvalidConfig) =>
            {
                // Logged once, because every request meets the same error.
                if is_first(&self.setup_error) {
                    log!(error, error = %error, "the rate limit is misconfigured; requests are rejected with 500");
                }
            }
            Rejection::Unidentified(error) if rejection.status() == StatusCode::INTERNAL_SERVER_ERROR => {
                if self.outage.failed() {
                    log!(warn, error = %error, "outage of client identification; requests are rejected with 500");
                } else {
                    log!(debug, error = %error, "the client cannot be identified");
                }
            }
            _ => {
                if let Some(decision) = rejection.decision() {
                    self.cost(decision);
                }
                // Called only if the line is logged.
                let binding = || rejection.decision().and_then(Decision::binding);
                log!(
                    debug,
                    status = rejection.status().as_u16(),
                    policy = binding().map(|outcome| outcome.policy().name()),
                    key_hash = binding().map(|outcome| outcome.key().digest()),
                    report_only = enforcement == Enforcement::ReportOnly,
                    "denied"
                );
            }
        }
    }

    /// Logs once that two layers charge a request under one policy: `outer` is the decision of the outer one.
    pub(super) fn charged_twice(&self, outer: &Decision, decision: &Decision) {
        let charged = !outer.is_denied() && !decision.is_denied();
        if !charged || self.charged_twice.load(Ordering::Relaxed) {
            return;
        }
        let is_same = |one: &&Outcome| {
            let same = |other: &Outcome| other.granted() > 0 && other.charge().is_of_same_count(one.charge());
            one.granted() > 0 && outer.outcomes().iter().any(same)
        };
        let twice = decision.outcomes().iter().find(is_same);
        if let Some(outcome) = twice
            && is_first(&self.charged_twice)
        {
            log!(
                warn,
                policy = outcome.policy().name(),
                "two rate limit layers count a request under the policy {:?}, so it is charged twice; remove one of the \
                 layers, or give each policy its own name",
                outcome.policy().name()
            );
        }
    }

    /// Logs once that a request costs more than a policy ever admits.
    fn cost(&self, decision: &Decision) {
        let is_too_much = |outcome: &&Outcome| outcome.charge().cost() > outcome.policy().capacity();
        if matches!(decision.verdict(), Verdict::Deny { retry_after: None, .. })
            // Without the store, another capacity may have denied it.
            && decision.failure().is_none()
            && let Some(outcome) = decision.binding().filter(is_too_much)
            && is_first(&self.cost)
        {
            log!(
                warn,
                policy = outcome.policy().name(),
                "a request costs more than the policy {:?} admits in one step, which is {}, so it is always denied: \
                 lower its cost, or raise the burst, or the limit if the quota has no burst",
                outcome.policy().name(),
                outcome.policy().capacity()
            );
        }
    }
}
