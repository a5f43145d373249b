//! Permits that a store has lost: the requests that hold them still run.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use support::{
    Fake, RedisServer, decides_after, eventually, fails, fails_after, settings, store, stores_with_clock,
};

use tokio::time::sleep;
use tower_ratelimit::{
    Charge, Decision, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, Quota,
    algorithm::Concurrency,
    store::{Action, ManualClock, Store},
};

/// Renewed every two seconds.
const PERIOD: Duration = Duration::from_secs(6);

fn policy(limit: u64) -> Policy {
    Policy::new("jobs", Quota::new(limit, PERIOD))
        .algorithm(Concurrency::new())
        .failure_mode(FailureMode::Closed)
}

async fn remaining(limiter: &Limiter, policy: &Policy) -> Option<u64> {
    limiter.peek(policy, &Key::new("all"), 0).await.ok()?.remaining()
}

#[tokio::test]
async fn jobs_that_run_keep_their_permits_when_redis_restarts_without_its_data() {
    let mut server = RedisServer::start();
    let [one, other] = [store(&server).await, store(&server).await].map(Limiter::new);
    let (policy, key) = (policy(5), Key::new("all"));
    let mut running = Vec::new();
    for _ in 0..5 {
        running.push(one.check(&policy, &key, 1).await.unwrap());
    }
    assert!(running.iter().all(Decision::is_admitted));
    server.restart();
    assert!(eventually(async || remaining(&other, &policy).await == Some(0)).await);
    assert!(!other.check(&policy, &key, 1).await.unwrap().is_admitted());
    running.pop();
    assert!(eventually(async || remaining(&other, &policy).await == Some(1)).await);
    drop(running);
    assert!(eventually(async || remaining(&other, &policy).await == Some(5)).await);
}

#[tokio::test]
async fn jobs_that_run_keep_their_permits_when_the_clock_of_the_store_steps_forward() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let redis = settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap();
    let stores =
        [("memory", Limiter::new(MemoryStore::with_clock(clock.clone()))), ("redis", Limiter::new(redis))];
    for (name, limiter) in stores {
        let (policy, key) = (policy(2), Key::new("all"));
        let running = limiter.check(&policy, &key, 2).await.unwrap();
        assert!(running.is_admitted(), "{name}");
        clock.advance(10 * PERIOD);
        assert_eq!(remaining(&limiter, &policy).await, Some(2), "{name}");
        assert!(eventually(async || remaining(&limiter, &policy).await == Some(0)).await, "{name}");
        assert!(!limiter.check(&policy, &key, 1).await.unwrap().is_admitted(), "{name}");
        drop(running);
        assert!(eventually(async || remaining(&limiter, &policy).await == Some(2)).await, "{name}");
    }
}

#[tokio::test]
async fn renewals_after_a_reset_exceed_the_limit_and_others_wait_for_releases() {
    let (_server, clock, redis, memory) = stores_with_clock().await;
    let stores: [(&str, &dyn Store); 2] = [("memory", &memory), ("redis", &redis)];
    for (name, store) in stores {
        let (policy, key) = (policy(2), Key::new("all"));
        let decide = async |action, charge: &Charge| {
            let decision = store.decide(action, std::slice::from_ref(charge)).await.unwrap();
            (decision.is_admitted(), decision.remaining().unwrap())
        };
        let [first, second, third] = [2, 2, 1].map(|cost| Charge::new(&policy, &key, cost));
        assert_eq!(decide(Action::Charge, &first).await, (true, 0), "{name}");
        store.reset(&policy, &key).await.unwrap();
        assert_eq!(decide(Action::Charge, &second).await, (true, 0), "{name}");
        for _ in 0..2 {
            assert_eq!(decide(Action::Renew, &first).await, (true, 0), "{name}");
        }
        assert_eq!(decide(Action::Refund, &second).await, (true, 0), "{name}");
        assert_eq!(decide(Action::Charge, &third).await, (false, 0), "{name}");
        // Under a lower limit they stay too.
        let lower = Charge::new(&self::policy(1), &key, 1);
        assert_eq!(decide(Action::Charge, &lower).await, (false, 0), "{name}");
        assert_eq!(decide(Action::Renew, &first).await, (true, 0), "{name}");
        // Without a renewal they expire.
        clock.advance(PERIOD);
        assert_eq!(decide(Action::Charge, &third).await, (true, 1), "{name}");
    }
}

/// A store that renewals reach late, and what it has done. The caller of each renewal waits, or sees that it failed.
fn late(is_failure: bool) -> (Limiter, Arc<Mutex<Vec<&'static str>>>) {
    let done = Arc::<Mutex<Vec<_>>>::default();
    let seen = done.clone();
    let store = Fake::new(MemoryStore::new(), move |store, action, charges| {
        if action != Action::Renew {
            if action == Action::Refund {
                seen.lock().unwrap().push("released");
            }
            return store.decide(action, charges);
        }
        let seen = seen.clone();
        let wait = async move {
            sleep(Duration::from_millis(1_500)).await;
            seen.lock().unwrap().push("renewed");
        };
        let renewed = decides_after(wait, store, action, charges);
        if is_failure {
            tokio::spawn(renewed);
            return fails(ErrorKind::StoreTimeout);
        }
        renewed
    });
    (Limiter::new(store), done)
}

