//! An algorithm of one's own: a Lua file and a few lines of Rust, decided in one atomic step with a
//! built-in one.
//!
//! Run with a Redis at hand:
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example custom_algorithm
//! ```
//!
//! It takes eight reports in a row for one tenant, under "day-and-night" (5 an hour by day, 20 by night) and
//! under "burst" (10 a minute), and prints what each decision says.

#![allow(clippy::print_stdout, reason = "a program that talks to a person")]

use std::{env, error::Error};

use tower_ratelimit::{Charge, Key, Limiter, Policy, Quota, RedisStore, algorithm::Algorithm};

/// The quota's limit in each hour of the day, another one in those of the night.
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
    // A mistake in the Lua file shows here and not at the first request.
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
