//! Whose request it is: bans, exemptions and keys.

use std::iter;

use http::{
    Method,
    header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN},
    request::Parts,
};

use super::config::{Config, Preflight};
use crate::{
    answer::Answer,
    error::{Error, ErrorKind},
    key::{Keys, preflight_key},
    response::Rejection,
};

/// Whose request it is.
pub(super) enum Identity {
    /// It is not counted.
    Exempt,
    /// It is banned, or it cannot be decided whether it is: rejected in soft mode too.
    // Boxed, because nearly no request is: every one moves this type.
    Barred(Box<Rejection>),
    /// A key for each rule.
    Known(Keys),
}

impl Config {
    /// Whose request `request` is. Matchers and extractors run in order, and only as far as their answers matter;
    /// those after one that is pending run at once, while the request is at hand, and are awaited in turn.
    pub(super) fn identify(&self, request: &Parts) -> Answer<Identity> {
        if !self.enabled {
            return Answer::ready(Ok(Identity::Exempt));
        }
        let preflight = self.preflight != Preflight::Limited && is_preflight(request);
        let exempt_preflight = preflight && self.preflight == Preflight::Exempt;
        let known = |keys| Ok(Identity::Known(keys?));
        if self.banned.is_empty() && self.exempt.is_empty() && !exempt_preflight {
            // Nearly every layer.
            return self.keys(request, preflight).then(known);
        }
        let banned = match self.banned(request).now() {
            Ok(Ok(Some(rejection))) => return Answer::ready(Ok(Identity::Barred(rejection.into()))),
            Ok(Ok(None)) => Answer::ready(Ok(None)),
            Ok(Err(error)) => return Answer::ready(Err(error)),
            Err(pending) => pending,
        };
        let exempt = if exempt_preflight { Answer::ready(Ok(true)) } else { self.exempted(request) };
        match exempt.now() {
            Ok(Ok(true)) => banned.then(|banned| {
                Ok(banned?.map_or(Identity::Exempt, |rejection| Identity::Barred(rejection.into())))
            }),
            Ok(_) if banned.is_ready() => self.keys(request, preflight).then(known),
            exempt => {
                let exempt = exempt.map_or_else(|pending| pending, Answer::ready);
                let keys = self.keys(request, preflight);
                Answer::pending(async move {
                    if let Some(rejection) = banned.await? {
                        return Ok(Identity::Barred(rejection.into()));
                    }
                    if exempt.await? {
                        return Ok(Identity::Exempt);
                    }
                    Ok(Identity::Known(keys.await?))
                })
            }
        }
    }

    /// The rejection if the request is banned or it cannot be decided whether it is.
    fn banned(&self, request: &Parts) -> Answer<Option<Rejection>> {
        let mut bans = Bans::default();
        let mut answers = self.banned.iter().map(|banned| banned.matches(request));
        while let Some(answer) = answers.next() {
            match answer.now() {
                Ok(decided) => {
                    if let Some(rejection) = bans.note(decided) {
                        return Answer::ready(Ok(Some(rejection)));
                    }
                }
                Err(pending) => {
                    let pending: Vec<_> = iter::once(pending).chain(answers).collect();
                    return Answer::pending(async move {
                        for answer in pending {
                            if let Some(rejection) = bans.note(answer.await) {
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

    /// Whether the request is exempt. One for which that is undecided is not.
    fn exempted(&self, request: &Parts) -> Answer<bool> {
        let mut answers = self.exempt.iter().map(|exempt| exempt.matches(request));
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

    fn keys(&self, request: &Parts, preflight: bool) -> Answer<Keys> {
        Keys::of(self.rules.iter().map(|rule| {
            let key = rule.key.extract(request);
            if preflight { preflight_key(key, request) } else { key }
        }))
    }
}

/// The first ban that could not be decided, if there is one. Such a request is rejected, or a client could evade
/// the ban by sending its header twice.
#[derive(Default)]
struct Bans(Option<Error>);

impl Bans {
    /// Notes the answer of one ban: the rejection if the request is banned.
    fn note(&mut self, decided: Result<bool, Error>) -> Option<Rejection> {
        match decided {
            Ok(true) => return Some(Rejection::Banned),
            Ok(false) => {}
            Err(error) if error.kind() == ErrorKind::MissingIdentity => {}
            Err(error) => {
                self.0.get_or_insert(error);
            }
        }
        None
    }

    /// The rejection where no ban matched and one could not be decided.
    fn undecided(self) -> Option<Rejection> {
        self.0.map(Rejection::Unidentified)
    }
}

/// Whether it is a browser's CORS preflight: the question whether it may send the request that it is about to send.
fn is_preflight(request: &Parts) -> bool {
    request.method == Method::OPTIONS
        && request.headers.contains_key(ORIGIN)
        && request.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}
