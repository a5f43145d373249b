//! Permits: units that are in use until they are released.

use super::{
    Algorithm, Replenishment,
    counter::{Change, Counter, NO_DEBT, Plan, exactly},
    state::{Holder, Holders, State},
    twin::Gauge,
};
use crate::base::{Error, Quota};

/// Limits the units in use at any moment, over all instances: requests in flight, jobs, connections.
///
/// A unit in use is a *permit*. The quota's limit is the number of permits. The quota's period is their
/// expiry: a permit expires after the period unless it is renewed, so the permits of an instance that was
/// killed become available again. Permits in use are renewed three times in a period. A permit keeps the
/// period of the policy that granted it, even if the policy changes while the request runs.
/// [`Policy::concurrency`](crate::Policy::concurrency) creates a policy with an expiry of 30 seconds.
///
/// * Behind the [layer](crate::RateLimitLayer), a request holds its permits from the decision until the
///   response's body ends, fails or is dropped. After an upgrade, for example to a WebSocket, the connection
///   holds no permits. A request that waits in the [queue](super::LeakyBucket::queue) of the same layer holds
///   them while it waits.
/// * With the [`Limiter`](crate::Limiter), a request holds its permits as long as the
///   [`Decision`](crate::Decision) or a clone of it lives. A decision that is dropped immediately holds
///   nothing.
/// * Behind the [keyed layer](crate::keyed::KeyedRateLimitLayer), a request holds its permits until the
///   service answers.
///
/// [`Operator::refund_latest`](crate::Operator::refund_latest) releases no permits.
/// A release that comes after the expiry does not release the permits of another request.
///
/// A renewal restores permits that the store has lost, even above the limit, because their requests still
/// run. The store loses permits when it restarts without its data, when it fails over, when its clock steps
/// forward, when an operator [resets](crate::Operator::reset) the key, or when a renewal comes after the
/// expiry. At most a third of the period after the store answers again, it knows all permits in use, and
/// grants no more until they fall below the limit. So a reset frees for good only the permits of requests
/// that no longer run.
///
/// * **Promise**: at any moment at most the limit in use, as long as the store decides. There are two
///   exceptions: the store loses permits; or an instance is disconnected, or its Tokio runtime stalls, for
///   longer than two thirds of the period, because its latest renewal may be a third old. Then the excess is
///   at most what is granted until the renewals. In an outage,
///   [`FailureMode::Local`](crate::FailureMode::Local) grants each instance its share in addition to the
///   permits in use, and `Closed` grants none.
/// * **Source**: the counting semaphore, with an expiry.
/// * **Cost in Redis**: one sorted set per key, with a member of 60 to 140 bytes per request that holds
///   permits, regardless of its cost.
/// * **Weakness**: the permits of a killed instance are unavailable until they expire. The retry time is when
///   permits expire; others may be released much sooner, so a denial's `Retry-After` is a second. If the
///   policy also has a [penalty](crate::Policy::penalty), it must allow for a denial per second and client.
///   If the permits of more than 1000 requests expire together, each decision frees 1000 of them.
///
/// # Errors
///
/// [`Policy::try_algorithm`](crate::Policy::try_algorithm) returns an error, and
/// [`Policy::algorithm`](crate::Policy::algorithm) panics, if the quota has a [`burst`](Quota::burst) or a
/// limit above 1,000,000.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{algorithm::Concurrency, Key, Limiter, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(MemoryStore::new());
/// let expiry = Duration::from_secs(120);
/// let exports = Policy::new("exports", Quota::new(1, expiry)).algorithm(Concurrency::new());
/// let tenant = Key::new("acme");
///
/// let running = limiter.check(&exports, &tenant, 1).await?;
/// assert!(running.is_admitted());
/// assert!(!limiter.check(&exports, &tenant, 1).await?.is_admitted());
/// drop(running);
/// assert!(limiter.check(&exports, &tenant, 1).await?.is_admitted());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Concurrency(());

impl Concurrency {
    /// Creates the algorithm. It has no options.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

const MAX_UNITS: u64 = 1_000_000;

impl Algorithm for Concurrency {
    built_in!("concurrency", "concurrency.lua");

    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        ensure!(!quota.has_burst(), "a limit on concurrency has no burst: leave out `burst`");
        ensure!(quota.limit() <= MAX_UNITS, "a limit on concurrency must be at most 1,000,000");
        Ok(vec![quota.limit(), quota.period_micros()])
    }

