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
        policy_item, value,
    },
    headers::{Dialect, Headers, RATELIMIT, RATELIMIT_POLICY, X_EXCEEDED},
};
use crate::{
    base::{random::random_time, time::seconds_up},
    decision::{Decision, Outcome, Report},
    limiter::Limited,
    policy::Policy,
    response::{
        grpc::{GRPC_DETAILS, is_grpc_type},
        rejection::retry_after,
    },
};

/// gRPC clients accept a header block of 8 KiB, and close the connection over a larger block. Less, because servers add
/// other headers.
const MAX_BLOCK: usize = 7 * 1024;

/// Whether an outer layer or a middleware reads the decision from the extensions of the response. `request` has the
/// extensions of the request.
pub(crate) fn is_read(request: &Extensions) -> bool {
    request.get::<Limited>().is_some() || request.get::<Decision>().is_some()
}

/// Adds the headers that its [`Headers`] ask for.
#[derive(Clone, Debug)]
pub(crate) struct HeaderWriter {
    headers: Headers,
    /// The `RateLimit-Policy` of the first response. Nearly every response has the same.
    written: OnceLock<(Box<[Policy]>, Option<HeaderValue>)>,
}

impl HeaderWriter {
    pub(crate) const fn new(headers: Headers) -> Self {
        Self { headers, written: OnceLock::new() }
    }

    pub(crate) const fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Adds the headers of `decision` to the response of the service, and if `marks` the mark of a denial. Inserts the
    /// decision into the extensions of the response if it `is_read` there, or if a decision is there already.
    pub(crate) fn decorate<B>(
        &self,
        response: &mut Response<B>,
        mut decision: Decision,
        marks: bool,
        is_read: bool,
    ) {
        let status = response.status();
        let inner = response.extensions_mut().remove::<Decision>();
        let is_read = is_read || inner.is_some();
        let headers = response.headers_mut();
        let latest = latest_t(headers);
        if marks && fits(headers, &decision) {
            append(headers, X_EXCEEDED, value(exceeded(&decision)));
        }
        let before = inner.as_ref().is_some_and(|inner| inner.report() == Report::Done);
        let reported = match inner {
            None => self.write(headers, status, &decision, latest, |_| true),
            // The handler decided more, and left it to the layer to report both.
            Some(inner) if inner.report() == Report::Pending => {
                decision = decision.updated(&inner);
                // If the handler decided the same policy for another key, the client's own outcome is reported.
                self.write(headers, status, &decision.by_name(), latest, |_| true)
            }
            Some(inner) => {
                // An inner layer may have reported some of the policies.
                let news = |outcome: &Outcome| {
                    let same = |inner: &Outcome| inner.policy().name() == outcome.policy().name();
                    !before || !inner.outcomes().iter().any(same)
                };
                let reported = self.write(headers, status, &decision, latest, news);
                decision = decision.updated(&inner);
                reported
            }
        };
        if is_read {
            let report = if before || reported { Report::Done } else { Report::Omitted };
            response.extensions_mut().insert(decision.reported(report));
        }
    }

    /// Adds the headers of a denial to a rejection.
    pub(in crate::response) fn decorate_rejection<B>(
        &self,
        response: &mut Response<B>,
        decision: &Decision,
        request: &Parts,
    ) {
        let status = response.status();
        let headers = response.headers_mut();
        let latest = add_retry_after(headers, decision).unwrap_or_else(|| latest_t(headers));
        let reported = self.write(headers, status, decision, latest, |_| true);
        if block_size(headers) > MAX_BLOCK && is_grpc_type(headers) {
            headers.remove(GRPC_DETAILS);
        }
        if is_read(&request.extensions) {
            let report = if reported { Report::Done } else { Report::Omitted };
            response.extensions_mut().insert(decision.clone().reported(report));
        }
    }

