//! The twin of `lua/include/bucket.lua`, where the arithmetic is explained.

use super::rules::{Admission, Change, Count, Gauge, Kept, Plan, State, Taken, Twin};
use crate::{Error, Quota};

/// An algorithm that is a bucket of its arguments.
pub trait HasBucket: Send + Sync {
    fn bucket(arguments: &[u64]) -> Bucket;
}

impl<T: HasBucket> Twin for T {
    fn plan(&self, arguments: &[u64], state: Option<&State>, now: u64, cost: u64) -> Plan {
        Self::bucket(arguments).plan(state, now, cost)
    }

    fn apply(&self, arguments: &[u64], state: Option<State>, now: u64, change: Change) -> Option<Kept> {
        Self::bucket(arguments).apply(state.as_ref(), now, change)
    }

    fn missed(&self, arguments: &[u64], units: u64) -> Option<u64> {
        let bucket = Self::bucket(arguments);
        // Who waits for his turn waits for those before him, who have to be known.
        (bucket.wait == 0).then(|| LONGEST_LEASE.saturating_add(bucket.owed(units)))
    }

    fn take(&self, arguments: &[u64], state: &mut Option<State>, now: u64, cost: u64, _: u128) -> Taken {
        Self::bucket(arguments).take(state, now, cost)
    }
}

/// Two slots of lua/include/bucket.lua, in microseconds. In process nothing is leased.
const LONGEST_LEASE: u64 = 1_000_000;

/// A level that is paid off at `units` per `period` microseconds, with room for `burst`.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    pub(super) period: u64,
    pub(super) units: u64,
    pub(super) burst: u64,
    /// How long an admitted request may be made to wait.
    pub(super) wait: u64,
    /// Units are paid only when a whole period is over.
    pub(super) stepped: bool,
    /// What a key admits that was never seen.
    pub(super) initial: u64,
}

/// A bucket as of now.
struct Open {
    at: u64,
    level: u64,
    elapsed: u64,
    free: u64,
    moved: bool,
}

impl Bucket {
    /// One that pays continuously, starts empty and makes nobody wait.
    pub(super) const fn continuous(period: u64, units: u64, burst: u64) -> Self {
        Self { period, units, burst, wait: 0, stepped: false, initial: burst }
    }

    pub(super) fn plan(&self, state: Option<&State>, now: u64, cost: u64) -> Plan {
        let open = self.open(state, now);
        let admission = self.admission(&open, cost);
        let Open { level, elapsed, free, moved, .. } = open;
        let reset = |level| self.owed(level).saturating_sub(elapsed);
        let before = Gauge { remaining: free, reset: reset(level) };
        let after = if admission.is_admitted() {
            Gauge { remaining: free - cost, reset: reset(level + cost) }
        } else {
            before
        };
        Plan { admission, before, after, stale: moved && level > 0 }
    }

    pub(super) fn apply(&self, state: Option<&State>, now: u64, change: Change) -> Option<Kept> {
        if state.is_none() && matches!(change, Change::Refund(..)) {
            return None;
        }
        let Open { mut at, mut level, mut elapsed, .. } = self.open(state, now);
        match change {
            Change::Charge(cost, _) => level += cost,
            Change::Repair | Change::Renew(_) => {}
            Change::Refund(units, _) => {
                level = level.saturating_sub(units);
                if level <= self.paid(elapsed) {
                    // Full. A refund gives back, it does not save up.
                    (at, level, elapsed) = (now, 0, 0);
                }
            }
        }
        let lifetime = self.lifetime(self.owed(level).saturating_sub(elapsed));
        (lifetime > 0).then_some(Kept { state: State::Count(Count { at, count: level }), lifetime })
    }

    /// As the default, but opens the bucket once and computes only what is asked for.
    pub(super) fn take(&self, state: &mut Option<State>, now: u64, cost: u64) -> Taken {
        let open = self.open(state.as_ref(), now);
        let admission = self.admission(&open, cost);
        let Open { at, mut level, elapsed, mut free, moved } = open;
        let written = if admission.is_admitted() {
            level += cost;
            free -= cost;
            true
        } else {
            moved && level > 0
        };
        let reset = self.owed(level).saturating_sub(elapsed);
        let lifetime = (written && cost > 0).then(|| {
            let lifetime = self.lifetime(reset);
            *state = (lifetime > 0).then_some(State::Count(Count { at, count: level }));
            lifetime
        });
        Taken { admission, gauge: Gauge { remaining: free, reset }, lifetime }
    }

