//! A layer's headers, as it adds them to responses.
//!
//! A response holds about 24,000 headers at most; a full one does not get the limit's headers.

use std::{sync::OnceLock, time::Duration};

use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{Entry, RETRY_AFTER},
    request::Parts,
};

use super::{
    dialects::{
        append, draft_06, draft_07, has_dictionary, latest_t, legacy, limit_items, list, numbers,
        policy_items, value,
    },
    headers::{
        Dialect, LEGACY, RATELIMIT, RATELIMIT_POLICY, RETRY_AFTER_MS, RateLimitHeaders, X_DEGRADED,
        X_EXCEEDED,
    },
    limit_cache::LimitCache,
};
use crate::{
    base::time::{millis_up, wall_micros},
    decision::{Decision, Outcome, Report},
    limiter::Limited,
    policy::Policy,
    response::{
        grpc::GRPC_DETAILS,
        head::is_grpc_type,
        rejection::{MAX_RETRY_AFTER, whole_seconds},
    },
    store::ManualClock,
};

impl RateLimitHeaders {
    /// The headers that a response to a request with this decision has, for a response that no layer makes: of another
    /// framework, or of a proxy. A denial has `Retry-After` if waiting helps.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, RateLimitHeaders};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let (limiter, policy) = (Limiter::new(MemoryStore::new()), Policy::new("api", Quota::per_minute(2)));
    /// let alice = Key::new("alice");
    /// let admitted = RateLimitHeaders::default().of(&limiter.check(&policy, &alice, 2).await?);
    /// assert_eq!(admitted["ratelimit"], r#""api";r=0;t=30"#);
    /// assert!(!admitted.contains_key("retry-after"));
    /// let denied = RateLimitHeaders::default().of(&limiter.check(&policy, &alice, 1).await?);
    /// assert_eq!(denied["retry-after"], "30");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn of(&self, decision: &Decision) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let wait = decision.is_denied().then(|| decision.advised_wait()).flatten();
        let latest = add_wait(&mut headers, wait, self.millis).unwrap_or_else(|| latest_t(&headers));
        let kind = ResponseKind { is_grpc: false, is_redirect: false };
        HeaderWriter::new(self.clone(), None).write(&mut headers, kind, decision, latest, None, |_| true);
        headers
    }
}

/// Adds the headers that its [`RateLimitHeaders`] ask for.
#[derive(Clone, Debug)]
pub(crate) struct HeaderWriter {
    headers: RateLimitHeaders,
    /// The clock that a test has set in place of the store's.
    clock: Option<ManualClock>,
    /// What the first response had. Nearly every response is about the same policies.
    first: OnceLock<Written>,
}

impl HeaderWriter {
    pub(crate) const fn new(headers: RateLimitHeaders, clock: Option<ManualClock>) -> Self {
        Self { headers, clock, first: OnceLock::new() }
    }

    pub(crate) const fn headers(&self) -> &RateLimitHeaders {
        &self.headers
    }

    /// A copy that shares no text with this one.
    pub(crate) fn apart(&self) -> Self {
        Self::new(self.headers.clone(), self.clock.clone())
    }

    /// Adds the headers of `decision` to the response of the service. Inserts the decision into the
    /// extensions of the response if it `is_read` there, or if a decision is there already.
    pub(crate) fn decorate<B>(&self, response: &mut Response<B>, decision: Decision, is_read: bool) {
        if let Some(inner) = response.extensions_mut().remove::<Decision>() {
            return self.decorate_beside(&inner, response, decision);
        }
        let kind = ResponseKind::of(response);
        let headers = response.headers_mut();
        let latest = latest_t(headers);
        let wrote = self.write(headers, kind, &decision, latest, None, |_| true);
        if is_read {
            self.tell(response, decision, wrote, None);
        }
    }

    /// The same for a response with the decision `inner` in its extensions, of the handler or an inner layer.
    // Apart, because few responses have one.
    #[inline(never)]
    fn decorate_beside<B>(&self, inner: &Decision, response: &mut Response<B>, mut decision: Decision) {
        let kind = ResponseKind::of(response);
        let shown = response.extensions_mut().remove::<Shown>();
        let headers = response.headers_mut();
        let latest = latest_t(headers);
        if inner.report() == Report::Pending {
            // The handler decided more, and left it to the layer to report both.
            decision = decision.updated(inner);
            // If the handler decided the same policy for another key, the client's own outcome is reported.
            let wrote = self.write(headers, kind, &decision.by_name(), latest, shown.as_ref(), |_| true);
            return self.tell(response, decision, wrote, shown);
        }
        let before = inner.report() == Report::Done;
        // An inner layer may have reported some of the policies.
        let news = |outcome: &Outcome| {
            let same = |inner: &Outcome| inner.policy().name() == outcome.policy().name();
            !before || !inner.outcomes().iter().any(same)
        };
        let wrote = self.write(headers, kind, &decision, latest, shown.as_ref(), news);
        let updated = decision.updated(inner);
        if let Some(shown) = Shown::of(headers, &self.headers, wrote, &decision, shown) {
            response.extensions_mut().insert(shown);
        }
        let report = if before || wrote.lists { Report::Done } else { Report::Omitted };
        response.extensions_mut().insert(updated.reported(report));
    }

