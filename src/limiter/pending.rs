use std::mem;

use super::permit::Holding;
use crate::{
    answer::Answer,
    decision::{Claim, Decision},
    error::{Error, ErrorKind},
    policy::FailureMode,
};

/// A decision that is under way, and what must be undone where it fails or is dropped.
#[derive(Debug)]
pub(super) struct Pending {
    mode: FailureMode,
    /// The permits that an admission holds.
    holding: Option<Holding>,
    /// The units that are about to be refunded.
    claims: Vec<Claim>,
    /// Until it is there.
    answer: Option<Answer<Decision>>,
    /// Whether the store may have been asked. One that answers later is asked when its answer is polled.
    asked: bool,
}

impl Pending {
    pub(super) const fn new(mode: FailureMode, holding: Option<Holding>, claims: Vec<Claim>) -> Self {
        Self { mode, holding, claims, answer: None, asked: false }
    }

    /// Takes the answer of the store.
    pub(super) fn finish(mut self, answer: Answer<Decision>) -> Answer<Decision> {
        match answer.now() {
            Ok(decided) => Answer::ready(self.settle(decided)),
            Err(answer) => {
                self.answer = Some(answer);
                Answer::pending(self.wait())
            }
        }
    }

    async fn wait(mut self) -> Result<Decision, Error> {
        self.asked = true;
        let decided = match &mut self.answer {
            Some(answer) => answer.await,
            None => unreachable!("it waits for an answer only where it has one"),
        };
        self.answer = None;
        self.settle(decided)
    }

    fn settle(&mut self, decided: Result<Decision, Error>) -> Result<Decision, Error> {
        let holding = self.holding.take();
        let claims = mem::take(&mut self.claims);
        let error = match decided {
            Ok(mut decision) => {
                // A denial holds nothing.
                if let Some(holding) = holding.filter(|_| decision.is_allowed()) {
                    let permit = holding.hold(&decision);
                    decision.hold(permit);
                }
                return Ok(decision);
            }
            Err(error) => error,
        };
        // Nothing was sent.
        if matches!(error.kind(), ErrorKind::StoreBusy | ErrorKind::InvalidConfig) {
            claims.into_iter().for_each(Claim::release);
        }
        // There may have been a charge.
        if let Some(holding) = holding
            && matches!(error.kind(), ErrorKind::StoreTimeout | ErrorKind::StoreUnreachable)
        {
            holding.abandon(None);
        }
        self.mode.decide(error)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(answer) = self.answer.take() else { return };
        if !self.asked {
            mem::take(&mut self.claims).into_iter().for_each(Claim::release);
        } else if let Some(holding) = self.holding.take() {
            holding.abandon(Some(answer));
        }
    }
}

impl FailureMode {
    /// The decision in place of one that the store failed to make.
    pub(super) fn decide(self, error: Error) -> Result<Decision, Error> {
        match self {
            // A mistake in the program, not a failure of the store.
            _ if error.kind() == ErrorKind::InvalidConfig => Err(error),
            Self::Open => Ok(Decision::failed_open(error)),
            Self::Closed => Err(error),
        }
    }
}
