//! Decides whether the service is called: identifies the client of a request, charges it, and reads the
//! decision.

use std::{
    cell::OnceCell,
    future::Future as _,
    iter,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::future::join_all;
use http::{
    Method,
    header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN},
    request::Parts,
};

use super::{
    context::RequestContext,
    observe::DecisionEvent,
    rule::{Rule, matches_any},
    settle::refunded_if_cancelled,
};
use crate::{
    base::{Answer, Error, ErrorKind, Now},
    decision::{Charge, Charges, Decision},
    key::Key,
    limiter::{Deciding, Undecided, deny_early},
    policy::Enforcement,
    response::Rejection,
};

/// A request that is not admitted or rejected yet.
#[derive(Clone, Copy)]
pub(super) struct Admit<'a> {
    pub(super) context: &'a RequestContext,
    pub(super) request: &'a Parts,
}

/// What to do with a request.
pub(super) enum Admission {
    /// Wait for the decision's delay, if it has one, then call the service. There is no decision if the
    /// request is exempt, if no rule limits it, or if the layer only reports and the store could not decide.
    Admitted(Option<Decision>),
    /// Reject the request, whose response shows what it was charged, if anything.
    Rejected(Rejection, Option<Box<Decision>>),
}

/// What a request waits for before the layer admits or rejects it.
pub(super) enum Waiting {
    /// Nothing yet.
    Start,
    /// The keys or the policies.
    Identity(Answer<Identity>),
    /// The store. With an error, the request is rejected even if the store admits it: another rule cannot
    /// identify the client.
    Decision(Deciding, Option<Box<Error>>),
}

/// The result of identifying the client.
pub(super) enum Identity {
    Exempt,
    /// The request is blocked, or a blocklist could not be checked. It is rejected even if the layer only
    /// reports.
    // Boxed because it is rare, and every request moves this type.
    Rejected(Box<Rejection>),
    /// The key under the only rule.
    Known(Key),
    /// The charges of the first rules that apply, and the keys of the others that do. Other rules do not
    /// limit the request.
    Applicable(Gathered<Charge>, Vec<FoundKey>),
    /// Some rules deny the request. The others have not found their keys, and cannot change that.
    Denied(Box<Decision>),
}

/// The key that a rule has found.
pub(super) struct FoundKey {
    /// The rule's place in the layer.
    pub(super) rule: usize,
    pub(super) key: Key,
    /// What the cost function has returned, which runs once for each request.
    cost: OnceCell<Result<u64, Box<Error>>>,
}