    fn admission(&self, open: &Open, cost: u64) -> Admission {
        let ahead = || {
            let above = (open.level + cost).saturating_sub(self.burst);
            self.owed(above).saturating_sub(open.elapsed)
        };
        if cost > self.capacity() {
            Admission::Never
        } else if cost > open.free {
            Admission::Retry(ahead() - self.wait)
        } else {
            // Nothing does not wait.
            Admission::After(if cost > 0 { ahead() } else { 0 })
        }
    }

    /// For how long a state matters that is as good as new after `reset`.
    fn lifetime(&self, reset: u64) -> u64 {
        // What starts below full is as good as new only when it may be forgotten.
        if self.initial < self.burst { reset + self.owed(self.burst) } else { reset }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.burst + self.paid(self.wait)
    }

    fn open(&self, state: Option<&State>, now: u64) -> Open {
        let state = match state {
            Some(State::Count(count)) if !self.is_forgotten(*count, now) => Some(*count),
            _ => None,
        };
        let (mut at, mut level, mut elapsed, mut moved) = (now, 0, 0, false);
        match state {
            None => {
                level = self.burst - self.initial;
                moved = level > 0;
            }
            Some(state) if state.at > now => {
                level = state.count;
                moved = true;
            }
            Some(state) => {
                let remainder = (now - state.at) % self.period;
                let back = u128::from((now - state.at) / self.period) * u128::from(self.units);
                if u128::from(state.count) > back + u128::from(self.paid(remainder)) {
                    at = now - remainder;
                    // Above `back`, as just seen, so `back` is below 2^64 too.
                    level = state.count - back as u64;
                    elapsed = remainder;
                }
            }
        }
        match (self.burst + self.paid(elapsed + self.wait)).checked_sub(level) {
            Some(free) => Open { at, level, elapsed, free, moved },
            None => Open { at: now, level: self.capacity(), elapsed: 0, free: 0, moved: true },
        }
    }

    /// Full, and then unseen for as long again as an empty bucket takes to fill.
    fn is_forgotten(&self, state: Count, now: u64) -> bool {
        self.initial < self.burst
            && state.at <= now
            && now - state.at >= self.owed(state.count).saturating_add(self.owed(self.burst))
    }

    /// Microseconds until `level` units are paid.
    fn owed(&self, level: u64) -> u64 {
        if self.stepped {
            return level.div_ceil(self.units).saturating_mul(self.period);
        }
        match level.checked_mul(self.period) {
            // Divisions are most of what a decision computes, and these need none.
            Some(0) => 0,
            // Nearly always, and much cheaper.
            Some(product) => product.div_ceil(self.units),
            // A quota refills within 100 years. A level from another quota may not, and is cut down to size
            // before the result counts.
            None => {
                let product = u128::from(level) * u128::from(self.period);
                u64::try_from(product.div_ceil(u128::from(self.units))).unwrap_or(u64::MAX)
            }
        }
    }

    /// Units that are paid in `elapsed` microseconds: less than a period and the longest wait.
    fn paid(&self, elapsed: u64) -> u64 {
        if self.stepped {
            return (elapsed / self.period).saturating_mul(self.units);
        }
        match elapsed.checked_mul(self.units) {
            Some(product) if product < self.period => 0,
            Some(product) => product / self.period,
            None => {
                let product = u128::from(elapsed) * u128::from(self.units);
                u64::try_from(product / u128::from(self.period)).unwrap_or(u64::MAX)
            }
        }
    }
}

/// The quota's rate as a fraction in lowest terms: so many microseconds pay for so many units.
pub(super) const fn rate(quota: &Quota) -> (u64, u64) {
    let divisor = gcd(quota.period_micros(), quota.limit());
    (quota.period_micros() / divisor, quota.limit() / divisor)
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

pub(super) fn micros(duration: std::time::Duration, what: &'static str) -> Result<u64, Error> {
    match u64::try_from(duration.as_micros()) {
        Ok(micros) if micros <= MAX_WAIT && duration.subsec_nanos().is_multiple_of(1_000) => Ok(micros),
        _ => Err(Error::invalid(what)),
    }
}

/// 400 days, as long as the longest period.
const MAX_WAIT: u64 = 400 * 86_400 * 1_000_000;
