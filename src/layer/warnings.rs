//! What is valid in a layer, and probably not what was meant.

use super::{config::Config, rule::Rule};
use crate::policy::Policy;

impl Config {
    /// What to warn of before the first request.
    pub(super) fn warnings(&self) -> Vec<String> {
        let rules = self.rules.as_slice();
        let policies: Vec<Policy> = self.rules.known_policies().collect();
        let mut warnings: Vec<_> = policies.iter().flat_map(Policy::warnings).collect();
        let is_limiting = |rule: &Rule| !rule.looks_up() && rule.policy.known().is_some();
        for (at, rule) in rules.iter().enumerate().filter(|(_, rule)| rule.looks_up()) {
            let is_limited = match self.rules.routes() {
                Some(routes) => {
                    routes.are_limited(at, |number| self.rules.get(number).is_some_and(is_limiting))
                }
                None => rules.iter().any(is_limiting),
            };
            if !is_limited {
                let policy = rule.policy.known().map(|policy| format!(" for the policy {:?}", policy.name()));
                warnings.push(format!(
                    "the layer looks up clients{}, and no other rule limits the same requests if the client is unknown, so \
                     API keys can be guessed, each with a lookup: add a rule on addresses for them, such as \
                     Rule::new(policy, PeerIp::new())",
                    policy.unwrap_or_default()
                ));
            }
        }
        warnings.extend(self.queue_warning());
        for reserved in &self.settlement.reserved {
            let name = &reserved.policy;
            let policy = policies.iter().find(|policy| policy.name() == name);
            if policy.is_none() && policies.len() == rules.len() {
                let names: Vec<_> = policies.iter().map(Policy::name).collect();
                warnings.push(format!(
                    "the layer reserves units of the policy {name:?}, which it does not have: name one of {names:?}"
                ));
            } else if reserved.by_bytes && policy.is_some_and(|policy| !policy.counts_bytes()) {
                warnings.push(format!(
                    "the layer charges bytes under the policy {name:?}, and its headers say requests: add \
                     Policy::content_bytes"
                ));
            }
        }
        warnings
    }

    /// Warns of a request that waits in a queue while it holds permits.
    fn queue_warning(&self) -> Option<String> {
        let known = || {
            let rules = self.rules.as_slice().iter().enumerate();
            rules.filter_map(|(at, rule)| Some((at, rule.policy.known()?)))
        };
        let share_requests =
            |one, other| self.rules.routes().is_none_or(|routes| routes.share_requests(one, other));
        known().filter(|(_, policy)| policy.has_queue()).find_map(|(at, queue)| {
            let (_, permits) = known().find(|(other, policy)| policy.has_permits() && share_requests(at, *other))?;
            Some(format!(
                "a request that waits in the queue of the policy {:?} already holds permits of {:?}, so other requests are \
                 denied while few run: put {:?} into another layer, inside this one",
                queue.name(),
                permits.name(),
                permits.name()
            ))
        })
    }

    /// Logs the warnings when the first service is wrapped, and shows the counters of the policies.
    pub(super) fn warn_once(&self) {
        if self.notices.settings() {
            #[cfg(feature = "metrics")]
            self.limiter.count_from_zero(self.rules.known_policies());
            for warning in self.warnings() {
                log!(warn, "{warning}");
                let _ = warning;
            }
        }
    }
}
