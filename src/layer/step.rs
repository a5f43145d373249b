//! What to do with a request, once its client is identified and once the store has decided.

use std::time::Duration;

use http::request::Parts;

use super::{config::Config, event::DecisionEvent, identify::Identity};
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
    /// The step for a request whose client is identified. `soft` is whether it is admitted in any case.
    pub(super) fn identified(&self, identity: Result<Identity, Error>, request: &Parts, soft: bool) -> Step {
        match identity {
            Ok(Identity::Known(keys)) => match self.decide(keys, request).map(Answer::now) {
                // A store in memory has decided, so the service is called without waiting.
                Ok(Ok(decided)) => self.decided(decided, request, soft),
                Ok(Err(decision)) => Step::Decide(decision),
                Err(error) => self.reject_unless(soft, error.into(), request),
            },
            Ok(Identity::Ignored) => Step::Bypass,
            Ok(Identity::Exempt) => {
                self.report(&DecisionEvent::exempt(request));
                Step::Serve(None)
            }
            Ok(Identity::Rejected(rejection)) => self.reject_unless(false, *rejection, request),
            Err(error) => self.reject_unless(soft, Rejection::Unidentified(error), request),
        }
    }

    /// The step for a request that the store has decided.
    pub(super) fn decided(&self, decided: Result<Decision, Error>, request: &Parts, soft: bool) -> Step {
        match decided {
            Ok(decision) => match decision.verdict() {
                Verdict::Deny { .. } => self.reject_unless(soft, Rejection::Denied(decision), request),
                admitted => {
                    self.report(&DecisionEvent::admitted(&decision, request));
                    match admitted {
                        Verdict::Delay(delay) => Step::Delay(delay, decision),
                        _ => Step::Serve(Some(decision)),
                    }
                }
            },
            // Whatever its kind: clients must not see the text of a store.
            Err(error) => self.reject_unless(soft, Rejection::Unavailable(error), request),
        }
    }

    /// Rejects the request, except in soft mode.
    fn reject_unless(&self, soft: bool, rejection: Rejection, request: &Parts) -> Step {
        self.report(&DecisionEvent::rejected(&rejection, request, !soft));
        self.log(&rejection, soft);
        if soft {
            return Step::Serve(rejection.into_decision());
        }
        Step::Reject(self.jitter(rejection))
    }
}