    /// Whether the lists name the decision's policies now. A value that no header can carry is left out. No `t` is larger
    /// than `latest`.
    fn write(
        &self,
        headers: &mut HeaderMap,
        status: StatusCode,
        decision: &Decision,
        latest: u64,
        news: impl Fn(&Outcome) -> bool,
    ) -> bool {
        let settings = &self.headers;
        let denied = decision.is_denied();
        let wanted = (denied || settings.successes) && (settings.redirects || !status.is_redirection());
        let Some(binding) = decision.binding().filter(|_| wanted && fits(headers, decision)) else {
            return false;
        };
        let outcomes = decision.outcomes();
        let mut reported = false;
        match settings.ietf {
            None => {}
            Some(Dialect::Ietf) if has_dictionary(headers) => {}
            Some(Dialect::Ietf) => {
                let all = || outcomes.iter().filter(|outcome| news(outcome));
                let policies = || value(list(all().map(|outcome| policy_item(outcome.policy()))));
                let policies =
                    if outcomes.iter().all(&news) { self.cached(outcomes, policies) } else { policies() };
                reported = append(headers, RATELIMIT_POLICY, policies);
                let limits = match settings.tightest_only {
                    true => limit_items(
                        Some(binding).into_iter().filter(|one| news(one)),
                        denied,
                        latest,
                        settings,
                    ),
                    false => limit_items(all(), denied, latest, settings),
                };
                append(headers, RATELIMIT, limits);
            }
            Some(Dialect::IetfDraft07) => draft_07(headers, outcomes, numbers(binding, denied, latest)),
            Some(_) => draft_06(headers, outcomes, numbers(binding, denied, latest)),
        }
        if let Some(dialect) = settings.legacy {
            legacy(headers, binding, dialect);
        }
        reported
    }

    /// The value that `write` gives for the policies of `outcomes`, from the cache if they are the policies of the
    /// first response.
    fn cached(&self, outcomes: &[Outcome], write: impl Fn() -> Option<HeaderValue>) -> Option<HeaderValue> {
        let policies = || outcomes.iter().map(Outcome::policy).cloned().collect();
        let (policies, value) = self.written.get_or_init(|| (policies(), write()));
        let same = |(policy, outcome): (&Policy, &Outcome)| policy.is(outcome.policy());
        if policies.len() == outcomes.len() && policies.iter().zip(outcomes).all(same) {
            value.clone()
        } else {
            write()
        }
    }
}

/// Whether the headers of `decision` surely fit into the header block, which is bounded for gRPC responses alone.
#[inline]
fn fits(headers: &HeaderMap, decision: &Decision) -> bool {
    // An item in each list, the numbers of another dialect, and what describes the policy.
    let size = |outcome: &Outcome| 3 * outcome.policy().quoted_name().len() + 160;
    !is_grpc_type(headers)
        || block_size(headers) + decision.outcomes().iter().map(size).sum::<usize>() <= MAX_BLOCK
}

/// As HTTP/2 counts it: with 32 bytes more for each header.
fn block_size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}

/// In a request's extensions: the policies that denied it, of layers that only report, as the header lists them.
#[derive(Clone)]
struct Exceeded(String);

/// Marks a request that `decision` denied, or a layer further out that only reports. A mark that the client sent is removed.
pub(crate) fn mark_request(request: &mut Parts, decision: Option<&Decision>) {
    let outer = request.extensions.remove::<Exceeded>().map(|Exceeded(outer)| outer);
    let marks = list(outer.into_iter().chain(decision.map(exceeded)).filter(|marks| !marks.is_empty()));
    request.headers.remove(X_EXCEEDED);
    if !marks.is_empty() {
        append(&mut request.headers, X_EXCEEDED, value(marks.clone()));
        request.extensions.insert(Exceeded(marks));
    }
}

/// The policies that denied.
fn exceeded(decision: &Decision) -> String {
    let denied = decision.outcomes().iter().filter(|outcome| outcome.is_denied());
    list(denied.map(|outcome| outcome.policy().quoted_name().to_owned()))
}

/// Adds `Retry-After` to the response of a store that is unavailable, unless it has one: random, within the time in which a
/// store that is back is used, so that not all clients return in the same second.
pub(in crate::response) fn add_retry_after_of_store(headers: &mut HeaderMap) {
    let seconds = seconds_up(random_time(Duration::from_secs(5))).max(1);
    insert_new(headers, RETRY_AFTER, number(seconds));
}

/// Adds `Retry-After` to a denial, unless it has one or waiting cannot help. Returns the seconds that it added.
pub(in crate::response) fn add_retry_after(headers: &mut HeaderMap, decision: &Decision) -> Option<u64> {
    retry_after(decision).filter(|seconds| insert_new(headers, RETRY_AFTER, number(*seconds)))
}

/// Inserts a header unless there is one. Returns whether it did.
pub(in crate::response) fn insert_new(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) -> bool {
    match headers.try_entry(name) {
        Ok(Entry::Vacant(place)) => place.try_insert(value).is_ok(),
        _ => false,
    }
}

/// `number` in digits. `HeaderValue::from` fills a larger buffer and drops it later: 124 of the 7,629 instructions of a
/// denial.
fn number(number: u64) -> HeaderValue {
    HeaderValue::from_str(itoa::Buffer::new().format(number)).unwrap_or_else(|_| number.into())
}
