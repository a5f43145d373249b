//! What decides if the store fails, and what is undone if a decision under way fails or is dropped.

use std::{mem, sync::Arc};

use tokio::runtime::Handle;

use super::background::{Background, PermitRequest};
use crate::{
    base::{Answer, Error, Now},
    decision::{Charge, Claim, Decision, DecisionSource},
    store::{
        Action, DecideOne, LocalCounts, Store,
        outage::{is_local, is_mistake, mode, start_reconciling},
    },
};

/// What the clones of a limiter share.
pub(super) struct Shared {
    pub(super) store: Arc<dyn Store>,
    /// Decides one charge in this process. `None` if the store may fail.
    pub(super) decide_one: Option<DecideOne>,
    /// What decides while the store fails.
    pub(super) local: Arc<LocalCounts<dyn Store>>,
    pub(super) background: Arc<Background>,
}

/// Exists as long as a clone of the limiter that can make a decision.
pub(super) struct User(pub(super) Arc<Background>);

impl Drop for User {
    fn drop(&mut self) {
        self.0.orphan();
    }
}

impl Shared {
    /// The decision of the store over `charges`, or the one in its place if the store failed.
    pub(super) fn complete(
        &self,
        action: Action,
        charges: &[Charge],
        decided: Result<Decision, Error>,
    ) -> Result<Decision, Error> {
        // A lease and the deny cache answer while Redis is unavailable too.
        if decided.as_ref().is_ok_and(|decision| decision.source() == DecisionSource::Store) {
            start_reconciling(&self.local, &self.store);
        }
        let hold = |counts: &Arc<dyn Store>, made: &[Charge], decision: &Decision| {
            PermitRequest::of(counts, &self.background, made)?.grant(decision)
        };
        counted(action, decided.or_else(|error| self.local.decide(action, charges, error, &hold)))
    }
}

/// Counts how an action has ended, once the failure mode has decided.
pub(super) fn counted(action: Action, decided: Result<Decision, Error>) -> Result<Decision, Error> {
    #[cfg(feature = "metrics")]
    crate::decision::metrics::decided(matches!(action, Action::Charge | Action::ChargeUpTo), &decided);
    #[cfg(not(feature = "metrics"))]
    let _ = action;
    decided
}

/// A call of the store under way, and what to undo if it fails or is dropped.
pub(super) struct Pending {
    background: Arc<Background>,
    /// The permits to create if the decision is admitted.
    permits: Option<PermitRequest>,
    /// Units that are claimed for the refund.
    claims: Vec<Claim>,
    /// Whether a refund that was not sent is sent again once the store answers.
    is_kept: bool,
    /// `None` once the store has answered.
    answer: Option<Answer<Decision>>,
    /// Whether the store may have been asked: a pending answer asks it when it is polled.
    polled: bool,
}

impl Pending {
    /// A pending charge that needs permits.
    pub(super) fn charge(background: &Arc<Background>, permits: Option<PermitRequest>) -> Self {
        Self::new(background, permits, Vec::new(), false)
    }

    /// A pending refund of claimed units.
    pub(super) fn refund(background: &Arc<Background>, refunds: &[Charge], claims: Vec<Claim>) -> Self {
        Self::new(background, None, claims, is_local(mode(refunds)))
    }

    fn new(
        background: &Arc<Background>,
        permits: Option<PermitRequest>,
        claims: Vec<Claim>,
        is_kept: bool,
    ) -> Self {
        Self { background: background.clone(), permits, claims, is_kept, answer: None, polled: false }
    }

    /// The answer of the store. Undoes what is to be undone.
    pub(super) fn finish(mut self, answer: Answer<Decision>) -> Answer<Decision> {
        // A permit is renewed by the runtime. A caller outside it may await the answer inside it.
        let can_settle = self.permits.is_none() || Handle::try_current().is_ok();
        self.polled = answer.is_ready();
        let answer = match answer.now() {
            Now::Ready(decided) if can_settle => return Answer::ready(self.settle(decided)),
            Now::Ready(decided) => Answer::ready(decided),
            Now::Later(answer) => answer,
        };
        self.answer = Some(answer);
        Answer::pending(async move {
            self.polled = true;
            // The call may have been made outside a runtime.
            self.background.check_overdue();
            // Awaited in its place, from which `drop` takes it.
            let decided = match &mut self.answer {
                Some(answer) => answer.await,
                None => unreachable!("it is set above"),
            };
            self.answer = None;
            self.settle(decided)
        })
    }

    fn settle(&mut self, mut decided: Result<Decision, Error>) -> Result<Decision, Error> {
        let (permits, claims) = (self.permits.take(), mem::take(&mut self.claims));
        match &mut decided {
            Ok(decision) => {
                // A denial gets no permit.
                if let Some(permits) = permits.filter(|_| !decision.is_denied()) {
                    decision.hold(permits.grant(decision));
                }
            }
            Err(error) if error.kind().may_have_charged() => {
                if let Some(permits) = permits {
                    permits.release_later(Answer::ready(Err(error.clone())));
                }
            }
            Err(error) if self.is_kept && !is_mistake(error) => {}
            Err(_) => claims.into_iter().for_each(Claim::release),
        }
        decided
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(answer) = self.answer.take() else { return };
        if !self.polled {
            mem::take(&mut self.claims).into_iter().for_each(Claim::release);
        } else if let Some(permits) = self.permits.take() {
            permits.release_later(answer);
        }
    }
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
        let (local, background) = (LocalCounts::new(false), Background::new());
        let shared = Shared { store, decide_one: None, local, background };
        let complete = |decided| shared.complete(Action::Charge, slice::from_ref(&charge), decided);
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
