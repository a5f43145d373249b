//! The twin of `lua/include/bucket.lua`. "The bucket" in `lua/README.md` explains the arithmetic.

use std::mem;

use super::{
    counter::{Change, Charged, Counter, Plan, usual},
    state::{Count, Extra, Rate, Refunds, State},
    twin::{Admission, Gauge, Receipt},
};
use crate::base::{Error, Quota};

/// An algorithm whose arguments describe a bucket.
pub trait HasBucket: Send + Sync {
    fn bucket(arguments: &[u64]) -> Bucket;
}

impl<T: HasBucket> Counter for T {
    fn plan(&self, arguments: &[u64], state: Option<&State>, now: u64, cost: u64) -> Plan {
        Self::bucket(arguments).plan(state, now, cost)
    }

    fn apply(&self, arguments: &[u64], state: &mut Option<State>, now: u64, change: Change) -> Option<u64> {
        Self::bucket(arguments).apply(state, now, change)
    }

    fn most_units(&self) -> u64 {
        // Products with periods are computed in digits of numbers up to 2^45, and a debt comes on top.
        10_000_000_000_000
    }

    fn most_within_period(&self, arguments: &[u64], quota: &Quota) -> Option<u64> {
        let bucket = Self::bucket(arguments);
        // What waits in a queue leaves it as units are replenished. The end of the period belongs to the next
        // one.
        let replenished = bucket.smooth_drained_in(quota.period_micros() - 1);
        (!bucket.stepped && bucket.initial == bucket.burst).then_some(bucket.burst + replenished)
    }

    fn queues(&self, arguments: &[u64]) -> bool {
        Self::bucket(arguments).wait > 0
    }

    fn lease_recovery(&self, arguments: &[u64], units: u64) -> Option<u64> {
        let bucket = Self::bucket(arguments);
        // A queue delays each request behind the requests before it, so the server must know when those are
        // made.
        (bucket.wait == 0).then(|| LONGEST_LEASE.saturating_add(bucket.drain_time(units)))
    }

    fn returned(&self, arguments: &[u64], state: &State, now: u64, units: u64, charge: Receipt) -> u64 {
        let bucket = Self::bucket(arguments);
        let (time, mut open) = (bucket.smooth_drain_time(units), bucket.open(Some(state), now));
        let refundable = bucket.refundable(&open, time, charge, now);
        bucket.refund(&mut open, units, charge, now);
        if open.level == 0 || refundable >= time { units } else { bucket.smooth_drained_in(refundable) }
    }

    fn usual(&self, arguments: &[u64]) -> Option<Vec<u64>> {
        let Bucket { period, units, burst, wait, stepped, initial, debt, room, kept } =
            Self::bucket(arguments);
        if kept > 0 {
            return (debt == 0).then(|| vec![usual::GUARANTEE, period, units, burst]);
        }
        let is_usual = wait == 0 && !stepped && initial == burst && room == 0;
        is_usual.then(|| match debt {
            0 => vec![usual::BUCKET, period, units, burst],
            debt => vec![usual::DEBT, period, units, burst, debt],
        })
    }

    fn with_debt(&self, arguments: &[u64], debt: u64) -> Result<[Vec<u64>; 2], Error> {
        Ok([[arguments, &[debt]].concat(), [arguments, &[debt, 1]].concat()])
    }

    fn charge(&self, arguments: &[u64], state: &mut Option<State>, now: u64, cost: u64, _: u128) -> Charged {
        Self::bucket(arguments).charge(state, now, cost)
    }

    fn mark_of_leased(&self, arguments: &[u64], leased: u64, cost: u64) -> u64 {
        let bucket = Self::bucket(arguments);
        leased.saturating_add(bucket.smooth_drain_time(cost))
    }
}

/// The longest lease in microseconds: two slots of `lua/bucket_in_full/leases.lua`. A `MemoryStore` leases
/// nothing.
const LONGEST_LEASE: u64 = 1_000_000;

