//! [`Set`]: the keys with similar hashes that were denied lately.

use std::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::sketch::{Name, Sketch};
use crate::{
    base::sync::lock,
    decision::{DecisionSource, Outcome},
};

/// The entries of a set.
const ENTRIES: usize = 8;

/// The keys with similar hashes that were denied lately.
///
/// A denial of a key that has an entry changes only the entry's slot, and takes no lock: a lock and the calls
/// that it may make take as many instructions as everything else. Other changes are made under the lock.
#[derive(Default)]
pub(super) struct Set {
    slots: [Slot; ENTRIES],
    names: Mutex<Names>,
}

pub(super) type Names = [Option<Name>; ENTRIES];

/// The numbers of an entry.
#[derive(Default)]
pub(super) struct Slot {
    /// The hash of the policy and the key; 0 while the slot has neither.
    hash: AtomicU64,
    /// The number of denials in the low 48 bits; above them, how often the slot had another key.
    count: AtomicU64,
    /// In microseconds since 1970.
    last: AtomicU64,
    latest: AtomicU64,
}

/// By how many microseconds a denial may be later than one that is recorded after it: threads and instances take time.
/// If it is even later, the clock was ahead then.
pub(super) const AHEAD: u64 = 60_000_000;

/// One denial of a slot in its `count`.
const COUNT_BITS: u32 = 48;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

/// An entry as it is at the moment.
pub(super) struct Entry<'a> {
    pub(super) hash: u64,
    pub(super) name: &'a Name,
    pub(super) denials: u64,
    pub(super) last: u64,
    pub(super) latest: Latest,
}

impl Set {
    /// Counts a denial, if its key has an entry.
    #[inline]
    pub(super) fn count(&self, hash: u64) -> Option<&Slot> {
        let slot = self.slots.iter().find(|slot| slot.hash.load(Ordering::Relaxed) == hash)?;
        loop {
            let count = slot.count.load(Ordering::Acquire);
            // The key may have lost the slot since it was found. If it loses the slot from here on, the exchange
            // fails.
            if slot.hash.load(Ordering::Acquire) != hash {
                return None;
            }
            if slot
                .count
                .compare_exchange_weak(count, count + 1, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                return Some(slot);
            }
        }
    }

    /// Counts a denial, in a new entry if its key has none. The entry whose place it takes goes to `sketch`.
    #[inline(never)]
    pub(super) fn add(
        &self,
        hash: u64,
        outcome: &Outcome,
        made_at: u64,
        latest: Latest,
        sketch: &Mutex<Sketch>,
    ) {
        let names = &mut *self.lock();
        // Another thread may have added the entry.
        if let Some(slot) = self.count(hash) {
            return slot.set_latest(made_at, latest);
        }
        // If no slot is free, the oldest denial goes. Those from before the clock stepped back are older than
        // all others, or each new entry would be the next one to go. Free slots have the time 0.
        let began = made_at.saturating_add(AHEAD);
        let age = |(slot, _): &(&Slot, &mut _)| match slot.last.load(Ordering::Relaxed) {
            0 => 0,
            last => last.wrapping_sub(began),
        };
        let Some((slot, name)) = self.slots.iter().zip(names.iter_mut()).min_by_key(age) else { return };
        let old_hash = slot.hash.swap(0, Ordering::Relaxed);
        let count = slot.count.load(Ordering::Relaxed);
        // A thread that reads the new count also reads the changed hash.
        let next = ((count >> COUNT_BITS).wrapping_add(1) << COUNT_BITS) + 1;
        let count = slot.count.swap(next, Ordering::Release) & COUNT;
        slot.set_latest(made_at, latest);
        let new = Name { policy: outcome.policy().clone(), key: outcome.key().clone(), first: made_at };
        if let Some(old) = name.replace(new) {
            lock(sketch).add(old_hash, old, count);
        }
        slot.hash.store(hash, Ordering::Release);
    }

    /// Whether a key has an entry.
    pub(super) fn has(&self, hash: u64) -> bool {
        self.slots.iter().any(|slot| slot.hash.load(Ordering::Relaxed) == hash)
    }

    /// While it is locked, no key gets or loses an entry.
    pub(super) fn lock(&self) -> MutexGuard<'_, Names> {
        lock(&self.names)
    }

    /// The entries, whose names are `names`.
    pub(super) fn entries<'a>(&'a self, names: &'a Names) -> impl Iterator<Item = Entry<'a>> {
        let pairs = self.slots.iter().zip(names);
        pairs.filter_map(|(slot, name)| Some(slot.entry(name.as_ref()?)))
    }
}

impl Slot {
    /// Stores the latest denial of the key of the slot. If another key has taken the slot since the denial was counted,
    /// that key shows it until its own next denial.
    #[inline]
    pub(super) fn set_latest(&self, made_at: u64, latest: Latest) {
        self.last.store(made_at, Ordering::Relaxed);
        self.latest.store(latest.0, Ordering::Relaxed);
    }

    fn entry<'a>(&self, name: &'a Name) -> Entry<'a> {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Entry {
            hash: load(&self.hash),
            name,
            denials: load(&self.count) & COUNT,
            last: load(&self.last),
            latest: Latest(load(&self.latest)),
        }
    }
}

/// How the latest denial was made, in one number: its source, marks, and from bit 8 on the wait in
/// microseconds.
#[derive(Clone, Copy)]
pub(super) struct Latest(u64);

