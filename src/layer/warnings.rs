//! What is valid in a layer, and probably not what was meant.

use std::sync::atomic::Ordering;

use super::{config::Config, rule::Rule};
use crate::{
    decision::{Decision, Outcome, Verdict},
    policy::{Policy, Traits},
};

impl Config {
    /// What to warn of, as far as it is known before the first request.
    pub(super) fn warnings(&self) -> Vec<String> {
        let policies: Vec<Policy> = self.rules.iter().filter_map(|rule| rule.policy.known()).collect();
        let of_policies = policies.iter().flat_map(Policy::warnings);
        let of_keys = self.rules.iter().filter_map(|rule| rule.key.warning());
        let mut warnings: Vec<_> = of_policies.chain(of_keys).collect();
        let is_limiting = |rule: &Rule| !rule.looks_up() && rule.policy.known().is_some();
        for (at, rule) in self.rules.iter().enumerate().filter(|(_, rule)| rule.looks_up()) {
            let is_limited = match &self.routes {
                Some(routes) => {
                    routes.are_limited(at, |number| self.rules.get(number).is_some_and(is_limiting))
                }
                None => self.rules.iter().any(is_limiting),
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
        for reserved in &self.settlements.reserved {
            let name = &reserved.policy;
            let policy = policies.iter().find(|policy| policy.name() == name);
            if policy.is_none() && policies.len() == self.rules.len() {
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
            let rules = self.rules.iter().enumerate();
            rules.filter_map(|(at, rule)| Some((at, rule.policy.known()?)))
        };
        let share_requests =
            |one, other| self.routes.as_ref().is_none_or(|routes| routes.share_requests(one, other));
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
        if !self.checked.settings.swap(true, Ordering::Relaxed) {
            #[cfg(feature = "metrics")]
            self.limiter.count_from_zero(self.rules.iter().filter_map(|rule| rule.policy.known()));
            for warning in self.warnings() {
                log!(warn, "{warning}");
                let _ = warning;
            }
        }
    }

    /// Logs that a policy is redundant, because another one of the same key denies all that it would. Looks at the first
    /// decision of several policies.
    pub(super) fn warn_of_redundant(&self, decision: &Decision) {
        let outcomes = decision.outcomes();
        if outcomes.len() < 2 || self.checked.policies_of_a_key.load(Ordering::Relaxed) {
            return;
        }
        let was_checked = self.checked.policies_of_a_key.swap(true, Ordering::Relaxed);
        // A policy that changes, or that is another one for another request, may bind then.
        let varies = |rule: &Rule| rule.cost.is_some() || rule.policy.constant().is_none();
        if was_checked || self.rules.iter().any(varies) {
            return;
        }
        for one in outcomes {
            let binds_first = |other: &&Outcome| {
                other.policy().name() != one.policy().name()
                    && other.key() == one.key()
                    && !other.policy().has(Traits::ROLLOUT)
                    && one.policy().never_binds_beside(other.policy())
            };
            if let Some(other) = outcomes.iter().find(binds_first) {
                log!(
                    warn,
                    policy = one.policy().name(),
                    "the policy {:?} ({}) never denies a request, because {:?} ({}) limits the same keys to less: remove it, \
                     or lower its limit or its burst",
                    one.policy().name(),
                    one.policy().quota(),
                    other.policy().name(),
                    other.policy().quota()
                );
                let _ = other;
                // Of two equal policies, one is to be removed.
                return;
            }
        }
    }

    /// Logs once that a request costs more than a policy ever admits.
    pub(super) fn warn_of_cost(&self, decision: &Decision) {
        if !matches!(decision.verdict(), Verdict::Deny { retry_after: None, .. }) {
            return;
        }
        let is_too_much = |outcome: &&Outcome| {
            // Without the store, and where the quota changes, another capacity may have denied it.
            let constant = self.rules.iter().filter_map(|rule| rule.policy.constant());
            let mut same = constant.filter(|policy| policy.is(outcome.policy()));
            decision.failure().is_none() && same.any(|policy| outcome.charge().cost() > policy.capacity())
        };
        if let Some(outcome) = decision.binding().filter(is_too_much)
            && !self.checked.cost.swap(true, Ordering::Relaxed)
        {
            log!(
                warn,
                policy = outcome.policy().name(),
                "a request costs more than the policy {:?} ever admits at once, which is {}, so it is always denied: lower \
                 its cost, or raise the burst",
                outcome.policy().name(),
                outcome.policy().capacity()
            );
            let _ = outcome;
        }
    }
}
