//! Identifies the client of a request: blocklists, exemptions and keys.

use std::{
    future::{Future as _, poll_fn},
    iter,
    pin::Pin,
    task::Poll,
};

use http::request::Parts;

use super::{
    config::Config,
    gate::{Preflight, matches_any},
};
use crate::{
    base::{Answer, Error},
    decision::{Charge, Decision},
    key::Key,
    policy::Enforcement,
    response::Rejection,
};

/// The result of identifying the client.
pub(super) enum Identity {
    /// The layer is off.
    Ignored,
    /// The request is exempt.
    Exempt,
    /// The request is blocked, or a blocklist could not be checked. Rejected while the layer only reports, too.
    // Boxed because it is rare, and every request moves this type.
    Rejected(Box<Rejection>),
    /// The key under the only rule.
    Known(Key),
    /// The rules that apply, each by its place in the layer, with its key. The others do not limit the request.
    Applicable(Vec<(usize, Key)>),
    /// The same, and why another rule cannot identify the client, which is the client's fault.
    Partly(Vec<(usize, Key)>, Box<Error>),
    /// Some rules deny the request. The others have not found their keys, and cannot change that.
    Denied(Box<Decision>),
}

impl Config {
    /// Identifies the client of `request`. Matchers and extractors run in order, and only if they are needed. If one is
    /// pending, those after it start too, while the request can be read, and are awaited in order.
    ///
    /// `may_deny` is whether a denial that the store knows makes it unnecessary to await pending keys.
    #[inline]
    pub(super) fn identify(
        &self,
        request: &Parts,
        enforcement: Enforcement,
        may_deny: bool,
    ) -> Answer<Identity> {
        if enforcement == Enforcement::Off {
            return Answer::ready(Ok(Identity::Ignored));
        }
        let gate = &self.gate;
        let preflight = gate.is_preflight(request);
        let exempt_preflight = preflight && gate.preflight == Preflight::Exempt;
        if gate.blocked.is_empty() && gate.exempt.is_empty() && !exempt_preflight {
            // The common case.
            return self.keys(request, preflight, may_deny);
        }
        let blocked = match gate.blocked(request).now() {
            Ok(Ok(Some(rejection))) => return Answer::ready(Ok(Identity::Rejected(rejection.into()))),
            Ok(Ok(None)) => Answer::ready(Ok(None)),
            Ok(Err(error)) => return Answer::ready(Err(error)),
            Err(pending) => pending,
        };
        let exempt =
            if exempt_preflight { Answer::ready(Ok(true)) } else { matches_any(&gate.exempt, request) };
        match exempt.now() {
            Ok(Ok(true)) => blocked.then(|blocked| {
                Ok(blocked?.map_or(Identity::Exempt, |rejection| Identity::Rejected(rejection.into())))
            }),
            Ok(_) if blocked.is_ready() => self.keys(request, preflight, may_deny),
            exempt => {
                let exempt = exempt.map_or_else(|pending| pending, Answer::ready);
                let keys = self.keys(request, preflight, false);
                Answer::pending(async move {
                    if let Some(rejection) = blocked.await? {
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

    /// The keys of the request under the rules that apply to it.
    #[inline]
    fn keys(&self, request: &Parts, preflight: bool, may_deny: bool) -> Answer<Identity> {
        let rules = &self.rules;
        match (rules.routes(), rules.as_slice()) {
            (None, [rule]) if rule.skipped.is_empty() => {
                // The common case.
                rule.key(request, preflight).then(|key| Ok(Identity::Known(key?)))
            }
            (None, rules) => self.keys_of(0..rules.len(), request, preflight, may_deny),
            (Some(routes), _) => {
                self.keys_of(routes.of(request).iter().copied(), request, preflight, may_deny)
            }
        }
    }

    /// The keys of the request under the `rules` that do not skip it.
    fn keys_of(
        &self,
        rules: impl Iterator<Item = usize>,
        request: &Parts,
        preflight: bool,
        may_deny: bool,
    ) -> Answer<Identity> {
        let keys = gather(rules.filter_map(|at| Some((at, self.rules.get(at)?))).map(|(at, rule)| {
            if rule.skipped.is_empty() {
                return rule.key(request, preflight).map(move |key| Some((at, key)));
            }
            rule.key_unless_skipped(request, preflight).map(move |key| key.map(|key| (at, key)))
        }));
        match keys {
            Ok(keys) => Answer::ready(keys.and_then(Identity::of)),
            Err(pending) => {
                if may_deny && let Some(denial) = self.known_denial(pending.known()) {
                    return Answer::ready(Ok(Identity::Denied(denial.into())));
                }
                pending.finish().and_then(Identity::of)
            }
        }
    }

    /// The denial of the request under `keys`, if the store knows of it without being asked. So a client that is over one
    /// limit causes no lookup for another one.
    fn known_denial<'a>(&self, keys: impl Iterator<Item = &'a (usize, Key)>) -> Option<Decision> {
        self.limiter.known_denial(keys.filter_map(|(at, key)| {
            // A cost function runs once for each request, later.
            let rule = self.rules.get(*at).filter(|rule| rule.cost.is_none())?;
            Some(Charge::of(rule.policy.known()?, key.clone(), 1))
        }))
    }
}

impl Identity {
    fn of(keys: Gathered<(usize, Key)>) -> Result<Self, Error> {
        match keys.unidentified {
            None => Ok(Self::Applicable(keys.values)),
            Some(error) if keys.values.is_empty() => Err(*error),
            Some(error) => Ok(Self::Partly(keys.values, error)),
        }
    }
}

/// The values of the rules that have one.
pub(super) struct Gathered<T> {
    /// In the order of their rules.
    pub(super) values: Vec<T>,
    /// Why another rule cannot identify the client, which is the client's fault. The first one.
    pub(super) unidentified: Option<Box<Error>>,
}

/// Answers of which at least one is pending.
pub(super) struct Pending<T> {
    /// The values before the first pending answer.
    first: Gathered<T>,
    /// The first pending answer and all after it.
    rest: Vec<Answer<Option<T>>>,
}

/// The values of `answers`, or the first error of the server. Answers after that are not started.
pub(super) fn gather<T>(
    mut answers: impl Iterator<Item = Answer<Option<T>>>,
) -> Result<Result<Gathered<T>, Error>, Pending<T>> {
    // Nearly all answers are values.
    let most = answers.size_hint().1.unwrap_or_default();
    let mut gathered = Gathered { values: Vec::with_capacity(most), unidentified: None };
    while let Some(answer) = answers.next() {
        match answer.now() {
            Ok(result) => {
                if let Err(error) = gathered.add(result) {
                    return Ok(Err(error));
                }
            }
            Err(pending) => {
                // All now, because the request is not there later.
                let rest = iter::once(pending).chain(answers).collect();
                return Err(Pending { first: gathered, rest });
            }
        }
    }
    Ok(Ok(gathered))
}

impl<T> Gathered<T> {
    /// With `earlier` in place of the extractor's error, if it is set.
    pub(super) fn or(self, earlier: Option<Box<Error>>) -> Self {
        Self { unidentified: earlier.or(self.unidentified), ..self }
    }

    fn add(&mut self, result: Result<Option<T>, Error>) -> Result<(), Error> {
        match result {
            Ok(Some(value)) => self.values.push(value),
            Ok(None) => {}
            Err(error) if error.kind().is_clients() => {
                self.unidentified.get_or_insert_with(|| Box::new(error));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl<T: Send + 'static> Pending<T> {
    /// The values that are known.
    pub(super) fn known(&self) -> impl Iterator<Item = &T> {
        let rest = self.rest.iter().filter_map(|answer| answer.peek()?.as_ref().ok()?.as_ref());
        self.first.values.iter().chain(rest)
    }

    /// All values, once they are known. The answers are awaited together.
    pub(super) fn finish(self) -> Answer<Gathered<T>> {
        let Self { first: mut gathered, mut rest } = self;
        Answer::pending(async move {
            let mut results: Vec<_> = rest.iter().map(|_| None).collect();
            poll_fn(|cx| {
                for (answer, result) in rest.iter_mut().zip(&mut results) {
                    if result.is_none()
                        && let Poll::Ready(ready) = Pin::new(answer).poll(cx)
                    {
                        *result = Some(ready);
                    }
                }
                if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            results.into_iter().flatten().try_for_each(|result| gathered.add(result))?;
            Ok(gathered)
        })
    }
}