impl Admit<'_> {
    /// Whether to call the service.
    #[inline]
    pub(super) fn poll(self, waiting: &mut Waiting, cx: &mut Context<'_>) -> Poll<Admission> {
        loop {
            let identity = match waiting {
                Waiting::Start => match self.identify().now() {
                    Now::Ready(identity) => identity,
                    Now::Later(identity) => {
                        *waiting = Waiting::Identity(identity);
                        continue;
                    }
                },
                Waiting::Identity(identity) => ready!(Pin::new(identity).poll(cx)),
                Waiting::Decision(deciding, unidentified) => {
                    let decided = ready!(self.context.config.limiter.decider.poll_charge(deciding, cx));
                    return Poll::Ready(self.decided(decided, unidentified.take()));
                }
            };
            // A single call site, so that the compiler inlines it.
            match self.identified(identity) {
                Now::Ready(admission) => return Poll::Ready(admission),
                Now::Later(next) => *waiting = next,
            }
        }
    }

    /// Identifies the client. Matchers and extractors run in order, and only if they are needed. If one is
    /// pending, those after it start too, while the request can be read, and are awaited in order.
    ///
    /// Keys that are known immediately become charges. If the store knows a denial of these, pending keys are
    /// not awaited.
    #[inline]
    fn identify(self) -> Answer<Identity> {
        self.unless_matched(Self::charges_or_keys)
    }

    /// Identifies the client, and finds the keys of the rules that `wanted` accepts. Charges nothing, and asks
    /// the store for no denial.
    pub(super) fn find_keys(self, wanted: impl Fn(&Rule) -> bool) -> Answer<Identity> {
        self.unless_matched(|admit| admit.keys_of(wanted))
    }

    /// `keys`, unless the request is blocked or exempt.
    #[inline]
    fn unless_matched(self, keys: impl FnOnce(Self) -> Answer<Identity>) -> Answer<Identity> {
        let config = &self.context.config;
        if config.blocked.is_empty() && config.exempt.is_empty() {
            return keys(self);
        }
        let rejected = |rejection: Rejection| Identity::Rejected(rejection.into());
        let blocked = self.blocked();
        let is_blocked = matches!(blocked.if_ready(), Some(Ok(Some(_))));
        let exempt =
            if is_blocked { Answer::ready(Ok(true)) } else { matches_any(&config.exempt, self.request) };
        match exempt.if_ready() {
            Some(Ok(true)) => blocked.map(move |rejection| rejection.map_or(Identity::Exempt, rejected)),
            Some(_) if blocked.is_ready() => keys(self),
            _ => {
                let keys = self.all_keys();
                Answer::pending(async move {
                    match blocked.await? {
                        Some(rejection) => Ok(rejected(rejection)),
                        None if matches!(exempt.await, Ok(true)) => Ok(Identity::Exempt),
                        None => keys.await,
                    }
                })
            }
        }
    }

    /// The rejection if the request is blocked, or a blocklist could not be checked.
    fn blocked(self) -> Answer<Option<Rejection>> {
        matches_any(&self.context.config.blocked, self.request).then(|blocked| match blocked {
            Ok(is_blocked) => Ok(is_blocked.then_some(Rejection::Blocked)),
            // The request is rejected, or a client could evade a list by sending its header twice.
            Err(error) => Ok(Some(Rejection::Unidentified(error))),
        })
    }

    /// The charges of the rules whose keys and policies are known immediately, and the keys of the others.
    #[inline]
    fn charges_or_keys(self) -> Answer<Identity> {
        let config = &self.context.config;
        match (&config.routes, &*config.rules.rules) {
            (None, [(_, rule)]) if rule.skipped.is_empty() => {
                rule.key(self.request, is_preflight(self.request)).then(|key| match key {
                    Ok(key) => Ok(Identity::Known(key)),
                    Err(error) => no_key::<()>(0, error).map(|_| Identity::not_limited()),
                })
            }
            (None, rules) => self.charges_or_keys_of(0..rules.len()),
            (Some(routes), _) => match routes.of(self.request) {
                Ok(rules) => self.charges_or_keys_of(rules.iter().copied()),
                Err(error) => Answer::ready(Err(error)),
            },
        }
    }

    fn charges_or_keys_of(self, rules: impl Iterator<Item = usize>) -> Answer<Identity> {
        let Self { context, request } = self;
        let preflight = is_preflight(request);
        let mut rules = rules.filter_map(|at| Some((at, context.rule(at)?)));
        let mut charges = Gathered::with_capacity(rules.size_hint().1.unwrap_or_default());
        // Usually, every key and every policy is known immediately.
        let other = loop {
            let Some((at, rule)) = rules.next() else {
                return Answer::ready(Identity::of(charges, Gathered::with_capacity(0)));
            };
            let Some(policy) = rule.policy.constant().filter(|_| rule.skipped.is_empty()) else {
                break found(at, rule, request, preflight);
            };
            match rule.key(request, preflight).now() {
                Now::Ready(key) => {
                    let charge = |key| match rule.cost_of(request) {
                        Ok(cost) => Ok(Some(rule.charge_under(policy.clone(), at, key, cost, request))),
                        Err(error) => Err(error.of_rule(at)),
                    };
                    let charge = match key {
                        Ok(key) => charge(key),
                        Err(error) => no_key(at, error),
                    };
                    if let Err(error) = charges.add(charge) {
                        return Answer::ready(Err(error));
                    }
                }
                Now::Later(pending) => break applicable(at, pending.map(Some)),
            }
        };
        let others = rules.map(|(at, rule)| found(at, rule, request, preflight));
        match gather(iter::once(other).chain(others)) {
            Now::Ready(keys) => Answer::ready(keys.and_then(|keys| Identity::of(charges, keys))),
            Now::Later(pending) => unless_denied(self.early_denial(&charges, pending.known()), || {
                pending.gathered().and_then(|keys| Identity::of(charges, keys))
            }),
        }
    }

    /// The keys of the request under the rules that apply to it and do not skip it.
    fn all_keys(self) -> Answer<Identity> {
        self.keys_of(|_| true)
    }

    /// The same for the rules that `wanted` accepts.
    fn keys_of(self, wanted: impl Fn(&Rule) -> bool) -> Answer<Identity> {
        let Self { context, request } = self;
        let rules = match context.applicable(request) {
            Ok(rules) => rules,
            Err(error) => return Answer::ready(Err(error)),
        };
        let preflight = is_preflight(request);
        let rules = rules.into_iter().filter_map(|at| Some((at, context.rule(at)?)));
        let rules = rules.filter(|(_, rule)| wanted(rule));
        let identity = |keys| Identity::of(Gathered::with_capacity(0), keys);
        match gather(rules.map(|(at, rule)| found(at, rule, request, preflight))) {
            Now::Ready(keys) => Answer::ready(keys.and_then(identity)),
            Now::Later(pending) => pending.gathered().and_then(identity),
        }
    }

    /// The denial of the request by the rules whose keys are known. So a client that is over one limit causes
    /// no lookup for another one.
    fn early_denial<'a>(
        self,
        charges: &Gathered<Charge>,
        keys: impl Iterator<Item = &'a FoundKey>,
    ) -> Answer<Option<Decision>> {
        let of_keys = keys.filter_map(|found| {
            let rule = self.context.rule(found.rule)?;
            let cost = found.cost(rule, self.request).ok()?;
            Some(rule.charge_under(rule.policy.known()?, found.rule, found.key.clone(), cost, self.request))
        });
        self.denial_of(charges.values.iter().cloned().chain(of_keys))
    }

    /// Whether it is charged to a pool in which the request has a guarantee.
    fn is_pool(self, charge: &Charge) -> bool {
        self.context.rule(charge.rule()).is_some_and(Rule::has_guarantee)
    }

    fn denial_of(self, charges: impl Iterator<Item = Charge>) -> Answer<Option<Decision>> {
        let config = &self.context.config;
        // A guarantee may admit what its pool alone denies.
        let charges = charges.filter(|charge| !self.is_pool(charge));
        match &config.routes {
            Some(_) => deny_early(&config.limiter, merged(charges.collect()).into_iter()),
            None => deny_early(&config.limiter, charges),
        }
    }

    #[inline]
    fn identified(self, identity: Result<Identity, Error>) -> Now<Admission, Waiting> {
        let admission = match identity {
            Ok(Identity::Known(key)) => {
                return match self.context.rule(0).and_then(|rule| Some((rule, rule.policy.constant()?))) {
                    Some((rule, policy)) => match rule.cost_of(self.request) {
                        Ok(cost) => {
                            self.charge(rule.charge_under(policy.clone(), 0, key, cost, self.request), None)
                        }
                        Err(error) => Now::Ready(self.reject(Rejection::Unidentified(error.of_rule(0)))),
                    },
                    None => self.charge_all(Gathered::with_capacity(1), vec![FoundKey::new(0, key)]),
                };
            }
            Ok(Identity::Applicable(charges, keys)) if keys.is_empty() => {
                return self.charge_gathered(Ok(charges));
            }
            Ok(Identity::Applicable(charges, keys)) => return self.charge_all(charges, keys),
            Ok(Identity::Denied(decision)) => self.reject(Rejection::Denied(*decision)),
            Ok(Identity::Exempt) => self.exempt(),
            Ok(Identity::Rejected(rejection)) => self.reject_under(Enforcement::On, *rejection),
            Err(error) => self.reject(Rejection::Unidentified(error)),
        };
        Now::Ready(admission)
    }

    /// Charges `keys` under their rules, after `charges`.
    fn charge_all(self, charges: Gathered<Charge>, keys: Vec<FoundKey>) -> Now<Admission, Waiting> {
        let answers = keys.into_iter().filter_map(|found| {
            let rule = self.context.rule(found.rule)?;
            Some(match found.cost(rule, self.request) {
                Ok(cost) => rule.charge(found.rule, found.key, cost, self.request),
                Err(error) => Answer::ready(Err(error.of_rule(found.rule))),
            })
        });
        match gather(answers) {
            Now::Ready(others) => self.charge_gathered(others.map(|others| charges.with(others))),
            Now::Later(pending) => {
                let known = charges.values.iter().chain(pending.known()).cloned();
                let denial = self.denial_of(known);
                let all = |others| Identity::Applicable(charges.with(others), Vec::new());
                let identity = unless_denied(denial, || pending.gathered().map(all));
                Now::Later(Waiting::Identity(identity))
            }
        }
    }

    fn charge_gathered(self, mut charges: Result<Gathered<Charge>, Error>) -> Now<Admission, Waiting> {
        if let Ok(Gathered { values, unidentified: Some(_) }) = &mut charges
            && self.context.enforcement != Enforcement::ReportOnly
        {
            // The request is rejected, so it uses nothing of a pool.
            values.retain(|charge| !(charge.is_guarantee() || self.is_pool(charge)));
        }
        let admission = match charges {
            Ok(Gathered { values, unidentified }) if values.is_empty() => match unidentified {
                Some(error) => self.reject(Rejection::Unidentified(*error)),
                None => self.exempt(),
            },
            Ok(Gathered { values, unidentified }) => {
                let values = if self.context.config.routes.is_some() { merged(values) } else { values };
                return self.charge(values, unidentified);
            }
            // The kind does not matter: the request is rejected as after an error of a key extractor.
            Err(error) => self.reject(Rejection::Unidentified(error)),
        };
        Now::Ready(admission)
    }

    #[inline]
    fn charge(
        self,
        charges: impl Into<Charges>,
        unidentified: Option<Box<Error>>,
    ) -> Now<Admission, Waiting> {
        let limiter = &self.context.config.limiter;
        match limiter.decider.charge(charges) {
            // Decided in this process, so the service is called without waiting: by a store in memory, units on
            // lease or the deny cache.
            Now::Ready(decided) => Now::Ready(self.decided(decided, unidentified)),
            Now::Later(mut deciding) => {
                if let Some(refunded) = refunded_if_cancelled(self.context, unidentified.is_some()) {
                    deciding = Undecided::watch(limiter, deciding, refunded).into();
                }
                Now::Later(Waiting::Decision(deciding, unidentified))
            }
        }
    }

    /// Calls the function of `on_decision`. The decision that it sees holds no permit, because it may keep
    /// the decision.
    #[inline]
    fn report_admitted(self, decision: &mut Decision) {
        if self.context.config.observer.on_decision.is_some() {
            let permit = decision.take_permit();
            self.context.config.observer.report(|| DecisionEvent::admitted(decision, self.request));
            decision.hold(permit);
        }
    }

    fn exempt(self) -> Admission {
        self.context.config.observer.report(|| DecisionEvent::exempt(self.request));
        Admission::Admitted(None)
    }

    /// Reads the store's decision. `unidentified` is why another rule cannot identify the client.
    #[inline]
    fn decided(self, decided: Result<Decision, Error>, unidentified: Option<Box<Error>>) -> Admission {
        let mut decision = match decided {
            Ok(decision) => decision,
            // The kind does not matter: clients must not see the text of a store.
            Err(error) => return self.reject(Rejection::Unavailable(error)),
        };
        match unidentified {
            _ if decision.is_denied() => self.reject(Rejection::Denied(decision)),
            None => {
                self.report_admitted(&mut decision);
                Admission::Admitted(Some(decision))
            }
            Some(error) => self.charged_without_identity(*error, decision),
        }
    }

    /// Rejects the request, unless the layer only reports.
    fn reject(self, rejection: Rejection) -> Admission {
        self.reject_under(self.context.enforcement, rejection)
    }

    fn reject_under(self, enforcement: Enforcement, rejection: Rejection) -> Admission {
        let event = DecisionEvent::rejected(&rejection, Some(self.request), enforcement);
        self.context.rejected(&event, &rejection, enforcement);
        if enforcement == Enforcement::ReportOnly {
            return Admission::Admitted(rejection.decision().cloned());
        }
        Admission::Rejected(self.context.jitter(rejection), None)
    }

    /// Rejects a request that is charged, and whose client another rule cannot identify. Admits it if the
    /// layer only reports.
    fn charged_without_identity(self, error: Error, mut decision: Decision) -> Admission {
        let (rejection, enforcement) = (Rejection::Unidentified(error), self.context.enforcement);
        // The function of `on_decision` may keep the decision, and so may the response's extensions, so
        // neither gets the permit.
        let permit = decision.take_permit();
        let mut event = DecisionEvent::rejected(&rejection, Some(self.request), enforcement);
        event.decision = Some(&decision);
        self.context.rejected(&event, &rejection, enforcement);
        if enforcement == Enforcement::ReportOnly {
            decision.hold(permit);
            return Admission::Admitted(Some(decision));
        }
        Admission::Rejected(rejection, Some(Box::new(decision)))
    }
}

