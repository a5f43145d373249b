//! Bans by operators, and what ends them.

use std::time::Duration;

use axum::extract::State;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use tower_ratelimit::Policy;

use super::{
    changes::Who,
    handlers::{Reply, Shared, done},
    problem::Problem,
    request::{Body, PathNames, body, names},
};
use crate::{
    answer::{Ban, Bans, ChangeKind},
    reply::json,
};

pub(super) async fn bans(State(settings): Shared, path: PathNames) -> Reply {
    let policy = settings.policy(&names(path)?.policy)?;
    with_penalty(&policy)?;
    let list = settings.limiter.operator().bans(&policy).await;
    let list = list.map_err(|error| Problem::of_read(&error))?;
    let bans = list.bans.iter().map(|(key, rest)| Ban {
        key: key.as_str().to_owned(),
        identity: key.identity().map(Into::into),
        key_hash: key.digest(),
        banned_for: rest.as_secs_f64(),
    });
    Ok(json(&Bans { bans: bans.collect(), is_complete: list.is_complete }))
}

pub(super) async fn ban(
    State(settings): Shared,
    path: PathNames,
    who: Who,
    headers: HeaderMap,
    content: Body,
) -> Reply {
    #[derive(Deserialize)]
    #[serde(rename = "a ban", deny_unknown_fields)]
    struct Time {
        seconds: u64,
    }
    const MOST: u64 = 3_650 * 86_400;
    let (policy, key) = settings.target(names(path)?).await?;
    let Time { seconds } = body(&headers, content, r#"{"seconds": 600}"#)?;
    if !(1..=MOST).contains(&seconds) {
        return Err(Problem::bad_request(format!("`seconds` must be from 1 to {MOST}")));
    }
    with_penalty(&policy)?;
    settings.limiter.operator().ban(&policy, &key, Duration::from_secs(seconds)).await?;
    log!(info, policy = policy.name(), key_hash = %key.digest(), seconds, "an operator banned a key");
    settings.changes.of_key(ChangeKind::Ban, &policy, &key, Some(seconds), who);
    Ok(done())
}

pub(super) async fn unban(State(settings): Shared, path: PathNames, who: Who) -> Reply {
    let (policy, key) = settings.target(names(path)?).await?;
    with_penalty(&policy)?;
    settings.limiter.operator().unban(&policy, &key).await?;
    log!(info, policy = policy.name(), key_hash = %key.digest(), "an operator ended the ban of a key");
    settings.changes.of_key(ChangeKind::Unban, &policy, &key, None, who);
    Ok(done())
}

pub(super) async fn unlock(
    State(settings): Shared,
    path: PathNames,
    who: Who,
    headers: HeaderMap,
    content: Body,
) -> Reply {
    #[derive(Deserialize)]
    #[serde(rename = "no members", deny_unknown_fields)]
    struct Nothing {}
    let (policy, key) = settings.target(names(path)?).await?;
    // A web page of another origin can send a POST without a body.
    let Nothing {} = body(&headers, content, "{}")?;
    settings.limiter.operator().unlock(&policy, &key).await?;
    log!(info, policy = policy.name(), key_hash = %key.digest(), "an operator unlocked a key");
    settings.changes.of_key(ChangeKind::Unlock, &policy, &key, None, who);
    Ok(done())
}

fn with_penalty(policy: &Policy) -> Result<(), Problem> {
    if policy.settings().penalty.is_some() {
        return Ok(());
    }
    let detail = "no key can be banned under a policy without a penalty: add `.penalty(Penalty::manual())` to it, or \
                  `penalty = \"manual\"` in its file";
    Err(Problem::new(StatusCode::CONFLICT, detail))
}