/// The largest sum of refunds that a state keeps, the same as in `lua/bucket_in_full/text.lua`: 18 years in
/// microseconds.
const MAX_REFUNDED: u64 = 1 << 49;

/// A level that drains at `units` per `period` microseconds, with room for `burst`.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    pub(super) period: u64,
    pub(super) units: u64,
    pub(super) burst: u64,
    /// The longest delay of an admitted request in microseconds.
    pub(super) wait: u64,
    /// Whether units drain only at the end of each period.
    pub(super) stepped: bool,
    /// The units that a new key admits.
    pub(super) initial: u64,
    /// The units by which debits may exceed the burst.
    pub(super) debt: u64,
    /// The units by which this charge may exceed the burst: the debt for a debit, otherwise 0.
    pub(super) room: u64,
    /// Of a guarantee, the microseconds for which it is remembered once it is full; otherwise 0.
    pub(super) kept: u64,
}

/// The state of a bucket as of now.
struct OpenBucket {
    /// The time of the level.
    at: u64,
    level: u64,
    /// Microseconds since `at`.
    elapsed: u64,
    free: u64,
    /// Whether a denial must write this state.
    stale: bool,
    extra: Extra,
}

impl Bucket {
    /// Creates a bucket that drains continuously, admits the whole burst at first and has no delays.
    pub(super) const fn continuous(period: u64, units: u64, burst: u64) -> Self {
        Self { period, units, burst, wait: 0, stepped: false, initial: burst, debt: 0, room: 0, kept: 0 }
    }

    /// Sets the debt, if the arguments of a policy name one. The arguments of debits have one more.
    pub(super) const fn with_debt(self, debt: &[u64]) -> Self {
        match *debt {
            [debt] => Self { debt, ..self },
            [debt, _] => Self { debt, room: debt, ..self },
            _ => self,
        }
    }

    fn plan(&self, state: Option<&State>, now: u64, cost: u64) -> Plan {
        let open = self.open(state, now);
        let admission = self.admission(&open, cost);
        let before = Gauge { remaining: open.free, reset: self.reset(&open) };
        let (after, mark) = if admission.is_admitted() {
            let level = open.level + cost;
            let reset = self.drain_time(level).saturating_sub(open.elapsed);
            (Gauge { remaining: open.free - cost, reset }, self.mark(&open, level, now, reset))
        } else {
            (before, 0)
        };
        Plan { admission, before, after, stale: open.stale && open.level > 0, mark }
    }

    /// Returns the mark of the charge that raised the level to `level`: the end of its span.
    fn mark(&self, open: &OpenBucket, level: u64, now: u64, reset: u64) -> u64 {
        let end =
            if self.stepped { open.at.saturating_add(self.smooth_drain_time(level)) } else { now + reset };
        end + open.extra.refunds.by
    }

    fn apply(&self, state: &mut Option<State>, now: u64, change: Change) -> Option<u64> {
        if state.is_none() && matches!(change, Change::Refund(..) | Change::RefundOf(..)) {
            return None;
        }
        let mut open = self.open(state.as_ref(), now);
        match change {
            Change::Charge(cost, _) => open.level += cost,
            Change::Repair | Change::Renew(..) => {}
            Change::Refund(units, _) => self.refund_latest(&mut open, units, now),
            Change::RefundOf(units, charge) => self.refund(&mut open, units, charge, now)?,
        }
        Some(self.store(&open, self.reset(&open), state))
    }

    /// Refunds the latest units.
    fn refund_latest(&self, open: &mut OpenBucket, units: u64, now: u64) {
        let units = units.min(open.level);
        self.lower(open, units, self.smooth_drain_time(units), now);
    }

