//! [`Tally`]: what became of the requests.

use std::collections::{HashMap, hash_map::Entry};

use tower_ratelimit::{
    Decision, Key,
    decision::{Outcome, Verdict},
};

use crate::{
    request::{Reason, Request, RuleCharge, Skipped},
    rules::Rule,
    timeline::Timeline,
};

/// The number of malformed lines that are shown.
const SHOWN: usize = 5;
/// The counts of a timeline in front of those for each policy.
pub(crate) const REQUESTS: usize = 0;
pub(crate) const DENIED: usize = 1;
pub(crate) const FIRST_POLICY: usize = 2;

/// What became of the requests.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) denied: u64,
    pub(crate) delayed: u64,
    /// The time of the first and of the last request.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The number of requests, denied ones, and denials for each policy.
    pub(crate) timeline: Timeline,
    pub(crate) policies: Vec<PolicyTally>,
    pub(crate) malformed: u64,
    /// The first malformed lines: number, reason, beginning.
    pub(crate) shown: Vec<(u64, String, String)>,
}

/// What became of the requests under one policy.
#[derive(Debug, Default)]
pub(crate) struct PolicyTally {
    /// Requests that the policy alone would deny.
    pub(crate) denied: u64,
    /// Requests that no other policy denies.
    pub(crate) denied_alone: u64,
    /// Requests that it denies as a shadow.
    pub(crate) shadow_denied: u64,
    /// Requests of banned clients.
    pub(crate) banned: u64,
    /// Requests without a key, which nothing is charged for.
    pub(crate) unidentified: u64,
    pub(crate) clients: HashMap<Key, Client>,
    /// Requests of further clients, whose counts are not kept.
    pub(crate) untracked: u64,
}

/// What became of a client's requests under one policy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Client {
    pub(crate) requests: u64,
    /// Denied by the policy, enforced or not.
    pub(crate) denied: u64,
    /// The largest part of the capacity in use, in percent.
    pub(crate) peak: u8,
}

impl Tally {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        Self {
            requests: 0,
            denied: 0,
            delayed: 0,
            first: u64::MAX,
            last: 0,
            timeline: Timeline::new(FIRST_POLICY + rules.len()),
            policies: rules.iter().map(|_| PolicyTally::default()).collect(),
            malformed: 0,
            shown: Vec::new(),
        }
    }

    /// Counts a request that was charged. At most `most` clients are kept for each policy.
    pub(crate) fn count(&mut self, rules: &[Rule], request: &Request, decision: &Decision, most: usize) {
        let is_denied = decision.is_denied();
        self.requests += 1;
        self.denied += u64::from(is_denied);
        self.delayed += u64::from(matches!(decision.verdict(), Verdict::Delay(_)));
        self.first = self.first.min(request.time);
        self.last = self.last.max(request.time);
        let span = self.timeline.at(request.time);
        span[REQUESTS] += 1;
        span[DENIED] += u64::from(is_denied);
        let denials = decision.outcomes().iter().filter(|one| one.verdict().is_denied()).count();
        for outcome in decision.outcomes().iter().chain(decision.shadows()) {
            let is_its = |charge: &&RuleCharge| rules[charge.rule].policy.name() == outcome.policy().name();
            // One policy may be charged for several keys, whose stored forms the outcomes have.
            let is_same = |charge: &&RuleCharge| charge.key == *outcome.charge().key();
            let Some(charge) = request.charges.iter().filter(is_its).find(is_same) else { continue };
            let policy = &mut self.policies[charge.rule];
            let denies = outcome.verdict().is_denied();
            if denies {
                span[FIRST_POLICY + charge.rule] += 1;
                policy.denied += u64::from(!outcome.is_shadow());
                policy.shadow_denied += u64::from(outcome.is_shadow());
                policy.denied_alone += u64::from(!outcome.is_shadow() && denials == 1);
                policy.banned += u64::from(outcome.banned_for().is_some());
            }
            policy.count(&charge.key, outcome, denies, most);
        }
    }

    /// Counts a line that charges nothing.
    pub(crate) fn skip(&mut self, skipped: Skipped) {
        match skipped.reason {
            Reason::Unidentified(rule) => self.policies[rule].unidentified += 1,
            Reason::Malformed(problem, excerpt) => {
                self.malformed += 1;
                if self.shown.len() < SHOWN {
                    self.shown.push((skipped.line, problem, excerpt));
                }
            }
        }
    }
}

impl PolicyTally {
    fn count(&mut self, key: &Key, outcome: &Outcome, denies: bool, most: usize) {
        let is_full = self.clients.len() >= most;
        let client = match self.clients.entry(key.clone()) {
            Entry::Occupied(client) => client.into_mut(),
            Entry::Vacant(_) if is_full => {
                self.untracked += 1;
                return;
            }
            Entry::Vacant(place) => place.insert(Client::default()),
        };
        client.requests += 1;
        client.denied += u64::from(denies);
        let capacity = outcome.policy().capacity().max(1);
        let used = u128::from(capacity.saturating_sub(outcome.remaining())) * 100 / u128::from(capacity);
        client.peak = client.peak.max(if denies { 100 } else { used.min(100) as u8 });
    }

    /// The clients that are denied most, at most `most` of them.
    pub(crate) fn worst(&self, most: usize) -> Vec<(&Key, &Client)> {
        let mut worst: Vec<_> = self.clients.iter().filter(|(_, client)| client.denied > 0).collect();
        let order =
            |(key, client): &(&Key, &Client)| (std::cmp::Reverse(client.denied), key.as_str().to_owned());
        worst.sort_by_cached_key(order);
        worst.truncate(most);
        worst
    }

    /// The number of clients that are denied at least once.
    pub(crate) fn denied_clients(&self) -> usize {
        self.clients.values().filter(|client| client.denied > 0).count()
    }
}
