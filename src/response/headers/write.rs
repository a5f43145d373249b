//! Decisions as header fields.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header::RETRY_AFTER, request::Parts};

use super::headers::{Headers, Ietf, LegacyReset};
use crate::response::grpc::{bound_admitted, lists_of_call};
use crate::{
    algorithm::Replenishment,
    decision::{Decision, Outcome, Report},
    policy::Policy,
    util::time::wall_micros,
};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RATELIMIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_USED: HeaderName = HeaderName::from_static("x-ratelimit-used");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const X_EXCEEDED: HeaderName = HeaderName::from_static("x-ratelimit-exceeded");

/// The fields that grow with the number of policies.
pub(in crate::response) const LIMIT_LISTS: [HeaderName; 3] = [RATELIMIT, RATELIMIT_POLICY, X_EXCEEDED];

/// The largest Integer of RFC 9651.
const MAX_INTEGER: u64 = 999_999_999_999_999;
/// In microseconds.
const SECOND: u64 = 1_000_000;
/// Clients keep `Retry-After` in 32 bits, with a sign.
const MAX_RETRY_AFTER: u64 = i32::MAX as u64;

/// Adds to the response of a request that was let through what `headers` asks for, and in soft mode the mark of
/// one that `decision` refused.
pub(crate) fn decorate<B>(response: &mut Response<B>, decision: Decision, headers: &Headers, soft: bool) {
    let status = response.status();
    let inner = response.extensions_mut().remove::<Decision>();
    let fields = response.headers_mut();
    let own = lists_of_call(fields);
    if soft {
        append(fields, X_EXCEEDED, value(exceeded(&decision)));
    }
    let before = inner.as_ref().is_some_and(|inner| inner.report() == Report::Done);
    let (decision, told) = match inner {
        // A handler asked for more and gave the decision on for us to tell.
        Some(inner) if inner.report() == Report::Pending => {
            let decision = decision.updated(&inner);
            // Of what it asked under the same policy for somebody else, the client's own comes first.
            let told = write(fields, status, &decision.by_name(), headers, |_| true);
            (decision, told)
        }
        Some(inner) => {
            // A limit further in may have told its part.
            let news = |outcome: &Outcome| {
                let same = |inner: &Outcome| inner.policy().name() == outcome.policy().name();
                !before || !inner.outcomes().iter().any(same)
            };
            let told = write(fields, status, &decision, headers, news);
            (decision.updated(&inner), told)
        }
        None => {
            let told = write(fields, status, &decision, headers, |_| true);
            (decision, told)
        }
    };
    let left_out = own.is_some_and(|own| bound_admitted(fields, own));
    response.extensions_mut().insert(decision.reported(if before || (told && !left_out) {
        Report::Done
    } else {
        Report::Omitted
    }));
}

/// Adds to a refusal what `headers` asks for.
pub(in crate::response) fn decorate_rejection<B>(
    response: &mut Response<B>,
    decision: &Decision,
    headers: &Headers,
) {
    let status = response.status();
    let fields = response.headers_mut();
    if !fields.contains_key(RETRY_AFTER)
        && let Some(seconds) = retry_after(decision)
    {
        insert(fields, RETRY_AFTER, seconds);
    }
    let told = write(fields, status, decision, headers, |_| true);
    response.extensions_mut().insert(decision.clone().reported(if told {
        Report::Done
    } else {
        Report::Omitted
    }));
}

/// The policies of the soft limits that a request has passed, those that refused it, as the field lists them.
#[derive(Clone)]
struct Exceeded(String);

/// Marks a request that goes through although `decision`, or a soft limit further out, refused it. What a client
/// wrote there itself is not left standing.
pub(crate) fn mark_request(request: &mut Parts, decision: Option<&Decision>) {
    let ours = decision.map(exceeded).unwrap_or_default();
    let marks = match request.extensions.remove::<Exceeded>() {
        Some(Exceeded(outer)) if ours.is_empty() => outer,
        Some(Exceeded(outer)) => format!("{outer}, {ours}"),
        None => ours,
    };
    request.headers.remove(X_EXCEEDED);
    append(&mut request.headers, X_EXCEEDED, value(marks.clone()));
    if !marks.is_empty() {
        request.extensions.insert(Exceeded(marks));
    }
}

/// The policies that refused.
fn exceeded(decision: &Decision) -> String {
    let refused = decision.outcomes().iter().filter(|outcome| !outcome.is_allowed());
    list(refused.map(|outcome| outcome.policy().quoted_name().to_owned()))
}

