//! What to do with a request, once its client is identified and once the store has decided.

use std::{
    future::Future as _,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::request::Parts;

use super::{
    config::Config,
    event::DecisionEvent,
    identify::{Gathered, Identity, gather},
    rule::Rule,
};
use crate::{
    base::{Answer, Error},
    decision::{Charge, Decision, Verdict},
    key::Key,
    policy::Enforcement,
    response::Rejection,
};

/// What a request waits for before the layer admits or rejects it.
pub(super) enum Waiting {
    Identity(Answer<Identity>),
    /// The policies.
    Charges(Answer<Gathered<Charge>>),
    /// The store. With an error, the request is rejected even if the store admits it: another rule cannot identify the
    /// client.
    Decision(Answer<Decision>, Option<Box<Error>>),
}

impl Waiting {
    /// The next step for the request, once that is known.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        config: &Config,
        request: &Parts,
        report_only: bool,
    ) -> Poll<Step> {
        Poll::Ready(match self {
            Self::Identity(identity) => {
                config.identified(ready!(Pin::new(identity).poll(cx)), request, report_only)
            }
            Self::Charges(charges) => {
                config.charged(ready!(Pin::new(charges).poll(cx)), request, report_only)
            }
            Self::Decision(decision, unidentified) => {
                let decided = ready!(Pin::new(decision).poll(cx));
                config.decided(decided, unidentified.take(), request, report_only)
            }
        })
    }
}

/// What to do next with a request.
pub(super) enum Step {
    Wait(Waiting),
    /// Wait for the delay, then serve the request.
    Delay(Duration, Decision),
    /// Call the service. There is no decision if the request is exempt, if no rule limits it, or if the layer only
    /// reports and the store could not decide.
    Serve(Option<Decision>),
    /// Call the service as if there were no layer.
    Bypass,
    /// Reject the request, whose response shows what it was charged, if anything.
    Reject(Rejection, Option<Box<Decision>>),
}

impl Config {
    /// The first step for a request. `report_only` is whether it is admitted in any case.
    #[inline]
    pub(super) fn admit(&self, request: &Parts, enforcement: Enforcement, report_only: bool) -> Step {
        match self.identify(request, enforcement, true).now() {
            Ok(identity) => self.identified(identity, request, report_only),
            Err(identity) => Step::Wait(Waiting::Identity(identity)),
        }
    }

    /// The step for a request whose client is identified.
    #[inline]
    fn identified(&self, identity: Result<Identity, Error>, request: &Parts, report_only: bool) -> Step {
        match identity {
            Ok(Identity::Known(key)) => match self.rules.as_slice() {
                [rule, ..] => self.charge_one(rule, key, request, report_only),
                [] => self.exempt(request),
            },
            Ok(Identity::Applicable(keys)) => {
                let is_one = keys.len() == 1;
                let mut keys = keys.into_iter().filter_map(|(at, key)| Some((self.rules.get(at)?, key)));
                match if is_one { keys.next() } else { None } {
                    Some((rule, key)) => self.charge_one(rule, key, request, report_only),
                    None => self.charge_all(keys, None, request, report_only),
                }
            }
            Ok(Identity::Partly(keys, error)) => {
                let keys = keys.into_iter().filter_map(|(at, key)| Some((self.rules.get(at)?, key)));
                self.charge_all(keys, Some(error), request, report_only)
            }
            Ok(Identity::Denied(decision)) => {
                self.reject_unless(report_only, Rejection::Denied(*decision), request)
            }
            Ok(Identity::Ignored) => Step::Bypass,
            Ok(Identity::Exempt) => self.exempt(request),
            Ok(Identity::Rejected(rejection)) => self.reject_unless(false, *rejection, request),
            Err(error) => self.reject_unless(report_only, Rejection::Unidentified(error), request),
        }
    }

    /// Charges `key`, which belongs to `request`, under `rule`.
    #[inline]
    fn charge_one(&self, rule: &Rule, key: Key, request: &Parts, report_only: bool) -> Step {
        if let Some(policy) = rule.policy.constant() {
            // The common case.
            let charge = Charge::of(policy.clone(), key, rule.cost_of(request));
            return self.deciding(self.limiter.check_charge(charge), None, request, report_only);
        }
        match rule.charge(key, request).now() {
            Ok(Ok(Some(charge))) => {
                self.deciding(self.limiter.check_charge(charge), None, request, report_only)
            }
            Ok(Ok(None)) => self.exempt(request),
            Ok(Err(error)) => self.reject_unless(report_only, Rejection::Unidentified(error), request),
            Err(pending) => Step::Wait(Waiting::Charges(
                pending.map(|charge| Gathered { values: charge.into_iter().collect(), unidentified: None }),
            )),
        }
    }