    /// Inserts what an outer layer reads into the extensions of the response.
    fn tell<B>(&self, response: &mut Response<B>, decision: Decision, wrote: Wrote, shown: Option<Shown>) {
        if let Some(shown) = Shown::of(response.headers(), &self.headers, wrote, &decision, shown) {
            response.extensions_mut().insert(shown);
        }
        let report = if wrote.lists { Report::Done } else { Report::Omitted };
        response.extensions_mut().insert(decision.reported(report));
    }

    /// Adds the headers of a denial to a rejection.
    pub(in crate::response) fn decorate_rejection<B>(
        &self,
        response: &mut Response<B>,
        decision: &Decision,
        request: &Parts,
    ) {
        let kind = ResponseKind::of(response);
        let headers = response.headers_mut();
        let added = add_wait(headers, decision.advised_wait(), self.headers.millis);
        let latest = added.unwrap_or_else(|| latest_t(headers));
        let wrote = self.write(headers, kind, decision, latest, None, |_| true);
        if kind.is_grpc && block_size(headers) > MAX_BLOCK {
            headers.remove(GRPC_DETAILS);
        }
        if is_read(&request.extensions) {
            self.tell(response, decision.clone(), wrote, None);
        }
    }

    /// Adds the headers of `decision`. A value that no header can carry is left out. No `t` is larger than
    /// `latest`. Headers that have one value, see [`write_one`](Self::write_one), replace the headers of inner layers,
    /// which are `shown`. In headers that list values, only the outcomes that are `news` are added.
    fn write(
        &self,
        headers: &mut HeaderMap,
        kind: ResponseKind,
        decision: &Decision,
        latest: u64,
        shown: Option<&Shown>,
        news: impl Fn(&Outcome) -> bool,
    ) -> Wrote {
        let settings = &self.headers;
        let denied = decision.is_denied();
        let wanted = (denied || settings.successes) && (settings.redirects || !kind.is_redirect);
        let mut wrote = Wrote::default();
        let Some(binding) = decision.binding().filter(|_| wanted && fits(headers, kind.is_grpc, decision))
        else {
            return wrote;
        };
        // If no wait helps, no `t` may suggest one.
        let latest = if denied && decision.retry_after().is_none() { 0 } else { latest };
        let outcomes = decision.outcomes();
        match settings.ietf {
            Some(Dialect::Ietf | Dialect::IetfNext) if !has_dictionary(headers) => {
                let all = || outcomes.iter().filter(|outcome| news(outcome));
                let first = if outcomes.iter().all(&news) { self.first(outcomes) } else { None };
                let policies = match first {
                    Some(first) => first.policies_value.clone(),
                    None => policy_items(all()),
                };
                wrote.lists = append(headers, RATELIMIT_POLICY, policies);
                let limits = match (first, outcomes) {
                    (Some(first), [one]) => first.limits.item(one, decision, latest, settings),
                    _ if settings.binding_only => {
                        let binding = Some(binding).into_iter().filter(|one| news(one));
                        limit_items(binding, decision, latest, settings)
                    }
                    _ => limit_items(all(), decision, latest, settings),
                };
                append(headers, RATELIMIT, limits);
            }
            _ => {}
        }
        if !matches!(settings.ietf, None | Some(Dialect::Ietf | Dialect::IetfNext))
            || settings.legacy.is_some()
        {
            match shown {
                None => self.write_one(headers, decision, latest, &mut wrote),
                Some(shown) => {
                    shown.withdraw(headers, settings);
                    self.write_one(headers, &decision.updated(&shown.decision), latest, &mut wrote);
                }
            }
        }
        wrote
    }

    /// Adds the headers that have one value.
    fn write_one(&self, headers: &mut HeaderMap, decision: &Decision, latest: u64, wrote: &mut Wrote) {
        let (outcomes, denied) = (decision.outcomes(), decision.is_denied());
        let Some(binding) = decision.binding() else { return };
        let numbers = || numbers(binding, denied, latest);
        match self.headers.ietf {
            None | Some(Dialect::Ietf | Dialect::IetfNext) => {}
            Some(Dialect::IetfDraft07) => wrote.draft = draft_07(headers, outcomes, numbers()),
            Some(_) => wrote.draft = draft_06(headers, outcomes, numbers()),
        }
        if let Some(dialect) = self.headers.legacy {
            let now = || self.clock.as_ref().map_or_else(wall_micros, ManualClock::micros);
            let start = if dialect == Dialect::LegacyEpoch { now() } else { 0 };
            wrote.legacy = legacy(headers, binding, Duration::from_micros(start));
        }
    }

