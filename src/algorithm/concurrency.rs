use super::{
    Algorithm, Replenishment,
    state::{Holder, Holders, State},
    twin::{Change, Gauge, Kept, Plan, Twin},
};
use crate::{error::Error, quota::Quota};

/// At most the limit in use at any moment, over all instances: requests in flight, jobs, connections.
///
/// The quota's limit is how many units may be in use at once, and its period the *lease*: who holds units
/// and is not heard of for so long is taken for dead, and its units are free again.
/// [`Policy::concurrency`](crate::Policy::concurrency) makes a policy with a lease of 30 seconds.
///
/// * Behind the [layer](crate::RateLimitLayer), a request holds its units from the decision until the
///   response's body ends, fails or is dropped. A connection that is upgraded, such as a websocket, is no
///   body: it holds nothing.
/// * With the [`Limiter`](crate::Limiter), they are held as long as the [`Decision`](crate::Decision), or
///   a clone of it, lives. A decision that is dropped at once holds nothing.
///   [`Limiter::refund`](crate::Limiter::refund_latest) gives nothing back here.
///
/// Meanwhile the lease is renewed, every third of it. A release that comes late frees nobody else's units.
///
/// * **Promise**: at any moment at most the limit in use, as long as no instance is cut off from the store
///   for longer than a lease and goes on working.
/// * **Source**: the counting semaphore with leases.
/// * **Cost**: one member of a sorted set per holder, whatever its units, 50 to 140 bytes in Redis.
/// * **Weakness**: units of an instance that was killed are missing for a lease. The retry time is when a
///   lease ends; units may come free much sooner. Where more than 1000 holders expire at once, each decision frees
///   1000 of them.
///
/// A quota with a [`burst`](Quota::burst), or a limit above a million, is refused.
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
/// let lease = Duration::from_secs(120);
/// let exports = Policy::new("exports", Quota::new(1, lease)?).algorithm(Concurrency::new());
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
pub struct Concurrency(());

impl Concurrency {
    /// Counts the units in use at the moment.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

const MAX_UNITS: u64 = 1_000_000;

impl Algorithm for Concurrency {
    fn name(&self) -> &str {
        "concurrency"
    }

    fn lua(&self) -> &str {
        include_str!("../../lua/algorithm/concurrency.lua")
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

impl Holders {
    fn of(state: Option<&State>) -> Option<&Self> {
        match state {
            Some(State::Holders(holders)) => Some(&**holders),
            _ => None,
        }
    }

    /// The holders that have expired, and those that have not.
    fn split(&self, now: u64) -> (&[Holder], &[Holder]) {
        self.sorted.split_at(self.sorted.partition_point(|holder| holder.expires <= now))
    }

    fn insert(&mut self, holder: Holder) {
        let place = self.sorted.partition_point(|other| other.expires <= holder.expires);
        self.sorted.insert(place, holder);
        self.units += holder.units;
    }

    fn remove(&mut self, place: usize) -> Holder {
        let holder = self.sorted.remove(place);
        self.units -= holder.units;
        holder
    }

    fn place_of(&self, id: u128) -> Option<usize> {
        self.sorted.iter().position(|holder| holder.id == id)
    }
}

impl Twin for Concurrency {
    fn redis_micros(&self, _: &[u64], _: bool) -> u64 {
        20
    }

    fn plan(&self, arguments: &[u64], state: Option<&State>, now: u64, cost: u64) -> Plan {
        let &[limit, lease] = arguments else {
            unreachable!("`arguments` above makes two");
        };
        let (mut used, mut alive) = (0, &[][..]);
        if let Some(holders) = Holders::of(state) {
            let dead;
            (dead, alive) = holders.split(now);
            used = holders.units - dead.iter().map(|holder| holder.units).sum::<u64>();
        }
        let left = |holder: &Holder| (holder.expires - now).min(lease);
        let reset = alive.last().map_or(0, left);
        let stale = alive.last().is_some_and(|last| last.expires > now + lease);
        let before = Gauge { remaining: limit.saturating_sub(used), reset };
        Plan::of(cost, limit, before, if cost > 0 { lease } else { reset }, stale, || {
            // When as many units as are missing have expired.
            let mut missing = used + cost - limit;
            let last = alive.iter().find(|holder| {
                missing = missing.saturating_sub(holder.units);
                missing == 0
            });
            last.map_or(lease, left)
        })
    }

    fn apply(&self, arguments: &[u64], state: Option<State>, now: u64, change: Change) -> Option<Kept> {
        let &[_, lease] = arguments else {
            unreachable!("`arguments` above makes two");
        };
        let mut holders = match state {
            Some(State::Holders(holders)) => holders,
            _ => Box::default(),
        };
        let expires = now + lease;
        let cut = |sorted: &mut [Holder]| {
            let long = sorted.partition_point(|holder| holder.expires <= expires);
            sorted[long..].iter_mut().for_each(|holder| holder.expires = expires);
        };
        match change {
            Change::Charge(units, id) => {
                let dead = holders.split(now).0.len();
                holders.units -= holders.sorted.drain(..dead).map(|holder| holder.units).sum::<u64>();
                cut(&mut holders.sorted);
                // One that is there already was sent twice, and has its units once.
                if let Some(place) = holders.place_of(id) {
                    holders.remove(place);
                }
                holders.insert(Holder { expires, units, id });
            }
            Change::Repair => cut(&mut holders.sorted),
            // Releases the holder's units, and no other holder's.
            Change::Refund(_, id) => {
                if let Some(place) = holders.place_of(id) {
                    holders.remove(place);
                }
            }
            // One that has expired is dead.
            Change::Renew(id) => {
                if let Some(place) = holders.place_of(id).filter(|&place| holders.sorted[place].expires > now)
                {
                    let holder = holders.remove(place);
                    holders.insert(Holder { expires, ..holder });
                }
            }
        }
        let last = holders.sorted.last()?.expires;
        Some(Kept { lifetime: last.saturating_sub(now), state: State::Holders(holders) })
    }
}
