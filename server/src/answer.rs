//! Makes a response of a decision.

use envoy_types::pb::{
    envoy::{
        config::core::v3::HeaderValue,
        service::ratelimit::v3::{
            RateLimitResponse,
            rate_limit_response::{Code, DescriptorStatus},
        },
    },
    google::protobuf::{self, Struct},
};
use http::HeaderMap;
use http_body_util::BodyExt as _;
use tower_ratelimit::{
    Charge, FailureMode, RateLimitHeaders, Rejection, decision::Outcome, response::Dialect,
};
use tracing::debug;

use crate::{
    config::Kind,
    decide::Decided,
    options::Calls,
    plan::{Plan, Slot},
};

/// The response to a call that `decided` is about. `is_enforced` is false if everything is admitted.
pub(crate) async fn response(
    options: &Calls,
    plan: &Plan,
    decided: &Decided,
    is_enforced: bool,
) -> RateLimitResponse {
    let mut response = RateLimitResponse { overall_code: Code::Ok.into(), ..RateLimitResponse::default() };
    let mut metadata = Struct::default();
    for slot in &plan.slots {
        let status = match slot {
            Some(slot) => status(slot, plan, decided, is_enforced),
            None => DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() },
        };
        if status.code() == Code::OverLimit {
            response.overall_code = Code::OverLimit.into();
        } else if let Some(slot) = slot {
            metadata.fields.extend(slot.limit.metadata.clone());
        }
        response.statuses.push(status);
    }
    response.dynamic_metadata = (!metadata.fields.is_empty()).then_some(metadata);
    let mut headers = HeaderMap::new();
    if options.headers
        && let Some(decision) = decided.decision()
    {
        headers = RateLimitHeaders::new(Dialect::Ietf).of(decision);
    }
    if options.problem_body && response.overall_code() == Code::OverLimit {
        let (parts, body) = rejection(plan, decided).into_http().into_parts();
        headers.extend(parts.headers);
        // The body is in memory.
        response.raw_body =
            Box::pin(body.collect()).await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
    }
    for (name, value) in &headers {
        let (key, value) = (name.to_string(), value.to_str().unwrap_or_default().to_owned());
        response.response_headers_to_add.push(HeaderValue { key, value, raw_value: Vec::new() });
    }
    response
}

fn rejection(plan: &Plan, decided: &Decided) -> Rejection {
    match (decided.decision(), &decided.failure) {
        _ if plan.is_blocked() => Rejection::Blocked,
        (_, Some(error)) => Rejection::Unavailable(error.clone()),
        (Some(decision), None) => Rejection::Denied(decision.clone()),
        (None, None) => Rejection::Blocked,
    }
}

/// The status of a descriptor. Counts its hits in the metrics.
fn status(slot: &Slot, plan: &Plan, decided: &Decided, is_enforced: bool) -> DescriptorStatus {
    let Slot { limit, hits, detailed, .. } = slot;
    let charge = slot.charge.map(|at| &plan.charges[at]);
    let outcome = charge.and_then(|charge| decided.outcome(charge));
    let exceeds = match (&limit.kind, outcome) {
        (Kind::Blocked, _) => true,
        (_, Some(outcome)) => outcome.verdict().is_denied(),
        (_, None) => decided.failure.is_some() && charge.is_some_and(is_closed),
    };
    let is_denied = exceeds && is_enforced && !limit.is_shadow && !charge.is_some_and(Charge::never_denies);
    let counters = detailed.as_ref().unwrap_or(&limit.hits);
    let remaining = outcome.map(Outcome::remaining);
    let counter = match (is_denied, exceeds) {
        (true, _) => &counters.over_limit,
        (false, true) => &counters.shadow,
        // Less than a fifth.
        _ if remaining.is_some_and(|rest| rest.saturating_mul(5) < limit.shown.requests_per_unit.into()) => {
            &counters.near_limit
        }
        _ => &counters.ok,
    };
    // A counter that a caller lets overflow begins again.
    counter.increment((*hits).min(u32::MAX.into()));
    if let Some(charge) = charge.filter(|_| exceeds) {
        debug!(descriptor = limit.path, key_hash = %charge.key().digest(), is_shadow = !is_denied, "denied");
    }
    let code = if is_denied { Code::OverLimit } else { Code::Ok };
    let mut status = DescriptorStatus { code: code.into(), ..DescriptorStatus::default() };
    match (&limit.kind, outcome) {
        (Kind::Unlimited, _) => status.limit_remaining = u32::MAX,
        (Kind::Blocked, _) => status.current_limit = Some(limit.shown.clone()),
        (Kind::Counted(_), Some(outcome)) => {
            status.current_limit = Some(limit.shown.clone());
            status.limit_remaining = outcome.remaining().try_into().unwrap_or(u32::MAX);
            let wait = outcome.verdict().retry_after().unwrap_or_else(|| outcome.reset_after());
            let (seconds, nanos) = (wait.as_secs().cast_signed(), wait.subsec_nanos().cast_signed());
            // A wait is at most some centuries.
            status.duration_until_reset = Some(protobuf::Duration { seconds, nanos });
        }
        // Nothing is known of what remains.
        (Kind::Counted(_), None) => {}
    }
    status
}

fn is_closed(charge: &Charge) -> bool {
    charge.policy().settings().failure_mode == FailureMode::Closed
}
