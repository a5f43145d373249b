//! What to do with a request, once its client is identified and once the store has decided.

use std::time::Duration;

use http::request::Parts;

use super::{config::Config, identify::Identity};
use crate::{
    answer::Answer,
    decision::{Decision, Verdict},
    error::Error,
    response::Rejection,
};

/// What to do next with a request.
pub(super) enum Step {
    /// Wait for the store.
    Decide(Answer<Decision>),
    /// Wait for the delay, then serve the request.
    Delay(Duration, Decision),
    /// Call the service. There is no decision if the request is exempt, or if a soft limit could not be decided.
    Serve(Option<Decision>),
    /// Call the service as if there were no layer.
    Bypass,
    Reject(Rejection),
}

impl Config {
    /// The step for a request whose client is identified.
    pub(super) fn identified(&self, identity: Result<Identity, Error>, request: &Parts) -> Step {
        match identity {
            Ok(Identity::Known(keys)) => match self.decide(keys, request).map(Answer::now) {
                // A store in memory has decided, so the service is called without waiting.
                Ok(Ok(decided)) => self.decided(decided),
                Ok(Err(decision)) => Step::Decide(decision),
                Err(error) => self.reject_unless_soft(error.into()),
            },
            Ok(Identity::Ignored) => Step::Bypass,
            Ok(Identity::Exempt) => Step::Serve(None),
            Ok(Identity::Rejected(rejection)) => self.reject(*rejection),
            Err(error) => self.reject_unless_soft(Rejection::Unidentified(error)),
        }
    }

    /// The step for a request that the store has decided.
    pub(super) fn decided(&self, decided: Result<Decision, Error>) -> Step {
        match decided {
            Ok(decision) => match decision.verdict() {
                Verdict::Allow => Step::Serve(Some(decision)),
                Verdict::Delay(delay) => Step::Delay(delay, decision),
                Verdict::Deny { .. } => self.reject_unless_soft(Rejection::Denied(decision)),
            },
            // Whatever its kind: clients must not see the text of a store.
            Err(error) => self.reject_unless_soft(Rejection::Unavailable(error)),
        }
    }

    /// Rejects the request, except in soft mode.
    fn reject_unless_soft(&self, rejection: Rejection) -> Step {
        if self.soft {
            self.log(&rejection);
            return Step::Serve(rejection.into_decision());
        }
        self.reject(rejection)
    }

    /// Rejects the request, in soft mode too.
    fn reject(&self, rejection: Rejection) -> Step {
        self.log(&rejection);
        Step::Reject(self.jitter(rejection))
    }
}