#[tokio::test(start_paused = true)]
async fn a_release_waits_for_a_renewal_that_may_be_under_way() {
    for is_failure in [false, true] {
        let (limiter, seen) = late(is_failure);
        let policy = Policy::concurrency("jobs", 1);
        let running = limiter.check(&policy, &Key::new("all"), 1).await.unwrap();
        assert!(running.is_admitted());
        // The renewal is sent after ten seconds.
        sleep(Duration::from_secs(11)).await;
        drop(running);
        sleep(Duration::from_secs(9)).await;
        assert_eq!(*seen.lock().unwrap(), ["renewed", "released"], "{is_failure}");
        assert_eq!(remaining(&limiter, &policy).await, Some(1), "{is_failure}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_failed_is_soon_sent_again() {
    let (limiter, seen) = late(true);
    let policy = Policy::concurrency("jobs", 1);
    let _running = limiter.check(&policy, &Key::new("all"), 1).await.unwrap();
    sleep(Duration::from_secs(20)).await;
    assert!(seen.lock().unwrap().len() >= 4, "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn drain_waits_for_the_release_of_a_permit_whose_renewal_is_under_way() {
    for is_failure in [false, true] {
        let (limiter, seen) = late(is_failure);
        let running = limiter.check(&Policy::concurrency("jobs", 1), &Key::new("all"), 1).await.unwrap();
        sleep(Duration::from_secs(11)).await;
        drop(running);
        limiter.drain(Duration::from_secs(5)).await.unwrap();
        assert_eq!(*seen.lock().unwrap(), ["renewed", "released"], "{is_failure}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_is_sent_again_until_the_permit_has_expired() {
    let store = Fake::new(MemoryStore::new(), |store, action, charges| match action {
        Action::Refund => fails(ErrorKind::StoreUnreachable),
        _ => store.decide(action, charges),
    });
    let limiter = Limiter::new(store.clone());
    drop(limiter.check(&policy(1), &Key::new("all"), 1).await.unwrap());
    sleep(2 * PERIOD).await;
    let sent = store.asked(Action::Refund).len();
    assert!(sent > 2, "{sent}");
    sleep(10 * PERIOD).await;
    assert_eq!(store.asked(Action::Refund).len(), sent);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_check_that_is_denied_releases_nothing() {
    let store = Fake::new(MemoryStore::new(), |store, action, charges| match action {
        Action::Charge => decides_after(sleep(Duration::from_millis(10)), store, action, charges),
        _ => store.decide(action, charges),
    });
    let limiter = Limiter::new(store.clone());
    let _running = limiter.check(&policy(1), &Key::new("all"), 1).await.unwrap();
    let check = limiter.check(&policy(1), &Key::new("all"), 1);
    tokio::time::timeout(Duration::from_millis(5), check).await.unwrap_err();
    limiter.drain(Duration::from_secs(60)).await.unwrap();
    assert!(store.asked(Action::Refund).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_check_is_released_unless_its_failure_certainly_charged_nothing() {
    for (kind, releases) in [(ErrorKind::StoreUnreachable, 0), (ErrorKind::StoreTimeout, 1)] {
        let store = Fake::new(MemoryStore::new(), move |store, action, charges| match action {
            Action::Charge => fails_after(sleep(Duration::from_millis(10)), kind),
            _ => store.decide(action, charges),
        });
        let limiter = Limiter::new(store.clone());
        let check = limiter.check(&policy(1), &Key::new("all"), 1);
        tokio::time::timeout(Duration::from_millis(5), check).await.unwrap_err();
        limiter.drain(Duration::from_secs(60)).await.unwrap();
        assert_eq!(store.asked(Action::Refund).len(), releases, "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_whose_renewals_fail_is_released() {
    for takes in [10, 70, 150] {
        let takes = Duration::from_millis(takes);
        let limiter =
            Limiter::new(Fake::new(MemoryStore::new(), move |store, action, charges| match action {
                Action::Renew => fails_after(sleep(takes), ErrorKind::StoreTimeout),
                _ => store.decide(action, charges),
            }));
        let quota = Quota::new(1, Duration::from_millis(300));
        let policy = Policy::new("jobs", quota).algorithm(Concurrency::new());
        let running = limiter.check(&policy, &Key::new("all"), 1).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        drop(running);
        limiter.drain(Duration::from_secs(5)).await.unwrap();
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        sleep(Duration::from_secs(5)).await;
        assert_eq!(tasks(), 0, "{takes:?}");
    }
}