    /// Returns how much of `time`, in which a charge drains, can be refunded.
    fn refundable(&self, open: &OpenBucket, time: u64, charge: Receipt, now: u64) -> u64 {
        // A stepped bucket drains in whole periods only: its front is its last step, and the charge is older
        // by the rest of its period.
        let (mut front, mut age) = (now, now.saturating_sub(charge.made));
        if self.stepped {
            (front, age) = (open.at, age.div_ceil(self.period).saturating_mul(self.period));
        }
        let ahead = charge.mark.saturating_sub(open.extra.refunds.by).saturating_sub(front);
        let alive = (open.extra.refunds.since + 1..=now).contains(&charge.made);
        if !alive || now - charge.made >= self.max_drain_time() {
            return 0;
        }
        // The larger of the two refundable parts.
        ahead.max(time.saturating_sub(age))
    }

    /// Refunds what is still in the bucket of a charge. `None` if nothing is.
    fn refund(&self, open: &mut OpenBucket, mut units: u64, charge: Receipt, now: u64) -> Option<()> {
        let mut time = self.smooth_drain_time(units);
        let refundable = self.refundable(open, time, charge, now);
        if refundable == 0 {
            return None;
        }
        if refundable < time {
            time = refundable;
            if self.stepped {
                units = self.smooth_drained_in(refundable);
            } else {
                // Drain the bucket for that much longer.
                open.extra.real_from = open.extra.real_from.max(open.at);
                let elapsed = open.elapsed + refundable;
                units = (elapsed / self.period).saturating_mul(self.units);
                open.elapsed = elapsed % self.period;
                open.at = now.saturating_sub(open.elapsed);
            }
        }
        self.lower(open, units, time, now);
        Some(())
    }

    /// Lowers the level by `units` units, and moves the front by `time`.
    fn lower(&self, open: &mut OpenBucket, units: u64, time: u64, now: u64) {
        open.extra.refunds.by = open.extra.refunds.by.saturating_add(time);
        if open.extra.refunds.by > MAX_REFUNDED {
            open.extra.refunds = Refunds { by: 0, since: now };
        }
        open.level = open.level.saturating_sub(units);
        if open.level <= self.drained_in(open.elapsed) {
            // The bucket is empty. A refund never goes below that, so units cannot be saved up.
            (open.at, open.level, open.elapsed) = (now, 0, 0);
        }
    }

    /// Returns the microseconds until the bucket is fully replenished.
    fn reset(&self, open: &OpenBucket) -> u64 {
        self.drain_time(open.level).saturating_sub(open.elapsed)
    }

    /// Writes `open` to `state`. Returns for how many more microseconds it matters.
    #[inline(always)]
    fn store(&self, open: &OpenBucket, reset: u64, state: &mut Option<State>) -> u64 {
        let &OpenBucket { at, level, elapsed, extra, .. } = open;
        let lifetime = self.lifetime(reset, extra);
        let owed = if self.debt > 0 && level > self.burst {
            level.saturating_sub(self.burst + self.drained_in(elapsed + self.wait))
        } else {
            0
        };
        let count = Count { at, count: level };
        *state = if lifetime == 0 {
            None
        } else if extra.refunds == Refunds::default() && extra.above == 0 && owed == 0 {
            Some(State::Count(count))
        } else {
            let extra = Extra { capacity: self.capacity(), owed, ..extra };
            Some(State::Bucket(Box::new((count, extra, self.rate()))))
        };
        lifetime
    }

    /// Does what the default [`Counter::charge`] does, but reads the state once and computes only what is
    /// needed.
    // This and what it calls are inlined, so that what a kind of bucket never has, such as a wait, costs it
    // nothing.
    #[inline(always)]
    fn charge(&self, state: &mut Option<State>, now: u64, cost: u64) -> Charged {
        let mut open = self.open(state.as_ref(), now);
        let admission = self.admission(&open, cost);
        let written = if admission.is_admitted() {
            open.level += cost;
            open.free -= cost;
            true
        } else {
            open.stale && open.level > 0
        };
        let reset = self.reset(&open);
        let lifetime = (written && cost > 0).then(|| self.store(&open, reset, state));
        let mark = self.mark(&open, open.level, now, reset);
        Charged { admission, gauge: Gauge { remaining: open.free, reset }, mark, lifetime }
    }