    /// Charges `keys`, which belong to `request`, under their rules. With an error, another rule cannot identify the client.
    fn charge_all<'a>(
        &self,
        keys: impl Iterator<Item = (&'a Rule, Key)>,
        unidentified: Option<Box<Error>>,
        request: &Parts,
        report_only: bool,
    ) -> Step {
        match gather(keys.map(|(rule, key)| rule.charge(key, request))) {
            Ok(charges) => {
                self.charged(charges.map(|charges| charges.or(unidentified)), request, report_only)
            }
            Err(pending) => match self.limiter.known_denial(pending.known().cloned()) {
                Some(denial) => self.reject_unless(report_only, Rejection::Denied(denial), request),
                None => {
                    Step::Wait(Waiting::Charges(pending.finish().map(|charges| charges.or(unidentified))))
                }
            },
        }
    }

    /// The step for a request whose policies are known.
    fn charged(&self, charges: Result<Gathered<Charge>, Error>, request: &Parts, report_only: bool) -> Step {
        match charges {
            Ok(Gathered { values, unidentified: None }) if values.is_empty() => self.exempt(request),
            Ok(Gathered { values, unidentified: Some(error) }) if values.is_empty() => {
                self.reject_unless(report_only, Rejection::Unidentified(*error), request)
            }
            Ok(Gathered { values, unidentified }) => {
                self.deciding(self.limiter.check_charges(&values), unidentified, request, report_only)
            }
            // As for an error of a key extractor, regardless of its kind.
            Err(error) => self.reject_unless(report_only, Rejection::Unidentified(error), request),
        }
    }

    #[inline]
    fn deciding(
        &self,
        decision: Answer<Decision>,
        unidentified: Option<Box<Error>>,
        request: &Parts,
        report_only: bool,
    ) -> Step {
        match decision.now() {
            // A store in memory has decided, so the service is called without waiting.
            Ok(decided) => self.decided(decided, unidentified, request, report_only),
            Err(decision) => Step::Wait(Waiting::Decision(decision, unidentified)),
        }
    }

    /// The step for a request that is exempt or that no rule limits.
    fn exempt(&self, request: &Parts) -> Step {
        self.report(|| DecisionEvent::exempt(request));
        Step::Serve(None)
    }

    /// The step for a request that the store has decided. With an error, another rule cannot identify the client.
    #[inline]
    fn decided(
        &self,
        decided: Result<Decision, Error>,
        unidentified: Option<Box<Error>>,
        request: &Parts,
        report_only: bool,
    ) -> Step {
        match decided {
            Ok(decision) => match decision.verdict() {
                Verdict::Deny { .. } => self.reject_unless(report_only, Rejection::Denied(decision), request),
                admitted => {
                    if let Some(error) = unidentified {
                        return self.charged_without_identity(*error, decision, request, report_only);
                    }
                    self.report(|| DecisionEvent::admitted(&decision, request));
                    match admitted {
                        Verdict::Delay(delay) => Step::Delay(delay, decision),
                        _ => Step::Serve(Some(decision)),
                    }
                }
            },
            // Regardless of its kind: clients must not see the text of a store.
            Err(error) => self.reject_unless(report_only, Rejection::Unavailable(error), request),
        }
    }

    /// Rejects the request, unless the layer only reports.
    fn reject_unless(&self, report_only: bool, rejection: Rejection, request: &Parts) -> Step {
        self.report_rejection(&DecisionEvent::rejected(&rejection, Some(request), !report_only));
        self.log(&rejection, report_only);
        if report_only {
            return Step::Serve(rejection.into_decision());
        }
        Step::Reject(self.responder.jitter(rejection), None)
    }

    /// Rejects a request that is charged, and whose client another rule cannot identify. Admits it if the layer only reports.
    fn charged_without_identity(
        &self,
        error: Error,
        mut decision: Decision,
        request: &Parts,
        report_only: bool,
    ) -> Step {
        let rejection = Rejection::Unidentified(error);
        self.report_rejection(
            &DecisionEvent::rejected(&rejection, Some(request), !report_only).with(&decision),
        );
        self.log(&rejection, report_only);
        if report_only {
            return match decision.delay() {
                Some(delay) => Step::Delay(delay, decision),
                None => Step::Serve(Some(decision)),
            };
        }
        // The response's extensions get no permit.
        drop(decision.take_permit());
        Step::Reject(rejection, Some(Box::new(decision)))
    }
}