    /// What the first response had, if it was about the policies of `outcomes`.
    #[inline]
    fn first(&self, outcomes: &[Outcome]) -> Option<&Written> {
        let first = self.first.get_or_init(|| Written::of(outcomes));
        let same = |(policy, outcome): (&Policy, &Outcome)| policy.is(outcome.policy());
        let is_same = first.policies.len() == outcomes.len() && first.policies.iter().zip(outcomes).all(same);
        is_same.then_some(first)
    }
}

/// What is written once for responses about the same policies.
#[derive(Clone, Debug)]
struct Written {
    policies: Box<[Policy]>,
    /// Their `RateLimit-Policy`.
    policies_value: Option<HeaderValue>,
    limits: LimitCache,
}

impl Written {
    #[cold]
    fn of(outcomes: &[Outcome]) -> Self {
        Self {
            policies: outcomes.iter().map(Outcome::policy).cloned().collect(),
            policies_value: policy_items(outcomes.iter()),
            limits: LimitCache::new(),
        }
    }
}

/// What the headers depend on, apart from the decision.
#[derive(Clone, Copy)]
struct ResponseKind {
    is_redirect: bool,
    is_grpc: bool,
}

impl ResponseKind {
    #[inline]
    fn of<B>(response: &Response<B>) -> Self {
        let status = response.status();
        let is_redirect = status.is_redirection() && status != StatusCode::NOT_MODIFIED;
        Self { is_redirect, is_grpc: is_grpc_type(response.headers()) }
    }
}

/// Which headers a layer has written.
#[derive(Clone, Copy, Default)]
struct Wrote {
    /// The lists name the decision's policies now.
    lists: bool,
    /// The headers of a draft that have one value.
    draft: bool,
    legacy: bool,
}

/// In a response's extensions, for layers further out: what the layers so far describe in headers that a
/// response has once. The layer in front replaces these headers, and no others, so they describe the binding
/// policy of all layers.
#[derive(Clone)]
struct Shown {
    decision: Decision,
    values: Vec<(HeaderName, HeaderValue)>,
}

impl Shown {
    /// What is shown after a layer with `settings` `wrote` the headers of `decision`. Another layer has
    /// `shown` some before.
    fn of(
        headers: &HeaderMap,
        settings: &RateLimitHeaders,
        wrote: Wrote,
        decision: &Decision,
        shown: Option<Self>,
    ) -> Option<Self> {
        if !wrote.draft && !wrote.legacy {
            return shown;
        }
        let (decision, mut values) = match shown {
            None => (decision.clone(), Vec::new()),
            Some(Self { decision: inner, values }) => (decision.updated(&inner), values),
        };
        let mut names = Vec::new();
        if wrote.draft {
            names = settings.once_of_draft();
            names.push(RATELIMIT_POLICY);
        }
        if wrote.legacy {
            names.extend(LEGACY);
        }
        for name in names {
            values.retain(|(other, _)| *other != name);
            // A layer appends its own value.
            let value = headers.get_all(&name).iter().next_back().cloned();
            values.extend(value.map(|value| (name, value)));
        }
        Some(Self { decision, values })
    }

    /// Removes the headers that a layer with `settings` writes, unless another service has set or changed
    /// them.
    fn withdraw(&self, headers: &mut HeaderMap, settings: &RateLimitHeaders) {
        let draft = settings.once_of_draft();
        if !draft.is_empty() && self.are_as_written(headers, &draft) {
            draft.iter().for_each(|name| drop(headers.remove(name)));
            if let Some(ours) = self.value(&RATELIMIT_POLICY) {
                let others: Vec<_> = headers
                    .get_all(RATELIMIT_POLICY)
                    .iter()
                    .filter(|value| *value != ours)
                    .cloned()
                    .collect();
                headers.remove(RATELIMIT_POLICY);
                others.into_iter().for_each(|value| drop(headers.try_append(RATELIMIT_POLICY, value)));
            }
        }
        if settings.legacy.is_some() && self.are_as_written(headers, &LEGACY) {
            LEGACY.iter().for_each(|name| drop(headers.remove(name)));
        }
    }

    fn are_as_written(&self, headers: &HeaderMap, names: &[HeaderName]) -> bool {
        names.iter().all(|name| headers.get_all(name).iter().eq(self.value(name)))
    }