    fn replenishment(&self, _: &Quota) -> Replenishment {
        Replenishment::OnRelease
    }
}

impl Holders {
    fn of(state: Option<&State>) -> Option<&Self> {
        match state {
            Some(State::Holders(holders)) => Some(&**holders),
            _ => None,
        }
    }

    /// Returns the holders that have expired, and those that have not.
    fn split(&self, now: u64) -> (&[Holder], &[Holder]) {
        self.sorted.split_at(self.sorted.partition_point(|holder| holder.expires <= now))
    }

    fn insert(&mut self, holder: Holder) {
        let place = self.sorted.partition_point(|other| *other < holder);
        self.sorted.insert(place, holder);
        self.units += holder.units;
    }

    fn remove(&mut self, id: u128) {
        if let Some(place) = self.sorted.iter().position(|holder| holder.id == id) {
            self.units -= self.sorted.remove(place).units;
        }
    }
}

impl Holder {
    const fn is_late(&self, now: u64) -> bool {
        self.expires > now + self.period
    }
}

/// If the clock stepped back, which the last holder shows, lets each holder expire at most its period from
/// `now`.
fn cut(sorted: &mut [Holder], now: u64) {
    if sorted.last().is_some_and(|last| last.is_late(now)) {
        sorted.iter_mut().for_each(|holder| holder.expires = holder.expires.min(now + holder.period));
        sorted.sort_unstable();
    }
}

impl Counter for Concurrency {
    fn redis_micros(&self, _: &[u64], _: bool) -> u64 {
        20
    }

    fn plan(&self, arguments: &[u64], state: Option<&State>, now: u64, cost: u64) -> Plan {
        let [limit, period] = exactly(arguments);
        let (mut used, mut active) = (0, &[][..]);
        if let Some(holders) = Holders::of(state) {
            let expired;
            (expired, active) = holders.split(now);
            used = holders.units - expired.iter().map(|holder| holder.units).sum::<u64>();
        }
        let stale = active.last().is_some_and(|last| last.is_late(now));
        let mut holders = Vec::new();
        if stale {
            holders.extend_from_slice(active);
            cut(&mut holders, now);
            active = &holders;
        }
        let left = |holder: &Holder| holder.expires - now;
        let reset = active.last().map_or(0, left);
        let before = Gauge { remaining: limit.saturating_sub(used), reset };
        Plan::of(cost, limit, before, if cost > 0 { reset.max(period) } else { reset }, stale, || {
            // Wait until the missing units have expired.
            let mut missing = used + cost - limit;
            let last = active.iter().find(|holder| {
                missing = missing.saturating_sub(holder.units);
                missing == 0
            });
            last.map_or(period, left)
        })
    }

    /// No units are owed: permits are in use until their holder releases them.
    fn with_debt(&self, _: &[u64], _: u64) -> Result<[Vec<u64>; 2], Error> {
        Err(Error::invalid(NO_DEBT))
    }

    fn apply(&self, arguments: &[u64], state: &mut Option<State>, now: u64, change: Change) -> Option<u64> {
        let [_, period] = exactly(arguments);
        let mut holders = match state.take() {
            Some(State::Holders(holders)) => holders,
            _ => Box::default(),
        };
        if matches!(change, Change::Charge(..) | Change::Repair) {
            let expired = holders.split(now).0.len();
            holders.units -= holders.sorted.drain(..expired).map(|holder| holder.units).sum::<u64>();
            cut(&mut holders.sorted, now);
        }
        match change {
            // The holder of a charge exists if the call was sent twice. Renewed units are in use, even if
            // they have expired or were lost.
            Change::Charge(units, id) | Change::Renew(units, id) => {
                holders.remove(id);
                holders.insert(Holder { expires: now + period, id, units, period });
            }
            Change::Refund(_, id) => holders.remove(id),
            // A charge is refunded by its holder.
            Change::Repair | Change::RefundOf(..) => {}
        }
        let lifetime = holders.sorted.last().map(|last| last.expires.saturating_sub(now));
        *state = lifetime.map(|_| State::Holders(holders));
        Some(lifetime.unwrap_or(0))
    }
}
