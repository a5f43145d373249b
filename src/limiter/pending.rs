use std::mem;

use tokio::runtime::Handle;

use super::{ladder::Rung, permit::PermitRequest};
use crate::{
    base::{Answer, Error},
    decision::{Claim, Decision},
};

/// A decision under way, and what to undo if it fails or is dropped.
#[derive(Debug)]
pub(super) struct Pending {
    /// What decides if the store fails.
    rung: Rung,
    /// The permits to create if the decision is admitted.
    permits: Option<PermitRequest>,
    /// Units that are claimed for the refund.
    claims: Vec<Claim>,
    /// `None` once the store has answered.
    answer: Option<Answer<Decision>>,
    /// Whether the store may have been asked: a pending answer asks it when it is polled.
    polled: bool,
}

impl Pending {
    pub(super) const fn new(rung: Rung, permits: Option<PermitRequest>, claims: Vec<Claim>) -> Self {
        Self { rung, permits, claims, answer: None, polled: false }
    }

    /// Completes the decision with the answer of the store.
    pub(super) fn finish(mut self, answer: Answer<Decision>) -> Answer<Decision> {
        // A permit is renewed by the runtime. A caller outside it may await the answer inside it.
        let can_settle = self.permits.is_none() || Handle::try_current().is_ok();
        self.polled = answer.is_ready();
        let answer = match answer.now() {
            Ok(decided) if can_settle => return Answer::ready(self.settle(decided)),
            Ok(decided) => Answer::ready(decided),
            Err(answer) => answer,
        };
        self.answer = Some(answer);
        Answer::pending(self.wait())
    }

    async fn wait(mut self) -> Result<Decision, Error> {
        self.polled = true;
        let decided = match &mut self.answer {
            Some(answer) => answer.await,
            None => unreachable!("`finish` sets the answer before it calls `wait`"),
        };
        self.answer = None;
        self.settle(decided)
    }

    fn settle(&mut self, mut decided: Result<Decision, Error>) -> Result<Decision, Error> {
        let (permits, claims) = (self.permits.take(), mem::take(&mut self.claims));
        match &mut decided {
            Ok(decision) => {
                // A denial gets no permit.
                if let Some(permits) = permits.filter(|_| !decision.is_denied())
                    && let Some(permit) = permits.grant(decision)
                {
                    decision.attach_permit(permit);
                }
            }
            Err(error) if error.kind().may_have_charged() => {
                if let Some(permits) = permits {
                    permits.release_later(None);
                }
            }
            Err(_) if !self.rung.is_repeated() => claims.into_iter().for_each(Claim::release),
            Err(_) => {}
        }
        self.rung.apply(decided)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(answer) = self.answer.take() else { return };
        if !self.polled {
            mem::take(&mut self.claims).into_iter().for_each(Claim::release);
        } else if let Some(permits) = self.permits.take() {
            permits.release_later(Some(answer));
        }
    }
}
