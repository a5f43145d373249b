//! A Redis whose round trip takes about as long as the deadline, or longer.

use std::{collections::HashMap, time::Duration};

use support::{
    RedisServer,
    slow::{far, jitter},
};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tower_ratelimit::{ErrorKind, FailureMode, Key, Limiter, Policy, Quota, RedisStore};

const DEADLINE: Duration = Duration::from_millis(50);

/// How `requests` requests ended, one every two milliseconds. `None` is an answer of Redis.
async fn ends(limiter: &Limiter, requests: usize) -> HashMap<Option<ErrorKind>, usize> {
    let policy = Policy::new("p", Quota::per_day(1_000_000)).on_store_failure(FailureMode::Closed);
    let mut tick = interval(Duration::from_millis(2));
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut running = JoinSet::new();
    for _ in 0..requests {
        tick.tick().await;
        let (limiter, policy) = (limiter.clone(), policy.clone());
        running.spawn(async move { limiter.check(&policy, &Key::new("alice"), 1).await });
    }
    let mut ends = HashMap::new();
    for end in running.join_all().await {
        *ends.entry(end.err().map(|error| error.kind())).or_default() += 1;
    }
    ends
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_do_not_wait_for_a_redis_that_is_often_slower_than_the_deadline() {
    let server = RedisServer::start();
    let address = far(server.port(), jitter(30..70)).await;
    let url = format!("redis://{address}");
    let limiter = Limiter::new(RedisStore::builder().deadline(DEADLINE).connect(&url).await.unwrap());
    // Until the breaker has opened.
    let first = ends(&limiter, 1_000).await;
    let ends = ends(&limiter, 10_000).await;
    eprintln!("{first:?} {ends:?}");
    let of = |kind| ends.get(&Some(kind)).copied().unwrap_or_default();
    // These wait for their whole deadline.
    let waited = of(ErrorKind::StoreTimeout) + of(ErrorKind::StoreBusy);
    assert!(waited < 100, "{ends:?}");
}
