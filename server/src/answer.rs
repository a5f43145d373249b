//! Makes a response of a decision.

use std::time::Duration;

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
use tower_ratelimit::{FailureMode, RateLimitHeaders, Rejection, decision::Outcome, response::Dialect};

use tracing::debug;

use crate::{
    config::{Kind, Limit},
    decide::Decided,
    plan::{Plan, Slot},
};

/// What responses have beside the statuses.
#[derive(Clone, Debug)]
pub(crate) struct Answers {
    pub(crate) has_headers: bool,
    pub(crate) has_problem_body: bool,
}

impl Answers {
    /// The response to a call that `decided` is about. `is_enforced` is false if everything is admitted.
    pub(crate) async fn response(
        &self,
        plan: &Plan,
        decided: &Decided,
        is_enforced: bool,
    ) -> RateLimitResponse {
        let mut response =
            RateLimitResponse { overall_code: Code::Ok.into(), ..RateLimitResponse::default() };
        let mut metadata = Struct::default();
        for slot in &plan.slots {
            let status = status(slot, plan, decided, is_enforced);
            if status.code() == Code::OverLimit {
                response.overall_code = Code::OverLimit.into();
            } else if let Slot::Limited { limit, .. } = slot {
                metadata
                    .fields
                    .extend(limit.metadata.iter().map(|(name, value)| (name.clone(), value.clone())));
            }
            response.statuses.push(status);
        }
        response.dynamic_metadata = (!metadata.fields.is_empty()).then_some(metadata);
        let mut headers = HeaderMap::new();
        if self.has_headers
            && let Some(decision) = decided.decision()
        {
            headers = RateLimitHeaders::new(Dialect::Ietf).of(decision);
        }
        if self.has_problem_body && response.overall_code() == Code::OverLimit {
            let (parts, body) = rejection(plan, decided).into_http().into_parts();
            headers.extend(parts.headers);
            // The body is in memory.
            response.raw_body = body.collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
        }
        let header = |(name, value): (&http::HeaderName, &http::HeaderValue)| HeaderValue {
            key: name.to_string(),
            value: value.to_str().unwrap_or_default().to_owned(),
            raw_value: Vec::new(),
        };
        response.response_headers_to_add = headers.iter().map(header).collect();
        response
    }
}

fn rejection(plan: &Plan, decided: &Decided) -> Rejection {
    match (decided.decision(), &decided.failure) {
        (_, Some(error)) => Rejection::Unavailable(error.clone()),
        (Some(decision), None) if !plan.is_blocked() => Rejection::Denied(decision.clone()),
        _ => Rejection::Blocked,
    }
}

/// The status of a descriptor. Counts it in the metrics.
fn status(slot: &Slot, plan: &Plan, decided: &Decided, is_enforced: bool) -> DescriptorStatus {
    let Slot::Limited { limit, counters, hits, charge } = slot else {
        return DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    };
    let charge = charge.map(|at| &plan.charges[at]);
    let outcome = charge.and_then(|charge| decided.outcome(charge));
    let exceeds = match (&limit.kind, outcome) {
        (Kind::Blocked, _) => true,
        (_, Some(outcome)) => outcome.verdict().is_denied(),
        (_, None) => {
            decided.failure.is_some()
                && charge.is_some_and(|charge| charge.policy().settings().failure_mode == FailureMode::Closed)
        }
    };
    let is_denied = exceeds && is_enforced && !limit.is_shadow && (slot.is_blocked() || decided.is_denied());
    let counter = match (is_denied, exceeds) {
        (true, _) => &counters.over_limit,
        (false, true) => &counters.shadow,
        (false, false) if is_near(limit, outcome) => &counters.near_limit,
        (false, false) => &counters.ok,
    };
    counter.increment(*hits);
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
            status.limit_remaining = saturated(outcome.remaining());
            let wait = outcome.verdict().retry_after().unwrap_or_else(|| outcome.reset_after());
            status.duration_until_reset = Some(duration(wait));
        }
        // Nothing is known of what remains.
        (Kind::Counted(_), None) => {}
    }
    status
}

/// Whether less than a fifth of the limit remains.
fn is_near(limit: &Limit, outcome: Option<&Outcome>) -> bool {
    outcome.is_some_and(|outcome| outcome.remaining() < u64::from(limit.shown.requests_per_unit) / 5)
}

fn saturated(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

fn duration(time: Duration) -> protobuf::Duration {
    protobuf::Duration {
        seconds: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        nanos: time.subsec_nanos().cast_signed(),
    }
}
