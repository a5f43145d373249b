//! The settings that the handlers share.

use std::sync::Arc;

use http::StatusCode;
use tower_ratelimit::{Key, KeyExtractor, Limiter, Policy};

use super::{policies::Policies, problem::Problem, request::Names, switch::Switch};

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) limiter: Limiter,
    pub(super) policies: Policies,
    /// The extractors that find the keys of policies, with the policies' names.
    pub(super) extractors: Vec<(String, Arc<dyn KeyExtractor>)>,
    pub(super) switch: Option<Switch>,
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

    /// The policy and the key that a path names.
    pub(super) async fn target(&self, Names { policy, key }: &Names) -> Result<(Policy, Key), Problem> {
        let policy = self.policy(policy)?;
        // Probably a script with an unset variable.
        if key.is_empty() {
            return Err(Problem::bad_request("the path has no key: write `%25` for the empty identity"));
        }
        let extractor = self.extractors.iter().find(|(name, _)| name == policy.name());
        let key = match extractor {
            Some((_, extractor)) => only(extractor.keys_of_text(key).await?)?,
            None => Key::from_stored(key)?,
        };
        Ok((policy, key))
    }
}

/// The key, if there is only one.
fn only(mut keys: Vec<Key>) -> Result<Key, Problem> {
    keys.dedup();
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
