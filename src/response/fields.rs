//! Decisions as header fields.

use std::{fmt::Write as _, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::RETRY_AFTER};

use super::headers::{Headers, LegacyReset};
use crate::{Decision, Outcome, Policy, algorithm::Replenishment, clock::wall_micros};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_USED: HeaderName = HeaderName::from_static("x-ratelimit-used");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The largest Integer of RFC 9651.
const MAX_INTEGER: u64 = 999_999_999_999_999;
/// Clients keep `Retry-After` in 32 bits, with a sign.
const MAX_RETRY_AFTER: u64 = i32::MAX as u64;

/// Adds to `fields` what `headers` asks for. A value that no field can carry is left out.
pub(crate) fn decorate(fields: &mut HeaderMap, status: StatusCode, decision: &Decision, headers: Headers) {
    let refused = !decision.is_allowed();
    if refused
        && !fields.contains_key(RETRY_AFTER)
        && let Some(seconds) = retry_after(decision)
    {
        insert(fields, RETRY_AFTER, seconds);
    }
    let wanted = (refused || headers.successes) && (headers.redirects || !status.is_redirection());
    let Some(binding) = decision.binding().filter(|_| wanted) else {
        return;
    };
    if headers.ietf {
        let all = decision.outcomes();
        append(fields, RATELIMIT_POLICY, &list(all, |item, outcome| policy_item(item, outcome.policy())));
        let reported = if headers.tightest_only { std::slice::from_ref(binding) } else { all };
        append(fields, RATELIMIT, &list(reported, |item, outcome| limit_item(item, outcome, refused)));
    }
    if let Some(reset) = headers.legacy {
        legacy(fields, binding, reset);
    }
}

/// The wait a refusal names, in whole seconds: never too short, never 0.
///
/// It is not below any `t` of the same response, because the only `t` that a refusal carries is the
/// wait of a policy that refused.
pub(super) fn retry_after(decision: &Decision) -> Option<u64> {
    Some(seconds_up(decision.retry_after()?).clamp(1, MAX_RETRY_AFTER))
}

fn list(outcomes: &[Outcome], item: impl Fn(&mut String, &Outcome)) -> String {
    let mut list = String::new();
    for outcome in outcomes {
        if !list.is_empty() {
            list.push_str(", ");
        }
        item(&mut list, outcome);
    }
    list
}

fn policy_item(item: &mut String, policy: &Policy) {
    let quota = policy.quota();
    quote(item, policy.name());
    // Writing to a `String` does not fail.
    let _ = write!(item, ";q={}", quota.limit().min(MAX_INTEGER));
    if policy.counting().replenishment() == Replenishment::OnRelease {
        // Its period is a lease and no window.
        item.push_str(";qu=\"concurrent-requests\"");
    } else if quota.period() >= Duration::from_secs(1) {
        let _ = write!(item, ";w={}", seconds_up(quota.period()));
    }
}

fn limit_item(item: &mut String, outcome: &Outcome, refused: bool) {
    quote(item, outcome.policy().name());
    let _ = write!(item, ";r={}", outcome.remaining().min(MAX_INTEGER));
    if let Some(seconds) = effective_window(outcome, refused) {
        let _ = write!(item, ";t={}", seconds.min(MAX_INTEGER));
    }
}

/// The seconds over which the remaining units are to last.
fn effective_window(outcome: &Outcome, refused: bool) -> Option<u64> {
    if refused {
        // With units left, any `t` would either promise more than the quota or pass `Retry-After`.
        let wait = outcome.retry_after().filter(|_| outcome.remaining() == 0)?;
        return Some(seconds_up(wait).clamp(1, MAX_RETRY_AFTER));
    }
    let quota = outcome.policy().quota();
    if outcome.policy().counting().replenishment() == Replenishment::OnRelease {
        return None;
    }
    let paid_by_rate = |units: u64| {
        // As the policy's `w` says it, or the two would not agree.
        let period = match quota.period() {
            period if period < Duration::from_secs(1) => period,
            period => Duration::from_secs(seconds_up(period)),
        };
        let micros = u128::from(units) * period.as_micros();
        u64::try_from(micros.div_ceil(u128::from(quota.limit()) * 1_000_000)).unwrap_or(u64::MAX)
    };
    let reset = seconds_up(outcome.reset_after());
    let seconds = match (outcome.policy().counting().replenishment(), outcome.remaining()) {
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

fn append(fields: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::try_from(value) {
        let _ = fields.try_append(name, value);
    }
}

pub(super) fn insert(fields: &mut HeaderMap, name: HeaderName, value: impl Into<HeaderValue>) {
    let _ = fields.try_insert(name, value.into());
}

/// `text` in quotes, as an RFC 9651 String and as a JSON string: the same for printable ASCII, which is
/// all that a policy's name and our own texts consist of.
pub(super) fn quote(to: &mut String, text: &str) {
    to.push('"');
    for character in text.chars() {
        if matches!(character, '"' | '\\') {
            to.push('\\');
        }
        to.push(character);
    }
    to.push('"');
}

pub(super) fn seconds_up(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}
