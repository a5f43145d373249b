//! What a layer was told, shared by all services it made.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::{
    Method, Response, StatusCode,
    header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN},
    request::Parts,
};

use crate::{
    Charge, Decision, Headers, Limiter, Rejection, ResponseMapper,
    limiter::Check,
    response::{RefusalBody, decorate, refuse},
    rule::Rule,
};

#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) limiter: Limiter,
    pub(crate) rules: Vec<Rule>,
    pub(crate) exempt: Vec<Arc<dyn Fn(&Parts) -> bool + Send + Sync>>,
    pub(crate) limit_preflight: bool,
    pub(crate) headers: Headers,
    pub(crate) mapper: Arc<dyn ResponseMapper>,
    /// Whether a mistake in the set-up was logged.
    pub(crate) mistaken: Arc<AtomicBool>,
}

impl Config {
    pub(crate) fn is_exempt(&self, request: &Parts) -> bool {
        (!self.limit_preflight && is_preflight(request)) || self.exempt.iter().any(|exempt| exempt(request))
    }

    /// Asks for everything that `request` is charged.
    pub(crate) fn check(&self, request: &Parts) -> Result<Check, Rejection> {
        let charges: Result<Vec<Charge>, _> = self.rules.iter().map(|rule| rule.charge(request)).collect();
        match charges {
            Ok(charges) => Ok(self.limiter.check_all(&charges)),
            Err(error) => Err(Rejection::Unidentified(error)),
        }
    }

    pub(crate) fn refuse(&self, rejection: &Rejection, request: &Parts) -> Response<RefusalBody> {
        self.log(rejection);
        refuse(&*self.mapper, rejection, request, self.headers)
    }

    fn log(&self, rejection: &Rejection) {
        match rejection {
            Rejection::Unidentified(error) | Rejection::Unavailable(error)
                if rejection.status() == StatusCode::INTERNAL_SERVER_ERROR =>
            {
                // Once: every request will meet the same mistake.
                if !self.mistaken.swap(true, Ordering::Relaxed) {
                    log!(error, error = %error, "the rate limit is not set up right; requests are answered 500");
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
                    "refused"
                );
            }
        }
    }

    /// Tells the client of an admitted request where it stands.
    pub(crate) fn decorate<B>(&self, response: &mut Response<B>, decision: Decision) {
        log!(trace, policy = decision.binding().map(|outcome| outcome.policy().name()), "admitted");
        let status = response.status();
        decorate(response.headers_mut(), status, &decision, self.headers);
        response.extensions_mut().insert(decision);
    }
}

/// A browser's question whether it may send the request that it is about to send.
fn is_preflight(request: &Parts) -> bool {
    request.method == Method::OPTIONS
        && request.headers.contains_key(ORIGIN)
        && request.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("policies", &self.rules.iter().map(|rule| &rule.policy).collect::<Vec<_>>())
            .field("limit_preflight", &self.limit_preflight)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}
