//! Several outages of Redis, one after the other, under `FailureMode::Local`: what all of them together admit.

use std::time::Duration;

use support::{RedisServer, eventually, settings};
use tower_ratelimit::{
    ErrorKind, FailureMode, Key, Limiter, Policy, Quota,
    algorithm::{FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
};

const LIMIT: u64 = 30;
const OUTAGES: usize = 4;

/// A policy of each algorithm. Nothing is replenished during a test.
fn policies(mode: FailureMode) -> Vec<Policy> {
    let quota = Quota::per_day(LIMIT);
    let all = [
        Policy::new("gcra", quota).algorithm(Gcra::new()),
        Policy::new("token-bucket", quota).algorithm(TokenBucket::new()),
        Policy::new("leaky-bucket", quota).algorithm(LeakyBucket::meter()),
        Policy::new("fixed-window", quota).algorithm(FixedWindow::anchored()),
        Policy::new("sliding-window", quota).algorithm(SlidingWindow::new()),
        Policy::new("sliding-log", quota).algorithm(SlidingLog::new()),
    ];
    all.into_iter().map(|policy| policy.on_store_failure(mode)).collect()
}

async fn limiters(server: &RedisServer, count: usize) -> Vec<Limiter> {
    let mut limiters = Vec::new();
    for _ in 0..count {
        // Without the deny cache, which would deny in an outage what was exhausted before.
        let settings = settings().deadline(Duration::from_millis(300)).deny_cache(Duration::ZERO);
        limiters.push(Limiter::new(settings.connect(&server.url()).await.unwrap()));
    }
    limiters
}

/// Asks each limiter until it denies.
async fn exhaust(limiters: &[Limiter], policy: &Policy, key: &Key) -> u64 {
    let mut admitted = 0;
    for limiter in limiters {
        while limiter.check(policy, key, 1).await.unwrap().is_allowed() {
            admitted += 1;
        }
    }
    admitted
}

/// Waits until no limiter asks the store.
async fn suspended(limiters: &[Limiter], policy: &Policy) {
    for limiter in limiters {
        let is_suspended = async || {
            let decision = limiter.peek(policy, &Key::new("bob"), 1).await.unwrap();
            decision.failure().is_some_and(|failure| failure.kind() == ErrorKind::StoreSuspended)
        };
        assert!(eventually(is_suspended).await, "the breaker does not open");
    }
}

/// Waits until every limiter asks the store, and has charged what it owes.
async fn back(limiters: &[Limiter], policy: &Policy) {
    for limiter in limiters {
        let is_back = async || limiter.peek(policy, &Key::new("bob"), 1).await.unwrap().failure().is_none();
        assert!(eventually(is_back).await, "the store is not asked again");
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Repeats an outage, and returns what was admitted by policy: before, and during and after each one.
async fn repeat(
    server: &mut RedisServer,
    limiters: &[Limiter],
    policies: &[Policy],
    begin: impl Fn(&mut RedisServer),
    end: impl Fn(&mut RedisServer),
) -> Vec<Vec<u64>> {
    let alice = Key::new("alice");
    let mut admitted = vec![Vec::new(); policies.len()];
    for (policy, admitted) in policies.iter().zip(&mut admitted) {
        admitted.push(exhaust(limiters, policy, &alice).await);
    }
    for _ in 0..OUTAGES {
        begin(server);
        suspended(limiters, &policies[0]).await;
        for (policy, admitted) in policies.iter().zip(&mut admitted) {
            admitted.push(exhaust(limiters, policy, &alice).await);
        }
        end(server);
        back(limiters, &policies[0]).await;
        for (policy, admitted) in policies.iter().zip(&mut admitted) {
            admitted.push(exhaust(limiters, policy, &alice).await);
        }
    }
    admitted
}

fn assert_bounded(policies: &[Policy], admitted: &[Vec<u64>], bound: u64) {
    let totals: Vec<u64> = admitted.iter().map(|one| one.iter().sum()).collect();
    let rows: Vec<_> = policies.iter().map(Policy::name).zip(&totals).zip(admitted).collect();
    assert!(totals.iter().all(|total| *total <= bound), "at most {bound} of each: {rows:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_freezes_admit_the_share_of_each_instance_once() {
    for (instances, mode) in
        [(1, FailureMode::Local { instances: 1 }), (3, FailureMode::Local { instances: 3 })]
    {
        let mut server = RedisServer::start();
        let (limiters, policies) = (limiters(&server, instances).await, policies(mode));
        let freeze = |server: &mut RedisServer| server.signal("STOP");
        let thaw = |server: &mut RedisServer| server.signal("CONT");
        let admitted = repeat(&mut server, &limiters, &policies, freeze, thaw).await;
        assert_bounded(&policies, &admitted, 2 * LIMIT);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_crashes_with_persistence_admit_the_share_of_each_instance_once() {
    let mut server = RedisServer::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let limiters = limiters(&server, 3).await;
    let policies = policies(FailureMode::Local { instances: 3 });
    let (kill, restart) = (RedisServer::kill, RedisServer::restart);
    let admitted = repeat(&mut server, &limiters, &policies, kill, restart).await;
    assert_bounded(&policies, &admitted, 2 * LIMIT);
}