    #[inline(always)]
    fn admission(&self, open: &OpenBucket, cost: u64) -> Admission {
        let ahead = || {
            let above = (open.level + cost).saturating_sub(self.burst + self.room);
            self.drain_time(above).saturating_sub(open.elapsed)
        };
        if cost > self.capacity() + self.room {
            Admission::Never
        } else if cost > open.free {
            Admission::Retry(ahead() - self.wait)
        } else {
            // A request that costs 0 is not delayed.
            Admission::After(if cost > 0 { ahead() } else { 0 })
        }
    }

    /// Returns for how many microseconds a state matters that is fully replenished after `reset`.
    #[inline(always)]
    fn lifetime(&self, reset: u64, extra: Extra) -> u64 {
        // A key that starts below its burst must be remembered until it may count as new again.
        let lifetime = if self.initial < self.burst { reset + self.remembered() } else { reset };
        let is_refunded = extra.refunds != Refunds::default();
        let lifetime = if is_refunded { lifetime.max(self.max_drain_time()) } else { lifetime };
        if extra.above == 0 { lifetime } else { lifetime.saturating_add(self.drain_time(extra.above)) }
    }

    /// Returns the longest time that a charge can take to drain. After it, no refund needs to know of the
    /// charge.
    fn max_drain_time(&self) -> u64 {
        self.drain_time(self.capacity() + self.debt)
    }

    pub(super) fn capacity(&self) -> u64 {
        self.burst + self.drained_in(self.wait)
    }

    #[inline(always)]
    fn open(&self, state: Option<&State>, now: u64) -> OpenBucket {
        let (state, mut extra) = match state {
            Some(State::Count(count)) => (Some(*count), Extra::default()),
            Some(State::Bucket(state)) => self.fit(**state, now),
            _ => (None, Extra::default()),
        };
        // A `match` instead of `Option::filter`, which the compiler may leave as a call.
        let state = match state {
            Some(count) if self.is_forgotten(count, extra.above, now) => None,
            state => state,
        };
        let (mut at, mut level, mut elapsed, mut stale) = (now, 0, 0, false);
        match state {
            None => {
                level = self.burst - self.initial;
                stale = level > 0;
                extra.above = 0;
                if self.kept > 0 {
                    // A new guarantee has nothing, not even debt.
                    level += self.debt;
                    extra.owed = self.debt;
                }
            }
            Some(state) if state.at > now => {
                level = state.count;
                stale = true;
            }
            Some(state) => {
                let remainder = (now - state.at) % self.period;
                let periods = u128::from((now - state.at) / self.period) * u128::from(self.units);
                let drained = periods + u128::from(self.drained_in(remainder));
                if u128::from(state.count) > drained {
                    at = now - remainder;
                    // `periods` is below the count, so it fits.
                    level = state.count - periods as u64;
                    elapsed = remainder;
                } else if extra.above > 0 {
                    let beyond = drained - u128::from(state.count);
                    extra.above = extra.above.saturating_sub(u64::try_from(beyond).unwrap_or(u64::MAX));
                }
            }
        }
        let room = self.burst + self.drained_in(elapsed + self.wait);
        if let Some(free) = room.checked_sub(level) {
            return OpenBucket { at, level, elapsed, free: free + self.room, stale, extra };
        }
        // Units above the burst are owed, or were charged under a quota with a larger capacity.
        let owed = extra.owed.min(self.debt);
        if level - room > owed {
            let most = self.capacity() + owed;
            extra.above += level - self.drained_in(elapsed) - most;
            (at, level, elapsed, stale) = (now, most, 0, true);
        }
        let free =
            self.room.saturating_sub(level.saturating_sub(self.burst + self.drained_in(elapsed + self.wait)));
        OpenBucket { at, level, elapsed, free, stale, extra }
    }

