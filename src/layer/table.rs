//! The rules of a layer, checked, and which of them apply to a request.

use std::sync::Arc;

use http::request::Parts;

use super::{routes::Routes, rule::Rule, rules::Rules, settle::Counted};
use crate::{
    base::Error,
    decision::{Decision, Outcome},
    limiter::Limiter,
    policy::Policy,
};

#[derive(Clone)]
pub(super) struct Table {
    rules: Rules,
    /// `None` if all rules apply to all requests.
    routes: Option<Arc<Routes>>,
    /// Whether a rule counts only some requests.
    counts_some: bool,
}

impl Table {
    /// # Errors
    ///
    /// The rules do not fit together, or the store of `limiter` does not support the algorithm of a policy.
    pub(super) fn new(rules: Rules, limiter: &Limiter) -> Result<Self, Error> {
        rules.check()?;
        let routes = rules.routes().map(Arc::new);
        let counts_some = rules.as_slice().iter().any(|rule| rule.counts.is_some());
        let table = Self { rules, routes, counts_some };
        table.known_policies().try_for_each(|policy| limiter.accept(&policy))?;
        Ok(table)
    }

    /// This table with one more rule, for all requests.
    pub(super) fn and(&self, rule: Rule, limiter: &Limiter) -> Result<Self, Error> {
        Self::new(self.rules.clone().every(rule), limiter)
    }

    pub(super) fn as_slice(&self) -> &[Rule] {
        self.rules.as_slice()
    }

    pub(super) fn get(&self, at: usize) -> Option<&Rule> {
        self.as_slice().get(at)
    }

    pub(super) fn routes(&self) -> Option<&Routes> {
        self.routes.as_deref()
    }

    /// The policies that are not chosen per request, as they are now.
    pub(super) fn known_policies(&self) -> impl Iterator<Item = Policy> {
        self.as_slice().iter().filter_map(|rule| rule.policy.known())
    }

    pub(super) const fn counts_some(&self) -> bool {
        self.counts_some
    }

    /// For each rule that counts only some requests and applies to `request`, the policies that it charged by `decision`.
    pub(super) fn counted(&self, request: &Parts, decision: &Decision) -> Vec<Counted> {
        if !self.counts_some {
            return Vec::new();
        }
        let applicable: Vec<&Rule> = match self.routes() {
            Some(routes) => routes.of(request).iter().filter_map(|at| self.get(*at)).collect(),
            None => self.as_slice().iter().collect(),
        };
        // The names of a request's policies differ, and of the rules that choose their policy one applies: see `Rules::check`.
        let known: Vec<Option<Policy>> = applicable.iter().map(|rule| rule.policy.known()).collect();
        let charged = |policy: Option<&Policy>| {
            let is_meant = |name: &&str| match policy {
                Some(policy) => policy.name() == *name,
                None => !known.iter().flatten().any(|known| known.name() == *name),
            };
            let names = decision.all_outcomes().iter().map(|outcome: &Outcome| outcome.policy().name());
            Some(names.filter(is_meant).map(str::to_owned).collect())
        };
        let counted = applicable.iter().zip(&known).filter_map(|(rule, policy)| {
            Some(Counted { counts: rule.counts.clone()?, policies: charged(policy.as_ref()) })
        });
        counted.collect()
    }
}
