//! Denials before a request's other keys are looked up.

use super::{
    decider::{MAX_CHARGES, ended, has_duplicate_key},
    limiter::Limiter,
    refund::Refund,
    undecided::Undecided,
};
use crate::{
    base::{Answer, Now},
    decision::{Charge, Decision, DecisionSpan},
    store::Action,
};

/// The denial of `charges`, before the request's other keys are looked up: one that the store knows of
/// without being asked, or the store's decision if it has denied one of `charges` before. Nothing is charged
/// without a denial.
pub(crate) fn deny_early(
    limiter: &Limiter,
    charges: impl Iterator<Item = Charge>,
) -> Answer<Option<Decision>> {
    // A permit may be released at any moment, and some charges never deny.
    let charges: Vec<_> = charges.filter(|charge| !charge.needs_permit() && !charge.never_denies()).collect();
    if charges.is_empty() || charges.len() > MAX_CHARGES || has_duplicate_key(&charges) {
        return Answer::ready(Ok(None));
    }
    let Some(backend) = limiter.decider.store.backend() else { return Answer::ready(Ok(None)) };
    if let Some(denial) = backend.0.known_denial(&charges) {
        let denied = ended(Action::Charge, Ok(denial), &limiter.decider.local);
        // No call follows, so the span begins and ends here.
        if DecisionSpan::is_enabled() {
            DecisionSpan::new(Action::Charge.as_str()).end(&denied);
        }
        return Answer::ready(denied.map(Some));
    }
    if !backend.0.has_denied(&charges) {
        return Answer::ready(Ok(None));
    }
    let (limiter, rules) = (limiter.clone(), charges.iter().map(Charge::rule).collect());
    Answer::pending(async move {
        let decided = match limiter.decider.charge(charges) {
            Now::Ready(decided) => decided,
            Now::Later(charge) => Undecided::watch(&limiter, charge, rules).await,
        };
        match decided {
            Ok(decision) if decision.is_denied() => Ok(Some(decision)),
            Ok(admitted) => {
                // The earlier denial no longer holds. The caller charges the request together with the other
                // keys.
                let _ = Refund::of(&limiter, &admitted).await;
                Ok(None)
            }
            // The decision over all keys, which the caller makes next, will show the failure.
            Err(_) => Ok(None),
        }
    })
}
