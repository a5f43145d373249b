//! Which keys were denied lately, and which most often.

use axum::extract::{Query, State, rejection::QueryRejection};
use http::StatusCode;
use serde::Deserialize;
use tower_ratelimit::decision::{DenialLog, FrequentDenials, RecentDenials};

use super::{
    changes::seconds,
    handlers::{Reply, Shared},
    problem::Problem,
};
use crate::{
    answer::{DenialKind, Denials, DeniedKey, FrequentlyDenied},
    reply::json,
};

/// The entries that an answer has if the query does not state how many.
const USUAL: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Filter {
    policy: Option<String>,
    limit: Option<usize>,
}

type Parameters = Result<Query<Filter>, QueryRejection>;

pub(super) fn denied(entry: &RecentDenials) -> DeniedKey {
    DeniedKey {
        policy: entry.policy.name().to_owned(),
        key: entry.key.as_str().to_owned(),
        identity: entry.key.identity().map(Into::into),
        key_hash: entry.key.digest(),
        verdict: match entry {
            RecentDenials { is_shadow: true, .. } => DenialKind::ShadowDenied,
            RecentDenials { is_degraded: true, .. } => DenialKind::Degraded,
            RecentDenials { is_banned: true, .. } => DenialKind::Banned,
            RecentDenials { is_shed: true, .. } => DenialKind::Shed,
            _ => DenialKind::Denied,
        },
        source: entry.source.as_str().to_owned(),
        retry_after: entry.retry_after.map(|wait| wait.as_secs_f64()),
        denials: entry.denials,
        first: seconds(entry.first),
        last: seconds(entry.last),
    }
}

fn frequently_denied(entry: &FrequentDenials) -> FrequentlyDenied {
    FrequentlyDenied {
        policy: entry.policy.name().to_owned(),
        key: entry.key.as_str().to_owned(),
        identity: entry.key.identity().map(Into::into),
        key_hash: entry.key.digest(),
        denials: entry.denials,
        error: entry.error,
    }
}

pub(super) async fn recent(State(settings): Shared, parameters: Parameters) -> Reply {
    let (filter, logs) = (filter(parameters)?, logs(&settings.denials)?);
    let mut all: Vec<RecentDenials> = logs.iter().flat_map(DenialLog::recent).collect();
    all.sort_by_key(|entry| std::cmp::Reverse(entry.last));
    let denials = all.iter().filter(|entry| filter.fits(entry.policy.name())).take(filter.most());
    Ok(json(&Denials { denials: denials.map(denied).collect() }))
}

pub(super) async fn top(State(settings): Shared, parameters: Parameters) -> Reply {
    let (filter, logs) = (filter(parameters)?, logs(&settings.denials)?);
    let mut all: Vec<FrequentDenials> = logs.iter().flat_map(DenialLog::most_denied).collect();
    all.sort_by_key(|entry| std::cmp::Reverse(entry.denials - entry.error));
    let denials = all.iter().filter(|entry| filter.fits(entry.policy.name())).take(filter.most());
    Ok(json(&Denials { denials: denials.map(frequently_denied).collect() }))
}

impl Filter {
    fn fits(&self, policy: &str) -> bool {
        self.policy.as_ref().is_none_or(|name| name == policy)
    }

    fn most(&self) -> usize {
        self.limit.unwrap_or(USUAL)
    }
}

fn filter(parameters: Parameters) -> Result<Filter, Problem> {
    match parameters {
        Ok(Query(filter)) => Ok(filter),
        Err(rejection) => Err(Problem::bad_request(format!(
            "the parameters are `policy` and `limit`, such as `?policy=api&limit=20`: {}",
            rejection.body_text()
        ))),
    }
}

fn logs(logs: &[DenialLog]) -> Result<&[DenialLog], Problem> {
    if logs.is_empty() {
        let detail = "the service records no denials here: leave out `Admin::without_denials`";
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    }
    Ok(logs)
}
