//! Keys that are banned after too many denials, or by an operator.

mod administration;
mod answers;
mod counting;
mod while_banned;

use std::time::Duration;

use support::{RedisServer, day, settings, state, store};
use tower_ratelimit::{
    Decision, Key, Limiter, MemoryStore, Policy, Quota, algorithm::FixedWindow, policy::Penalty,
};

use crate::each_store::penalties::{HOUR, MINUTE, ask, provoke, three};

const DAY: Duration = Duration::from_secs(86_400);
