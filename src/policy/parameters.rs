//! The numbers that an algorithm computes from a policy's quota.

use std::{sync::Arc, time::Duration};

#[cfg(feature = "redis")]
use crate::algorithm::counter::Calendar;
use crate::{
    algorithm::{
        self, Algorithm, Replenishment,
        counter::{Counter, NO_DEBT},
    },
    base::{Error, Quota},
};

/// The numbers by which a policy counts.
#[derive(Clone)]
pub(super) struct Parameters {
    /// The quota and the algorithm's options, as the Lua file and its Rust twin take them.
    pub(super) arguments: Arc<[u64]>,
    pub(super) capacity: u64,
    pub(super) replenishment: Replenishment,
    /// The estimated microseconds of Redis for the slowest charge and the slowest refund. `None` for a custom
    /// algorithm.
    #[cfg(feature = "redis")]
    pub(super) redis_micros: Option<[u64; 2]>,
    /// The numbers by which `lua/usual.lua` makes the usual decisions, as it takes them: a byte, then
    /// doubles. Empty if it makes none.
    #[cfg(feature = "redis")]
    pub(super) usual: Arc<[u8]>,
    /// The calendar that has the windows, and how many windows on each side of the three around a call a debt reaches.
    #[cfg(feature = "redis")]
    pub(super) calendar: Option<(Calendar, u64)>,
}

/// The largest limit and burst of a quota that a custom algorithm counts: any product with 8,000 is exact.
const MAX_CUSTOM_UNITS: u64 = 1_000_000_000_000;
/// Above every quota's capacity, and exact in Lua.
const MAX_CAPACITY: u64 = 1 << 50;

impl Parameters {
    pub(super) fn new(algorithm: &dyn Algorithm, quota: &Quota) -> Result<Self, Error> {
        check_quota(algorithm, quota)?;
        let arguments: Arc<[u64]> = algorithm.arguments(quota)?.into();
        let capacity = algorithm.capacity(quota);
        ensure!((1..=MAX_CAPACITY).contains(&capacity), "an algorithm's capacity must be from 1 to 2^50");
        Ok(Self {
            capacity,
            replenishment: algorithm.replenishment(quota),
            #[cfg(feature = "redis")]
            redis_micros: algorithm
                .counter()
                .map(|counter| [false, true].map(|refund| counter.redis_micros(&arguments, refund))),
            #[cfg(feature = "redis")]
            usual: usual(algorithm, &arguments),
            #[cfg(feature = "redis")]
            calendar: calendar(algorithm, &arguments),
            arguments,
        })
    }

    /// Makes room for `units` of debt. Returns the parameters of debits.
    pub(super) fn make_room(
        &mut self,
        algorithm: &dyn Algorithm,
        quota: &Quota,
        units: u64,
    ) -> Result<Self, Error> {
        let capacity = self.capacity.saturating_add(units);
        let most = algorithm.counter().map_or(MAX_CUSTOM_UNITS, Counter::most_units);
        let refills = match algorithm.replenishment(quota) {
            Replenishment::InWindows => true,
            _ => quota.try_burst(quota.capacity().saturating_add(units)).is_ok(),
        };
        ensure!(
            capacity <= most && refills,
            "the debt is too large: quota and debt together must be within the bounds of a quota, and of a burst for \
             algorithms that refill"
        );
        let counter = algorithm.counter().ok_or_else(|| Error::invalid(NO_DEBT))?;
        let [own, debits] = counter.with_debt(&self.arguments, units)?;
        let mut of_debits = Self { capacity, ..self.clone() };
        of_debits.count_by(algorithm, debits);
        self.count_by(algorithm, own);
        Ok(of_debits)
    }

    #[cfg_attr(
        not(feature = "redis"),
        expect(unused_variables, reason = "only the scripts of Redis have usual decisions")
    )]
    fn count_by(&mut self, algorithm: &dyn Algorithm, arguments: Vec<u64>) {
        #[cfg(feature = "redis")]
        {
            self.usual = usual(algorithm, &arguments);
            self.calendar = calendar(algorithm, &arguments);
        }
        self.arguments = arguments.into();
    }

    /// See [`Policy::lease_bound`](crate::Policy::lease_bound).
    pub(super) fn lease_recovery(&self, algorithm: &dyn Algorithm, lease: Option<u64>) -> Option<Duration> {
        // No lease holds more units than the key's capacity.
        let most = lease?.min(self.capacity);
        let recovery = algorithm.counter()?.lease_recovery(&self.arguments, most)?;
        Some(Duration::from_micros(recovery))
    }
}

/// Checks that the algorithm can count the quota.
fn check_quota(algorithm: &dyn Algorithm, quota: &Quota) -> Result<(), Error> {
    let counter = algorithm.counter();
    let name = algorithm.name();
    if let Some(period) = quota.calendar()
        && !counter.is_some_and(Counter::counts_calendar_periods)
    {
        let period = period.name();
        return Err(invalid!(
            "{name} counts no calendar periods: use `FixedWindow::aligned()` for a quota per {period}, or a quota of days, \
             such as `100/30d`"
        ));
    }
    let most = counter.map_or(MAX_CUSTOM_UNITS, Counter::most_units);
    if quota.limit().max(quota.capacity()) > most {
        return Err(invalid!(
            "{name} counts up to {most} units: use a larger unit, or `FixedWindow` for up to 999999999999999"
        ));
    }
    Ok(())
}

/// See [`Parameters::usual`].
#[cfg(feature = "redis")]
fn usual(algorithm: &dyn Algorithm, arguments: &[u64]) -> Arc<[u8]> {
    let numbers = algorithm.counter().and_then(|counter| counter.usual(arguments)).unwrap_or_default();
    let mut bytes = Vec::with_capacity(8 * numbers.len());
    if let [kind, numbers @ ..] = &numbers[..] {
        bytes.push(*kind as u8);
        bytes.extend(numbers.iter().flat_map(|number| (*number as f64).to_le_bytes()));
    }
    bytes.into()
}

/// See [`Parameters::calendar`].
#[cfg(feature = "redis")]
fn calendar(algorithm: &dyn Algorithm, arguments: &[u64]) -> Option<(Calendar, u64)> {
    algorithm.counter()?.calendar(arguments)
}

/// Checks the algorithm's name. State is stored under it, so a custom algorithm must not have the name of a
/// built-in one.
pub(super) fn check(algorithm: &dyn Algorithm) -> Result<(), Error> {
    let name = algorithm.name();
    let legible = name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    ensure!(
        (1..=32).contains(&name.len()) && legible,
        "an algorithm's name must be 1 to 32 of a to z, 0 to 9 and -"
    );
    if algorithm.counter().is_none() && algorithm::built_in().iter().any(|ours| ours.name() == name) {
        return Err(Error::invalid("a custom algorithm needs a name that no built-in one has"));
    }
    Ok(())
}
