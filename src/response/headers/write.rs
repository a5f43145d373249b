//! A layer's headers, as it adds them to responses.

use std::sync::OnceLock;

use http::{HeaderMap, HeaderValue, Response, StatusCode, header::RETRY_AFTER, request::Parts};

use super::{
    block::{Lists, bound_rejection},
    dialect::Dialect,
    exceeded::mark_response,
    headers::Headers,
    ietf_list::{has_dictionary, limit_item, policy_item},
    insert::{append, insert_new, list, number, value},
    names::{RATELIMIT, RATELIMIT_POLICY},
    one_policy::{draft_06, draft_07, legacy},
    window::{latest_t, numbers},
};
use crate::{
    decision::{Decision, Outcome, Report},
    policy::Policy,
    response::{
        grpc::is_grpc,
        wait::{retry_after, retry_after_of_store},
    },
};

/// Whether the decision is read in the extensions of the response to `request`, because an outer layer has decided too.
pub(crate) fn is_read(request: &Parts) -> bool {
    request.extensions.get::<Decision>().is_some()
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
        let own = Lists::of_call(headers);
        let latest = latest_t(headers);
        if marks {
            mark_response(headers, &decision);
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
        let left_out = own.is_some_and(|own| own.restore_if_too_large(headers));
        let report = if before || (reported && !left_out) { Report::Done } else { Report::Omitted };
        if is_read {
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
        if is_grpc(request) {
            bound_rejection(headers);
        }
        if is_read(request) {
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
        let Some(binding) = decision.binding().filter(|_| wanted) else {
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
                let item = |outcome: &Outcome| limit_item(outcome, denied, latest, settings);
                let limits = if settings.tightest_only {
                    list([binding].into_iter().filter(|outcome| news(outcome)).map(item))
                } else {
                    list(all().map(item))
                };
                append(headers, RATELIMIT, value(limits));
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

/// Adds `Retry-After` to the response of a store that is unavailable, unless it has one.
pub(in crate::response) fn add_retry_after_of_store(headers: &mut HeaderMap) {
    insert_new(headers, RETRY_AFTER, number(retry_after_of_store()));
}

/// Adds `Retry-After` to a denial, unless it has one or waiting cannot help. Returns the seconds that it added.
pub(in crate::response) fn add_retry_after(headers: &mut HeaderMap, decision: &Decision) -> Option<u64> {
    retry_after(decision).filter(|seconds| insert_new(headers, RETRY_AFTER, number(*seconds)))
}
