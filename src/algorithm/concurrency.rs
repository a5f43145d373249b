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
///
/// Meanwhile the lease is renewed, every third of it. A release that comes late frees nobody else's units.
///
/// * **Promise**: at any moment at most the limit in use, as long as no instance is cut off from the store
///   for longer than a lease and goes on working.
/// * **Source**: the counting semaphore with leases.
/// * **Cost**: one member of a sorted set per unit in use, about 100 bytes in Redis.
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

/// When each unit in use expires, the earliest first, none later than a lease from now.
fn in_use(state: Option<&State>, lease: u64, now: u64) -> Vec<u64> {
    let mut expires: Vec<u64> = match state {
        Some(State::Holders(units)) => {
            units.iter().filter(|unit| unit.0 > now).map(|unit| unit.0.min(now + lease)).collect()
        }
        _ => Vec::new(),
    };
    expires.sort_unstable();
    expires
}

impl Twin for Concurrency {
    fn plan(&self, arguments: &[u64], state: Option<&State>, now: u64, cost: u64) -> Plan {
        let &[limit, lease] = arguments else {
            unreachable!("`arguments` above makes two");
        };
        let expires = in_use(state, lease, now);
        let used = expires.len() as u64;
        let reset = expires.last().map_or(0, |last| last - now);
        let stale =
            matches!(state, Some(State::Holders(units)) if units.iter().any(|unit| unit.0 > now + lease));
        let before = Gauge { remaining: limit.saturating_sub(used), reset };
        Plan::of(cost, limit, before, if cost > 0 { lease } else { reset }, stale, || {
            // As many units as are missing.
            let place = usize::try_from(used + cost - limit - 1).unwrap_or(usize::MAX);
            expires.get(place).map_or(lease, |expires| expires - now)
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
        match change {
            Change::Charge(cost, holder) => {
                units.retain(|unit| unit.0 > now);
                for unit in &mut units {
                    unit.0 = unit.0.min(now + lease);
                }
                units.extend((0..cost).map(|_| (now + lease, holder)));
            }
            Change::Repair => {
                for unit in &mut units {
                    unit.0 = unit.0.min(now + lease);
                }
            }
            // Releases the holder's units, and nobody else's.
            Change::Refund(_, holder) => units.retain(|unit| unit.1 != holder),
            // Those that have expired are somebody else's by now.
            Change::Renew(holder) => {
                for unit in units.iter_mut().filter(|unit| unit.1 == holder && unit.0 > now) {
                    unit.0 = now + lease;
                }
            }
        }
        let last = units.iter().map(|unit| unit.0).max()?;
        Some(Kept { state: State::Holders(units), lifetime: last.saturating_sub(now) })
    }
}
