//! What the headers state in each dialect: the lists of drafts 08 to 11 and of the text after them, and the
//! dialects that describe one policy.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};

use super::headers::{DRAFT_06, Dialect, LEGACY, RATELIMIT, RATELIMIT_POLICY, RateLimitHeaders};
use crate::{
    algorithm::Replenishment,
    base::time::seconds_up,
    decision::{Decision, Outcome},
    policy::{Policy, QuotaUnit, push_quoted},
    response::rejection::MAX_RETRY_AFTER,
};

/// Whether the service has sent the dictionary of draft 07. Appending our list would make the header invalid
/// in both forms.
#[inline]
pub(super) fn has_dictionary(headers: &HeaderMap) -> bool {
    // `get_all` takes three times as many instructions to find no header, and nearly no response has one.
    headers.contains_key(RATELIMIT) && headers.get_all(RATELIMIT).iter().any(is_dictionary)
}

/// Whether it begins as an RFC 9651 Dictionary with a value does, `limit=100`, and no List of Items.
fn is_dictionary(value: &HeaderValue) -> bool {
    let first = value.as_bytes().split(|byte| b";,\"".contains(byte)).next();
    first.is_some_and(|first| first.contains(&b'='))
}

/// `"burst";q=100;w=60, "day";q=1000;w=86400`: the policies of `outcomes`.
pub(super) fn policy_items<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Option<HeaderValue> {
    value(list(outcomes.map(policy_item)))
}

/// `"burst";q=100;w=60`
fn policy_item(outcome: &Outcome) -> String {
    let policy = outcome.policy();
    let mut buffer = itoa::Buffer::new();
    let limit = digits(&mut buffer, policy.quota().limit());
    let mut unit = String::new();
    let name = outcome.charge().unit();
    // Requests are the default, and a String has printable ASCII only.
    if name != QuotaUnit::Requests.as_str() && name.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        unit.push_str(";qu=");
        push_quoted(&mut unit, name);
    }
    // The period of permits is how long one is kept, and no window.
    [policy.quoted_name(), ";q=", limit, &unit, &window(policy)].concat()
}

/// `;w=60`. A window below a second is left out. That of a calendar period is nominal, such as 30 days for a
/// month, so that a policy looks the same all year; `t` is the time actually left.
pub(super) fn window(policy: &Policy) -> String {
    let period = policy.quota().period();
    if period < Duration::from_secs(1) || policy.has_permits() {
        return String::new();
    }
    [";w=", digits(&mut itoa::Buffer::new(), seconds_up(period))].concat()
}

/// `"burst";r=50;t=30, "day";r=7;t=9`, or `"burst";a=50;w=30;c=1, "day";a=7;w=9;c=1`: `outcomes` of
/// `decision`.
pub(super) fn limit_items<'a>(
    outcomes: impl Iterator<Item = &'a Outcome>,
    decision: &Decision,
    latest: u64,
    headers: &RateLimitHeaders,
) -> Option<HeaderValue> {
    let (most, mut items) = (outcomes.size_hint().1.unwrap_or(1), String::new());
    let (denied, is_next) = (decision.is_denied(), matches!(headers.ietf, Some(Dialect::IetfNext)));
    let (r, t) = if is_next { (";a=", ";w=") } else { (";r=", ";t=") };
    for outcome in outcomes {
        let (mut remaining, mut seconds) = (itoa::Buffer::new(), itoa::Buffer::new());
        let name = outcome.policy().quoted_name();
        let remaining = digits(&mut remaining, outcome.remaining());
        let window = shown_window(outcome, denied, latest);
        let seconds = window.map_or("", |window| digits(&mut seconds, window));
        let mut options = String::new();
        if let Some(secret) = &headers.partition_key {
            // 96 bits are whole groups of base64, without padding.
            let mac = secret.mac(outcome.key().as_str());
            options = [";pk=:", &STANDARD.encode(&mac[..12]), ":"].concat();
        }
        if is_next && !decision.is_changed() {
            let cost = if denied { outcome.charge().cost() } else { outcome.granted() };
            options += &[";c=", digits(&mut itoa::Buffer::new(), cost)].concat();
        }
        let t = if seconds.is_empty() { "" } else { t };
        if items.is_empty() {
            // A single item, the usual case, fills its allocation, and the header keeps it as it is. Others
            // may be longer.
            let size = [name, r, remaining, t, seconds, &options].map(str::len).iter().sum::<usize>();
            items.reserve_exact(size + most.saturating_sub(1) * (size + 16));
        } else {
            items.push_str(", ");
        }
        // A loop or `concat` takes twice as many instructions, and every response has this header.
        items.push_str(name);
        items.push_str(r);
        items.push_str(remaining);
        items.push_str(t);
        items.push_str(seconds);
        items.push_str(&options);
    }
    value(items)
}

