//! What a layer was told, shared by all services it made.

use std::{
    fmt, iter,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use http::{
    Method, Response, StatusCode,
    header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN},
    request::Parts,
};

use crate::{
    Answer, Charge, Decision, Error, ErrorKind, Headers, Key, Limiter, Rejection, RequestMatcher,
    ResponseMapper,
    clock::wall_micros,
    key::preflight_key,
    limiter::{Asked, Check},
    per_thread::Apart,
    response::{RefusalBody, decorate, is_grpc, mark_request, refuse},
    rule::Rule,
};

#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) limiter: Arc<Limiter>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) exempt: Vec<Arc<dyn RequestMatcher>>,
    pub(crate) banned: Vec<Arc<dyn RequestMatcher>>,
    pub(crate) preflight: Preflight,
    pub(crate) enabled: bool,
    pub(crate) soft: bool,
    pub(crate) headers: Headers,
    pub(crate) mapper: Arc<dyn ResponseMapper>,
    pub(crate) grpc: Arc<dyn ResponseMapper>,
    /// Whether a mistake in the set-up was logged.
    pub(crate) mistaken: Arc<AtomicBool>,
    pub(crate) trouble: Arc<Trouble>,
}

impl Apart for Config {
    fn apart(&self) -> Self {
        Self {
            limiter: Arc::new(Limiter::clone(&self.limiter)),
            rules: self.rules.iter().map(Rule::apart).collect(),
            ..self.clone()
        }
    }
}

/// How CORS preflights are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preflight {
    /// On budgets of their own, of the same size.
    Apart,
    Exempt,
    /// Like any other request.
    Limited,
}

/// When an extractor failed last, in microseconds since 1970; 0 for never.
#[derive(Default)]
pub(crate) struct Trouble(AtomicU64);

/// An episode of failures is over once there was none for so long.
const CALM: u64 = 60_000_000;

impl Trouble {
    /// Notes a failure: whether it is the first of an episode.
    fn begins(&self) -> bool {
        let now = wall_micros();
        let last = self.0.swap(now, Ordering::Relaxed);
        last == 0 || now.saturating_sub(last) > CALM
    }
}

/// Whose request it is.
pub(crate) enum Identity {
    /// Nobody's that is counted.
    Exempt,
    /// Banned, or it cannot be decided whether it is.
    Barred(Rejection),
    /// One key for each rule that has no charge yet.
    Keys(Vec<Key>),
}

/// How a request starts.
pub(crate) enum Start {
    Exempt,
    /// Banned, or it cannot be decided whether it is: rejected in soft mode too.
    Barred(Rejection),
    Asked(Asked),
    /// An extractor or a matcher has to wait. The first rules may have their charges already.
    Identify(Answer<Identity>, Vec<Charge>),
}

impl Config {
    /// Nobody is asked twice: who has to wait is awaited, and who comes after is asked while the request is at
    /// hand.
    pub(crate) fn start(&self, request: &Parts) -> Result<Start, Rejection> {
        if !self.enabled {
            return Ok(Start::Exempt);
        }
        let ask = |matcher: &Arc<dyn RequestMatcher>| matcher.matches(request);
        let preflight = self.preflight != Preflight::Limited && is_preflight(request);
        let identify = |rule: &Rule| match preflight {
            true => preflight_key(rule.key.extract(request), request),
            false => rule.key.extract(request),
        };
        let exempt_preflight = preflight && self.preflight == Preflight::Exempt;

        let mut bans = Bans::default();
        let mut banned = self.banned.iter().map(ask);
        while let Some(answer) = banned.next() {
            match answer.now() {
                Ok(decided) => {
                    if let Some(rejection) = bans.note(decided) {
                        return Ok(Start::Barred(rejection));
                    }
                }
                Err(waits) => {
                    let banned = iter::once(waits).chain(banned).collect();
                    let (exempt, keys) = match exempt_preflight {
                        true => (vec![Answer::ready(Ok(true))], Vec::new()),
                        false => {
                            (self.exempt.iter().map(ask).collect(), self.rules.iter().map(identify).collect())
                        }
                    };
                    return Ok(Start::Identify(await_all(bans, banned, exempt, keys), Vec::new()));
                }
            }
        }
        if let Some(rejection) = bans.undecided() {
            return Ok(Start::Barred(rejection));
        }
        if exempt_preflight {
            return Ok(Start::Exempt);
        }
        let mut exempt = self.exempt.iter().map(ask);
        while let Some(answer) = exempt.next() {
            match answer.now() {
                Ok(Ok(true)) => return Ok(Start::Exempt),
                Ok(_) => {}
                Err(waits) => {
                    let exempt = iter::once(waits).chain(exempt).collect();
                    let keys = self.rules.iter().map(identify).collect();
                    let identity = await_all(Bans::default(), Vec::new(), exempt, keys);
                    return Ok(Start::Identify(identity, Vec::new()));
                }
            }
        }
        if let [rule] = &*self.rules {
            // The same as below without a list, for nearly every layer.
            return match identify(rule).now() {
                Ok(Ok(key)) => Ok(Start::Asked(self.limiter.take_one(rule.charge(key, request)))),
                Ok(Err(error)) => Err(Rejection::Unidentified(error)),
                Err(waits) => {
                    let identity = await_all(Bans::default(), Vec::new(), Vec::new(), vec![waits]);
                    Ok(Start::Identify(identity, Vec::new()))
                }
            };
        }
        let mut charges = Vec::with_capacity(self.rules.len());
        let mut rules = self.rules.iter();
        while let Some(rule) = rules.next() {
            match identify(rule).now() {
                Ok(Ok(key)) => charges.push(rule.charge(key, request)),
                Ok(Err(error)) => return Err(Rejection::Unidentified(error)),
                Err(waits) => {
                    let keys = iter::once(waits).chain(rules.map(identify)).collect();
                    let identity = await_all(Bans::default(), Vec::new(), Vec::new(), keys);
                    return Ok(Start::Identify(identity, charges));
                }
            }
        }
        Ok(Start::Asked(self.limiter.check_all(&charges).into()))
    }

