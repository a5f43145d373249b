//! Calendar windows in a Cluster.

use std::time::Duration;

use futures_util::future::join_all;
use support::{AnotherTime, redis_cluster::RedisCluster, settings};
use tokio::net::TcpListener;
use tower_ratelimit::{Charge, FailureMode, Key, Limiter, Policy, Quota, store::Servers};

const SECOND: u64 = 1_000_000;
/// 2031-03-31T23:59:00Z.
const LATE_IN_MARCH: u64 = 1_932_767_940 * SECOND;
const MONTH: u64 = 31 * 86_400 * SECOND;

fn plan(limit: u64) -> Policy {
    Policy::new("plan", Quota::per_month(limit)).failure_mode(FailureMode::Closed)
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_the_clock_of_the_node_decides() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let cluster = RedisCluster::behind(port);
    let time = AnotherTime::between(listener, cluster.nodes[0].port(), LATE_IN_MARCH);
    let connect = async || {
        let settings = settings().deny_cache(Duration::ZERO);
        Limiter::new(settings.connect(Servers::cluster([format!("redis://127.0.0.1:{port}")])).await.unwrap())
    };
    let limiters = [connect().await, connect().await];
    let (plan, rate) =
        (plan(10), Policy::new("rate", Quota::per_day(1_000)).failure_mode(FailureMode::Closed));
    for (name, now) in [
        ("years later", LATE_IN_MARCH),
        ("the next month", LATE_IN_MARCH + 120 * SECOND),
        ("idle for four months", LATE_IN_MARCH + 4 * MONTH),
    ] {
        time.set(now);
        // Each decision is of a month, and of a bucket in another shard.
        let asked = (0..60).map(|n| {
            let (limiter, plan, rate) = (&limiters[n % 2], &plan, &rate);
            async move {
                let (organization, user) = (Key::new("acme"), Key::new(n));
                let both = [Charge::new(plan, &organization, 1), Charge::new(rate, &user, 1)];
                limiter.check_all(&both).await.unwrap().is_admitted()
            }
        });
        let admitted = join_all(asked).await.into_iter().filter(|admitted| *admitted).count();
        assert_eq!(admitted, 10, "{name}");
    }
    // In the last window, what was denied in the one shard is not charged in the other, and nothing is charged twice.
    let mut used = 0;
    for n in 0..60 {
        let left = limiters[0].peek(&rate, &Key::new(n), 0).await.unwrap().remaining().unwrap();
        used += 1_000 - left;
    }
    assert_eq!(used, 10);
}