    /// Converts a state that another quota has written. Units that drained in time that never passed are
    /// drained at the rate of that quota, and units above the level count under a larger capacity. A debt
    /// drains first.
    fn fit(&self, (mut count, mut extra, rate): (Count, Extra, Rate), now: u64) -> (Option<Count>, Extra) {
        let part = extra.real_from.saturating_sub(count.at);
        if part > 0 && rate != self.rate() {
            let [part, period, units] = [part, rate.0, rate.1].map(u128::from);
            let (drained, rest) = (part * units / period, part * units % period);
            let time = rest * u128::from(self.period) / period / u128::from(self.units);
            // The part is shorter than the period, so fewer units drained than in a period: both numbers fit.
            count.count = count.count.saturating_sub(drained as u64);
            count.at = extra.real_from.saturating_sub(time as u64);
        }
        extra.real_from = extra.real_from.min(now);
        if extra.owed > 0 {
            let drained = self.drained_in(now.saturating_sub(count.at));
            extra.owed = extra.owed.min(count.count.saturating_sub(extra.capacity).saturating_sub(drained));
        }
        if self.capacity() > extra.capacity {
            count.count += mem::take(&mut extra.above);
        }
        (Some(count), extra)
    }

    const fn rate(&self) -> Rate {
        (self.period, self.units)
    }

    /// Whether a key with `above` units above its level counts as new again.
    #[inline(always)]
    fn is_forgotten(&self, state: Count, above: u64, now: u64) -> bool {
        self.initial < self.burst
            && state.at <= now
            && now - state.at >= self.drain_time(state.count + above).saturating_add(self.remembered())
    }

    /// The microseconds after which a full key counts as new again: the time in which an empty bucket fills, or that of a guarantee.
    fn remembered(&self) -> u64 {
        if self.kept > 0 { self.kept } else { self.drain_time(self.burst) }
    }

    /// Returns the microseconds in which `level` units drain.
    #[inline(always)]
    fn drain_time(&self, level: u64) -> u64 {
        if self.stepped {
            return level.div_ceil(self.units).saturating_mul(self.period);
        }
        self.smooth_drain_time(level)
    }

    /// Returns the microseconds in which `level` units drain if they drain continuously.
    fn smooth_drain_time(&self, level: u64) -> u64 {
        match level.checked_mul(self.period) {
            // Avoids the division, which is the largest part of a decision.
            Some(0) => 0,
            // 64 bits are nearly always enough, and much cheaper than 128.
            Some(product) => product.div_ceil(self.units),
            // Saturates only for the level of an older quota, which is reduced to the capacity before the
            // result counts: every quota refills within 100 years.
            None => {
                let product = u128::from(level) * u128::from(self.period);
                u64::try_from(product.div_ceil(u128::from(self.units))).unwrap_or(u64::MAX)
            }
        }
    }

    /// Returns the units that drain in `elapsed` microseconds, at most a period and the longest wait.
    fn drained_in(&self, elapsed: u64) -> u64 {
        if self.stepped {
            return (elapsed / self.period).saturating_mul(self.units);
        }
        self.smooth_drained_in(elapsed)
    }

    /// Returns the units that drain in `elapsed` microseconds if they drain continuously.
    fn smooth_drained_in(&self, elapsed: u64) -> u64 {
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

/// Returns the quota's rate in lowest terms: a period in microseconds, and the units that drain in it.
pub(super) const fn rate(quota: &Quota) -> (u64, u64) {
    let divisor = gcd(quota.period_micros(), quota.limit());
    (quota.period_micros() / divisor, quota.limit() / divisor)
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns `duration` in microseconds.
///
/// # Errors
///
/// `what` if it is longer than 400 days or not in whole microseconds.
pub(super) fn micros(duration: std::time::Duration, what: &'static str) -> Result<u64, Error> {
    match u64::try_from(duration.as_micros()) {
        Ok(micros) if micros <= MAX_WAIT && duration.subsec_nanos().is_multiple_of(1_000) => Ok(micros),
        _ => Err(Error::invalid(what)),
    }
}

/// 400 days, the longest period of a quota.
const MAX_WAIT: u64 = 400 * 86_400 * 1_000_000;
