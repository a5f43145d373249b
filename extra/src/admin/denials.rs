//! Which keys were denied lately, and which most often.

use axum::extract::{Query, State, rejection::QueryRejection};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tower_ratelimit::decision::{DenialLog, FrequentDenials, RecentDenials};

use super::{
    changes::seconds,
    handlers::{Reply, Shared},
    problem::Problem,
};
use crate::reply::json;

/// The entries that an answer has if the query does not state how many.
const USUAL: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Filter {
    policy: Option<String>,
    limit: Option<usize>,
}

type Parameters = Result<Query<Filter>, QueryRejection>;

/// A key that was denied lately, as the router shows it.
#[derive(Serialize)]
pub(super) struct Recent {
    policy: String,
    key: String,
    identity: Option<String>,
    key_hash: String,
    verdict: &'static str,
    source: &'static str,
    retry_after: Option<f64>,
    denials: u64,
    first: f64,
    last: f64,
}

#[derive(Serialize)]
struct Frequent {
    policy: String,
    key: String,
    identity: Option<String>,
    key_hash: String,
    denials: u64,
    error: u64,
}

#[derive(Serialize)]
struct Denials<T> {
    denials: Vec<T>,
}

impl Recent {
    pub(super) fn of(entry: &RecentDenials) -> Self {
        Self {
            policy: entry.policy.name().to_owned(),
            key: entry.key.as_str().to_owned(),
            identity: entry.key.identity().map(Into::into),
            key_hash: entry.key.digest(),
            verdict: match (entry.is_shadow, entry.is_banned) {
                (true, _) => "shadow_denied",
                (false, true) => "banned",
                (false, false) => "denied",
            },
            source: entry.source.as_str(),
            retry_after: entry.retry_after.map(|wait| wait.as_secs_f64()),
            denials: entry.denials,
            first: seconds(entry.first),
            last: seconds(entry.last),
        }
    }
}

impl Frequent {
    fn of(entry: &FrequentDenials) -> Self {
        Self {
            policy: entry.policy.name().to_owned(),
            key: entry.key.as_str().to_owned(),
            identity: entry.key.identity().map(Into::into),
            key_hash: entry.key.digest(),
            denials: entry.denials,
            error: entry.error,
        }
    }
}

pub(super) async fn recent(State(settings): Shared, parameters: Parameters) -> Reply {
    let (filter, logs) = (filter(parameters)?, logs(&settings.denials)?);
    let mut all: Vec<RecentDenials> = logs.iter().flat_map(DenialLog::recent).collect();
    all.sort_by_key(|entry| std::cmp::Reverse(entry.last));
    let denials = all.iter().filter(|entry| filter.fits(entry.policy.name())).take(filter.most());
    Ok(json(&Denials { denials: denials.map(Recent::of).collect() }))
}

pub(super) async fn top(State(settings): Shared, parameters: Parameters) -> Reply {
    let (filter, logs) = (filter(parameters)?, logs(&settings.denials)?);
    let mut all: Vec<FrequentDenials> = logs.iter().flat_map(DenialLog::most_denied).collect();
    all.sort_by_key(|entry| std::cmp::Reverse(entry.denials - entry.error));
    let denials = all.iter().filter(|entry| filter.fits(entry.policy.name())).take(filter.most());
    Ok(json(&Denials { denials: denials.map(Frequent::of).collect() }))
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
