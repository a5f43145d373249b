//! Keys that are banned after too many denials, or by an administrator.

mod administration;
mod answers;
mod counting;
mod while_banned;

use std::time::Duration;

use crate::support::{RedisServer, redis_cluster::RedisCluster, settings, store};
use tower_ratelimit::{
    Decision, Key, Limiter, MemoryStore, Policy, Quota, algorithm::FixedWindow, policy::Penalty,
};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// `limit` units a day, whose windows do not end during a test.
fn day(name: &str, limit: u64) -> Policy {
    Policy::new(name, Quota::per_day(limit)).algorithm(FixedWindow::anchored())
}

/// Bans for an hour after three denials.
fn three() -> Penalty {
    Penalty::after(3, HOUR)
}

async fn stores(server: &RedisServer, prefix: &str) -> [(&'static str, Limiter); 3] {
    let cluster = settings().prefix(prefix).connect_cluster(RedisCluster::shared().urls()).await.unwrap();
    [
        ("memory", Limiter::new(MemoryStore::new())),
        ("redis", Limiter::new(store(server).await)),
        ("cluster", Limiter::new(cluster)),
    ]
}

async fn ask(limiter: &Limiter, policy: &Policy, key: &Key) -> Decision {
    limiter.check(policy, key, 1).await.unwrap()
}

/// Asks until the key is banned. Returns how many requests were admitted, and how many denied before the one that banned it.
async fn provoke(limiter: &Limiter, policy: &Policy, key: &Key) -> (usize, usize) {
    let (mut admitted, mut denied) = (0, 0);
    loop {
        match ask(limiter, policy, key).await {
            decision if decision.is_banned() => return (admitted, denied),
            decision if decision.is_allowed() => admitted += 1,
            _ => denied += 1,
        }
        assert!(admitted + denied < 1_000, "never banned");
    }
}
