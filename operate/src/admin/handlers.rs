//! The handlers of the routes.

use std::sync::Arc;

use axum::{
    extract::{RawQuery, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use tower_ratelimit::{Policy, policy::Enforcement};

use super::{
    changes::Who,
    problem::{Problem, of_change},
    request::{Body, PathNames, body, cost, names},
    settings::Settings,
    switch::Switch,
};
use crate::{
    answer::{AppliesTo, ChangeKind, ChangeList, PolicyList},
    config::PolicySummary,
    explain::Explanation,
    reply::json,
};

pub(super) type Shared = State<Arc<Settings>>;
pub(super) type Reply = Result<Response, Problem>;

/// The answer to a change.
pub(super) fn done() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

pub(super) async fn policies(State(settings): Shared) -> Response {
    let policies = settings.policies.current();
    json(&PolicyList {
        policies: policies.iter().map(PolicySummary::of).collect(),
        warnings: policies.iter().flat_map(Policy::warnings).chain(settings.warning()).collect(),
        error: settings.policies.error().map(|error| error.to_string()),
    })
}

pub(super) async fn policy(State(settings): Shared, path: PathNames) -> Reply {
    Ok(json(&PolicySummary::of(&settings.policy(&names(path)?.policy)?)))
}

pub(super) async fn explain(State(settings): Shared, path: PathNames, RawQuery(query): RawQuery) -> Reply {
    let (policy, key) = settings.target(names(path)?).await?;
    let explained = Explanation::of(&settings.limiter, &policy, &key, cost(query.as_deref())?).await;
    let explanation = explained.map_err(|error| Problem::of_read(&error))?;
    match explanation.decision().failure() {
        Some(failure) => Err(Problem::undecided(&policy, failure, failure.to_string())),
        None => Ok(json(&explanation)),
    }
}

pub(super) async fn reset(State(settings): Shared, path: PathNames, who: Who) -> Reply {
    let (policy, key) = settings.target(names(path)?).await?;
    settings.limiter.operator().reset(&policy, &key).await?;
    log!(info, policy = policy.name(), key_hash = %key.digest(), "an operator reset a key");
    settings.changes.of_key(ChangeKind::Reset, &policy, &key, None, who);
    Ok(done())
}

pub(super) async fn refund(
    State(settings): Shared,
    path: PathNames,
    who: Who,
    headers: HeaderMap,
    content: Body,
) -> Reply {
    #[derive(Deserialize)]
    #[serde(rename = "a refund", deny_unknown_fields)]
    struct Refund {
        units: u64,
    }
    #[derive(Serialize)]
    struct Left {
        remaining: u64,
        capacity: u64,
        reset_after: f64,
    }
    let (policy, key) = settings.target(names(path)?).await?;
    let Refund { units } = body(&headers, content, r#"{"units": 5}"#)?;
    if !(1..=MAX_UNITS).contains(&units) {
        return Err(Problem::bad_request(format!("`units` must be from 1 to {MAX_UNITS}")));
    }
    if policy.has_permits() {
        return Err(Problem::new(
            StatusCode::CONFLICT,
            "permits are not refunded, their holders release them: reset the key to release all of them",
        ));
    }
    let decision = settings.limiter.operator().refund_latest(&policy, &key, units).await?;
    if let Some(failure) = decision.failure() {
        return Err(Problem::undecided(&policy, failure, of_change(failure)));
    }
    log!(info, policy = policy.name(), key_hash = %key.digest(), units, "an operator refunded a key");
    settings.changes.of_key(ChangeKind::Refund, &policy, &key, Some(units), who);
    match decision.outcomes().iter().chain(decision.shadows()).next() {
        Some(outcome) => Ok(json(&Left {
            remaining: outcome.remaining(),
            capacity: outcome.policy().capacity(),
            reset_after: outcome.reset_after().as_secs_f64(),
        })),
        None => Ok(done()),
    }
}

/// Above every capacity.
const MAX_UNITS: u64 = 1 << 44;

pub(super) async fn changes(State(settings): Shared) -> Response {
    json(&ChangeList { changes: settings.changes() })
}

#[derive(Deserialize, Serialize)]
#[serde(rename = "the position of the switch", deny_unknown_fields)]
pub(super) struct Position {
    enforcement: Enforcement,
    applies_to: Option<AppliesTo>,
}

pub(super) async fn enforcement(State(settings): Shared) -> Reply {
    let switch = switch(&settings)?;
    Ok(json(&Position { enforcement: switch.get(), applies_to: Some(switch.reach()) }))
}

pub(super) async fn set_enforcement(
    State(settings): Shared,
    who: Who,
    headers: HeaderMap,
    content: Body,
) -> Reply {
    let switch = switch(&settings)?;
    let Position { enforcement, applies_to } = body(&headers, content, r#"{"enforcement": "off"}"#)?;
    let reach = applies_to.unwrap_or_else(|| switch.reach());
    if reach == AppliesTo::AllInstances && switch.reach() != reach {
        let detail = "the switch here moves this instance only: with policies in Redis, give `Admin::enforcement` the \
                      `LivePolicies`";
        return Err(Problem::new(StatusCode::CONFLICT, detail));
    }
    let old = switch.get();
    switch.set(enforcement, reach).await?;
    log!(warn, %old, %enforcement, applies_to = ?reach, "an operator moved the switch of enforcement");
    let instances = match reach {
        AppliesTo::AllInstances => "all instances",
        AppliesTo::ThisInstance => "this instance",
    };
    settings.changes.of_switch(format!("{old} -> {enforcement}, {instances}"), who);
    Ok(json(&Position { enforcement, applies_to: Some(reach) }))
}

fn switch(settings: &Settings) -> Result<&Switch, Problem> {
    settings.switch.as_ref().ok_or_else(|| {
        Problem::new(
            StatusCode::NOT_FOUND,
            "the service has no switch here: add one with `Admin::enforcement`",
        )
    })
}