/// A value that no field can carry is left out. Whether the lists name the decision's policies now.
fn write(
    fields: &mut HeaderMap,
    status: StatusCode,
    decision: &Decision,
    headers: &Headers,
    news: impl Fn(&Outcome) -> bool,
) -> bool {
    let refused = !decision.is_allowed();
    let wanted = (refused || headers.successes) && (headers.redirects || !status.is_redirection());
    let Some(binding) = decision.binding().filter(|_| wanted) else {
        return false;
    };
    let mut told = false;
    let latest = latest_t(fields);
    let all = || decision.outcomes().iter().filter(|outcome| news(outcome));
    match headers.ietf {
        Ietf::Off => {}
        // Together with draft 07's dictionary, a list is neither.
        Ietf::List if fields.get_all(RATELIMIT).iter().any(is_dictionary) => {}
        Ietf::List => {
            let policies = || value(list(all().map(|outcome| policy_item(outcome.policy()))));
            let policies = match decision.outcomes().iter().all(&news) {
                true => headers.written.of(decision.outcomes(), policies),
                false => policies(),
            };
            told = append(fields, RATELIMIT_POLICY, policies);
            let item = |outcome: &Outcome| limit_item(outcome, refused, latest, headers);
            let limits = match headers.tightest_only {
                true => list([binding].into_iter().filter(|outcome| news(outcome)).map(item)),
                false => list(all().map(item)),
            };
            append(fields, RATELIMIT, value(limits));
        }
        Ietf::Draft07 => {
            // A dictionary, whose members would be the inner service's and ours by turns.
            if !fields.contains_key(RATELIMIT) {
                let (limit, remaining, reset) = numbers(binding, refused, latest);
                let limits = format!("limit={limit}, remaining={remaining}, reset={reset}");
                append(fields, RATELIMIT, value(limits));
                append(fields, RATELIMIT_POLICY, value(quota_list(decision.outcomes())));
            }
        }
        Ietf::Draft06 => {
            let names = [RATELIMIT_LIMIT, RATELIMIT_REMAINING, RATELIMIT_RESET];
            if !names.iter().any(|name| fields.contains_key(name)) {
                let (limit, remaining, reset) = numbers(binding, refused, latest);
                for (name, value) in names.into_iter().zip([limit, remaining, reset]) {
                    insert(fields, name, value);
                }
                append(fields, RATELIMIT_POLICY, value(quota_list(decision.outcomes())));
            }
        }
    }
    if let Some(reset) = headers.legacy {
        legacy(fields, binding, reset);
    }
    told
}

/// The wait a refusal names, in whole seconds: never too short, never 0.
pub(in crate::response) fn retry_after(decision: &Decision) -> Option<u64> {
    Some(seconds_up(decision.advised_wait()?).clamp(1, MAX_RETRY_AFTER))
}

/// Whether it begins as an RFC 9651 Dictionary with a value does, `limit=100`, and no List of Items.
fn is_dictionary(value: &HeaderValue) -> bool {
    let first = value.as_bytes().split(|byte| b";,\"".contains(byte)).next();
    first.is_some_and(|first| first.contains(&b'='))
}

/// The latest `t` that does not pass the response's `Retry-After`, which may be a limit's further in, the
/// service's or the mapper's own. 0, which no `t` is, where that is a date: dates are not compared.
fn latest_t(fields: &HeaderMap) -> u64 {
    let Some(wait) = fields.get(RETRY_AFTER) else { return u64::MAX };
    wait.to_str().ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(0)
}

/// Limit, remaining and reset, as the older drafts have them. The reset is the newer drafts' `t`, or the time
/// until all is back where there is none, and does not pass `Retry-After` either.
fn numbers(outcome: &Outcome, refused: bool, latest: u64) -> (u64, u64, u64) {
    let reset = effective_window(outcome, refused).unwrap_or_else(|| seconds_up(outcome.reset_after()));
    let reset = if latest == 0 { reset } else { reset.min(latest) };
    (outcome.capacity().min(MAX_INTEGER), outcome.remaining().min(MAX_INTEGER), reset.min(MAX_INTEGER))
}

/// `100;w=60, 1000;w=86400`: policies have no names in the older drafts, and each number stands once.
fn quota_list(outcomes: &[Outcome]) -> String {
    let mut seen = Vec::new();
    let quotas = outcomes.iter().filter(|outcome| {
        let limit = outcome.policy().quota().limit();
        !seen.contains(&limit) && {
            seen.push(limit);
            true
        }
    });
    list(quotas.map(|outcome| {
        let mut buffer = itoa::Buffer::new();
        [number(&mut buffer, outcome.policy().quota().limit()), &window(outcome.policy())].concat()
    }))
}

fn list(mut items: impl Iterator<Item = String>) -> String {
    // The usual one stays as it is.
    let mut list = items.next().unwrap_or_default();
    for item in items {
        list.push_str(", ");
        list.push_str(&item);
    }
    list
}

fn policy_item(policy: &Policy) -> String {
    let mut buffer = itoa::Buffer::new();
    let limit = number(&mut buffer, policy.quota().limit());
    let window = if policy.has_permits() {
        // Its period is a lease and no window.
        ";qu=\"concurrent-requests\"".into()
    } else {
        window(policy)
    };
    [policy.quoted_name(), ";q=", limit, &window].concat()
}