/// `RateLimit: limit=100, remaining=50, reset=30`, unless an inner service has sent one: the members of a
/// dictionary cannot be appended to. Returns whether it did.
pub(super) fn draft_07(
    headers: &mut HeaderMap,
    outcomes: &[Outcome],
    [limit, remaining, reset]: [u64; 3],
) -> bool {
    let is_new = !headers.contains_key(RATELIMIT);
    if is_new {
        let limits = format!("limit={limit}, remaining={remaining}, reset={reset}");
        append(headers, RATELIMIT, value(limits));
        append(headers, RATELIMIT_POLICY, value(quotas(outcomes)));
    }
    is_new
}

/// `RateLimit-Limit`, `-Remaining` and `-Reset`, unless an inner service has sent any. Returns whether it
/// did.
pub(super) fn draft_06(headers: &mut HeaderMap, outcomes: &[Outcome], numbers: [u64; 3]) -> bool {
    let is_new = insert_all(headers, DRAFT_06, numbers);
    if is_new {
        append(headers, RATELIMIT_POLICY, value(quotas(outcomes)));
    }
    is_new
}

/// `X-RateLimit-Limit`, `-Remaining`, `-Used` and `-Reset`, unless an inner service has sent any. The reset
/// is from `start`: the time since 1970, or 0. Returns whether it did.
pub(super) fn legacy(headers: &mut HeaderMap, outcome: &Outcome, start: Duration) -> bool {
    let reset = seconds_up(start.saturating_add(reset_of(outcome)));
    let (capacity, remaining) = (outcome.capacity(), outcome.remaining());
    insert_all(headers, LEGACY, [capacity, remaining, capacity.saturating_sub(remaining), reset])
}

/// Inserts a header for each number unless one of these headers is there. Returns whether it did.
fn insert_all<const N: usize>(headers: &mut HeaderMap, names: [HeaderName; N], numbers: [u64; N]) -> bool {
    let is_new = !names.iter().any(|name| headers.contains_key(name));
    if is_new {
        for (name, number) in names.into_iter().zip(numbers) {
            let _ = headers.try_insert(name, number.into());
        }
    }
    is_new
}

/// `100;w=60, 1000;w=86400`. The older drafts have no names for policies, so each limit is listed once.
fn quotas(outcomes: &[Outcome]) -> String {
    let limit = |outcome: &Outcome| outcome.policy().quota().limit();
    let is_first =
        |(at, outcome): &(usize, &Outcome)| !outcomes[..*at].iter().any(|o| limit(o) == limit(outcome));
    list(outcomes.iter().enumerate().filter(is_first).map(|(_, outcome)| {
        [digits(&mut itoa::Buffer::new(), limit(outcome)), &window(outcome.policy())].concat()
    }))
}

/// The largest Integer of RFC 9651.
pub(super) const MAX_INTEGER: u64 = 999_999_999_999_999;
/// In microseconds.
const SECOND: u64 = 1_000_000;

/// `number` in digits, without the formatting machinery: every response has several.
#[inline]
pub(super) fn digits(buffer: &mut itoa::Buffer, number: u64) -> &str {
    buffer.format(number.min(MAX_INTEGER))
}

/// The largest `t` that does not exceed the response's `Retry-After`, which an inner limit, the service or
/// the mapper may have set. 0, which no `t` is, if that is a date: dates are not compared.
pub(super) fn latest_t(headers: &HeaderMap) -> u64 {
    let Some(wait) = headers.get(RETRY_AFTER) else { return u64::MAX };
    wait.to_str().ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(0)
}

