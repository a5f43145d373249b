//! What is undone if a call of the store fails or is dropped.

use std::{mem, sync::Arc};

use tokio::runtime::Handle;

use super::background::{Background, PermitRequest};
use crate::{
    base::{Answer, Error, Now},
    decision::{Charge, Claim, Decision},
    store::outage::{is_local, is_mistake, mode},
};

/// A call of the store under way, and what to undo if it fails or is dropped.
pub(super) struct StoreCall {
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

impl StoreCall {
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

    /// `answer`, whose effects are undone if it fails or is dropped.
    pub(super) fn track(mut self, answer: Answer<Decision>) -> Answer<Decision> {
        // The runtime renews a permit. A caller outside a runtime may await the answer inside one.
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
            // The answer is awaited in its field, from which `drop` takes it.
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

impl Drop for StoreCall {
    fn drop(&mut self) {
        let Some(answer) = self.answer.take() else { return };
        if !self.polled {
            mem::take(&mut self.claims).into_iter().for_each(Claim::release);
        } else if let Some(permits) = self.permits.take() {
            permits.release_later(answer);
        }
    }
}
