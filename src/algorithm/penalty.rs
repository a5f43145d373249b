//! Counts the denials of a key under another policy, and bans the key after too many of them: the twin of
//! `lua/algorithm/penalty.lua`, which says how.
//!
//! No policy of a user has this algorithm. A policy with a [penalty](crate::policy::Penalty) has a second
//! policy that has it, under the same name.

use super::{
    Algorithm,
    counter::{Change, Counter, Plan, exactly, usual},
    state::{Record, State},
    twin::{Admission, Gauge},
};
use crate::base::{Error, Quota};

/// More would not change the length of a ban.
const MOST_BANS: u64 = 60;

/// When a key is banned, and for how long. All times are microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strikes {
    /// The number of denials that ban a key; 0 for none.
    pub(crate) after: u64,
    /// The length of the window in which denials count.
    pub(crate) within: u64,
    /// The length of the first ban.
    pub(crate) first: u64,
    pub(crate) longest: u64,
    /// The time after the end of a ban for which it is remembered.
    pub(crate) remembered: u64,
}

impl Strikes {
    /// Bans of operators only: no denial counts.
    pub(crate) const MANUAL: Self = Self { after: 0, within: 0, first: 0, longest: 0, remembered: 0 };
    /// The name of the algorithm.
    pub(crate) const NAME: &'static str = "penalty";

    /// The reverse of [`Algorithm::arguments`].
    pub(crate) fn of(arguments: &[u64]) -> Self {
        let [after, within, first, longest, remembered] = exactly(arguments);
        Self { after, within, first, longest, remembered }
    }

    /// The microseconds until the ban of the key ends; 0 if it is not banned.
    pub(crate) fn rest(&self, state: Option<&State>, now: u64) -> u64 {
        self.open(state, now).0.ends.saturating_sub(now)
    }

    /// Whether a denial must write the state.
    pub(crate) fn is_stale(&self, state: Option<&State>, now: u64) -> bool {
        let (record, stale) = self.open(state, now);
        stale && self.lifetime(&record, now) > 0
    }

    /// Counts a denial of a key that is not banned. Returns for how many more microseconds the state matters,
    /// if that changed.
    pub(crate) fn strike(&self, state: &mut Option<State>, now: u64) -> Option<u64> {
        if self.after == 0 {
            return None;
        }
        let (mut record, _) = self.open(state.as_ref(), now);
        if record.denials == 0 {
            record.started = now;
        }
        record.denials += 1;
        if record.denials >= self.after {
            let mut length = self.first;
            for _ in 0..record.bans {
                if length < self.longest {
                    length *= 2;
                }
            }
            let bans = (record.bans + 1).min(MOST_BANS);
            record = Record { started: now, denials: 0, bans, ends: now + length.min(self.longest) };
        }
        Some(self.store(state, record, now))
    }

    /// Bans the key for `length` microseconds from now. 0 ends its ban and forgets all. Returns for how many
    /// more microseconds the state matters.
    pub(crate) fn ban(&self, state: &mut Option<State>, now: u64, length: u64) -> u64 {
        if length == 0 {
            *state = None;
            return 0;
        }
        let bans = self.open(state.as_ref(), now).0.bans;
        self.store(state, Record { started: now, denials: 0, bans, ends: now + length }, now)
    }

    /// Writes a state as of now.
    pub(crate) fn repair(&self, state: &mut Option<State>, now: u64) -> u64 {
        let (record, _) = self.open(state.as_ref(), now);
        self.store(state, record, now)
    }

    fn store(&self, state: &mut Option<State>, record: Record, now: u64) -> u64 {
        let lifetime = self.lifetime(&record, now);
        *state = (lifetime > 0).then(|| State::Record(Box::new(record)));
        lifetime
    }

    /// The state as of now, and whether a denial must write it.
    fn open(&self, state: Option<&State>, now: u64) -> (Record, bool) {
        let Some(State::Record(stored)) = state else {
            return (Record { started: now, denials: 0, bans: 0, ends: 0 }, false);
        };
        let Record { mut started, mut denials, mut bans, mut ends } = **stored;
        let stale = started > now;
        if stale {
            ends = ends.saturating_sub(started - now);
            started = now;
        }
        if started + self.within <= now {
            denials = 0;
        }
        if ends + self.remembered <= now {
            (bans, ends) = (0, 0);
        }
        (Record { started, denials, bans, ends }, stale)
    }

