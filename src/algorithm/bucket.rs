//! The twin of `lua/include/bucket.lua`, where the arithmetic is explained.

use super::{
    state::{Count, Refunds, State},
    twin::{Admission, Change, Gauge, Kept, Plan, Receipt, Taken, Twin},
};
use crate::{error::Error, quota::Quota};

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

    fn refund(
        &self,
        arguments: &[u64],
        state: &mut Option<State>,
        now: u64,
        units: u64,
        charge: Receipt,
    ) -> Option<u64> {
        Self::bucket(arguments).refund(state, now, units, charge)
    }

    fn mark_of_leased(&self, arguments: &[u64], leased: u64, cost: u64) -> u64 {
        let bucket = Self::bucket(arguments);
        leased.saturating_add(bucket.time_of(cost))
    }
}

/// Two slots of lua/include/bucket.lua, in microseconds. In process nothing is leased.
const LONGEST_LEASE: u64 = 1_000_000;

/// As in lua/include/bucket.lua: 18 years.
const MOST_REFUNDED: u64 = 1 << 49;

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
    refunds: Refunds,
}

impl Bucket {
    /// One that pays continuously, starts empty and makes nobody wait.
    pub(super) const fn continuous(period: u64, units: u64, burst: u64) -> Self {
        Self { period, units, burst, wait: 0, stepped: false, initial: burst }
    }

    pub(super) fn plan(&self, state: Option<&State>, now: u64, cost: u64) -> Plan {
        let open = self.open(state, now);
        let admission = self.admission(&open, cost);
        let Open { at, level, elapsed, free, moved, refunds } = open;
        let reset = |level| self.owed(level).saturating_sub(elapsed);
        let before = Gauge { remaining: free, reset: reset(level) };
        let (after, mark) = if admission.is_admitted() {
            let after = Gauge { remaining: free - cost, reset: reset(level + cost) };
            (after, self.mark(at, level + cost, now, after.reset, refunds))
        } else {
            (before, 0)
        };
        Plan { admission, before, after, stale: moved && level > 0, mark }
    }

    /// The end of the span of a charge that made `level` of the bucket.
    fn mark(&self, at: u64, level: u64, now: u64, reset: u64, refunds: Refunds) -> u64 {
        if self.stepped {
            at.saturating_add(self.time_of(level)) + refunds.by
        } else {
            now + reset + refunds.by
        }
    }

    pub(super) fn apply(&self, state: Option<&State>, now: u64, change: Change) -> Option<Kept> {
        if state.is_none() && matches!(change, Change::Refund(..)) {
            return None;
        }
        let mut open = self.open(state, now);
        match change {
            Change::Charge(cost, _) => open.level += cost,
            Change::Repair | Change::Renew(_) => {}
            Change::Refund(units, _) => self.refund_latest(&mut open, units, now),
        }
        let mut state = None;
        let lifetime = self.keep(&open, &mut state);
        state.map(|state| Kept { state, lifetime })
    }

    /// Returns the latest units.
    fn refund_latest(&self, open: &mut Open, units: u64, now: u64) {
        let units = units.min(open.level);
        self.lower(open, units, self.time_of(units), now);
    }

    /// Returns what of a charge is still in the bucket, see lua/include/bucket.lua.
    pub(super) fn refund(
        &self,
        state: &mut Option<State>,
        now: u64,
        mut units: u64,
        charge: Receipt,
    ) -> Option<u64> {
        state.as_ref()?;
        let mut open = self.open(state.as_ref(), now);
        let mut time = self.time_of(units);
        // Of the span's last `time` microseconds those behind the front, or what drains alone, in whole steps.
        let (mut front, mut age) = (now, now.saturating_sub(charge.made));
        if self.stepped {
            (front, age) = (open.at, age.div_ceil(self.period).saturating_mul(self.period));
        }
        let behind = charge.mark.saturating_sub(open.refunds.by).saturating_sub(front);
        let left = behind.max(time.saturating_sub(age));
        let alive = (open.refunds.since + 1..=now).contains(&charge.made);
        if left == 0 || !alive || now - charge.made >= self.longest() {
            return None;
        }
        if left < time {
            time = left;
            if self.stepped {
                units = self.units_in(left);
            } else {
                // As if it had drained for so much longer.
                let elapsed = open.elapsed + left;
                units = (elapsed / self.period).saturating_mul(self.units);
                open.elapsed = elapsed % self.period;
                open.at = now.saturating_sub(open.elapsed);
            }
        }
        self.lower(&mut open, units, time, now);
        Some(self.keep(&open, state))
    }

