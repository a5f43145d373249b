//! The networks that are blocked, for a router that has a [`Blocklist`](crate::live::Blocklist).

use std::time::Duration;

use axum::extract::{Path, State};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use tower_ratelimit::{Error, ErrorKind, key::Network};

use super::{
    changes::Who,
    handlers::{Reply, Shared, done},
    problem::Problem,
    request::{Body, PathNames, body},
    settings::Settings,
};
use crate::{
    answer::{AppliesTo, ChangeKind, Networks},
    live::{BlockedNetwork, Blocklist},
    reply::json,
};

pub(super) async fn networks(State(settings): Shared) -> Reply {
    let list = blocklist(&settings)?;
    let applies_to = if list.is_shared() { AppliesTo::AllInstances } else { AppliesTo::ThisInstance };
    let error = list.last_error().map(|error| error.to_string());
    Ok(json(&Networks { networks: list.networks(), applies_to: Some(applies_to), error }))
}

pub(super) async fn block(
    State(settings): Shared,
    path: PathNames,
    who: Who,
    headers: HeaderMap,
    content: Body,
) -> Reply {
    #[derive(Deserialize)]
    #[serde(rename = "a block", deny_unknown_fields)]
    struct Block {
        seconds: Option<u64>,
        reason: Option<String>,
    }
    let (list, name) = (blocklist(&settings)?, name(path)?);
    let Block { seconds, reason } = body(&headers, content, r#"{"seconds": 3600, "reason": "a scraper"}"#)?;
    let network = BlockedNetwork {
        blocked_for: seconds.map(Duration::from_secs),
        reason: reason.clone(),
        who: who.name().map(ToOwned::to_owned),
        ..BlockedNetwork::new(&*name)
    };
    list.block(network).await.map_err(problem)?;
    log!(info, seconds, "an operator blocked a network");
    if !list.is_consulted() {
        log!(warn, "no layer has the blocklist of the router: give its matcher to `block_if`");
    }
    settings.changes.of_blocklist(ChangeKind::Block, name, reason, seconds, who);
    Ok(done())
}

pub(super) async fn unblock(State(settings): Shared, path: PathNames, who: Who) -> Reply {
    let (list, name) = (blocklist(&settings)?, name(path)?);
    if !list.unblock(&name).await.map_err(problem)? {
        let detail = "this network is not in the blocklist: a network that contains it, or a part of it, has its own entry";
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    }
    log!(info, "an operator unblocked a network");
    settings.changes.of_blocklist(ChangeKind::Unblock, name, None, None, who);
    Ok(done())
}

fn blocklist(settings: &Settings) -> Result<&Blocklist, Problem> {
    settings.blocklist.as_ref().ok_or_else(|| {
        let detail = "the service has no blocklist here: add it with `Admin::blocklist`";
        Problem::new(StatusCode::NOT_FOUND, detail)
    })
}

/// An invalid network, or a failure of Redis.
fn problem(error: Error) -> Problem {
    match error.kind() {
        ErrorKind::InvalidConfig => Problem::bad_request(error.to_string()),
        _ => error.into(),
    }
}

/// The network in the rest of the path, since it has a slash, as the list writes it.
fn name(path: PathNames) -> Result<String, Problem> {
    let Path(mut names) = path.map_err(|rejection| Problem::bad_request(rejection.body_text()))?;
    let name = names.remove("network").unwrap_or_default();
    if name.is_empty() {
        return Err(Problem::bad_request(
            "the path has no network: write one such as /blocklist/203.0.113.0/24",
        ));
    }
    name.parse::<Network>().map(|network| network.to_string()).map_err(problem)
}

impl Settings {
    /// The blocked networks that contain one of `clients`, which are addresses and networks.
    pub(super) fn blocked(&self, clients: &[String]) -> Vec<BlockedNetwork> {
        let Some(list) = &self.blocklist else { return Vec::new() };
        let mut blocked: Vec<_> =
            clients.iter().flat_map(|client| list.networks_containing(client)).collect();
        blocked.sort_by(|one, other| one.network.cmp(&other.network));
        blocked.dedup_by(|one, other| one.network == other.network);
        blocked
    }
}
