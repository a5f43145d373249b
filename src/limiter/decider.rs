//! What makes the decisions of a limiter: the store, and what takes its place while it fails.

use std::{
    future::Future,
    pin::Pin,
    slice,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use super::{
    background::{Background, PermitRequest},
    store_call::StoreCall,
};
#[cfg(feature = "metrics")]
use crate::decision::metrics::{charged, count_failure, debited};
use crate::{
    base::{Answer, Error, ErrorKind, Now, panics::begun},
    decision::{Charge, Charges, Decision, DecisionSource, DecisionSpan, Outcome},
    policy::{Enforcement, Policy},
    store::{Action, DecideOne, LocalCounts, Store, outage::start_reconciling},
};

/// A charge under way, polled with [`Decider::poll_charge`], which allocates nothing for the failure modes.
pub(crate) struct Deciding {
    answer: Answer<Decision>,
    /// What the failure modes decide if the store fails. `None` if the answer is complete without them.
    charges: Option<Charges>,
}

/// A decision, or a charge that is under way.
type Begun = Now<Result<Decision, Error>, Deciding>;

impl Deciding {
    #[inline]
    fn counting(action: Action, answer: Answer<Decision>, local: &Arc<LocalCounts<dyn Store>>) -> Begun {
        match answer.now() {
            Now::Ready(decided) => Now::Ready(ended(action, decided, local)),
            Now::Later(answer) => {
                let local = local.clone();
                Now::Later(Self::from(answer.then(move |decided| ended(action, decided, &local))))
            }
        }
    }
}

impl From<Answer<Decision>> for Deciding {
    fn from(answer: Answer<Decision>) -> Self {
        Self { answer, charges: None }
    }
}

/// Decides for all clones of a limiter.
pub(crate) struct Decider {
    pub(super) store: Arc<dyn Store>,
    /// Decides one charge in this process. `None` if the store may fail.
    pub(super) decide_one: Option<DecideOne>,
    /// What decides while the store fails.
    pub(super) local: Arc<LocalCounts<dyn Store>>,
    pub(super) background: Arc<Background>,
}

impl Decider {
    /// The name of the store in settlement tokens.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if it is a custom one, which cannot settle a token.
    #[cfg(feature = "settlement-tokens")]
    pub(super) fn store_name(&self) -> Result<&str, Error> {
        let backend = self.store.backend().ok_or_else(|| {
            Error::invalid("only a RedisStore or a MemoryStore, or a store around one, can settle a token")
        })?;
        Ok(backend.0.identity().name())
    }

    pub(super) fn decide(self: &Arc<Self>, action: Action, charges: impl Into<Charges>) -> Answer<Decision> {
        match self.begin(action, charges.into()) {
            Now::Ready(decided) => Answer::ready(decided),
            Now::Later(deciding) => self.answer(action, deciding),
        }
    }

    fn answer(self: &Arc<Self>, action: Action, deciding: Deciding) -> Answer<Decision> {
        let Deciding { answer, charges } = deciding;
        let Some(charges) = charges else { return answer };
        let decider = self.clone();
        answer.then(move |decided| decider.complete(action, &charges, decided))
    }

    /// Charges for a layer: the decision, or what [`poll_charge`](Self::poll_charge) waits for.
    #[inline]
    pub(crate) fn charge(
        self: &Arc<Self>,
        charges: impl Into<Charges>,
    ) -> Now<Result<Decision, Error>, Deciding> {
        self.begin(Action::Charge, charges.into())
    }

    #[inline]
    pub(crate) fn poll_charge(
        &self,
        deciding: &mut Deciding,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Decision, Error>> {
        let decided = ready!(Pin::new(&mut deciding.answer).poll(cx));
        Poll::Ready(match deciding.charges.take() {
            Some(charges) => self.complete(Action::Charge, &charges, decided),
            None => decided,
        })
    }

    // Inlined, as is what it calls, because a call would move the charges once more.
    #[inline(always)]
    fn begin(self: &Arc<Self>, action: Action, charges: Charges) -> Begun {
        if DecisionSpan::is_enabled() {
            return self.begin_in_span(action, charges);
        }
        self.begin_without_span(action, charges)
    }

    // The span is not part of what is under way otherwise, because that is moved at each decision.
    #[cold]
    fn begin_in_span(self: &Arc<Self>, action: Action, charges: Charges) -> Begun {
        let span = DecisionSpan::new(action.as_str());
        match span.in_scope(|| self.begin_without_span(action, charges)) {
            Now::Ready(decided) => {
                span.end(&decided);
                Now::Ready(decided)
            }
            Now::Later(deciding) => {
                let answer = self.answer(action, deciding).then(move |decided| {
                    span.end(&decided);
                    decided
                });
                Now::Later(answer.into())
            }
        }
    }

    #[inline(always)]
    fn begin_without_span(self: &Arc<Self>, action: Action, charges: Charges) -> Begun {
        let Self { store, decide_one, background, .. } = &**self;
        background.check_overdue();
        let charges = match charges {
            // One charge without a permit needs no check of its number or of its keys.
            Charges::One(charge) if !charge.needs_permit() => {
                if let Some(decide_one) = decide_one {
                    return Now::Ready(ended(action, decide_one(action, charge), &self.local));
                }
                let answer = store.decide(action, slice::from_ref(&charge));
                return self.begun(action, Charges::One(charge), answer);
            }
            Charges::One(charge) => vec![charge],
            Charges::Many(charges) => charges,
        };
        let (answer, charges) = self.ask(action, charges);
        if decide_one.is_some() {
            return Deciding::counting(action, answer, &self.local);
        }
        self.begun(action, Charges::Many(charges), answer)
    }

    /// The answer of the store, without the failure modes, and the charges as the store gets them.
    pub(super) fn ask(
        self: &Arc<Self>,
        action: Action,
        mut charges: Vec<Charge>,
    ) -> (Answer<Decision>, Vec<Charge>) {
        let Self { store, background, .. } = &**self;
        // Decisions have the outcomes of shadows last. This order lets stores and the fallback pair them with
        // the charges.
        charges.sort_by_key(Charge::never_denies);
        if let Some(mut ordered) = action.ordered(&charges) {
            ordered.sort_by_key(Charge::never_denies);
            charges = ordered;
        }
        // Peeks, debits and refunds get no permits.
        let admits = matches!(action, Action::Charge | Action::ChargeUpTo);
        if admits && charges.iter().any(Charge::needs_permit) {
            charges = charges.iter().map(Charge::with_new_holder).collect();
            let call = StoreCall::charge(background, PermitRequest::of(store, background, &charges));
            let answer = match background.has_stranded() {
                false => self.dispatch(action, &charges),
                true => self.clone().dispatch_after_releases(action, charges.clone()),
            };
            return (call.track(answer), charges);
        }
        (self.dispatch(action, &charges), charges)
    }

    /// [`dispatch`](Self::dispatch), once the permits that were dropped outside of a runtime are released.
    #[cold]
    fn dispatch_after_releases(self: Arc<Self>, action: Action, charges: Vec<Charge>) -> Answer<Decision> {
        Answer::pending(async move {
            self.background.stranded_ended().await;
            self.dispatch(action, &charges).await
        })
    }

    /// Applies the failure modes to an answer that needs no undoing, if it is ready.
    // Inlined because a call would move the charges once more.
    #[inline(always)]
    fn begun(&self, action: Action, charges: Charges, answer: Answer<Decision>) -> Begun {
        match answer.now() {
            Now::Ready(decided) => Now::Ready(self.complete(action, &charges, decided)),
            Now::Later(answer) => Now::Later(Deciding { answer, charges: Some(charges) }),
        }
    }

    pub(super) fn dispatch(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        if charges.is_empty() {
            return Answer::ready(Ok(Decision::new([])));
        }
        if charges.len() > MAX_CHARGES {
            return Answer::ready(Err(Error::invalid("a decision has at most 256 charges: split it")));
        }
        if has_duplicate_key(charges) {
            return Answer::ready(Err(Error::invalid(
                "two charges have the same key and the same policy name: add their costs, or rename a policy",
            )));
        }
        match action {
            // A destructor may begin a refund.
            Action::Refund => begun(|| self.store.decide(action, charges)),
            _ => self.store.decide(action, charges),
        }
    }

    /// The decision of the store over `charges`, or the one in its place if the store failed.
    pub(super) fn complete(
        &self,
        action: Action,
        charges: &[Charge],
        decided: Result<Decision, Error>,
    ) -> Result<Decision, Error> {
        self.answered(&decided);
        let hold = |counts: &Arc<dyn Store>, made: &[Charge], decision: &Decision| {
            PermitRequest::of(counts, &self.background, made)?.grant(decision)
        };
        let decided = decided.or_else(|error| self.local.decide(action, charges, error, &hold));
        ended(action, decided, &self.local)
    }

    /// Charges the store what is owed to it, if it answers.
    #[inline]
    pub(super) fn answered(&self, decided: &Result<Decision, Error>) {
        // A lease and the deny cache answer while Redis is unavailable too.
        let is_of_store = |decision: &Decision| decision.source() == DecisionSource::Store;
        if self.local.owes.load(Ordering::Relaxed) && decided.as_ref().is_ok_and(is_of_store) {
            start_reconciling(&self.local, &self.store);
        }
    }

    /// Charges `units` more to each outcome of `decision`, or denies and charges nothing.
    pub(super) fn charge_more(self: &Arc<Self>, decision: &Decision, units: u64) -> Answer<Decision> {
        let charge = |outcome: &Outcome| {
            let criticality = outcome.charge().criticality();
            Charge::new(outcome.policy(), outcome.key(), units).with_criticality(criticality)
        };
        // The request goes on without what was degraded.
        let is_degraded = |outcome: &&Outcome| outcome.is_denied() && outcome.charge().degrades();
        let outcomes = decision.all_outcomes().iter().filter(|outcome| !is_degraded(outcome));
        let charges: Vec<_> = outcomes.map(charge).collect();
        if charges.is_empty() {
            // Nothing is charged. If the decision was made in an outage, it has the failure.
            return Answer::ready(Ok(decision.clone()));
        }
        let degrades = |outcome: &&Outcome| outcome.charge().degrades();
        let degrading =
            decision.all_outcomes().iter().filter(degrades).map(|outcome| outcome.policy().clone());
        let (degrading, charged): (Vec<Policy>, _) =
            (degrading.collect(), self.decide(Action::Charge, charges));
        if degrading.is_empty() {
            return charged;
        }
        // What is charged is reported as before.
        charged.map(move |decision| match decision.is_denied() {
            true => decision,
            false => decision.map(|outcome| outcome.degrading(&degrading)),
        })
    }

    /// Debits the given number of units of each outcome.
    pub(super) fn debit_each(
        self: &Arc<Self>,
        decision: &Decision,
        units: impl Fn(&Outcome) -> u64,
    ) -> Answer<Decision> {
        let is_debited =
            |one: &&Outcome| !(one.policy().has_permits() || one.never_denies() && one.is_denied());
        let debit = |one: &Outcome| {
            let charge = Charge::new(one.policy().debits(), one.key(), units(one)).on_terms_of(one.charge());
            (one.policy().clone(), charge)
        };
        let (policies, charges): (Vec<Policy>, Vec<Charge>) =
            decision.all_outcomes().iter().filter(is_debited).map(debit).unzip();
        if charges.is_empty() {
            return Answer::ready(Ok(decision.clone()));
        }
        self.decide(Action::Debit, charges).then(move |debited| Ok(of_policies(&policies, debited?)))
    }
}

/// The decision of `decide`, which admits unless it is enforced.
pub(super) fn enforced(
    enforcement: Enforcement,
    decide: impl FnOnce() -> Answer<Decision>,
) -> Answer<Decision> {
    match enforcement {
        Enforcement::On => decide(),
        Enforcement::ReportOnly => decide().then(|decided| match decided {
            Ok(decision) => Ok(decision.admitted()),
            // A mistake in the call stays an error, so that its author sees it.
            Err(error) if error.kind() == ErrorKind::InvalidConfig => Err(error),
            Err(error) => Ok(Decision::failed_open(error)),
        }),
        Enforcement::Off => Answer::ready(Ok(Decision::not_limited())),
    }
}

/// Counts how an action has ended, and reports the shares of quotas that it has used.
#[inline(always)]
pub(super) fn ended(
    action: Action,
    decided: Result<Decision, Error>,
    local: &LocalCounts<dyn Store>,
) -> Result<Decision, Error> {
    if let Ok(decision) = &decided {
        local.watchers.charged(action, decision);
    }
    counted(action, decided)
}

/// Counts how an action has ended, once the failure mode has decided.
pub(super) fn counted(action: Action, decided: Result<Decision, Error>) -> Result<Decision, Error> {
    #[cfg(feature = "metrics")]
    match action {
        Action::Charge | Action::ChargeUpTo => charged(&decided),
        Action::Debit => debited(&decided),
        _ => count_failure(&decided),
    }
    #[cfg(not(feature = "metrics"))]
    let _ = action;
    decided
}

/// The most charges of a decision. More would not fit into one call of a script.
pub(super) const MAX_CHARGES: usize = 256;

/// The decision of a debit, as one of `policies` instead of those that count debits.
fn of_policies(policies: &[Policy], debited: Decision) -> Decision {
    // While the store fails, there is no room for debt.
    let is_local = debited.failure().is_some();
    debited.map(|outcome: Outcome| match policies.iter().find(|one| one.debits() == outcome.policy()) {
        Some(policy) => outcome.of_debit(policy, if is_local { 0 } else { policy.settings().max_debt }),
        None => outcome,
    })
}

pub(super) fn has_duplicate_key(charges: &[Charge]) -> bool {
    charges.iter().enumerate().any(|(i, one)| charges[..i].iter().any(|other| one.is_of_same_count(other)))
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use std::{
        slice,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use super::*;
    use crate::{
        base::{ErrorKind, Quota},
        key::Key,
        policy::Policy,
    };

    /// Counts what is reconciled.
    #[derive(Clone, Default)]
    struct Reconciled(Arc<AtomicUsize>);

    impl Store for Reconciled {
        fn decide(&self, _: Action, _: &[Charge]) -> Answer<Decision> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Answer::ready(Ok(Decision::new([])))
        }

        fn reset(&self, _: &Policy, _: &Key) -> Answer<()> {
            Answer::ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn what_is_owed_is_reconciled_when_the_store_decides_and_not_when_a_lease_does() {
        let reconciled = Reconciled::default();
        let charge = Charge::new(&Policy::new("api", Quota::per_day(9)), &Key::new("alice"), 1);
        let store = Arc::new(reconciled.clone());
        let (local, background) = (LocalCounts::new(), Background::new());
        let decider = Decider { store, decide_one: None, local, background };
        let complete = |decided| decider.complete(Action::Charge, slice::from_ref(&charge), decided);
        assert!(complete(Err(Error::new(ErrorKind::StoreSuspended, "not sent"))).is_ok());
        let rows = [
            (DecisionSource::Lease, 0),
            (DecisionSource::DenyCache, 0),
            (DecisionSource::Store, 1),
            (DecisionSource::Store, 1),
        ];
        for (source, expected) in rows {
            assert!(complete(Ok(Decision::new([]).made_by(source))).is_ok());
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            assert_eq!(reconciled.0.load(Ordering::Relaxed), expected, "{source}");
        }
    }
}
