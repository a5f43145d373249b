//! What a layer does with a request before it looks for keys: whether it limits the request at all.

use std::ops::ControlFlow;

use http::{
    Method,
    header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN},
    request::Parts,
};

use crate::{
    base::{Answer, Error, ErrorKind},
    key::Matcher,
    policy::{Enforcement, EnforcementSwitch},
    response::Rejection,
};

/// The settings that decide whether a request is limited.
#[derive(Clone)]
pub(super) struct Gate {
    pub(super) enforcement: EnforcementSwitch,
    pub(super) preflight: Preflight,
    pub(super) exempt: Vec<Matcher>,
    pub(super) blocked: Vec<Matcher>,
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

impl Gate {
    /// The defaults, under this enforcement.
    pub(super) fn under(enforcement: Enforcement) -> Self {
        Self {
            enforcement: enforcement.into(),
            preflight: Preflight::Separate,
            exempt: Vec::new(),
            blocked: Vec::new(),
        }
    }

    /// Whether `request` is a CORS preflight that is not limited like any other request.
    pub(super) fn is_preflight(&self, request: &Parts) -> bool {
        self.preflight != Preflight::Limited && is_preflight(request)
    }

    /// The rejection if the request is blocked, or a blocklist could not be checked.
    pub(super) fn blocked(&self, request: &Parts) -> Answer<Option<Rejection>> {
        let answers = self.blocked.iter().map(|blocked| blocked(request));
        let finish = |undecided: Option<Error>| Ok(undecided.map(Rejection::Unidentified));
        Answer::try_fold(answers, None, finish, |undecided, result| match result {
            Ok(true) => ControlFlow::Break(Ok(Some(Rejection::Blocked))),
            Ok(false) => ControlFlow::Continue(undecided),
            Err(error) if error.kind() == ErrorKind::MissingIdentity => ControlFlow::Continue(undecided),
            // Rejected unless another list matches, or a client could evade this one by sending its header twice.
            Err(error) => ControlFlow::Continue(undecided.or(Some(error))),
        })
    }
}

/// Whether the request is a CORS preflight: a browser asks whether it may send another request.
fn is_preflight(request: &Parts) -> bool {
    request.method == Method::OPTIONS
        && request.headers.contains_key(ORIGIN)
        && request.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Whether one of `matchers` matches the request. A matcher that fails does not.
pub(super) fn matches_any(matchers: &[Matcher], request: &Parts) -> Answer<bool> {
    let answers = matchers.iter().map(|matcher| matcher(request));
    Answer::try_fold(
        answers,
        (),
        |()| Ok(false),
        |(), result| match result {
            Ok(true) => ControlFlow::Break(Ok(true)),
            _ => ControlFlow::Continue(()),
        },
    )
}