    /// For how many more microseconds the state matters.
    fn lifetime(&self, record: &Record, now: u64) -> u64 {
        let of_window = if record.denials > 0 { record.started + self.within - now } else { 0 };
        let of_bans = if record.ends > 0 { record.ends + self.remembered - now } else { 0 };
        of_window.max(of_bans)
    }
}

impl Algorithm for Strikes {
    built_in!(Self::NAME, "penalty.lua");

    fn arguments(&self, _: &Quota) -> Result<Vec<u64>, Error> {
        Ok(vec![self.after, self.within, self.first, self.longest, self.remembered])
    }

    /// A charge against it costs 1, and only checks whether the key is banned.
    fn capacity(&self, _: &Quota) -> u64 {
        1
    }
}

impl Counter for Strikes {
    /// The quota is its policy's, and not counted.
    fn most_units(&self) -> u64 {
        u64::MAX
    }

    fn counts_calendar_periods(&self) -> bool {
        true
    }

    fn usual(&self, arguments: &[u64]) -> Option<Vec<u64>> {
        let [after, within, first, longest, remembered] = exactly(arguments);
        Some(vec![usual::PENALTY, after, within, 0, first, longest, remembered])
    }

    fn plan(&self, arguments: &[u64], state: Option<&State>, now: u64, cost: u64) -> Plan {
        let strikes = Self::of(arguments);
        let (record, stale) = strikes.open(state, now);
        let (rest, reset) = (record.ends.saturating_sub(now), strikes.lifetime(&record, now));
        let (admission, remaining) = match rest {
            1.. if cost > 0 => (Admission::Retry(rest), 0),
            _ => (Admission::After(0), strikes.after.saturating_sub(record.denials)),
        };
        let gauge = Gauge { remaining, reset };
        Plan { admission, before: gauge, after: gauge, stale: stale && reset > 0, mark: 0 }
    }

    /// Charges change nothing: a denial is counted by [`strike`](Strikes::strike).
    fn apply(&self, arguments: &[u64], state: &mut Option<State>, now: u64, _: Change) -> Option<u64> {
        Some(Self::of(arguments).repair(state, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const NOW: u64 = 1_790_000_000 * SECOND;
    const STRIKES: Strikes = Strikes {
        after: 3,
        within: 10 * SECOND,
        first: 60 * SECOND,
        longest: 200 * SECOND,
        remembered: 200 * SECOND,
    };

    #[test]
    fn each_ban_is_twice_as_long_until_they_are_forgotten() {
        let (mut state, mut now, mut lengths) = (None, NOW, Vec::new());
        for pause in [0, 199, 199, 199, 200] {
            now += pause * SECOND;
            for _ in 0..3 {
                assert_eq!(STRIKES.rest(state.as_ref(), now), 0);
                STRIKES.strike(&mut state, now);
            }
            let rest = STRIKES.rest(state.as_ref(), now);
            lengths.push(rest / SECOND);
            now += rest;
        }
        assert_eq!(lengths, [60, 120, 200, 200, 60]);
    }

    #[test]
    fn a_window_starts_with_a_denial_and_forgets_those_before() {
        let mut state = None;
        for (second, is_banned) in [(0, false), (9, false), (10, false), (19, false), (19, true)] {
            let now = NOW + second * SECOND;
            STRIKES.strike(&mut state, now);
            assert_eq!(STRIKES.rest(state.as_ref(), now) > 0, is_banned, "{second}");
        }
    }

    #[test]
    fn a_clock_that_steps_back_does_not_make_a_ban_longer() {
        let mut state = None;
        STRIKES.ban(&mut state, NOW, 60 * SECOND);
        let earlier = NOW - 1_000 * SECOND;
        assert_eq!(STRIKES.rest(state.as_ref(), earlier), 60 * SECOND);
        assert!(STRIKES.is_stale(state.as_ref(), earlier));
        STRIKES.repair(&mut state, earlier);
        assert!(!STRIKES.is_stale(state.as_ref(), earlier));
        assert_eq!(STRIKES.rest(state.as_ref(), earlier + 60 * SECOND), 0);
    }
}
