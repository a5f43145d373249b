//! Warns of policies that are valid, and probably not what the programmer meant.

use std::time::Duration;

use super::policy::Policy;
use crate::{algorithm::counter::Counter, base::Quota};

/// The texts of [`Policy::warnings`].
pub(super) fn of(policy: &Policy) -> Vec<String> {
    [of_window(policy), of_login(policy), of_debt(policy), of_headroom(policy), of_lease(policy)]
        .into_iter()
        .flatten()
        .collect()
}

fn of_debt(policy: &Policy) -> Option<String> {
    let settings = policy.settings();
    let forgets = settings.algorithm.counter().is_some_and(Counter::forgets_debt);
    (settings.max_debt > 0 && forgets).then(|| {
        format!(
            "the policy {:?} has a debt, and {} forgets it with the units of its period, so a client can use the limit and \
             the debt in each one: count it by FixedWindow or a bucket, which are paid off, or leave out `max_debt`",
            policy.name(),
            policy.algorithm_name()
        )
    })
}

fn of_headroom(policy: &Policy) -> Option<String> {
    let shut_out =
        policy.settings().headroom.keys().find(|one| policy.headroom_of(**one) >= policy.capacity());
    shut_out.map(|criticality| {
        format!(
            "the policy {:?} admits no request that is {criticality}: its headroom is all of the capacity, {}",
            policy.name(),
            policy.capacity()
        )
    })
}

fn of_lease(policy: &Policy) -> Option<String> {
    let settings = policy.settings();
    (settings.max_lease.is_some() && !settings.headroom.is_empty()).then(|| {
        format!(
            "the policy {:?} has headroom, so no units of it are leased: leave out `max_lease` or `headroom`",
            policy.name()
        )
    })
}

/// Words in the names of policies that protect a secret: twice the limit would admit twice the guesses.
const LOGINS: [&str; 9] =
    ["login", "log-in", "signin", "sign-in", "password", "passcode", "otp", "2fa", "mfa"];

fn of_window(policy: &Policy) -> Option<String> {
    let period = policy.quota().period();
    if policy.has_permits() || period.subsec_nanos() == 0 {
        return None;
    }
    let shown = if period < Duration::from_secs(1) { "none" } else { "one that is rounded up" };
    let quota = whole_seconds(policy.quota());
    Some(format!(
        "the policy {:?} has a period of {period:?}, which headers cannot express, so clients see {shown}: write the \
         quota with a period of whole seconds{quota}",
        policy.name()
    ))
}

fn of_login(policy: &Policy) -> Option<String> {
    let (quota, limit) = (policy.quota(), policy.quota().limit());
    let counter = policy.settings().algorithm.counter()?;
    let most = counter.most_within_period(policy.arguments(), &quota)?;
    let period = quota.period();
    // One unit more is not worth a warning.
    if most <= limit + 1 || !is_of_login(policy.name()) {
        return None;
    }
    Some(format!(
        "the policy {:?} admits up to {most} units in {period:?}, and its limit is {limit}: count it by SlidingLog, or \
         give it a burst of 1",
        policy.name()
    ))
}

/// Whether one of [`LOGINS`] is among the words of a name such as `failed-logins`, `failed_login` or
/// `failedLogins`. `catalog-index` has no `log-in`.
fn is_of_login(name: &str) -> bool {
    let (mut words, mut before) = (String::from("-"), ' ');
    for c in name.chars() {
        if c.is_uppercase() && before.is_lowercase() {
            words.push('-');
        }
        words.push(if c.is_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
        before = c;
    }
    words.push('-');
    LOGINS.iter().any(|login| ["-", "s-"].iter().any(|end| words.contains(&format!("-{login}{end}"))))
}

/// An equal quota per second, such as `, such as 50/s`, if the period divides a second. Otherwise empty.
fn whole_seconds(quota: Quota) -> String {
    const SECOND: u64 = 1_000_000;
    let period = quota.period_micros();
    let limit = quota.limit().checked_mul(SECOND / period).filter(|_| SECOND.is_multiple_of(period));
    let written = limit.and_then(|limit| Quota::try_new(limit, Duration::from_secs(1)).ok());
    written.map_or_else(String::new, |quota| format!(", such as {quota} with the burst you need"))
}
