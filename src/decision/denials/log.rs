//! [`DenialLog`]: which keys were denied lately, and which most often.

use std::{
    array,
    cmp::Reverse,
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{
    set::{AHEAD, Entry, Latest, Set},
    sketch::{Name, Sketch},
};
use crate::{
    base::{random::random, sync::lock, time::wall_micros},
    decision::{Decision, DecisionSource, Outcome},
    key::{HashSecret, Key},
    policy::Policy,
};

/// Which keys this process has denied lately, and which most often: what
/// [`Limiter::record_denials`](crate::Limiter::record_denials) returns. Cloning gives another handle on it.
///
/// # Bounded
///
/// The log has at most 1,024 recent entries and 512 counters, about 250 KB. A key has one recent entry for each
/// policy, so a client that is denied all the time does not displace the others. A further key takes the place
/// of the one that was denied the longest time ago, among the 8 entries to which its hash belongs.
///
/// The denials of displaced keys are counted. When 512 keys have a counter, the 256 with the most denials keep
/// theirs. So each key that had more than 1/256 of all denials is among the [most
/// denied](Self::most_denied), and the number of its denials is at most that much too high.
///
/// The log has identities: keep what it returns out of logs. `Debug` hides them.
#[derive(Clone)]
pub struct DenialLog(Arc<Inner>);

struct Inner {
    /// Hashes the keys. Without a secret, a client could choose keys that displace a certain other one.
    secret: HashSecret,
    /// Their locks are taken before the sketch's.
    sets: Box<[Set]>,
    /// The denials of keys that have left the sets.
    sketch: Mutex<Sketch>,
}

/// The number of sets, each with its own lock.
const SETS: usize = 1 << SET_BITS;
const SET_BITS: u32 = 7;

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
    /// When the first of these denials was made, by the clock of the store. For a custom store, by the clock of
    /// this machine.
    pub first: SystemTime,
    /// When the last one was made.
    pub last: SystemTime,
    /// Whether the last one was made because the policy [bans](Policy::penalty) the key.
    pub is_banned: bool,
    /// Whether the policy was a [shadow](Policy::shadow) for the key, so that it denied nothing.
    pub is_shadow: bool,
    /// Whether the last one let the request [go on](crate::Rule::or_degrade) without the charge.
    pub is_degraded: bool,
    /// Whether the last one was made only for the sake of [more critical](Policy::headroom) requests.
    pub is_shed: bool,
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
    /// The most denials that the key can have had.
    pub denials: u64,
    /// The number of these denials that may be none of this key: it had at least `denials - error`. At most
    /// 1/256 of all denials.
    pub error: u64,
}

impl DenialLog {
    pub(crate) fn new() -> Self {
        let secret = array::from_fn(|_| [random(), random()]);
        let sets = (0..SETS).map(|_| Set::default()).collect();
        Self(Arc::new(Inner { secret, sets, sketch: Mutex::default() }))
    }

    /// The keys that were denied lately, each with its latest denial: the latest first. Denials of a time that this
    /// machine's clock has not reached come last, because the clock of the store was ahead then.
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
            all.extend(set.entries(&set.lock()).map(|entry| RecentDenials::of(&entry)));
        }
        let now = UNIX_EPOCH + Duration::from_micros(wall_micros().saturating_add(AHEAD));
        all.sort_by_key(|entry: &RecentDenials| (entry.last > now, Reverse(entry.last)));
        all
    }

    /// The keys that were denied most often since the process records denials: first those with the most
    /// denials that are certainly theirs.
    #[must_use]
    pub fn most_denied(&self) -> Vec<FrequentDenials> {
        // All locks are held together, because a key that moves from a set to the sketch would count twice.
        let locked: Vec<_> = self.0.sets.iter().map(|set| (set, set.lock())).collect();
        let sketch = lock(&self.0.sketch);
        let mut all = Vec::new();
        for (set, names) in &locked {
            for Entry { hash, name, denials, .. } in set.entries(names) {
                let (before, error) = sketch.count_of(hash);
                all.push(FrequentDenials::of(name, denials + before, error));
            }
        }
        for (hash, name, denials, error) in sketch.counters() {
            if !self.0.set_of(hash).is_some_and(|set| set.has(hash)) {
                all.push(FrequentDenials::of(name, denials, error));
            }
        }
        all.sort_by_key(|entry| Reverse(entry.denials - entry.error));
        all
    }

    /// Records each denial of `decision`, even a shadow's.
    // Nearly all denials are of one policy, by a store that reports the time, and of a short key that has an entry.
    // This path calls no function, so the compiler spills no registers.
    #[inline]
    pub(crate) fn record(&self, decision: &Decision) {
        if decision.is_denied()
            && let Some(made_at) = decision.made_at()
            && let [outcome] = decision.all_outcomes()
            && let Some(hash) = outcome.key().short_secret_hash(&self.0.secret)
        {
            self.0.record(hash, outcome, decision, false, made_at);
        } else if decision.may_have_denials() {
            self.record_each(decision);
        }
    }

    #[inline(never)]
    fn record_each(&self, decision: &Decision) {
        let made_at = decision.made_at().unwrap_or_else(wall_micros);
        let enforced = decision.outcomes().iter().map(|outcome| (outcome, false));
        // A denied request did not go on without a charge.
        let is_denial = |outcome: &&Outcome| match decision.has_lent(outcome) {
            // It shows which client of the pool was denied.
            Some(has_lent) => !has_lent,
            None => outcome.is_shadow() || !decision.is_denied(),
        };
        let shadows = decision.shadows().iter().filter(is_denial);
        let shadows = shadows.map(|outcome| (outcome, outcome.is_shadow()));
        for (outcome, is_shadow) in enforced.chain(shadows).filter(|(outcome, _)| outcome.is_denied()) {
            let hash = outcome.key().secret_hash(&self.0.secret);
            self.0.record(hash, outcome, decision, is_shadow, made_at);
        }
    }
}

