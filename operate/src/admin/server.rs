//! What the store needs of its server, and whether it has that.

use axum::{extract::State, response::Response};
use http::StatusCode;
use tower_ratelimit::RedisStore;

use super::{
    handlers::{Reply, Shared},
    problem::Problem,
    settings::Settings,
};
use crate::{
    answer::{AclRule, Probe},
    reply::json,
};

pub(super) async fn probe(State(settings): Shared) -> Reply {
    let report = store(&settings)?.probe().await.map_err(|error| Problem::of_read(&error))?;
    Ok(json(&Probe {
        can_decide: report.can_decide(),
        findings: report.findings().map(Into::into).collect(),
        report: report.to_string(),
    }))
}

pub(super) async fn acl(State(settings): Shared) -> Reply {
    let reply = |store: &RedisStore| -> Response { json(&AclRule { acl_rule: store.acl_rule() }) };
    store(&settings).map(reply)
}

fn store(settings: &Settings) -> Result<&RedisStore, Problem> {
    settings.store.as_ref().ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "the service has no store here: add it with `Admin::store`")
    })
}
