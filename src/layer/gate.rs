//! What a layer does with a request before it looks for keys: whether it limits the request at all.

use std::{iter, sync::Arc};

use http::{
    Method,
    header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN},
    request::Parts,
};

use crate::{
    base::{Answer, Error, ErrorKind},
    key::RequestMatcher,
    policy::{Enforcement, EnforcementSwitch},
    response::Rejection,
};

/// The settings that decide whether a request is limited.
#[derive(Clone)]
pub(super) struct Gate {
    pub(super) enforcement: EnforcementSwitch,
    pub(super) preflight: Preflight,
    pub(super) exempt: Vec<Arc<dyn RequestMatcher>>,
    pub(super) blocked: Vec<Arc<dyn RequestMatcher>>,
}

/// How a layer limits CORS preflights: see [`RateLimitLayer::preflight`](crate::RateLimitLayer::preflight).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Preflight {
    /// By [a separate budget](crate::RateLimitLayer#cors-preflights) of the same size for each policy. The default.
    #[default]
    Separate,
    /// Not at all: they reach the service uncounted.
    ///
    /// Every client can then send any number of preflights, and each calls the service. Use it only if the service
    /// answers preflights at no cost.
    Exempt,
    /// Like any other request, by the client's quota. A preflight that lacks the identity is rejected with 400.
    Limited,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            enforcement: Enforcement::On.into(),
            preflight: Preflight::Separate,
            exempt: Vec::new(),
            blocked: Vec::new(),
        }
    }
}

impl Gate {
    /// Whether `request` is a CORS preflight that is not limited like any other request.
    pub(super) fn is_preflight(&self, request: &Parts) -> bool {
        self.preflight != Preflight::Limited && is_preflight(request)
    }

    /// The rejection if the request is blocked, or a blocklist could not be checked.
    pub(super) fn blocked(&self, request: &Parts) -> Answer<Option<Rejection>> {
        let mut check = BlockCheck::default();
        let mut answers = self.blocked.iter().map(|blocked| blocked.matches(request));
        while let Some(answer) = answers.next() {
            match answer.now() {
                Ok(result) => {
                    if let Some(rejection) = check.record(result) {
                        return Answer::ready(Ok(Some(rejection)));
                    }
                }
                Err(pending) => {
                    let pending: Vec<_> = iter::once(pending).chain(answers).collect();
                    return Answer::pending(async move {
                        for answer in pending {
                            if let Some(rejection) = check.record(answer.await) {
                                return Ok(Some(rejection));
                            }
                        }
                        Ok(check.undecided())
                    });
                }
            }
        }
        Answer::ready(Ok(check.undecided()))
    }
}

/// The first blocklist that could not be checked, if any. Such a request is rejected, or a client could evade the list by
/// sending its header twice.
#[derive(Default)]
struct BlockCheck(Option<Error>);

impl BlockCheck {
    /// Records the answer of one blocklist. Returns the rejection if the request is blocked.
    fn record(&mut self, result: Result<bool, Error>) -> Option<Rejection> {
        match result {
            Ok(true) => return Some(Rejection::Blocked),
            Ok(false) => {}
            Err(error) if error.kind() == ErrorKind::MissingIdentity => {}
            Err(error) => {
                self.0.get_or_insert(error);
            }
        }
        None
    }

    /// The rejection if no blocklist matched and one could not be checked.
    fn undecided(self) -> Option<Rejection> {
        self.0.map(Rejection::Unidentified)
    }
}

/// Whether the request is a CORS preflight: a browser asks whether it may send another request.
fn is_preflight(request: &Parts) -> bool {
    request.method == Method::OPTIONS
        && request.headers.contains_key(ORIGIN)
        && request.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Whether one of `matchers` matches the request. A matcher that fails does not.
pub(super) fn matches_any(matchers: &[Arc<dyn RequestMatcher>], request: &Parts) -> Answer<bool> {
    let mut answers = matchers.iter().map(|matcher| matcher.matches(request));
    while let Some(answer) = answers.next() {
        match answer.now() {
            Ok(Ok(true)) => return Answer::ready(Ok(true)),
            Ok(_) => {}
            Err(pending) => {
                let pending: Vec<_> = iter::once(pending).chain(answers).collect();
                return Answer::pending(async move {
                    for answer in pending {
                        if answer.await.unwrap_or(false) {
                            return Ok(true);
                        }
                    }
                    Ok(false)
                });
            }
        }
    }
    Answer::ready(Ok(false))
}