    fn value(&self, name: &HeaderName) -> Option<&HeaderValue> {
        self.values.iter().find(|(other, _)| other == name).map(|(_, value)| value)
    }
}

/// Whether an outer layer or a middleware has left a decision in the request, and so will read the decision
/// from the response's extensions. `request` are the request's extensions.
#[inline]
pub(crate) fn is_read(request: &Extensions) -> bool {
    request.get::<Limited>().is_some() || request.get::<Decision>().is_some()
}

/// Updates the decision that a handler has inserted into `extensions`, if it is to be reported, with a later
/// refund.
pub(crate) fn note_refund(extensions: &mut Extensions, refund: &Decision) {
    if let Some(decision) = extensions.get_mut::<Decision>()
        && decision.report() == Report::Pending
    {
        *decision = decision.updated(refund);
    }
}

/// gRPC clients accept a header block of 8 KiB, and close the connection over a larger block. Less, because
/// servers add other headers.
const MAX_BLOCK: usize = 7 * 1024;

/// Whether the headers of `decision` surely fit into the header block, which is bounded for gRPC responses
/// alone.
#[inline]
fn fits(headers: &HeaderMap, is_grpc: bool, decision: &Decision) -> bool {
    // An item in each list, the numbers of another dialect, and what describes the policy.
    let size = |outcome: &Outcome| 3 * outcome.policy().quoted_name().len() + 160;
    !is_grpc || block_size(headers) + decision.outcomes().iter().map(size).sum::<usize>() <= MAX_BLOCK
}

/// The size of a header block as HTTP/2 counts it: with 32 bytes more for each header.
fn block_size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}

/// In a request's extensions: the policies that denied it, of layers that only report, as the header lists
/// them.
#[derive(Clone)]
struct Exceeded(String);

/// Marks a request that `decision` denied, or a layer further out that only reports. A mark that the client
/// sent is removed.
pub(crate) fn mark_request(request: &mut Parts, decision: Option<&Decision>) {
    let outer = request.extensions.remove::<Exceeded>().map(|Exceeded(outer)| outer);
    let marks = list(outer.into_iter().chain(decision.map(exceeded)).filter(|marks| !marks.is_empty()));
    request.headers.remove(X_EXCEEDED);
    if !marks.is_empty() {
        append(&mut request.headers, X_EXCEEDED, value(marks.clone()));
        request.extensions.insert(Exceeded(marks));
    }
}

/// Marks the response to a request that `decision` denied, of a layer that only reports.
pub(crate) fn mark_response(headers: &mut HeaderMap, decision: &Decision) {
    if fits(headers, is_grpc_type(headers), decision) {
        append(headers, X_EXCEEDED, value(exceeded(decision)));
    }
}

/// Marks the response to a request that goes on without the charges that `decision` denied.
#[cold]
pub(crate) fn mark_degraded(headers: &mut HeaderMap, decision: &Decision) {
    let names = list(decision.degraded().map(|outcome| outcome.policy().quoted_name().to_owned()));
    if !names.is_empty() && fits(headers, is_grpc_type(headers), decision) {
        append(headers, X_DEGRADED, value(names));
    }
}

/// The policies that denied.
fn exceeded(decision: &Decision) -> String {
    let denied = decision.outcomes().iter().filter(|outcome| outcome.is_denied());
    list(denied.map(|outcome| outcome.policy().quoted_name().to_owned()))
}

/// Adds `Retry-After` with `wait`, unless there is one, and if `in_millis` the same in milliseconds. Returns
/// the seconds that it added.
pub(in crate::response) fn add_wait(
    headers: &mut HeaderMap,
    wait: Option<Duration>,
    in_millis: bool,
) -> Option<u64> {
    let wait = wait?;
    let seconds = whole_seconds(wait);
    if !insert_new(headers, RETRY_AFTER, number(seconds)) {
        return None;
    }
    if in_millis {
        let millis = millis_up(wait).clamp(1, MAX_RETRY_AFTER * 1_000);
        insert_new(headers, RETRY_AFTER_MS, number(millis));
    }
    Some(seconds)
}

/// Inserts a header unless there is one. Returns whether it did.
pub(in crate::response) fn insert_new(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) -> bool {
    match headers.try_entry(name) {
        Ok(Entry::Vacant(place)) => place.try_insert(value).is_ok(),
        _ => false,
    }
}

/// `number` in digits. `HeaderValue::from` fills a larger buffer and drops it later.
fn number(number: u64) -> HeaderValue {
    HeaderValue::from_str(itoa::Buffer::new().format(number)).unwrap_or_else(|_| number.into())
}