impl Identity {
    /// No rule applies to the request.
    fn not_limited() -> Self {
        Self::Applicable(Gathered::with_capacity(0), Vec::new())
    }

    fn of(mut charges: Gathered<Charge>, keys: Gathered<FoundKey>) -> Result<Self, Error> {
        let Gathered { values, unidentified } = keys;
        match charges.unidentified.or(unidentified) {
            Some(error) if charges.values.is_empty() && values.is_empty() => Err(*error),
            unidentified => {
                charges.unidentified = unidentified;
                Ok(Self::Applicable(charges, values))
            }
        }
    }

    /// The keys, of which [`Admit::find_keys`] makes no charges. None for an exempt request.
    ///
    /// # Errors
    ///
    /// The rejection of a request that is blocked, or that a rule cannot identify.
    pub(super) fn into_keys(self) -> Result<Vec<FoundKey>, Rejection> {
        match self {
            Self::Exempt => Ok(Vec::new()),
            Self::Rejected(rejection) => Err(*rejection),
            Self::Denied(decision) => Err(Rejection::Denied(*decision)),
            Self::Known(key) => Ok(vec![FoundKey::new(0, key)]),
            Self::Applicable(charges, keys) => match charges.unidentified {
                Some(error) => Err(Rejection::Unidentified(*error)),
                None => Ok(keys),
            },
        }
    }
}

