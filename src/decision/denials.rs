//! [`DenialLog`]: which keys were denied lately, and which most often.

use std::{
    fmt, mem,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use super::{Decision, DecisionSource, Outcome};
use crate::{
    base::{random::random, sync::lock},
    key::Key,
    policy::Policy,
};

/// The number of sets, each with its own lock.
const SETS: usize = 128;
/// The recent entries of a set.
const RECENT: usize = 8;
/// The counters of a set.
const COUNTERS: usize = 2;

/// Which keys this process has denied lately, and which most often: what
/// [`Limiter::record_denials`](crate::Limiter::record_denials) returns. Cloning gives another handle on it.
///
/// It has at most 1,024 recent entries and 256 counters, about 250 KB. Further keys take the places of others:
/// of the recent entries, the one that was denied the longest time ago, and of the counters, the one with the
/// fewest denials, among those to which the hash of the key belongs. A key has one recent entry for each
/// policy, so a client that is denied all the time does not displace the others.
///
/// It has identities: keep what it returns out of logs. `Debug` hides them.
#[derive(Clone)]
pub struct DenialLog(Arc<Sets>);

struct Sets {
    /// Random, so that no client can choose keys that displace a certain other one.
    seed: u64,
    sets: Box<[Mutex<Set>]>,
}

/// The entries of the keys whose hashes belong together.
#[derive(Default)]
struct Set {
    recent: Vec<Recent>,
    /// A sketch of the space-saving kind. It counts what has left `recent`.
    counters: Vec<Counter>,
}

struct Recent {
    hash: u64,
    policy: Policy,
    key: Key,
    denials: u64,
    first: SystemTime,
    last: SystemTime,
    is_banned: bool,
    is_shadow: bool,
    source: DecisionSource,
    retry_after: Option<Duration>,
}

struct Counter {
    hash: u64,
    policy: Policy,
    key: Key,
    denials: u64,
    /// The denials that may be another key's, whose place this one has taken.
    error: u64,
}

/// A key that was denied under a policy, and how the latest denial was.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecentDenials {
    /// The policy.
    pub policy: Policy,
    /// The client that was denied. Its text is the identity as it is stored.
    pub key: Key,
    /// The number of denials from the first one to the last one.
    pub denials: u64,
    /// When the first of these denials was made, by the clock of this machine.
    pub first: SystemTime,
    /// When the last one was made.
    pub last: SystemTime,
    /// Whether the last one was made because the policy [bans](Policy::penalty) the key.
    pub is_banned: bool,
    /// Whether the policy was a [shadow](Policy::shadow) for the key, so that it denied nothing.
    pub is_shadow: bool,
    /// What made the last one.
    pub source: DecisionSource,
    /// The wait after which the same request would have been admitted, from the last one on. `None` if waiting
    /// does not help.
    pub retry_after: Option<Duration>,
}

/// A key that was often denied under a policy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FrequentDenials {
    /// The policy.
    pub policy: Policy,
    /// The client that was denied. Its text is the identity as it is stored.
    pub key: Key,
    /// The most denials that were made.
    pub denials: u64,
    /// The number of these denials that other keys may have had: at least `denials - error` are the key's.
    pub error: u64,
}

impl DenialLog {
    pub(crate) fn new() -> Self {
        let sets = (0..SETS).map(|_| Mutex::default()).collect();
        Self(Arc::new(Sets { seed: random(), sets }))
    }

