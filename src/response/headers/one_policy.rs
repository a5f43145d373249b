//! The dialects that describe one policy: drafts 04 to 07, and `X-RateLimit-*`.

use std::time::Duration;

use http::HeaderMap;

use super::{
    dialect::Dialect,
    ietf_list::window,
    insert::{append, insert, list, value},
    names::{DRAFT_06, LEGACY, RATELIMIT, RATELIMIT_POLICY},
    window::digits,
};
use crate::{base::time::wall_micros, decision::Outcome, response::wait::seconds_up};

/// `RateLimit: limit=100, remaining=50, reset=30`, unless an inner service has sent one: the members of a dictionary
/// cannot be appended to.
pub(super) fn draft_07(headers: &mut HeaderMap, outcomes: &[Outcome], [limit, remaining, reset]: [u64; 3]) {
    if !headers.contains_key(RATELIMIT) {
        let limits = format!("limit={limit}, remaining={remaining}, reset={reset}");
        append(headers, RATELIMIT, value(limits));
        append(headers, RATELIMIT_POLICY, value(quotas(outcomes)));
    }
}

/// `RateLimit-Limit`, `-Remaining` and `-Reset`, unless an inner service has sent any.
pub(super) fn draft_06(headers: &mut HeaderMap, outcomes: &[Outcome], numbers: [u64; 3]) {
    if !DRAFT_06.iter().any(|name| headers.contains_key(name)) {
        for (name, number) in DRAFT_06.into_iter().zip(numbers) {
            insert(headers, name, number);
        }
        append(headers, RATELIMIT_POLICY, value(quotas(outcomes)));
    }
}

/// `X-RateLimit-Limit`, `-Remaining`, `-Used` and `-Reset`, unless an inner service has sent any.
pub(super) fn legacy(headers: &mut HeaderMap, outcome: &Outcome, dialect: Dialect) {
    if LEGACY.iter().any(|name| headers.contains_key(name)) {
        return;
    }
    let reset = if dialect == Dialect::LegacyEpoch {
        seconds_up(Duration::from_micros(wall_micros()).saturating_add(outcome.reset_after()))
    } else {
        seconds_up(outcome.reset_after())
    };
    let (capacity, remaining) = (outcome.capacity(), outcome.remaining());
    let numbers = [capacity, remaining, capacity.saturating_sub(remaining), reset];
    for (name, number) in LEGACY.into_iter().zip(numbers) {
        insert(headers, name, number);
    }
}

/// `100;w=60, 1000;w=86400`. The older drafts have no names for policies, so each limit is listed once.
fn quotas(outcomes: &[Outcome]) -> String {
    let mut listed = Vec::new();
    let mut quotas = Vec::new();
    for policy in outcomes.iter().map(Outcome::policy) {
        let limit = policy.quota().limit();
        if !listed.contains(&limit) {
            listed.push(limit);
            quotas.push([digits(&mut itoa::Buffer::new(), limit), &window(policy)].concat());
        }
    }
    list(quotas.into_iter())
}