impl Inner {
    #[inline(always)]
    fn record(&self, of_key: u64, outcome: &Outcome, decision: &Decision, is_shadow: bool, made_at: u64) {
        // All versions of a policy have one tag. The product makes the high bits depend on the low ones, and 0 is the
        // hash of a free slot.
        let hash = (of_key ^ outcome.policy().tag()).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let Some(set) = self.set_of(hash) else { return };
        match set.count(hash) {
            Some(slot) => slot.set_latest(made_at, Latest::new(outcome, decision.source(), is_shadow)),
            None => {
                let latest = Latest::new(outcome, decision.source(), is_shadow);
                set.add(hash, outcome, made_at, latest, &self.sketch);
            }
        }
    }

    #[inline]
    fn set_of(&self, hash: u64) -> Option<&Set> {
        // There is a set for each value of the high bits.
        self.sets.get((hash >> (u64::BITS - SET_BITS)) as usize)
    }
}

impl RecentDenials {
    fn of(entry: &Entry<'_>) -> Self {
        let &Entry { name: Name { policy, key, first }, denials, last, latest, .. } = entry;
        let time = |micros| UNIX_EPOCH + Duration::from_micros(micros);
        Self {
            policy: policy.clone(),
            key: key.clone(),
            denials,
            // Threads may arrive here in another order than they decided.
            first: time(last.min(*first)),
            last: time(last),
            is_banned: latest.is_banned(),
            is_shed: latest.is_shed(),
            is_degraded: latest.is_degraded(),
            is_shadow: latest.is_shadow(),
            source: latest.source(),
            retry_after: latest.retry_after(),
        }
    }
}

impl FrequentDenials {
    fn of(name: &Name, denials: u64, error: u64) -> Self {
        Self { policy: name.policy.clone(), key: name.key.clone(), denials, error }
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
    use std::collections::{HashMap, HashSet};

    use super::*;
    use crate::{
        base::Quota,
        decision::{Charge, Outcome, Verdict},
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
        for (seed, light) in [(1, 300), (2, 5_000), (3, u64::MAX)] {
            let (log, policies) = (DenialLog::new(), [policy("api"), policy("login")]);
            let mut exact: HashMap<(String, Key), u64> = HashMap::new();
            let mut state: u64 = seed;
            let denials = 60_000;
            for _ in 0..denials {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let number = state >> 33;
                // Half of the denials are of 100 clients, the first of them the most often.
                let key = match number % 2 {
                    0 => format!("heavy-{}", (number / 2 % 100).min(number / 256 % 100)),
                    _ => format!("light-{}", number / 2 % light),
                };
                let policy = &policies[(number / 8 % 2) as usize];
                log.record(&denial(policy, &key));
                *exact.entry((policy.name().to_owned(), Key::new(&*key))).or_default() += 1;
            }
            let (recent, top) = (log.recent(), log.most_denied());
            assert!(recent.len() <= 1_024 && top.len() < 1_024 + 512, "{} {}", recent.len(), top.len());
            let mut shown = HashSet::new();
            for FrequentDenials { policy, key, denials: most, error } in &top {
                let name = (policy.name().to_owned(), key.clone());
                let denials_of_it = exact[&name];
                assert!(most - error <= denials_of_it && denials_of_it <= *most, "{name:?}: {most} {error}");
                assert!(*error <= denials / 256, "{name:?}: {error}");
                assert!(shown.insert(name), "shown twice");
            }
            for (name, of_it) in exact {
                assert!(of_it * 256 <= denials || shown.contains(&name), "seed {seed}: {}", name.1.as_str());
            }
            assert!(recent.is_sorted_by(|one, other| one.last >= other.last));
        }
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
