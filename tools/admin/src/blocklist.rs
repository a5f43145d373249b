//! The commands about blocked networks.

use serde_json::{Value, json};
use tower_ratelimit::{ErrorKind, RedisStore};
use tower_ratelimit_operate::{
    answer::Networks,
    live::{BlockedNetwork, Blocklist},
};

use crate::{
    failure::{Failure, in_options},
    merged::Merged,
    options::Command,
    printed::Printed,
};

/// Carries out `command`, and lists the networks that are blocked then.
pub(crate) async fn run(store: &RedisStore, command: &Command, as_json: bool) -> Result<Printed, Failure> {
    let list = list(store).await?;
    match command {
        Command::Block { network, time, reason } => {
            let mut blocked = BlockedNetwork::new(network);
            blocked.blocked_for = *time;
            blocked.reason.clone_from(reason);
            list.block(blocked).await.map_err(Failure::of_change)?;
        }
        Command::Unblock { network } => {
            let was_blocked = list.unblock(network).await.map_err(Failure::of_change)?;
            if !was_blocked {
                let wider: Vec<_> =
                    list.networks_containing(network).into_iter().map(|one| one.network).collect();
                let hint = match &wider[..] {
                    [] => "`blocklist` lists the networks that are".to_owned(),
                    wider => format!("it is part of {}", wider.join(", ")),
                };
                return Err(Failure::Redis(format!("{network} is not in the blocklist: {hint}")));
            }
        }
        // Only a list.
        _ => {}
    }
    let error = error_of(&list);
    let answer = json!({ "networks": list.networks(), "applies_to": "all-instances", "error": error });
    let merged = Merged::<Networks>::new(vec![("Redis".to_owned(), Ok(answer))]);
    let is_incomplete = matches!(command, Command::Blocklist) && merged.has_error();
    Ok(merged.blocklist(as_json).failed_if(is_incomplete))
}

/// What keeps `list` from being as Redis has it.
fn error_of(list: &Blocklist) -> Option<String> {
    list.last_error().map(|error| in_options(&error.to_string()))
}

/// The blocked networks that contain the address or the network that `key` is, if it is one, and what is wrong with the
/// list.
pub(crate) async fn of(store: &RedisStore, key: &str) -> Result<(Vec<Value>, Option<String>), Failure> {
    let list = list(store).await?;
    let networks = list.networks_containing(key).into_iter().map(|network| json!(network)).collect();
    Ok((networks, error_of(&list)))
}

/// The list as Redis has it.
async fn list(store: &RedisStore) -> Result<Blocklist, Failure> {
    let list = Blocklist::redis(store).await?;
    match list.last_error() {
        // Other entries apply.
        Some(error) if error.kind() != ErrorKind::InvalidConfig => Err(error.into()),
        _ => Ok(list),
    }
}
