use super::{
    Algorithm, Replenishment,
    rules::{Change, Gauge, Kept, Plan, State, Twin},
};
use crate::{Error, Quota};

/// At most the limit in use at any moment, over all instances: requests in flight, jobs, connections.
///
/// The quota's limit is how many units may be in use at once, and its period the *lease*: who holds units
/// and is not heard of for so long is taken for dead, and its units are free again. [`Quota::concurrent`]
/// makes one with a lease of 30 seconds.
///
/// * Behind the [layer](crate::RateLimitLayer), a request holds its units from the decision until the
///   response's body ends, fails or is dropped. A connection that is upgraded, such as a websocket, is no
///   body: it holds nothing.
/// * With the [`Limiter`](crate::Limiter), they are held as long as the [`Decision`](crate::Decision), or
///   a clone of it, lives. A decision that is dropped at once holds nothing.
///   [`Limiter::refund`](crate::Limiter::refund) gives nothing back here.
///
/// Meanwhile the lease is renewed, every third of it. A release that comes late frees nobody else's units.
///
/// * **Promise**: at any moment at most the limit in use, as long as no instance is cut off from the store
///   for longer than a lease and goes on working.
/// * **Source**: the counting semaphore with leases.
/// * **Cost**: one member of a sorted set per unit in use, 50 to 140 bytes in Redis.
/// * **Weakness**: units of an instance that was killed are missing for a lease. The retry time is when a
///   lease ends; units may come free much sooner.
///
/// A quota with a [`burst`](Quota::burst), or a limit above a million, is refused.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Concurrency, Key, Limiter, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(MemoryStore::new());
/// let exports = Policy::new("exports", Quota::concurrent(1)).algorithm(Concurrency);
/// let tenant = Key::new("acme");
///
/// let running = limiter.check(&exports, &tenant, 1).await?;
/// assert!(running.is_allowed());
/// assert!(!limiter.check(&exports, &tenant, 1).await?.is_allowed());
/// drop(running);
/// assert!(limiter.check(&exports, &tenant, 1).await?.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Concurrency;

const MAX_UNITS: u64 = 1_000_000;

impl Algorithm for Concurrency {
    fn name(&self) -> &str {
        "concurrency"
    }

    fn lua(&self) -> &str {
        include_str!("../../lua/concurrency.lua")
    }

    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        if quota.has_burst() {
            return Err(Error::invalid("a limit on concurrency has no burst: leave out `burst`"));
        }
        if quota.limit() > MAX_UNITS {
            return Err(Error::invalid("a limit on concurrency must be at most 1 000 000"));
        }
        Ok(vec![quota.limit(), quota.period_micros()])
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::OnRelease
    }

    fn twin(&self) -> Option<&dyn Twin> {
        Some(self)
    }
}

/// The units of the state, sorted by when they expire, and the index of the first that has not.
fn in_use(state: Option<&State>, now: u64) -> (&[Unit], usize) {
    let units = match state {
        Some(State::Holders(units)) => units.as_slice(),
        _ => &[],
    };
    (units, units.partition_point(|unit| unit.expires <= now))
}

/// A unit, of one holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    expires: u64,
    holder: u128,
}

impl Twin for Concurrency {
    fn plan(&self, arguments: &[u64], state: Option<&State>, now: u64, cost: u64) -> Plan {
        let &[limit, lease] = arguments else {
            unreachable!("`arguments` above makes two");
        };
        let (units, first) = in_use(state, now);
        let used = (units.len() - first) as u64;
        let left = |unit: &Unit| (unit.expires - now).min(lease);
        let last = units.last().filter(|_| used > 0);
        let reset = last.map_or(0, left);
        let stale = last.is_some_and(|last| last.expires > now + lease);
        let before = Gauge { remaining: limit.saturating_sub(used), reset };
        Plan::of(cost, limit, before, if cost > 0 { lease } else { reset }, stale, || {
            // When as many units as are missing have expired.
            let missing = usize::try_from(used + cost - limit).unwrap_or(usize::MAX);
            units.get(first.saturating_add(missing - 1)).map_or(lease, left)
        })
    }

    fn apply(&self, arguments: &[u64], state: Option<State>, now: u64, change: Change) -> Option<Kept> {
        let &[_, lease] = arguments else {
            unreachable!("`arguments` above makes two");
        };
        let mut units = match state {
            Some(State::Holders(units)) => units,
            _ => Vec::new(),
        };
        let expires = now + lease;
        let cut = |units: &mut [Unit]| {
            let long = units.partition_point(|unit| unit.expires <= expires);
            units[long..].iter_mut().for_each(|unit| unit.expires = expires);
        };
        match change {
            Change::Charge(cost, holder) => {
                units.drain(..units.partition_point(|unit| unit.expires <= now));
                cut(&mut units);
                units.extend((0..cost).map(|_| Unit { expires, holder }));
            }
            Change::Repair => cut(&mut units),
            // Releases the holder's units, and nobody else's.
            Change::Refund(_, holder) => units.retain(|unit| unit.holder != holder),
            // Those that have expired are somebody else's by now.
            Change::Renew(holder) => {
                let is_kept = |unit: &Unit| unit.holder == holder && unit.expires > now;
                let kept = units.iter().filter(|unit| is_kept(unit)).count();
                units.retain(|unit| !is_kept(unit));
                let place = units.partition_point(|unit| unit.expires <= expires);
                units.splice(place..place, (0..kept).map(|_| Unit { expires, holder }));
            }
        }
        let last = units.last()?.expires;
        Some(Kept { state: State::Holders(units), lifetime: last.saturating_sub(now) })
    }
}