const SOURCES: [DecisionSource; 5] = [
    DecisionSource::Store,
    DecisionSource::DenyCache,
    DecisionSource::Lease,
    DecisionSource::Local,
    DecisionSource::FailureMode,
];
const SOURCE: u64 = 0x07;
const DEGRADED: u64 = 0x08;
const BANNED: u64 = 0x10;
const SHADOW: u64 = 0x20;
const HAS_WAIT: u64 = 0x40;
const SHED: u64 = 0x80;
const WAIT_AT: u32 = 8;

impl Latest {
    #[inline(always)]
    pub(super) fn new(outcome: &Outcome, source: DecisionSource, is_shadow: bool) -> Self {
        let mark = |mark: u64, is_set: bool| if is_set { mark } else { 0 };
        let mut marks = source as u64 | mark(BANNED, outcome.is_banned()) | mark(SHADOW, is_shadow);
        if outcome.charge().has_terms() {
            marks |= mark(SHED, outcome.is_shed()) | mark(DEGRADED, outcome.charge().degrades());
        }
        // A wait is cut to 56 bits: above 2,283 years, it starts again at 0.
        let micros =
            |wait: Duration| wait.as_secs().wrapping_mul(1_000_000) + u64::from(wait.subsec_micros());
        let wait = outcome.retry_after().map_or(0, |wait| micros(wait) << WAIT_AT | HAS_WAIT);
        Self(marks | wait)
    }

    pub(super) fn source(self) -> DecisionSource {
        SOURCES.get((self.0 & SOURCE) as usize).copied().unwrap_or(DecisionSource::Store)
    }

    pub(super) const fn is_banned(self) -> bool {
        self.0 & BANNED != 0
    }

    pub(super) const fn is_shadow(self) -> bool {
        self.0 & SHADOW != 0
    }

    pub(super) const fn is_degraded(self) -> bool {
        self.0 & DEGRADED != 0
    }

    pub(super) const fn is_shed(self) -> bool {
        self.0 & SHED != 0
    }

    pub(super) fn retry_after(self) -> Option<Duration> {
        (self.0 & HAS_WAIT != 0).then(|| Duration::from_micros(self.0 >> WAIT_AT))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::{
        base::Quota,
        decision::{Charge, Verdict},
        key::Key,
        policy::Policy,
    };

    #[test]
    fn no_denial_is_lost_or_counted_for_another_key_while_keys_displace_each_other() {
        const KEYS: u64 = 12;
        let policy = Policy::new("api", Quota::per_hour(1));
        let (set, sketch) = (Set::default(), Mutex::new(Sketch::default()));
        let outcome = |number: u64| {
            let charge = Charge::new(&policy, &Key::new(number), 1);
            Outcome::new(&charge, Verdict::deny(None), 0, Duration::ZERO)
        };
        let outcomes: Vec<Outcome> = (0..KEYS).map(outcome).collect();
        // A key with the number n is denied n + 1 times as often as the first one.
        let round: Vec<u64> = (0..KEYS).flat_map(|number| (0..=number).map(move |_| number)).collect();
        thread::scope(|scope| {
            for start in 0..4 {
                let (set, sketch, outcomes, round) = (&set, &sketch, &outcomes, &round);
                scope.spawn(move || {
                    // Each thread has another order.
                    for i in 0..200 * round.len() {
                        let number = round[(i * 31 + start * 17) % round.len()];
                        let (hash, outcome) = (number + 1, &outcomes[number as usize]);
                        let latest = Latest::new(outcome, DecisionSource::Store, false);
                        match set.count(hash) {
                            Some(slot) => slot.set_latest(i as u64 + 1, latest),
                            None => set.add(hash, outcome, i as u64 + 1, latest, sketch),
                        }
                    }
                });
            }
        });
        let (names, sketch) = (set.lock(), lock(&sketch));
        let of_set = |hash| set.entries(&names).find(|entry| entry.hash == hash);
        for number in 0..KEYS {
            let entry = of_set(number + 1);
            assert!(entry.as_ref().is_none_or(|entry| entry.name.key == Key::new(number)), "{number}");
            let (before, error) = sketch.count_of(number + 1);
            let denials = entry.map_or(0, |entry| entry.denials) + before;
            assert_eq!((denials, error), (4 * 200 * (number + 1), 0), "{number}");
        }
        assert_eq!(set.entries(&names).count(), ENTRIES);
    }

    #[test]
    fn one_number_has_all_about_a_denial() {
        let policy = Policy::new("api", Quota::per_hour(1));
        let charge = Charge::new(&policy, &Key::new("alice"), 1);
        for wait in
            [None, Some(Duration::ZERO), Some(Duration::from_micros(1)), Some(Duration::from_secs(400 << 23))]
        {
            for source in SOURCES {
                let outcome = Outcome::new(&charge, Verdict::deny(wait), 0, Duration::ZERO);
                let latest = Latest::new(&outcome, source, true);
                assert_eq!((latest.retry_after(), latest.source()), (wait, source));
                assert!(latest.is_shadow() && !latest.is_banned());
                let latest = Latest::new(&outcome.banning(Duration::from_secs(1)), source, false);
                assert!(!latest.is_shadow() && latest.is_banned() && latest.source() == source);
            }
        }
    }
}
