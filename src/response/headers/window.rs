//! The numbers of an outcome, as the headers state them.

use http::{HeaderMap, header::RETRY_AFTER};

use crate::{
    algorithm::Replenishment,
    decision::Outcome,
    response::wait::{MAX_RETRY_AFTER, seconds_up},
};

/// The largest Integer of RFC 9651.
pub(super) const MAX_INTEGER: u64 = 999_999_999_999_999;
/// In microseconds.
const SECOND: u64 = 1_000_000;

/// `number` in digits, without the formatting machinery: every response has several.
pub(super) fn digits(buffer: &mut itoa::Buffer, number: u64) -> &str {
    buffer.format(number.min(MAX_INTEGER))
}

/// The largest `t` that does not exceed the response's `Retry-After`, which an inner limit, the service or the mapper may
/// have set. 0, which no `t` is, if that is a date: dates are not compared.
pub(super) fn latest_t(headers: &HeaderMap) -> u64 {
    let Some(wait) = headers.get(RETRY_AFTER) else { return u64::MAX };
    wait.to_str().ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(0)
}

/// The seconds over which the remaining units are to last: `t`. `None` if no number would be right.
pub(super) fn effective_window(outcome: &Outcome, denied: bool) -> Option<u64> {
    if denied {
        // With units left, any `t` would either promise more than the quota or exceed `Retry-After`.
        let wait = outcome.retry_after().filter(|_| outcome.remaining() == 0)?;
        return Some(seconds_up(wait).clamp(1, MAX_RETRY_AFTER));
    }
    let reset = seconds_up(outcome.reset_after());
    let seconds = match (outcome.policy().replenishment(), outcome.remaining()) {
        (Replenishment::OnRelease, _) => return None,
        (Replenishment::Evenly, 0) => refill_seconds(outcome, 1).min(reset),
        (Replenishment::Evenly, units) => refill_seconds(outcome, units),
        (_, units) => refill_seconds(outcome, units).max(reset),
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

/// Limit, remaining and reset, for the dialects of one policy. The reset is `t`, or the time until the quota is fully
/// replenished if there is no `t`, and does not exceed `Retry-After` either.
pub(super) fn numbers(outcome: &Outcome, denied: bool, latest: u64) -> [u64; 3] {
    let reset = effective_window(outcome, denied).unwrap_or_else(|| seconds_up(outcome.reset_after()));
    let reset = if latest == 0 { reset } else { reset.min(latest) };
    [outcome.capacity(), outcome.remaining(), reset].map(|number| number.min(MAX_INTEGER))
}