    /// Asks for everything that `request` is charged: `charges`, and those of `keys` for the other rules.
    pub(crate) fn check(&self, mut charges: Vec<Charge>, keys: Vec<Key>, request: &Parts) -> Check {
        let rules = &self.rules[charges.len()..];
        charges.extend(rules.iter().zip(keys).map(|(rule, key)| rule.charge(key, request)));
        self.limiter.check_all(&charges)
    }

    /// Gives the handler what it may ask for, and in soft mode the mark of a request over the limit.
    pub(crate) fn mark(&self, request: &mut Parts, decision: Option<&Decision>) {
        if self.soft {
            mark_request(request, decision);
        }
        match decision {
            Some(decision) => {
                // One extension for both: each costs an allocation.
                request.extensions.insert(decision.clone().made_by(self.limiter.clone()));
            }
            // The handler charges more by the decision of a layer further out, which its limiter has to fit.
            None if request.extensions.get::<Decision>().is_some() => {}
            None => {
                request.extensions.insert(Limiter::clone(&self.limiter));
            }
        }
    }

    /// Has the client told to come back later than need be, where that is wanted.
    pub(crate) fn postpone(&self, rejection: Rejection) -> Rejection {
        match rejection {
            Rejection::Limited(decision) => {
                Rejection::Limited(decision.postponed(self.headers.random_wait()))
            }
            other => other,
        }
    }

    /// The response to a request that is rejected.
    pub(crate) fn response(&self, rejection: &Rejection, request: &Parts) -> Response<RefusalBody> {
        let mapper = if is_grpc(request) { &self.grpc } else { &self.mapper };
        refuse(&**mapper, rejection, request, &self.headers)
    }

    pub(crate) fn log(&self, rejection: &Rejection) {
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
                if self.trouble.begins() {
                    log!(warn, error = %error, "it cannot be found out whose requests they are");
                } else {
                    log!(debug, error = %error, "it cannot be found out whose request it is");
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
                    "refused"
                );
            }
        }
    }

    /// Tells the client of a request that the service answered where it stands.
    pub(crate) fn decorate<B>(&self, response: &mut Response<B>, decision: Decision) {
        log!(trace, policy = decision.binding().map(|outcome| outcome.policy().name()), "admitted");
        decorate(response, decision, &self.headers, self.soft);
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

/// Awaits all that decides whose request it is, one after the other.
fn await_all(
    mut bans: Bans,
    banned: Vec<Answer<bool>>,
    exempt: Vec<Answer<bool>>,
    keys: Vec<Answer<Key>>,
) -> Answer<Identity> {
    Answer::pending(async move {
        for banned in banned {
            if let Some(rejection) = bans.note(banned.await) {
                return Ok(Identity::Barred(rejection));
            }
        }
        if let Some(rejection) = bans.undecided() {
            return Ok(Identity::Barred(rejection));
        }
        for exempt in exempt {
            if exempt.await.unwrap_or(false) {
                return Ok(Identity::Exempt);
            }
        }
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            found.push(key.await?);
        }
        Ok(Identity::Keys(found))
    })
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
            .field("preflight", &self.preflight)
            .field("soft", &self.soft)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}