impl FoundKey {
    const fn new(rule: usize, key: Key) -> Self {
        Self { rule, key, cost: OnceCell::new() }
    }

    fn cost(&self, rule: &Rule, request: &Parts) -> Result<u64, Box<Error>> {
        self.cost.get_or_init(|| rule.cost_of(request)).clone()
    }
}

/// The key of `request` under the rule with the number `at`, unless the rule skips the request.
fn found(at: usize, rule: &Rule, request: &Parts, preflight: bool) -> Answer<Option<FoundKey>> {
    applicable(at, rule.key_unless_skipped(request, preflight))
}

/// `key` of the rule with the number `at`, or `None` if the rule does not apply to the request.
fn applicable(at: usize, key: Answer<Option<Key>>) -> Answer<Option<FoundKey>> {
    key.then(move |key| match key {
        Ok(key) => Ok(key.map(|key| FoundKey::new(at, key))),
        Err(error) => no_key(at, error),
    })
}

/// The result of a rule that has found no key: `None` if it does not apply to the request.
#[cold]
fn no_key<T>(at: usize, error: Error) -> Result<Option<T>, Error> {
    if error.kind() == ErrorKind::NotApplicable { Ok(None) } else { Err(error.of_rule(at)) }
}

/// Whether the request is a CORS preflight: a browser asks whether it may send another request.
fn is_preflight(request: &Parts) -> bool {
    request.method == Method::OPTIONS
        && request.headers.contains_key(ORIGIN)
        && request.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// A denial, or `others`, which are then awaited. A lookup among them does not start before.
fn unless_denied(
    denial: Answer<Option<Decision>>,
    others: impl FnOnce() -> Answer<Identity>,
) -> Answer<Identity> {
    let denied = |decision: Decision| Ok(Identity::Denied(decision.into()));
    match denial.now() {
        Now::Ready(Ok(Some(decision))) => Answer::ready(denied(decision)),
        Now::Ready(_) => others(),
        Now::Later(denial) => {
            let others = others();
            Answer::pending(async move {
                match denial.await {
                    Ok(Some(decision)) => denied(decision),
                    _ => others.await,
                }
            })
        }
    }
}

/// `charges` with one for each key and policy: routes that share a policy may both apply to some spellings of
/// a path.
fn merged(mut charges: Vec<Charge>) -> Vec<Charge> {
    let mut at = 1;
    while at < charges.len() {
        let (earlier, rest) = charges.split_at_mut(at);
        if earlier.iter_mut().any(|one| one.merge(&rest[0])) {
            charges.remove(at);
        } else {
            at += 1;
        }
    }
    charges
}

/// The values of the rules that have one.
pub(super) struct Gathered<T> {
    /// In the order of their rules.
    values: Vec<T>,
    /// Why another rule cannot identify the client, which is the client's fault. The first one.
    unidentified: Option<Box<Error>>,
}

/// Answers of which at least one is pending.
struct Gathering<T> {
    /// The values before the first pending answer.
    first: Gathered<T>,
    /// The first pending answer and all after it.
    rest: Vec<Answer<Option<T>>>,
}

/// The values of `answers`, or the first error of the server. Answers after that are not started.
fn gather<T>(
    mut answers: impl Iterator<Item = Answer<Option<T>>>,
) -> Now<Result<Gathered<T>, Error>, Gathering<T>> {
    // Nearly all answers are values.
    let most = answers.size_hint().1.unwrap_or_default();
    let mut gathered = Gathered::with_capacity(most);
    while let Some(answer) = answers.next() {
        match answer.now() {
            Now::Ready(result) => {
                if let Err(error) = gathered.add(result) {
                    return Now::Ready(Err(error));
                }
            }
            Now::Later(pending) => {
                // The other answers start immediately, while the request can be read.
                let rest = iter::once(pending).chain(answers).collect();
                return Now::Later(Gathering { first: gathered, rest });
            }
        }
    }
    Now::Ready(Ok(gathered))
}

impl<T> Gathered<T> {
    fn with_capacity(most: usize) -> Self {
        Self { values: Vec::with_capacity(most), unidentified: None }
    }

    /// Appends the values of the rules after these.
    fn with(mut self, mut others: Self) -> Self {
        self.values.append(&mut others.values);
        Self { unidentified: self.unidentified.or(others.unidentified), ..self }
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

impl<T: Send + 'static> Gathering<T> {
    /// The values that are known.
    fn known(&self) -> impl Iterator<Item = &T> {
        let rest = self.rest.iter().filter_map(|answer| answer.if_ready()?.as_ref().ok()?.as_ref());
        self.first.values.iter().chain(rest)
    }

    /// All values, once they are known. The answers are awaited together.
    fn gathered(self) -> Answer<Gathered<T>> {
        let Self { first: mut gathered, rest } = self;
        Answer::pending(async move {
            join_all(rest).await.into_iter().try_for_each(|result| gathered.add(result))?;
            Ok(gathered)
        })
    }
}
