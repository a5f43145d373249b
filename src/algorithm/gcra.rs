use super::{
    Algorithm,
    rules::{Admission, Count, Gauge, Plan, Replenishment, Rules},
};
use crate::{Error, Quota};

/// The generic cell rate algorithm: the quota's rate, with bursts up to its capacity. The default.
///
/// * **Promise**: in any span of time `t`, at most capacity + rate x `t` units. Units come back one by
///   one, evenly, so there is no edge at which a client gets a double share.
/// * **Source**: ITU-T I.371 and ATM Forum Traffic Management 4.1, "virtual scheduling"; known from the
///   redis-cell module, whose reply (limit, remaining, retry after, reset after) is the one given
///   here, but never rounded down.
/// * **Cost**: one number per key in Redis, 72 bytes with a short key while the capacity is below
///   about a thousand and 104 above; GET, and SET when something is charged.
/// * **Weakness**: "10 a minute" admits, over the first minute of a busy client, the burst of 10 and
///   the 10 that come back meanwhile. Where no span of a minute may hold more than ten, choose a
///   smaller burst.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Gcra, Key, Limiter, ManualClock, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let clock = ManualClock::new();
/// let limiter = Limiter::new(MemoryStore::new().manual_clock(clock.clone()));
/// let policy = Policy::new("api", Quota::per_second(3).burst(2)).algorithm(Gcra);
/// let key = Key::new("alice");
///
/// assert!(limiter.check(&policy, &key, 2).await?.is_allowed());
/// let refused = limiter.check(&policy, &key, 1).await?;
/// assert!(!refused.is_allowed());
/// // A third of a second, rounded up to the microsecond.
/// assert_eq!(refused.retry_after(), Some(Duration::from_micros(333_334)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Gcra;

impl Algorithm for Gcra {}

impl Rules for Gcra {
    fn name(&self) -> &'static str {
        "gcra"
    }

    fn lua(&self) -> &'static str {
        include_str!("../../lua/gcra.lua")
    }

    fn parameters(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        let divisor = gcd(quota.period_micros(), quota.limit());
        Ok(vec![quota.period_micros() / divisor, quota.limit() / divisor, quota.capacity()])
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Evenly
    }

    fn plan(&self, parameters: &[u64], state: Option<Count>, now: u64, cost: u64) -> Plan {
        let &[period, units, burst] = parameters else {
            unreachable!("`parameters` above makes three");
        };
        let (mut at, mut level, mut elapsed, mut paid, mut moved) = (now, 0, 0, 0, false);
        match state {
            None => {}
            Some(state) if state.at > now => {
                level = state.count;
                moved = true;
            }
            Some(state) => {
                let spans = (now - state.at) / period;
                let remainder = (now - state.at) % period;
                let back = u128::from(spans) * u128::from(units);
                let drained = scale(remainder, units, period);
                if u128::from(state.count) > back + u128::from(drained) {
                    at = now - remainder;
                    // Above `back`, as just seen, so `back` is below 2^64 too.
                    level = state.count - back as u64;
                    elapsed = remainder;
                    paid = drained;
                }
            }
        }
        if level - paid > burst {
            (at, level, elapsed, paid, moved) = (now, burst, 0, 0, true);
        }

        let remaining = burst + paid - level;
        let admission = if cost > burst {
            Admission::Never
        } else if cost > remaining {
            Admission::Later(scale_up(level + cost - burst, period, units) - elapsed)
        } else {
            Admission::Now
        };
        let reset = |level| scale_up(level, period, units) - elapsed;
        Plan {
            admission,
            before: Gauge { remaining, reset: reset(level) },
            after: Gauge {
                remaining: remaining.saturating_sub(cost),
                reset: if admission == Admission::Now { reset(level + cost) } else { 0 },
            },
            charged: Count { at, count: level.saturating_add(cost) },
            repaired: (moved && level > 0).then_some(Count { at, count: level }),
        }
    }
}

/// `a * b / m`, rounded down. Below 2^64 wherever it is used: a quota refills within 100 years.
fn scale(a: u64, b: u64, m: u64) -> u64 {
    (u128::from(a) * u128::from(b) / u128::from(m)) as u64
}

/// `a * b / m`, rounded up.
fn scale_up(a: u64, b: u64, m: u64) -> u64 {
    (u128::from(a) * u128::from(b)).div_ceil(u128::from(m)) as u64
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