/// The `t` of `outcome`, which is left out if it exceeds `latest`.
#[inline]
pub(super) fn shown_window(outcome: &Outcome, denied: bool, latest: u64) -> Option<u64> {
    effective_window(outcome, denied).filter(|seconds| *seconds <= latest)
}

/// The seconds until the window ends, or over which the remaining units are to last: `t`. `None` if no number
/// would be right.
#[inline]
fn effective_window(outcome: &Outcome, denied: bool) -> Option<u64> {
    let replenishment = outcome.policy().replenishment();
    let is_window = matches!(replenishment, Replenishment::InWindows);
    if denied && (outcome.is_denied() || !is_window) {
        let wait = outcome.retry_after().filter(|_| match replenishment {
            Replenishment::InWindows => true,
            // A permit may be released at any moment, unless the key is banned.
            Replenishment::OnRelease => outcome.is_banned(),
            // With units left, any `t` would either promise more than the quota or exceed `Retry-After`.
            _ => outcome.remaining() == 0,
        })?;
        return Some(seconds_up(wait).clamp(1, MAX_RETRY_AFTER));
    }
    let reset = || seconds_up(outcome.reset_after());
    let seconds = match (replenishment, outcome.remaining()) {
        (Replenishment::OnRelease, _) => return None,
        // Without a charge, no window has begun.
        (Replenishment::InWindows, _) if outcome.reset_after().is_zero() => return None,
        (Replenishment::InWindows, _) => reset(),
        (Replenishment::Evenly, 0) => refill_seconds(outcome, 1).min(reset()),
        (Replenishment::Evenly, units) => refill_seconds(outcome, units),
        (_, units) => refill_seconds(outcome, units).max(reset()),
    };
    Some(seconds.max(1))
}

/// The seconds in which the quota refills `units` units.
fn refill_seconds(outcome: &Outcome, units: u64) -> u64 {
    let quota = outcome.policy().quota();
    // Rounded as the policy's `w`, or the two would contradict each other.
    let period = match quota.period_micros() {
        period if period < SECOND => period,
        period => period.div_ceil(SECOND) * SECOND,
    };
    match (units.checked_mul(period), quota.limit().checked_mul(SECOND)) {
        // The usual case: a division of 128 bits costs as much as everything else here.
        (Some(micros), Some(each)) => micros.div_ceil(each),
        _ => {
            let (units, period, limit) = (u128::from(units), u128::from(period), u128::from(quota.limit()));
            let seconds = (units * period).div_ceil(limit * u128::from(SECOND));
            u64::try_from(seconds).unwrap_or(u64::MAX)
        }
    }
}

/// The time until the quota is fully replenished. Of permits that are lacking, the time after which a client
/// may ask again.
fn reset_of(outcome: &Outcome) -> Duration {
    match outcome.policy().has_permits() {
        true => outcome.advised_wait().unwrap_or_else(|| outcome.reset_after()),
        false => outcome.reset_after(),
    }
}

/// Limit, remaining and reset, for the dialects of one policy. The reset is `t`, or the time until the quota
/// is fully replenished if there is no `t`, and does not exceed `Retry-After` either.
pub(super) fn numbers(outcome: &Outcome, denied: bool, latest: u64) -> [u64; 3] {
    let reset = effective_window(outcome, denied).unwrap_or_else(|| seconds_up(reset_of(outcome)));
    let reset = if latest == 0 { reset } else { reset.min(latest) };
    [outcome.capacity(), outcome.remaining(), reset].map(|number| number.min(MAX_INTEGER))
}

/// Whether there was a value and it was added.
#[inline]
pub(super) fn append(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) -> bool {
    value.is_some_and(|value| headers.try_append(name, value).is_ok())
}

/// `None` for an empty text, and for one that no header can carry.
#[inline]
pub(super) fn value(text: String) -> Option<HeaderValue> {
    if text.is_empty() { None } else { HeaderValue::from_maybe_shared(Bytes::from(text)).ok() }
}

/// The items of a list header.
#[inline]
pub(super) fn list(mut items: impl Iterator<Item = String>) -> String {
    // A single item, the usual case, is not copied.
    let mut list = items.next().unwrap_or_default();
    for item in items {
        list.push_str(", ");
        list.push_str(&item);
    }
    list
}