/// `;w=60`. A window below a second cannot be told.
fn window(policy: &Policy) -> String {
    let period = policy.quota().period();
    if period < Duration::from_secs(1) || policy.has_permits() {
        return String::new();
    }
    [";w=", number(&mut itoa::Buffer::new(), seconds_up(period))].concat()
}

/// In one allocation of just its length, which the field then keeps.
fn limit_item(outcome: &Outcome, refused: bool, latest: u64, headers: &Headers) -> String {
    let [mut remaining, mut seconds] = [itoa::Buffer::new(); 2];
    let name = outcome.policy().quoted_name();
    let remaining = number(&mut remaining, outcome.remaining());
    let window = effective_window(outcome, refused).filter(|seconds| *seconds <= latest);
    let seconds = window.map_or("", |window| number(&mut seconds, window));
    let partition = headers.partition_key.as_ref().map(|secret| {
        // 96 bits: whole groups of base64, with nothing to pad.
        let mac = secret.mac(outcome.key().as_str());
        [";pk=:", &STANDARD.encode(&mac[..12]), ":"].concat()
    });
    let partition = partition.as_deref().unwrap_or_default();

    let (r, t) = (";r=", if seconds.is_empty() { "" } else { ";t=" });
    let length = name.len() + r.len() + remaining.len() + t.len() + seconds.len() + partition.len();
    let mut item = String::with_capacity(length);
    item.push_str(name);
    item.push_str(r);
    item.push_str(remaining);
    item.push_str(t);
    item.push_str(seconds);
    item.push_str(partition);
    item
}

/// Without formatting machinery: these are written for every response.
fn number(buffer: &mut itoa::Buffer, number: u64) -> &str {
    buffer.format(number.min(MAX_INTEGER))
}

/// The seconds over which the remaining units are to last.
fn effective_window(outcome: &Outcome, refused: bool) -> Option<u64> {
    if refused {
        // With units left, any `t` would either promise more than the quota or pass `Retry-After`.
        let wait = outcome.retry_after().filter(|_| outcome.remaining() == 0)?;
        return Some(seconds_up(wait).clamp(1, MAX_RETRY_AFTER));
    }
    let (quota, replenishment) = (outcome.policy().quota(), outcome.policy().replenishment());
    if replenishment == Replenishment::OnRelease {
        return None;
    }
    let paid_by_rate = |units: u64| {
        // As the policy's `w` says it, or the two would not agree.
        let period = match quota.period_micros() {
            period if period < SECOND => period,
            period => period.div_ceil(SECOND) * SECOND,
        };
        match (units.checked_mul(period), quota.limit().checked_mul(SECOND)) {
            // Nearly always, and a division of 128 bits costs as much as the rest.
            (Some(micros), Some(each)) => micros.div_ceil(each),
            _ => {
                let (units, period, limit) =
                    (u128::from(units), u128::from(period), u128::from(quota.limit()));
                let seconds = (units * period).div_ceil(limit * u128::from(SECOND));
                u64::try_from(seconds).unwrap_or(u64::MAX)
            }
        }
    };
    let reset = seconds_up(outcome.reset_after());
    let seconds = match (replenishment, outcome.remaining()) {
        (Replenishment::Evenly, 0) => paid_by_rate(1).min(reset),
        (Replenishment::Evenly, units) => paid_by_rate(units),
        (_, units) => paid_by_rate(units).max(reset),
    };
    Some(seconds.max(1))
}

fn legacy(fields: &mut HeaderMap, outcome: &Outcome, reset: LegacyReset) {
    if [X_LIMIT, X_REMAINING, X_USED, X_RESET].iter().any(|name| fields.contains_key(name)) {
        // An inner service speaks of a limit of its own. These fields hold one number each.
        return;
    }
    let reset = match reset {
        LegacyReset::Delta => seconds_up(outcome.reset_after()),
        LegacyReset::Epoch => {
            seconds_up(Duration::from_micros(wall_micros()).saturating_add(outcome.reset_after()))
        }
    };
    let remaining = outcome.remaining();
    insert(fields, X_LIMIT, outcome.capacity());
    insert(fields, X_REMAINING, remaining);
    insert(fields, X_USED, outcome.capacity().saturating_sub(remaining));
    insert(fields, X_RESET, reset);
}

// A response holds some 24 000 fields. One that is full of them goes without ours.

/// Whether there was something to add and it was added.
fn append(fields: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) -> bool {
    value.is_some_and(|value| fields.try_append(name, value).is_ok())
}

/// `None` where there is nothing to tell, and where no field can carry it.
fn value(text: String) -> Option<HeaderValue> {
    if text.is_empty() { None } else { HeaderValue::from_maybe_shared(Bytes::from(text)).ok() }
}

pub(in crate::response) fn insert(fields: &mut HeaderMap, name: HeaderName, value: impl Into<HeaderValue>) {
    let _ = fields.try_insert(name, value.into());
}

fn seconds_up(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}
