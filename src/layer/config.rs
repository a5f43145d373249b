//! The settings of a layer, shared by all of its services.

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
    decision::{Charge, Decision},
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
    /// Whether a set-up error was logged.
    pub(super) setup_error_logged: Arc<AtomicBool>,
    /// The outage of the extractors, if there is one.
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

/// How a layer limits CORS preflights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preflight {
    /// By a separate budget of the same size for each policy.
    Separate,
    Exempt,
    /// Like any other request.
    Limited,
}

impl Config {
    /// Charges `keys`, which belong to `request`, under every rule.
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

    /// Inserts the decision and the limiter into the request's extensions. In soft mode, also marks a request over the
    /// limit with a header.
    pub(super) fn annotate(&self, request: &mut Parts, decision: Option<&Decision>) {
        if self.soft {
            mark_request(request, decision);
        }
        match decision {
            Some(decision) => {
                request.extensions.insert(decision.clone());
            }
            // The handler charges more to the decision of an outer layer, so it needs the limiter of that layer.
            None if request.extensions.get::<Decision>().is_some() => return,
            None => {}
        }
        request.extensions.insert(self.limiter.clone());
    }

    /// Adds the random wait of the headers to a denial.
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
                // Logged once, because every request meets the same error.
                if !self.setup_error_logged.swap(true, Ordering::Relaxed) {
                    log!(error, error = %error, "invalid set-up of the rate limit; requests are rejected with 500");
                }
                let _ = error;
            }
            Rejection::Unidentified(error) if rejection.status() == StatusCode::INTERNAL_SERVER_ERROR => {
                if self.outage.failed() {
                    log!(warn, error = %error, "outage of client identification; requests are rejected with 500");
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

    /// Adds the headers to the inner service's response.
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
