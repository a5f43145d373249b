//! A custom algorithm: a Lua file and a few lines of Rust, decided in one atomic step with a built-in algorithm.
//!
//! Run with a Redis server:
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example custom_algorithm
//! ```
//!
//! It requests eight reports for one tenant, under the policies "reports" (5 per hour by day, 20 by night) and "burst"
//! (10 per minute), and prints each decision. By day the sixth report is denied; by night all eight are admitted.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{env, error::Error};

use tower_ratelimit::{Charge, Key, Limiter, Policy, Quota, RedisStore, algorithm::Algorithm};

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
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".into());
    let store = RedisStore::connect(&url).await?;
    let reports = Policy::new("reports", Quota::per_hour(5)).algorithm(DayAndNight { night: 20 });
    // Finds a mistake in the Lua file now instead of at the first request.
    store.try_out(&reports).await?;

    let limiter = Limiter::new(store);
    let burst = Policy::new("burst", Quota::per_minute(10));
    let tenant = Key::new("acme");
    for i in 1..=8 {
        let both = [Charge::new(&reports, &tenant, 1), Charge::new(&burst, &tenant, 1)];
        let decision = limiter.check_all(&both).await?;
        println!("report {i}: {:?}, {:?} left", decision.verdict(), decision.remaining());
    }
    Ok(())
}