    /// The keys that were denied lately, each with its latest denial: the latest first.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let denials = limiter.record_denials();
    ///
    /// let (api, alice) = (Policy::new("api", Quota::per_hour(2)), Key::new("alice"));
    /// for _ in 0..5 {
    ///     limiter.check(&api, &alice, 1).await?;
    /// }
    /// let recent = denials.recent();
    /// assert_eq!((recent.len(), recent[0].key.as_str(), recent[0].denials), (1, "alice", 3));
    /// assert_eq!(denials.most_denied()[0].denials, 3);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn recent(&self) -> Vec<RecentDenials> {
        let mut all = Vec::new();
        for set in &self.0.sets {
            all.extend(lock(set).recent.iter().map(Recent::shown));
        }
        all.sort_by_key(|entry| std::cmp::Reverse(entry.last));
        all
    }

    /// The keys that were denied most often since the process records denials: first those with the most
    /// denials that are certainly theirs.
    #[must_use]
    pub fn most_denied(&self) -> Vec<FrequentDenials> {
        let mut all = Vec::new();
        for set in &self.0.sets {
            lock(set).totals(&mut all);
        }
        all.sort_by_key(|entry| std::cmp::Reverse(entry.denials - entry.error));
        all
    }

    /// Records each denial of `decision`, even a shadow's.
    pub(crate) fn record(&self, decision: &Decision) {
        let source = decision.source();
        for outcome in decision.all_outcomes().iter().filter(|outcome| outcome.is_denied()) {
            let (policy, key) = (outcome.policy(), outcome.key());
            let hash = key.quick_hash(policy.tag() ^ self.0.seed);
            let set = &self.0.sets[hash as usize % SETS];
            let now = SystemTime::now();
            lock(set).record(hash, outcome, source, now);
        }
    }
}

impl Set {
    #[inline]
    fn record(&mut self, hash: u64, outcome: &Outcome, source: DecisionSource, now: SystemTime) {
        // The hash differs if the policy does.
        let is_same = |entry: &&mut Recent| entry.hash == hash && entry.key == *outcome.key();
        if let Some(entry) = self.recent.iter_mut().find(is_same) {
            entry.denials += 1;
            entry.last = now;
            (entry.is_banned, entry.is_shadow) = (outcome.is_banned(), outcome.is_shadow());
            (entry.source, entry.retry_after) = (source, outcome.retry_after());
            return;
        }
        self.add(Recent::new(hash, outcome, source, now));
    }

    // Apart, because most denials are of a key that is here.
    #[inline(never)]
    fn add(&mut self, new: Recent) {
        if self.recent.len() < RECENT {
            return self.recent.push(new);
        }
        if let Some(oldest) = self.recent.iter_mut().min_by_key(|entry| entry.last) {
            let displaced = mem::replace(oldest, new);
            self.count(displaced);
        }
    }

    /// Adds the denials of an entry that has left `recent` to the counters.
    fn count(&mut self, Recent { hash, policy, key, denials, .. }: Recent) {
        if let Some(counter) =
            self.counters.iter_mut().find(|counter| counter.hash == hash && counter.key == key)
        {
            counter.denials += denials;
            return;
        }
        if self.counters.len() < COUNTERS {
            return self.counters.push(Counter { hash, policy, key, denials, error: 0 });
        }
        if let Some(least) = self.counters.iter_mut().min_by_key(|counter| counter.denials) {
            let error = least.denials;
            *least = Counter { hash, policy, key, denials: error + denials, error };
        }
    }

    /// The denials of each key, in `recent` and before.
    fn totals(&self, all: &mut Vec<FrequentDenials>) {
        // A key without a counter may have had as many as the least counter.
        let is_full = self.counters.len() == COUNTERS;
        let least =
            self.counters.iter().map(|counter| counter.denials).min().filter(|_| is_full).unwrap_or(0);
        for Recent { hash, policy, key, denials, .. } in &self.recent {
            let before = self.counters.iter().find(|counter| counter.hash == *hash && counter.key == *key);
            let (earlier, error) = before.map_or((least, least), |counter| (counter.denials, counter.error));
            let (policy, key) = (policy.clone(), key.clone());
            all.push(FrequentDenials { policy, key, denials: denials + earlier, error });
        }
        for Counter { hash, policy, key, denials, error } in &self.counters {
            if !self.recent.iter().any(|entry| entry.hash == *hash && entry.key == *key) {
                let (policy, key) = (policy.clone(), key.clone());
                all.push(FrequentDenials { policy, key, denials: *denials, error: *error });
            }
        }
    }
}

