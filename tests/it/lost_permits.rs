//! Permits that a store has lost: the requests that hold them still run.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use support::{RedisServer, eventually, settings, store};
use tokio::time::sleep;
use tower_ratelimit::{
    Answer, Charge, Decision, Error, ErrorKind, FailureMode, Key, Limiter, ManualClock, MemoryStore, Policy,
    Quota,
    algorithm::Concurrency,
    store::{Action, Store},
};

/// Renewed every two seconds.
const PERIOD: Duration = Duration::from_secs(6);

fn policy(limit: u64) -> Policy {
    Policy::new("jobs", Quota::new(limit, PERIOD))
        .algorithm(Concurrency::new())
        .on_store_failure(FailureMode::Closed)
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
    assert!(running.iter().all(Decision::is_allowed));
    server.restart();
    assert!(eventually(async || remaining(&other, &policy).await == Some(0)).await);
    assert!(!other.check(&policy, &key, 1).await.unwrap().is_allowed());
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
        assert!(running.is_allowed(), "{name}");
        clock.advance(10 * PERIOD);
        assert_eq!(remaining(&limiter, &policy).await, Some(2), "{name}");
        assert!(eventually(async || remaining(&limiter, &policy).await == Some(0)).await, "{name}");
        assert!(!limiter.check(&policy, &key, 1).await.unwrap().is_allowed(), "{name}");
        drop(running);
        assert!(eventually(async || remaining(&limiter, &policy).await == Some(2)).await, "{name}");
    }
}

#[tokio::test]
async fn renewals_after_a_reset_exceed_the_limit_and_nothing_is_granted_until_enough_are_released() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let redis = settings().manual_clock(clock.clone()).connect(&server.url()).await.unwrap();
    let memory = MemoryStore::with_clock(clock.clone());
    let stores: [(&str, &dyn Store); 2] = [("memory", &memory), ("redis", &redis)];
    for (name, store) in stores {
        let (policy, key) = (policy(2), Key::new("all"));
        let decide = async |action, charge: &Charge| {
            let decision = store.decide(action, std::slice::from_ref(charge)).await.unwrap();
            (decision.is_allowed(), decision.remaining().unwrap())
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

/// Renewals reach it late. The caller of each waits, or sees that it failed.
struct Late {
    counts: MemoryStore,
    is_failure: bool,
    seen: Arc<Mutex<Vec<&'static str>>>,
}

impl Store for Late {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        if action != Action::Renew {
            if action == Action::Refund {
                self.seen.lock().unwrap().push("released");
            }
            return self.counts.decide(action, charges);
        }
        let (counts, charges, seen) = (self.counts.clone(), charges.to_vec(), self.seen.clone());
        let renewed = async move {
            sleep(Duration::from_millis(1_500)).await;
            seen.lock().unwrap().push("renewed");
            counts.decide(Action::Renew, &charges).await
        };
        if self.is_failure {
            tokio::spawn(renewed);
            return Answer::ready(Err(Error::new(ErrorKind::StoreTimeout, "late")));
        }
        Answer::pending(renewed)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        self.counts.reset(policy, key)
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_waits_for_a_renewal_that_may_be_under_way() {
    for is_failure in [false, true] {
        let seen = Arc::default();
        let limiter = Limiter::new(Late { counts: MemoryStore::new(), is_failure, seen: Arc::clone(&seen) });
        let policy = Policy::concurrency("jobs", 1);
        let running = limiter.check(&policy, &Key::new("all"), 1).await.unwrap();
        assert!(running.is_allowed());
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
    let seen = Arc::default();
    let limiter =
        Limiter::new(Late { counts: MemoryStore::new(), is_failure: true, seen: Arc::clone(&seen) });
    let policy = Policy::concurrency("jobs", 1);
    let _running = limiter.check(&policy, &Key::new("all"), 1).await.unwrap();
    sleep(Duration::from_secs(20)).await;
    assert!(seen.lock().unwrap().len() >= 4, "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn drain_waits_for_the_release_of_a_permit_whose_renewal_is_under_way() {
    for is_failure in [false, true] {
        let seen = Arc::default();
        let limiter = Limiter::new(Late { counts: MemoryStore::new(), is_failure, seen: Arc::clone(&seen) });
        let running = limiter.check(&Policy::concurrency("jobs", 1), &Key::new("all"), 1).await.unwrap();
        sleep(Duration::from_secs(11)).await;
        drop(running);
        limiter.drain(Duration::from_secs(5)).await.unwrap();
        assert_eq!(*seen.lock().unwrap(), ["renewed", "released"], "{is_failure}");
    }
}

/// Renewals fail after some time.
struct NeverRenewed {
    counts: MemoryStore,
    takes: Duration,
}

impl Store for NeverRenewed {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        if action != Action::Renew {
            return self.counts.decide(action, charges);
        }
        let takes = self.takes;
        Answer::pending(async move {
            sleep(takes).await;
            Err(Error::new(ErrorKind::StoreTimeout, "no answer"))
        })
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        self.counts.reset(policy, key)
    }
}

#[tokio::test(start_paused = true)]
async fn a_permit_whose_renewals_fail_is_released() {
    for takes in [10, 70, 150] {
        let takes = Duration::from_millis(takes);
        let counts = MemoryStore::new();
        let limiter = Limiter::new(NeverRenewed { counts, takes });
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
