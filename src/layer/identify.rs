//! Identifies the client of a request: bans, exemptions and keys.

use std::iter;

use http::{
    Method,
    header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN},
    request::Parts,
};

use super::{
    config::{Config, Preflight},
    rule::matches_any,
};
use crate::{
    answer::Answer,
    error::{Error, ErrorKind},
    key::{Key, Keys},
    policy::Enforcement,
    response::Rejection,
};

/// The result of identifying the client.
pub(super) enum Identity {
    /// The layer is disabled.
    Ignored,
    /// The request is exempt.
    Exempt,
    /// The request is banned, or a ban could not be checked. Rejected in soft mode too.
    // Boxed because it is rare, and every request moves this type.
    Rejected(Box<Rejection>),
    /// One key for each rule.
    Known(Keys),
    /// The rules that apply, each by its place in the layer, with its key. The others do not limit the request.
    Applicable(Vec<(usize, Key)>),
}

impl Config {
    /// Identifies the client of `request`. Matchers and extractors run in order, and only as far as needed. If one is
    /// pending, those after it run at once, while the request can be read, and are awaited in order.
    pub(super) fn identify(&self, request: &Parts, enforcement: Enforcement) -> Answer<Identity> {
        if enforcement == Enforcement::Off {
            return Answer::ready(Ok(Identity::Ignored));
        }
        let preflight = self.preflight != Preflight::Limited && is_preflight(request);
        let exempt_preflight = preflight && self.preflight == Preflight::Exempt;
        if self.banned.is_empty() && self.exempt.is_empty() && !exempt_preflight {
            // The common case.
            return self.keys(request, preflight);
        }
        let banned = match self.banned(request).now() {
            Ok(Ok(Some(rejection))) => return Answer::ready(Ok(Identity::Rejected(rejection.into()))),
            Ok(Ok(None)) => Answer::ready(Ok(None)),
            Ok(Err(error)) => return Answer::ready(Err(error)),
            Err(pending) => pending,
        };
        let exempt =
            if exempt_preflight { Answer::ready(Ok(true)) } else { matches_any(&self.exempt, request) };
        match exempt.now() {
            Ok(Ok(true)) => banned.then(|banned| {
                Ok(banned?.map_or(Identity::Exempt, |rejection| Identity::Rejected(rejection.into())))
            }),
            Ok(_) if banned.is_ready() => self.keys(request, preflight),
            exempt => {
                let exempt = exempt.map_or_else(|pending| pending, Answer::ready);
                let keys = self.keys(request, preflight);
                Answer::pending(async move {
                    if let Some(rejection) = banned.await? {
                        return Ok(Identity::Rejected(rejection.into()));
                    }
                    if exempt.await? {
                        return Ok(Identity::Exempt);
                    }
                    keys.await
                })
            }
        }
    }

    /// The rejection if the request is banned or a ban could not be checked.
    fn banned(&self, request: &Parts) -> Answer<Option<Rejection>> {
        let mut bans = BanCheck::default();
        let mut answers = self.banned.iter().map(|banned| banned.matches(request));
        while let Some(answer) = answers.next() {
            match answer.now() {
                Ok(result) => {
                    if let Some(rejection) = bans.record(result) {
                        return Answer::ready(Ok(Some(rejection)));
                    }
                }
                Err(pending) => {
                    let pending: Vec<_> = iter::once(pending).chain(answers).collect();
                    return Answer::pending(async move {
                        for answer in pending {
                            if let Some(rejection) = bans.record(answer.await) {
                                return Ok(Some(rejection));
                            }
                        }
                        Ok(bans.undecided())
                    });
                }
            }
        }
        Answer::ready(Ok(bans.undecided()))
    }

    /// The keys of the request under the rules that apply to it.
    fn keys(&self, request: &Parts, preflight: bool) -> Answer<Identity> {
        match &self.routes {
            None if self.rules.iter().all(|rule| rule.skipped.is_empty()) => {
                // The common case.
                Keys::of(self.rules.iter().map(|rule| rule.key(request, preflight)))
                    .then(|keys| Ok(Identity::Known(keys?)))
            }
            None => self.keys_of(0..self.rules.len(), request, preflight),
            Some(routes) => self.keys_of(routes.of(request).iter().copied(), request, preflight),
        }
    }

    /// The keys of the request under those of `rules` that do not skip it.
    fn keys_of(
        &self,
        rules: impl Iterator<Item = usize>,
        request: &Parts,
        preflight: bool,
    ) -> Answer<Identity> {
        let keys = Answer::all(rules.filter_map(|at| Some((at, self.rules.get(at)?))).map(|(at, rule)| {
            rule.key_unless_skipped(request, preflight).map(move |key| key.map(|key| (at, key)))
        }));
        keys.map(Identity::Applicable)
    }
}

/// The first ban that could not be checked, if any. Such a request is rejected, or a client could evade the ban by
/// sending its header twice.
#[derive(Default)]
struct BanCheck(Option<Error>);

impl BanCheck {
    /// Records the answer of one ban. Returns the rejection if the request is banned.
    fn record(&mut self, result: Result<bool, Error>) -> Option<Rejection> {
        match result {
            Ok(true) => return Some(Rejection::Banned),
            Ok(false) => {}
            Err(error) if error.kind() == ErrorKind::MissingIdentity => {}
            Err(error) => {
                self.0.get_or_insert(error);
            }
        }
        None
    }

    /// The rejection if no ban matched and one could not be checked.
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
