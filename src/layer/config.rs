//! The settings of a layer, shared by all of its services, and warnings of settings that are probably
//! mistakes.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use super::{
    observe::Observer,
    routes::{Routes, Scope},
    rule::{Rule, Settles},
    rules::Rules,
};
use crate::{
    base::{Error, sync::thread_number},
    key::{KeyKind, Matcher},
    limiter::Limiter,
    policy::{Enforcement, EnforcementSwitch, Policy, QuotaUnit},
    response::{GrpcStatus, HeaderWriter, ProblemDetails, RateLimitHeaders, ResponseMapper},
    store::{PolicyKeys, StoreIdentity},
};

// Aligned as the fields of a policy are, because every request changes the reference count.
#[derive(Clone)]
#[repr(align(128))]
pub(super) struct Config {
    /// Shared with the decisions in the extensions of requests.
    pub(super) limiter: Arc<Limiter>,
    pub(super) rules: Rules,
    /// The kinds of the keys of its policies, of which the store knows.
    keys: Arc<PolicyKeys>,
    /// Whether a rule settles something after the decision.
    pub(super) settles: bool,
    /// `None` if all rules apply to all requests.
    pub(super) routes: Option<Arc<Routes>>,
    pub(super) enforcement: EnforcementSwitch,
    pub(super) exempt: Vec<Matcher>,
    pub(super) blocked: Vec<Matcher>,
    pub(super) headers: HeaderWriter,
    pub(super) mapper: Mapper,
    pub(super) grpc: Mapper,
    /// The longest random time that is added to a wait.
    pub(super) jitter: Duration,
    pub(super) refunds_cancelled: bool,
    pub(super) observer: Observer,
    copies: Copies,
}

/// Copies of a layer's settings for its threads.
///
/// A request counts references to the settings, the limiter, the policy and the texts of its headers, and counts them down
/// again. If all threads did so in the same places, the processors would send the cache lines of these counts to each
/// other, some ten times for a request, so that more processors would serve few more requests. So each thread counts in a
/// copy, and shares it with others only if there are more threads than copies. A policy that is watched or chosen for each
/// request has no copies.
#[derive(Default)]
struct Copies([OnceLock<Arc<Config>>; MOST_COPIES]);

/// A bound on the memory of a layer, of which each copy has texts of its headers.
const MOST_COPIES: usize = 16;

impl Clone for Copies {
    /// Without any, because the settings around it are about to change.
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// A mapper, and whether it reads the request: kept, so no request calls the mapper for it.
#[derive(Clone)]
pub(super) struct Mapper {
    pub(super) maps: Arc<dyn ResponseMapper>,
    pub(super) reads_request: bool,
}

impl<M: ResponseMapper> From<M> for Mapper {
    fn from(mapper: M) -> Self {
        Self { reads_request: mapper.reads_request(), maps: Arc::new(mapper) }
    }
}

impl Config {
    /// The defaults, with `rules`.
    ///
    /// # Errors
    ///
    /// See [`with_rules`](Self::with_rules).
    pub(super) fn new(limiter: &Limiter, rules: Rules) -> Result<Self, Error> {
        let defaults = Self {
            limiter: Arc::new(limiter.under(Enforcement::On)),
            rules: Rules::new(),
            keys: Arc::default(),
            settles: false,
            routes: None,
            enforcement: limiter.enforcement().into(),
            exempt: Vec::new(),
            blocked: Vec::new(),
            headers: HeaderWriter::new(RateLimitHeaders::default(), limiter.manual_clock()),
            mapper: ProblemDetails::default().into(),
            grpc: GrpcStatus::default().into(),
            jitter: Duration::ZERO,
            refunds_cancelled: false,
            observer: Observer::default(),
            copies: Copies::default(),
        };
        defaults.with_rules(rules)
    }

    /// These settings for a layer with `rules`, which logs its own mistakes and outages.
    ///
    /// # Errors
    ///
    /// The rules do not fit together, or the store does not support the algorithm of a policy.
    pub(super) fn with_rules(&self, rules: Rules) -> Result<Self, Error> {
        rules.check()?;
        let routes = rules.routes().map(Arc::new);
        let settles = rules.rules.iter().any(|(_, rule)| rule.settles_some());
        let keys = Arc::new(rules.keys());
        if let Some(store) = self.limiter.store_identity() {
            store.add(&keys);
        }
        let observer = self.observer.of_other_layer();
        let config = Self { rules, keys, settles, routes, observer, ..self.clone() };
        config.known_policies().try_for_each(|policy| config.limiter.supports(&policy))?;
        Ok(config)
    }

    /// The copy for this thread.
    #[inline]
    pub(super) fn of_thread(&self) -> &Arc<Self> {
        let Copies(copies) = &self.copies;
        copies[thread_number() % copies.len()].get_or_init(|| Arc::new(self.apart()))
    }

    /// The settings without copies, to change them.
    pub(super) fn alone(&mut self) -> &mut Self {
        self.copies = Copies::default();
        self
    }

    /// A copy that shares no reference count with this one that requests change.
    #[cold]
    fn apart(&self) -> Self {
        let mut copy = self.clone();
        copy.limiter = Arc::new(Limiter::clone(&self.limiter));
        copy.rules.rules.iter_mut().for_each(|(_, rule)| rule.policy = rule.policy.apart());
        copy.headers = copy.headers.apart();
        copy
    }

    /// The policies that are not chosen per request, as they are now.
    pub(super) fn known_policies(&self) -> impl Iterator<Item = Policy> {
        self.rules.rules.iter().filter_map(|(_, rule)| rule.policy.known())
    }

