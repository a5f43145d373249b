//! `MemoryStore` stays within its bounds and keeps what matters.

use std::time::Duration;

use support::RedisServer;
use tower_ratelimit::{
    Key, Limiter, MemoryStore, Policy, Quota,
    algorithm::{FixedWindow, Gcra},
    store::ManualClock,
};

fn stranger(i: u64) -> Key {
    Key::new(format!("stranger{i}"))
}

#[tokio::test]
async fn a_flood_of_identities_stays_within_the_capacity() {
    let store = MemoryStore::new().capacity(1_600);
    let limiter = Limiter::new(store.clone());
    let policy = Policy::new("p", Quota::per_day(10));
    for i in 0..50_000 {
        assert!(limiter.check(&policy, &stranger(i), 1).await.unwrap().is_admitted());
    }
    assert!((1_000..=1_600).contains(&store.key_count()), "{}", store.key_count());
}

#[tokio::test]
async fn a_capacity_of_any_size_is_filled_and_kept() {
    struct Row {
        capacity: usize,
        most: usize,
    }
    let rows = [
        Row { capacity: 0, most: 256 },
        Row { capacity: 256, most: 256 },
        Row { capacity: 4_000, most: 4_000 },
        // The parts are a power of two, and each is rounded up.
        Row { capacity: 65_536, most: 65_536 },
        Row { capacity: 65_537, most: 65_568 },
        Row { capacity: 100_000, most: 100_032 },
    ];
    let policy = Policy::new("p", Quota::per_day(10));
    for Row { capacity, most } in rows {
        let store = MemoryStore::new().capacity(capacity);
        let limiter = Limiter::new(store.clone());
        for i in 0..2 * most as u64 {
            limiter.check(&policy, &stranger(i), 1).await.unwrap();
        }
        assert!((most * 99 / 100..=most).contains(&store.key_count()), "{capacity}: {}", store.key_count());
    }
    // No memory is allocated before there are keys.
    assert!(MemoryStore::new().capacity(usize::MAX).key_count() == 0);
}

#[tokio::test(start_paused = true)]
async fn keys_that_no_longer_matter_make_room_as_new_ones_come() {
    let store = MemoryStore::new();
    let limiter = Limiter::new(store.clone());
    let policy = Policy::new("p", Quota::per_second(1));
    for i in 0..10_000 {
        limiter.check(&policy, &stranger(i), 1).await.unwrap();
    }
    assert_eq!(store.key_count(), 10_000);
    tokio::time::advance(Duration::from_secs(2)).await;
    for i in 10_000..20_000 {
        limiter.check(&policy, &stranger(i), 1).await.unwrap();
    }
    // The first ten thousand keys were removed although the capacity would hold them.
    assert!(store.key_count() < 11_100, "{}", store.key_count());
}

/// As in Redis, whose keys do not expire by a manual clock.
#[tokio::test]
async fn new_keys_remove_none_that_matters_again_after_a_manual_clock_was_set_back() {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let limiter = Limiter::new(store.clone());
    let policy = Policy::new("p", Quota::per_second(1));
    for i in 0..2_000 {
        limiter.check(&policy, &stranger(i), 1).await.unwrap();
    }
    clock.advance(Duration::from_secs(2));
    for i in 2_000..4_000 {
        limiter.check(&policy, &stranger(i), 1).await.unwrap();
    }
    clock.step_back(Duration::from_secs(2));
    let mut forgotten = 0;
    for i in 0..2_000 {
        forgotten += u32::from(limiter.check(&policy, &stranger(i), 1).await.unwrap().is_admitted());
    }
    assert_eq!(forgotten, 0);
}

#[tokio::test]
async fn a_key_that_matters_longer_outlives_a_flood_of_keys_that_do_not() {
    let store = MemoryStore::new().capacity(1_600);
    let limiter = Limiter::new(store);
    let (long, short) =
        (Policy::new("long", Quota::per_day(1)), Policy::new("short", Quota::per_minute(100)));
    let alice = Key::new("alice");
    assert!(limiter.check(&long, &alice, 1).await.unwrap().is_admitted());
    for i in 0..50_000 {
        limiter.check(&short, &stranger(i), 1).await.unwrap();
    }
    assert!(!limiter.check(&long, &alice, 1).await.unwrap().is_admitted());
}

#[tokio::test]
async fn clones_share_their_counts_and_a_reset_forgets_one_key_of_one_policy() {
    let store = MemoryStore::new();
    let (one, other) = (Limiter::new(store.clone()), Limiter::new(store));
    let (a, b) = (Policy::new("a", Quota::per_day(1)), Policy::new("b", Quota::per_day(1)));
    let (alice, bob) = (Key::new("alice"), Key::new("bob"));
    for (policy, key) in [(&a, &alice), (&a, &bob), (&b, &alice)] {
        assert!(one.check(policy, key, 1).await.unwrap().is_admitted());
        assert!(!other.check(policy, key, 1).await.unwrap().is_admitted());
    }
    other.operator().reset(&a, &alice).await.unwrap();
    let left = async |policy, key| one.peek(policy, key, 0).await.unwrap().outcomes()[0].remaining();
    assert_eq!((left(&a, &alice).await, left(&a, &bob).await, left(&b, &alice).await), (1, 0, 0));
}

#[tokio::test]
async fn a_slower_quota_does_not_restore_expired_charges() {
    let server = RedisServer::start();
    let stores = [
        ("memory", Limiter::new(MemoryStore::new())),
        ("redis", Limiter::new(support::store(&server).await)),
    ];
    let fast = Quota::new(5, Duration::from_millis(1));
    for (name, limiter) in stores {
        let policies = |quota| {
            [
                Policy::new("g", quota).algorithm(Gcra::new()),
                Policy::new("w", quota).algorithm(FixedWindow::anchored()),
            ]
        };
        for (before, after) in policies(fast).into_iter().zip(policies(Quota::per_day(5))) {
            assert!(limiter.check(&before, &Key::new("alice"), 5).await.unwrap().is_admitted());
            // Until the charges have expired. The clocks tested here are real ones.
            tokio::time::sleep(Duration::from_millis(20)).await;
            let decision = limiter.check(&after, &Key::new("alice"), 5).await.unwrap();
            assert!(decision.is_admitted(), "{name}, {}", before.name());
        }
    }
}