impl Recent {
    fn new(hash: u64, outcome: &Outcome, source: DecisionSource, now: SystemTime) -> Self {
        Self {
            hash,
            policy: outcome.policy().clone(),
            key: outcome.key().clone(),
            denials: 1,
            first: now,
            last: now,
            is_banned: outcome.is_banned(),
            is_shadow: outcome.is_shadow(),
            source,
            retry_after: outcome.retry_after(),
        }
    }

    fn shown(&self) -> RecentDenials {
        RecentDenials {
            policy: self.policy.clone(),
            key: self.key.clone(),
            denials: self.denials,
            first: self.first,
            last: self.last,
            is_banned: self.is_banned,
            is_shadow: self.is_shadow,
            source: self.source,
            retry_after: self.retry_after,
        }
    }
}

/// Handles are equal if they are on one log.
impl PartialEq for DenialLog {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for DenialLog {}

impl fmt::Debug for DenialLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenialLog").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::{
        base::Quota,
        decision::{Charge, Verdict},
    };

    fn denial(policy: &Policy, key: &str) -> Decision {
        let verdict = Verdict::Deny { retry_after: Some(Duration::from_secs(9)) };
        Decision::new([Outcome::new(&Charge::new(policy, &Key::new(key), 1), verdict, 0, Duration::ZERO)])
    }

    fn policy(name: &str) -> Policy {
        Policy::new(name, Quota::per_hour(1))
    }

    #[test]
    fn a_flood_of_one_client_displaces_no_other_one() {
        let (log, api) = (DenialLog::new(), policy("api"));
        for key in 0..100 {
            log.record(&denial(&api, &format!("user-{key}")));
        }
        let before = log.recent().len();
        for _ in 0..100_000 {
            log.record(&denial(&api, "flood"));
        }
        // In a set of 8 entries, the flood takes at most the place of one.
        assert!(log.recent().len() >= before, "{}", log.recent().len());
        let flood = log.recent().into_iter().find(|entry| entry.key == Key::new("flood")).unwrap();
        assert_eq!((flood.denials, flood.retry_after), (100_000, Some(Duration::from_secs(9))));
        assert!(flood.first <= flood.last);
    }

    #[test]
    fn the_memory_is_bounded_and_each_bound_on_a_count_holds() {
        let (log, policies) = (DenialLog::new(), [policy("api"), policy("login")]);
        let mut exact: HashMap<(String, Key), u64> = HashMap::new();
        for i in 0..200_000_u64 {
            // Each third denial is of one of ten clients, the others are of a flood of identities.
            let key = if i % 3 == 0 { format!("heavy-{}", i % 10) } else { format!("light-{i}") };
            let policy = &policies[(i % 2) as usize];
            log.record(&denial(policy, &key));
            *exact.entry((policy.name().to_owned(), Key::new(&*key))).or_default() += 1;
        }
        let (recent, top) = (log.recent(), log.most_denied());
        assert_eq!(recent.len(), SETS * RECENT);
        assert!(top.len() <= SETS * (RECENT + COUNTERS));
        for entry in &top {
            let denials = exact[&(entry.policy.name().to_owned(), entry.key.clone())];
            assert!(
                entry.denials - entry.error <= denials && denials <= entry.denials,
                "{entry:?}: {denials}"
            );
        }
        for entry in &top[..10] {
            assert!(entry.key.as_str().starts_with("heavy-"), "{}", entry.key.as_str());
        }
        assert!(recent.is_sorted_by(|one, other| one.last >= other.last));
    }

    #[test]
    fn a_key_has_an_entry_for_each_policy_and_one_for_all_versions_of_a_policy() {
        let log = DenialLog::new();
        let api = policy("api");
        let changed = api.with_quota(Quota::per_hour(2)).unwrap();
        for policy in [&api, &changed, &policy("login")] {
            log.record(&denial(policy, "alice"));
        }
        let mut entries: Vec<_> =
            log.recent().iter().map(|entry| (entry.policy.name().to_owned(), entry.denials)).collect();
        entries.sort();
        assert_eq!(entries, [("api".to_owned(), 2), ("login".to_owned(), 1)]);
    }
}