    /// The name of the policy of the rule with the number `at`, unless it is chosen per request.
    pub(super) fn policy_name(&self, at: usize) -> Option<String> {
        let (_, rule) = self.rules.rules.get(at)?;
        rule.policy.known().map(|policy| policy.name().to_owned())
    }

    /// What to warn of before the first request.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<_> = self.known_policies().flat_map(|policy| policy.warnings()).collect();
        // A pool is not charged for a client that is unknown.
        let is_limiting =
            |rule: &Rule| !rule.looks_up() && !rule.has_guarantee() && rule.policy.known().is_some();
        for (scope, rule) in &self.rules.rules {
            let policy = rule.policy.known();
            let limits = |(limited, rule): &(Scope, Rule)| {
                is_limiting(rule) && (self.routes.is_none() || limited.covers(scope))
            };
            if rule.looks_up() && !self.rules.rules.iter().any(limits) {
                warnings.push(format!(
                    "the layer looks up clients{}, and no other rule limits the same requests if the client is unknown, so \
                     API keys can be guessed, each with a lookup: add a rule on addresses for them, such as \
                     Rule::new(policy, PeerIp::new())",
                    policy.as_ref().map(|policy| format!(" for the policy {:?}", policy.name())).unwrap_or_default()
                ));
            }
            let Some(policy) = policy else { continue };
            let is_of_bytes = rule.settles == Some(Settles::Bytes);
            if is_of_bytes && policy.settings().quota_unit != QuotaUnit::ContentBytes {
                warnings.push(format!(
                    "the layer charges bytes under the policy {:?}, and its headers say requests: add \
                     Policy::quota_unit",
                    policy.name()
                ));
            }
            // A reservation with a cost may be of the most that a request can use.
            let is_late = is_of_bytes || rule.reserves() && rule.cost.is_none();
            if is_late && policy.settings().max_debt == 0 && !policy.has_permits() {
                warnings.push(format!(
                    "a request's cost under the policy {:?} is known after it was admitted, and what exceeds the units that \
                     remain then is not charged: add Policy::max_debt",
                    policy.name()
                ));
            }
        }
        warnings.extend(self.rules.rules.iter().filter_map(|(_, rule)| rule.terms_warning()));
        warnings.extend(self.queue_warning());
        warnings.extend(self.mixed_keys());
        warnings.extend(self.rules.rules.iter().filter_map(|(_, rule)| self.unit_warning(rule)));
        let occurs = |text: &&String| warnings.iter().any(|warning| warning.contains(*text));
        let needless: Vec<_> = self.rules.accepted.iter().filter(|text| !occurs(text)).cloned().collect();
        warnings.retain(|warning| !self.rules.accepted.iter().any(|text| warning.contains(text)));
        warnings.extend(needless.iter().map(|text| {
            format!(
                "the layer accepts the warning {text:?}, which does not occur: remove the call of `accept_warning`"
            )
        }));
        warnings
    }

    /// Warns of each policy whose counts keys of two kinds share, of this layer or of two.
    fn mixed_keys(&self) -> Vec<String> {
        let others = self.limiter.store_identity().map(StoreIdentity::layers).unwrap_or_default();
        let others = others.iter().filter(|other| !Arc::ptr_eq(other, &self.keys));
        let mut mixed: Vec<String> = Vec::new();
        let mut warned: Vec<Policy> = Vec::new();
        for (policy, kind) in self.rules.known_keys() {
            let is_other =
                |(label, other): &&(Box<str>, KeyKind)| **label == *policy.label() && *other != kind;
            if warned.iter().any(|other| other.shares_counts_with(&policy)) {
                continue;
            }
            let (other, place) = match self.keys.iter().find(is_other) {
                Some((_, other)) => (other, ""),
                None => match others.clone().flat_map(|layer| layer.iter()).find(is_other) {
                    Some((_, other)) => (other, " of another layer on this store"),
                    None => continue,
                },
            };
            mixed.push(format!(
                "the policy {:?} has keys of two kinds, {kind} and {other}{place}, so equal identities share a count: give \
                 each kind a policy with its own name, or accept it with Policy::allow_mixed_keys",
                policy.name()
            ));
            warned.push(policy);
        }
        mixed
    }

    /// Warns of a rule that a handler cannot address by a unit.
    fn unit_warning(&self, rule: &Rule) -> Option<String> {
        let policy = || rule.policy.known().map(|policy| format!("the policy {:?}", policy.name()));
        let policy = || policy().unwrap_or_else(|| "a policy chosen per request".into());
        let has_units = || self.rules.rules.iter().any(|(_, other)| other.reserves() && other.unit.is_some());
        match rule.unit {
            Some(unit) if !rule.reserves() => Some(format!(
                "the unit {unit:?} of {} is not reserved, so no call of a handler reaches it: add Rule::reserve, or leave \
                 the unit out",
                policy()
            )),
            None if rule.reserves() && has_units() => Some(format!(
                "{} reserves without a unit beside rules with units, so no call of a handler can settle it: add Rule::unit",
                policy()
            )),
            _ => None,
        }
    }

    /// Warns of a request that waits in a queue while it holds permits.
    fn queue_warning(&self) -> Option<String> {
        let known =
            || self.rules.rules.iter().filter_map(|(scope, rule)| Some((rule.policy.known()?, scope)));
        known().filter(|(queue, _)| queue.queues()).find_map(|(queue, scope)| {
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
        if self.observer.is_first_look() {
            #[cfg(feature = "metrics")]
            self.limiter.count_from_zero(self.known_policies());
            for warning in self.warnings() {
                log!(warn, "{warning}");
            }
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("policies", &self.rules.rules.iter().map(|(_, rule)| &rule.policy).collect::<Vec<_>>())
            .field("enforcement", &self.enforcement.get())
            .field("headers", self.headers.headers())
            .finish_non_exhaustive()
    }
}
