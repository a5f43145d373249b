//! Faults of a Redis Cluster while its slots move.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::cluster::{closed, key_of, slot_of, store_that_is_cut};
use support::{eventually, redis_cluster::RedisCluster, settings};
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::sleep,
};
use tower_ratelimit::{Charge, ErrorKind, Key, Limiter, Policy, algorithm::FixedWindow, store::Servers};

/// How decisions of one key went.
#[derive(Debug, Default)]
struct Seen {
    decided: u64,
    /// Failed because the breaker was open.
    suspended: u64,
    failed: u64,
    slowest: Duration,
}

/// Checks the key, one decision after the other, until `stop`.
fn watch(limiter: &Limiter, policy: &Policy, key: &Key, stop: &Arc<AtomicBool>) -> JoinHandle<Seen> {
    let (limiter, policy, key, stop) = (limiter.clone(), policy.clone(), key.clone(), stop.clone());
    tokio::spawn(async move {
        let mut seen = Seen::default();
        while !stop.load(Ordering::Relaxed) {
            let asked = Instant::now();
            match limiter.check(&policy, &key, 1).await {
                Ok(_) => seen.decided += 1,
                Err(error) if error.kind() == ErrorKind::StoreSuspended => seen.suspended += 1,
                Err(error) => {
                    eprintln!("{}: {error}", key.as_str());
                    seen.failed += 1;
                }
            }
            seen.slowest = seen.slowest.max(asked.elapsed());
            sleep(Duration::from_millis(2)).await;
        }
        seen
    })
}