    /// Lowers the level by `units` units, and moves the front by `time`.
    fn lower(&self, open: &mut Open, units: u64, time: u64, now: u64) {
        open.refunds.by = open.refunds.by.saturating_add(time);
        if open.refunds.by > MOST_REFUNDED {
            open.refunds = Refunds { by: 0, since: now };
        }
        open.level = open.level.saturating_sub(units);
        if open.level <= self.paid(open.elapsed) {
            // Full. A refund returns units, it does not save them up.
            (open.at, open.level, open.elapsed) = (now, 0, 0);
        }
    }

    /// Makes `state` that of `open`. For how much longer it matters.
    fn keep(&self, open: &Open, state: &mut Option<State>) -> u64 {
        let &Open { at, level, elapsed, refunds, .. } = open;
        let lifetime = self.lifetime(self.owed(level).saturating_sub(elapsed), refunds);
        *state = (lifetime > 0).then(|| State::bucket(Count { at, count: level }, refunds));
        lifetime
    }

    /// As the default, but opens the bucket once and computes only what is asked for.
    pub(super) fn take(&self, state: &mut Option<State>, now: u64, cost: u64) -> Taken {
        let open = self.open(state.as_ref(), now);
        let admission = self.admission(&open, cost);
        let Open { at, mut level, elapsed, mut free, moved, refunds } = open;
        let written = if admission.is_admitted() {
            level += cost;
            free -= cost;
            true
        } else {
            moved && level > 0
        };
        let reset = self.owed(level).saturating_sub(elapsed);
        let lifetime = (written && cost > 0).then(|| {
            let lifetime = self.lifetime(reset, refunds);
            *state = (lifetime > 0).then_some(State::bucket(Count { at, count: level }, refunds));
            lifetime
        });
        let mark = self.mark(at, level, now, reset, refunds);
        Taken { admission, gauge: Gauge { remaining: free, reset }, mark, lifetime }
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
    fn lifetime(&self, reset: u64, refunds: Refunds) -> u64 {
        // What starts below full is as good as new only when it may be forgotten.
        let lifetime = if self.initial < self.burst { reset + self.owed(self.burst) } else { reset };
        if refunds == Refunds::default() { lifetime } else { lifetime.max(self.longest()) }
    }

    /// How long any charge can be in the bucket, and with it what a refund of it has to know.
    fn longest(&self) -> u64 {
        self.owed(self.capacity())
    }

    pub(super) fn capacity(&self) -> u64 {
        self.burst + self.paid(self.wait)
    }

    fn open(&self, state: Option<&State>, now: u64) -> Open {
        let (state, refunds) = match state {
            Some(State::Count(count)) => (Some(*count), Refunds::default()),
            Some(State::Refunded(state)) => (Some(state.0), state.1),
            _ => (None, Refunds::default()),
        };
        let state = state.filter(|count| !self.is_forgotten(*count, now));
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
            Some(free) => Open { at, level, elapsed, free, moved, refunds },
            None => Open { at: now, level: self.capacity(), elapsed: 0, free: 0, moved: true, refunds },
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
        self.time_of(level)
    }

    /// Microseconds that `level` units take to drain, were they not paid in steps.
    fn time_of(&self, level: u64) -> u64 {
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
        self.units_in(elapsed)
    }

    /// Units that drain in `elapsed` microseconds, were they not paid in steps.
    fn units_in(&self, elapsed: u64) -> u64 {
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
