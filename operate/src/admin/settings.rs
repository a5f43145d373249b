//! The settings that the handlers share.

use std::sync::Arc;

use http::StatusCode;
#[cfg(feature = "redis")]
use tower_ratelimit::RedisStore;
use tower_ratelimit::{Key, KeyExtractor, Limiter, Policy, RateLimitLayer, decision::DenialLog};

#[cfg(feature = "live")]
use super::changes::of_live;
use crate::answer::Change;
#[cfg(feature = "live")]
use crate::live::Blocklist;

use super::{
    changes::{Changes, latest},
    policies::Policies,
    problem::Problem,
    request::{Names, with_key},
    switch::Switch,
};

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) limiter: Limiter,
    pub(super) policies: Policies,
    /// The extractors that find the keys of policies, with the policies' names.
    pub(super) extractors: Vec<(String, Arc<dyn KeyExtractor>)>,
    pub(super) switch: Option<Switch>,
    #[cfg(feature = "live")]
    pub(super) blocklist: Option<Blocklist>,
    /// The layers that explain requests.
    pub(super) layers: Vec<RateLimitLayer>,
    #[cfg(feature = "redis")]
    pub(super) store: Option<RedisStore>,
    pub(super) records_denials: bool,
    /// A log for each store. Empty until the router is made.
    pub(super) denials: Vec<DenialLog>,
    pub(super) changes: Arc<Changes>,
}

impl Settings {
    /// The policy `name`.
    pub(super) fn policy(&self, name: &str) -> Result<Policy, Problem> {
        let policies = self.policies.current();
        if let Some(policy) = policies.iter().find(|policy| policy.name() == name) {
            return Ok(policy.clone());
        }
        let names: Vec<String> = policies.iter().map(|policy| format!("`{}`", policy.name())).collect();
        let detail = if names.is_empty() {
            "the service has no policies to administer".to_owned()
        } else {
            format!("there is no policy of this name; the policies: {}", names.join(", "))
        };
        Err(Problem::new(StatusCode::NOT_FOUND, detail))
    }

    /// A list of policies that does not follow the policies of the layers.
    pub(super) fn warning(&self) -> Option<String> {
        #[cfg(feature = "live")]
        let is_stale =
            self.policies.fixed().is_some() && self.switch.as_ref().is_some_and(|it| it.live().is_some());
        #[cfg(not(feature = "live"))]
        let is_stale = false;
        is_stale.then(|| {
            "the router has the switch of live policies and a fixed list of policies, which does not follow them: pass the \
             live policies to `Admin::new`"
                .to_owned()
        })
    }

    /// The policy and the key that a path names.
    pub(super) async fn target(&self, names: Names) -> Result<(Policy, Key), Problem> {
        let policy = self.policy(&names.policy)?;
        let key = only(self.keys(&policy, &with_key(names)?.key).await?)?;
        Ok((policy, key))
    }

    /// The keys under `policy` that an operator may mean with `text`.
    pub(super) async fn keys(&self, policy: &Policy, text: &str) -> Result<Vec<Key>, Problem> {
        let extractor = self.extractors.iter().find(|(name, _)| name == policy.name());
        let mut keys = match extractor {
            Some((_, extractor)) => extractor.keys_of_text(text).await?,
            None => vec![Key::from_stored(text)?],
        };
        keys.dedup();
        if keys.is_empty() {
            return Err(Problem::bad_request("no request has this identity"));
        }
        Ok(keys)
    }

    /// The changes of this instance and of its live policies, the latest first.
    pub(super) fn changes(&self) -> Vec<Change> {
        #[allow(unused_mut, reason = "only live policies have others")]
        let mut changes = self.changes.all();
        #[cfg(feature = "live")]
        if let Some(live) = self.policies.live().or_else(|| self.switch.as_ref()?.live()) {
            changes.extend(of_live(live));
        }
        latest(changes)
    }

    /// The logs of the limiter and of the layers, which may have other stores.
    pub(super) fn record_denials(&mut self) {
        let limiters = [&self.limiter].into_iter().chain(self.layers.iter().map(RateLimitLayer::limiter));
        for log in limiters.map(Limiter::record_denials) {
            if !self.denials.contains(&log) {
                self.denials.push(log);
            }
        }
    }
}

/// The key, if there is only one.
fn only(mut keys: Vec<Key>) -> Result<Key, Problem> {
    match (keys.pop(), keys.is_empty()) {
        (Some(key), true) => Ok(key),
        (None, _) => Err(Problem::bad_request("no request has this identity")),
        (Some(last), false) => {
            let forms: Vec<String> =
                keys.iter().chain([&last]).map(|key| format!("`{}`", key.as_str())).collect();
            let detail = format!("this identity has several keys: name one of {}", forms.join(", "));
            Err(Problem::new(StatusCode::CONFLICT, detail))
        }
    }
}
