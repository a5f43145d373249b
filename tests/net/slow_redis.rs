//! A Redis whose round trip takes about as long as the deadline, or longer.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use support::{
    RedisServer,
    slow::{far, jitter},
};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tower_ratelimit::{ErrorKind, FailureMode, Key, Limiter, Policy, Quota, RedisStore, policy::Penalty};

const DEADLINE: Duration = Duration::from_millis(50);

/// How `requests` requests ended, one every two milliseconds. `None` is an answer of Redis.
async fn ends(limiter: &Limiter, requests: usize) -> HashMap<Option<ErrorKind>, usize> {
    let policy = Policy::new("p", Quota::per_day(1_000_000)).failure_mode(FailureMode::Closed);
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
    // These wait for their whole deadline. They are about 80. Once in 256 times, the eight calls after a probe are all
    // answered in time; then about 100 more wait until three in a row are late.
    let waited = of(ErrorKind::StoreTimeout) + of(ErrorKind::StoreBusy);
    assert!(waited < 500, "{ends:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_bans_later_than_the_deadline_is_complete_and_opens_no_breaker() {
    const BANS: usize = 300;
    let server = RedisServer::start();
    let delay = Arc::new(AtomicU64::new(0));
    let delayed = delay.clone();
    let address = far(server.port(), move || delayed.load(Ordering::Relaxed)).await;
    // A deadline in which a busy machine answers.
    let settings = || RedisStore::builder().deadline(Duration::from_secs(2));
    let limiter = Limiter::new(settings().connect(&server.url()).await.unwrap());
    let policy =
        Policy::new("p", Quota::per_day(1_000)).penalty(Penalty::manual()).failure_mode(FailureMode::Closed);
    for key in 0..BANS {
        let key = Key::new(key.to_string());
        limiter.operator().ban(&policy, &key, Duration::from_secs(3_600)).await.unwrap();
    }
    let store =
        RedisStore::builder().deadline(DEADLINE).connect(&format!("redis://{address}")).await.unwrap();
    let limiter = Limiter::new(store);
    delay.store(2 * DEADLINE.as_millis() as u64, Ordering::Relaxed);
    let list = limiter.operator().bans(&policy).await.unwrap();
    assert_eq!((list.bans.len(), list.is_complete), (BANS, true));
    let check = limiter.check(&policy, &Key::new("alice"), 1).await;
    let kind = check.map_err(|error| error.kind());
    assert!(!matches!(kind, Err(ErrorKind::StoreSuspended)), "{kind:?}");
}
