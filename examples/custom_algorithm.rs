//! A custom algorithm: a Lua file for `RedisStore` and its twin in Rust for `MemoryStore`, decided in one
//! atomic step with a built-in algorithm.
//!
//! Run it in process, or with a Redis server:
//!
//! ```text
//! cargo run --example custom_algorithm
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example custom_algorithm
//! ```
//!
//! It requests eight reports for one tenant, under the policies "reports" (5 per hour by day, 20 by night)
//! and "burst" (10 per minute), and prints each decision. By day the sixth report is denied; by night all
//! eight are admitted.
//!
//! `TwinTest` of `tower-ratelimit-extra` compares the twins.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{env, error::Error};

use tower_ratelimit::{
    Charge, Key, Limiter, MemoryStore, Policy, Quota, RedisStore,
    algorithm::{Algorithm, Evaluation, Input, KeyState, Receipt, Twin, Update},
};

/// The quota's limit in each hour by day, and `night` in each hour by night.
#[derive(Debug)]
pub(crate) struct DayAndNight {
    pub(crate) night: u64,
}

impl Algorithm for DayAndNight {
    fn name(&self) -> &str {
        "day-and-night"
    }

    fn lua(&self) -> &str {
        include_str!("custom_algorithm.lua")
    }

    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, tower_ratelimit::Error> {
        Ok(vec![quota.limit(), self.night])
    }

    fn capacity(&self, quota: &Quota) -> u64 {
        quota.limit().max(self.night)
    }

    fn twin(&self) -> Option<&dyn Twin> {
        Some(self)
    }
}

const HOUR: u64 = 3_600_000_000;

/// The current hour.
struct Open {
    started: u64,
    /// The microseconds left in it.
    left: u64,
    limit: u64,
    used: u64,
}

fn open(input: &Input<'_>) -> Open {
    let (day, night) = (input.arguments[0], input.arguments[1]);
    let started = input.now - input.now % HOUR;
    let hour = started / HOUR % 24;
    let limit = if (6..22).contains(&hour) { day } else { night };
    let used = input.state.filter(|state| state.time == started).map_or(0, |state| state.count);
    Open { started, left: started + HOUR - input.now, limit, used }
}

impl Twin for DayAndNight {
    fn decide(&self, input: &Input<'_>, cost: u64) -> Evaluation {
        let Open { started, left, limit, used } = open(input);
        let free = limit.saturating_sub(used);
        let reset = |used| if used > 0 { left } else { 0 };
        if cost > free {
            // A cost above this hour's limit may be within a later hour's.
            let is_possible = cost <= input.arguments[0].max(input.arguments[1]);
            return Evaluation::deny(is_possible.then_some(left), free, reset(used));
        }
        let used = used + cost;
        Evaluation::admit(free - cost, reset(used)).mark(started).write(KeyState::new(started, used), left)
    }

    fn refund(&self, input: &Input<'_>, units: u64, receipt: Option<Receipt>) -> Option<Update> {
        let Open { started, used, .. } = open(input);
        if used == 0 || receipt.is_some_and(|charge| charge.mark != started) {
            // The charge no longer counts.
            return None;
        }
        Some(if used <= units { Update::Remove } else { Update::Keep(KeyState::new(started, used - units)) })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let reports = Policy::new("reports", Quota::per_hour(5)).algorithm(DayAndNight { night: 20 });
    let limiter = match env::var("REDIS_URL") {
        Ok(url) => {
            let store = RedisStore::connect(&url).await?;
            // Finds a mistake in the Lua file now instead of at the first request.
            store.probe_policy(&reports).await?;
            Limiter::new(store)
        }
        Err(_) => Limiter::new(MemoryStore::new()),
    };

    let burst = Policy::new("burst", Quota::per_minute(10));
    let tenant = Key::new("acme");
    for i in 1..=8 {
        let both = [Charge::new(&reports, &tenant, 1), Charge::new(&burst, &tenant, 1)];
        let decision = limiter.check_all(&both).await?;
        println!("report {i}: {:?}, {:?} left", decision.verdict(), decision.remaining());
    }
    Ok(())
}
