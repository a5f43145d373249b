//! What is valid in a layer, and probably not what was meant.

use super::{
    config::Config,
    notices::is_first,
    routes::Scope,
    rule::{Rule, Settles},
};

impl Config {
    /// What to warn of before the first request.
    pub(super) fn warnings(&self) -> Vec<String> {
        let (rules, scopes) = (&self.rules.rules, &self.rules.scopes);
        let mut warnings: Vec<_> = self.known_policies().flat_map(|policy| policy.warnings()).collect();
        let is_limiting = |rule: &Rule| !rule.looks_up() && rule.policy.known().is_some();
        for (rule, scope) in rules.iter().zip(scopes) {
            let policy = rule.policy.known();
            let mut limiting = rules.iter().zip(scopes).filter(|(rule, _)| is_limiting(rule));
            let is_limited = |(_, limited): (&Rule, &Scope)| self.routes.is_none() || limited.covers(scope);
            if rule.looks_up() && !limiting.any(is_limited) {
                warnings.push(format!(
                    "the layer looks up clients{}, and no other rule limits the same requests if the client is unknown, so \
                     API keys can be guessed, each with a lookup: add a rule on addresses for them, such as \
                     Rule::new(policy, PeerIp::new())",
                    policy.as_ref().map(|policy| format!(" for the policy {:?}", policy.name())).unwrap_or_default()
                ));
            }
            if let Some(policy) = policy
                && rule.settles == Some(Settles::Bytes)
                && !policy.counts_bytes()
            {
                warnings.push(format!(
                    "the layer charges bytes under the policy {:?}, and its headers say requests: add \
                     Policy::content_bytes",
                    policy.name()
                ));
            }
        }
        warnings.extend(self.queue_warning());
        warnings
    }

    /// Warns of a request that waits in a queue while it holds permits.
    fn queue_warning(&self) -> Option<String> {
        let known = || {
            let rules = self.rules.rules.iter().zip(&self.rules.scopes);
            rules.filter_map(|(rule, scope)| Some((rule.policy.known()?, scope)))
        };
        known().filter(|(queue, _)| queue.has_queue()).find_map(|(queue, scope)| {
            let is_beside = |other: &Scope| self.routes.is_none() || scope.meets(other);
            let (permits, _) = known().find(|(other, its)| other.has_permits() && is_beside(its))?;
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
        if is_first(&self.notices.settings) {
            #[cfg(feature = "metrics")]
            self.limiter.count_from_zero(self.known_policies());
            for warning in self.warnings() {
                log!(warn, "{warning}");
                let _ = warning;
            }
        }
    }
}