/// An identity whose keys are on `node`, with this number of shards: the default, or enough that a shard is near the slot of the
/// identity.
fn key_on(cluster: &RedisCluster, shards: u16, node: usize) -> Key {
    if shards == 8 {
        return key_of(cluster, node);
    }
    let mut identities = (0..).map(|number| format!("user-{number}"));
    let identity = identities.find(|identity| cluster.first_owner(cluster.slot(identity)) == node);
    Key::new(identity.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_hangs_stalls_no_other_node_while_slots_move() {
    let rows = [
        ("shards", 8, false),
        ("many shards", 1_024, false),
        ("no connection to it", 8, true),
        ("no connection to it, many shards", 1_024, true),
    ];
    for (name, shards, is_cut) in rows {
        let cluster = RedisCluster::start(3);
        // Shorter than redis-rs waits for one reply.
        let settings = settings().deadline(Duration::from_millis(400)).deny_cache(Duration::ZERO);
        let store = settings.cluster_shards(shards).connect(Servers::cluster(cluster.urls())).await.unwrap();
        let limiter = Limiter::new(store);
        let policy = closed("p", 1_000_000).algorithm(FixedWindow::anchored());
        let keys = [0, 1, 2].map(|node| key_on(&cluster, shards, node));
        for key in &keys {
            assert!(limiter.check(&policy, key, 1).await.unwrap().is_admitted());
        }
        let slot = slot_of(&cluster, 0, &keys[0]);
        if is_cut {
            let _: u64 = cluster.nodes[1].command(&["CLIENT", "KILL", "TYPE", "normal"]);
        }
        cluster.nodes[1].signal("STOP");
        let stop = Arc::new(AtomicBool::new(false));
        let watched = [0, 1, 2].map(|node: usize| watch(&limiter, &policy, &keys[node], &stop));
        let moved = spawn_blocking(move || {
            for (from, to) in [(0, 2), (2, 0), (0, 2), (2, 0), (0, 2), (2, 0)] {
                cluster.move_slot(slot, from, to, || std::thread::sleep(Duration::from_millis(100)));
                std::thread::sleep(Duration::from_millis(400));
            }
            cluster
        });
        let cluster = moved.await.unwrap();
        stop.store(true, Ordering::Relaxed);
        for (node, seen) in watched.into_iter().enumerate() {
            let seen = seen.await.unwrap();
            eprintln!("{name}, node {node}: {seen:?}");
            if node == 1 {
                // Its breaker opens after three calls, and again after each probe that is answered late.
                assert!(seen.decided == 0 && seen.failed * 10 < seen.suspended, "{name}: {seen:?}");
            } else {
                // A busy machine misses a deadline now and then.
                assert!((seen.failed + seen.suspended) * 20 < seen.decided, "{name}, {node}: {seen:?}");
            }
        }
        cluster.nodes[1].signal("CONT");
        assert!(eventually(async || limiter.check(&policy, &keys[1], 1).await.is_ok()).await, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_is_not_charged_twice_when_its_connection_breaks() {
    let (_cluster, store, cut) = store_that_is_cut().await;
    let (limiter, key) = (Limiter::new(store), Key::new("a"));
    let policy = closed("once", 100).algorithm(FixedWindow::anchored());
    assert!(limiter.check(&policy, &key, 1).await.unwrap().is_admitted());
    for charged in 2..=6 {
        cut.store(true, Ordering::Relaxed);
        let error = limiter.check(&policy, &key, 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreDisconnected, "{error}");
        let mut left = None;
        let answers = async || {
            left = limiter.peek(&policy, &key, 1).await.ok().and_then(|peeked| peeked.remaining());
            left.is_some()
        };
        assert!(eventually(answers).await);
        assert_eq!(left, Some(100 - charged));
    }
}

#[tokio::test]
async fn connections_that_were_closed_while_idle_fail_no_decision_and_charge_once() {
    let cluster = RedisCluster::start(3);
    for (name, shards) in [("shards", 8), ("many-shards", 1_024)] {
        let store =
            settings().cluster_shards(shards).connect(Servers::cluster(cluster.urls())).await.unwrap();
        let limiter = Limiter::new(store);
        let policy = closed(name, 100).algorithm(FixedWindow::anchored());
        let keys = [0, 1, 2].map(|node| key_on(&cluster, shards, node));
        for charged in 1..=5 {
            for key in &keys {
                let left = limiter.check(&policy, key, 1).await.unwrap().remaining();
                assert_eq!(left, Some(100 - charged), "{name}");
            }
            for node in &cluster.nodes {
                let _: u64 = node.command(&["CLIENT", "KILL", "TYPE", "normal"]);
            }
            // The client notices.
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Charges several policies of one identity together until `stop`. Returns what was admitted, and what failed.
fn charge_all(
    limiter: &Limiter,
    charges: &[Charge],
    stop: &Arc<AtomicBool>,
) -> JoinHandle<(u64, Vec<Duration>)> {
    let (limiter, charges, stop) = (limiter.clone(), charges.to_vec(), stop.clone());
    tokio::spawn(async move {
        let (mut admitted, mut failed) = (0, Vec::new());
        while !stop.load(Ordering::Relaxed) {
            let asked = Instant::now();
            match limiter.check_all(&charges).await {
                Ok(decision) => admitted += u64::from(decision.is_admitted()),
                Err(error) => {
                    eprintln!("{error}");
                    failed.push(asked.elapsed());
                }
            }
            sleep(Duration::from_millis(2)).await;
        }
        (admitted, failed)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn several_policies_of_one_identity_are_decided_all_or_nothing_while_its_slot_moves() {
    let deadline = Duration::from_millis(400);
    for (name, shards) in [("shards", 8), ("many shards", 1_024)] {
        let cluster = RedisCluster::start(3);
        let settings = settings().deadline(deadline).deny_cache(Duration::ZERO).cluster_shards(shards);
        let limiter = Limiter::new(settings.connect(Servers::cluster(cluster.urls())).await.unwrap());
        let key = key_on(&cluster, shards, 0);
        let policies =
            ["one", "two", "three"].map(|name| closed(name, 1_000_000).algorithm(FixedWindow::anchored()));
        let charges = policies.each_ref().map(|policy| Charge::new(policy, &key, 1));
        assert!(limiter.check_all(&charges).await.unwrap().is_admitted());
        let slot = slot_of(&cluster, 0, &key);
        let stop = Arc::new(AtomicBool::new(false));
        let running: Vec<_> = (0..8).map(|_| charge_all(&limiter, &charges, &stop)).collect();
        let moved = spawn_blocking(move || {
            // While a key is moved alone, the keys of the decision are on two nodes.
            for (from, to) in [(0, 1), (1, 2), (2, 0)] {
                cluster.move_slot(slot, from, to, || std::thread::sleep(Duration::from_millis(30)));
            }
            let mut moved = 0;
            cluster.move_slot(slot, 0, 1, || {
                moved += 1;
                // Longer than a decision waits.
                std::thread::sleep(if moved == 2 { 3 * deadline } else { Duration::ZERO });
            });
            cluster
        });
        let cluster = moved.await.unwrap();
        assert!(eventually(async || limiter.check_all(&charges).await.is_ok()).await, "{name}");
        stop.store(true, Ordering::Relaxed);
        let (mut admitted, mut failed) = (0, Vec::new());
        for task in running {
            let (more, late) = task.await.unwrap();
            admitted += more;
            failed.extend(late);
        }
        // In one step: a decision whose reply was late may be made only now. The breaker may have opened again.
        let mut peeked = None;
        let is_peeked = eventually(async || {
            peeked = limiter.peek_all(&charges).await.ok();
            peeked.is_some()
        });
        assert!(is_peeked.await, "{name}");
        let peeked = peeked.unwrap();
        let charged: Vec<u64> =
            peeked.outcomes().iter().map(|outcome| 1_000_000 - outcome.remaining()).collect();
        let slowest = failed.iter().max().copied().unwrap_or_default();
        eprintln!("{name}: {admitted} admitted, {} failed in {slowest:?}, {charged:?} charged", failed.len());
        assert!(charged.iter().all(|&each| each == charged[0]), "{name}: {charged:?}");
        // The first and the last decision, and those that failed although they were made.
        let least = admitted + 1;
        assert!(
            (least..=least + 10 + failed.len() as u64).contains(&charged[0]),
            "{name}: {charged:?} charged, {admitted} admitted, {} failed",
            failed.len()
        );
        // Far above what a busy machine needs: none hangs.
        assert!(slowest < 25 * deadline, "{name}: {slowest:?}");
        drop(cluster);
    }
}
