//! The settings of a layer, shared by all services that it makes.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::{Response, StatusCode, request::Parts};

use super::rule::Rule;
use crate::{
    answer::Answer,
    decision::{Charge, Decision, Outcome},
    error::ErrorKind,
    key::{Key, Keys, RequestMatcher},
    limiter::Limiter,
    response::{Headers, Rejection, RejectionBody, ResponseMapper, decorate, is_grpc, mark_request, refuse},
    util::{outage::Outage, per_thread::Apart},
};

#[derive(Clone)]
pub(super) struct Config {
    pub(super) limiter: Limiter,
    pub(super) rules: Vec<Rule>,
    pub(super) exempt: Vec<Arc<dyn RequestMatcher>>,
    pub(super) banned: Vec<Arc<dyn RequestMatcher>>,
    pub(super) preflight: Preflight,
    pub(super) enabled: bool,
    pub(super) soft: bool,
    pub(super) headers: Headers,
    pub(super) mapper: Arc<dyn ResponseMapper>,
    pub(super) grpc: Arc<dyn ResponseMapper>,
    /// Whether a mistake in the set-up was logged.
    pub(super) mistaken: Arc<AtomicBool>,
    /// Whether it was logged that another layer has the same policy.
    pub(super) counted_twice: Arc<AtomicBool>,
    /// Of the extractors.
    pub(super) outage: Arc<Outage>,
}

impl Apart for Config {
    fn apart(&self) -> Self {
        Self {
            limiter: self.limiter.apart(),
            rules: self.rules.iter().map(Rule::apart).collect(),
            ..self.clone()
        }
    }
}

/// How CORS preflights are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preflight {
    /// On budgets of their own, of the same size.
    Apart,
    Exempt,
    /// Like any other request.
    Limited,
}

impl Config {
    /// Charges the request, whose keys are `keys`, under every rule.
    pub(super) fn decide(&self, keys: Keys, request: &Parts) -> Answer<Decision> {
        match (keys, &*self.rules) {
            (Keys::One(key), [rule]) => self.limiter.check_charge(rule.charge(key, request)),
            (keys, rules) => {
                let charge = |(rule, key): (&Rule, Key)| rule.charge(key, request);
                let charges: Vec<Charge> = rules.iter().zip(keys.into_vec()).map(charge).collect();
                self.limiter.check_all(&charges)
            }
        }
    }

    /// Puts the decision and the limiter into the request's extensions, and in soft mode the mark of a request over the
    /// limit into its headers.
    pub(super) fn mark(&self, request: &mut Parts, decision: Option<&Decision>) {
        if self.soft {
            mark_request(request, decision);
        }
        match decision {
            Some(decision) => {
                if let Some(outer) = request.extensions.insert(decision.clone()) {
                    self.warn_of_twice(&outer, decision);
                }
            }
            // The handler charges more by the decision of a layer further out, with the limiter of that layer.
            None if request.extensions.get::<Decision>().is_some() => return,
            None => {}
        }
        request.extensions.insert(self.limiter.clone());
    }

    /// Logs once that two layers charge a request under one policy: `outer` is the decision of the outer one.
    fn warn_of_twice(&self, outer: &Decision, decision: &Decision) {
        let is_same = |one: &&Outcome| {
            let same =
                |other: &Outcome| one.policy().name() == other.policy().name() && one.key() == other.key();
            outer.outcomes().iter().any(same)
        };
        let twice = decision.outcomes().iter().find(is_same);
        if let Some(outcome) = twice
            && !self.counted_twice.swap(true, Ordering::Relaxed)
        {
            log!(
                warn,
                policy = outcome.policy().name(),
                "two rate limit layers count a request under the policy {:?}, so it is charged twice; remove one of the \
                 layers, or give each policy its own name",
                outcome.policy().name()
            );
            let _ = outcome;
        }
    }

    /// Adds a random wait to that of a denial, where the headers ask for it.
    pub(super) fn jitter(&self, rejection: Rejection) -> Rejection {
        match rejection {
            Rejection::Denied(decision) => {
                Rejection::Denied(decision.with_jitter(self.headers.random_wait()))
            }
            other => other,
        }
    }

    /// The response to a rejected request.
    pub(super) fn response(&self, rejection: &Rejection, request: &Parts) -> Response<RejectionBody> {
        let mapper = if is_grpc(request) { &self.grpc } else { &self.mapper };
        refuse(&**mapper, rejection, request, &self.headers)
    }

    pub(super) fn log(&self, rejection: &Rejection) {
        match rejection {
            Rejection::Unidentified(error) | Rejection::Unavailable(error)
                if matches!(error.kind(), ErrorKind::MissingSetup | ErrorKind::InvalidConfig) =>
            {
                // Once: every request will meet the same mistake.
                if !self.mistaken.swap(true, Ordering::Relaxed) {
                    log!(error, error = %error, "the rate limit is not set up right; requests are answered 500");
                }
                let _ = error;
            }
            Rejection::Unidentified(error) if rejection.status() == StatusCode::INTERNAL_SERVER_ERROR => {
                if self.outage.failed() {
                    log!(warn, error = %error, "clients cannot be identified; their requests are answered 500");
                } else {
                    log!(debug, error = %error, "the client cannot be identified");
                }
                let _ = error;
            }
            _ => {
                log!(
                    debug,
                    status = rejection.status().as_u16(),
                    policy = rejection
                        .decision()
                        .and_then(Decision::binding)
                        .map(|outcome| outcome.policy().name()),
                    soft = self.soft,
                    "denied"
                );
            }
        }
    }

    /// Adds the headers to the response of the service.
    pub(super) fn decorate<B>(&self, response: &mut Response<B>, decision: Decision) {
        log!(trace, policy = decision.binding().map(|outcome| outcome.policy().name()), "admitted");
        decorate(response, decision, &self.headers, self.soft);
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("policies", &self.rules.iter().map(|rule| &rule.policy).collect::<Vec<_>>())
            .field("preflight", &self.preflight)
            .field("soft", &self.soft)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}
