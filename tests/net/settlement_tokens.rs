//! Tokens of reservations, settled in a Redis Cluster.

use std::{sync::atomic::Ordering, time::Duration};

use crate::cluster::{closed, key_of, store_that_is_cut};
use support::{redis_cluster::RedisCluster, settings};
use tower_ratelimit::{
    Charge, Key, Limiter, Reservation, algorithm::FixedWindow, settlement::SettlementSecret, store::Servers,
};

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn identities_on_two_nodes_are_settled_apart_and_a_repeat_settles_the_rest() {
    let cluster = RedisCluster::start(2);
    let limiter = async |deadline| {
        let store = settings().deadline(deadline).connect(Servers::cluster(cluster.urls())).await.unwrap();
        Limiter::new(store)
    };
    let (here, elsewhere) = (limiter(support::PATIENT).await, limiter(Duration::from_millis(300)).await);
    let secret = SettlementSecret::new([7; 32]);
    let policies =
        [closed("address", 100), closed("user", 100)].map(|policy| policy.algorithm(FixedWindow::anchored()));
    let keys = [key_of(&cluster, 0), key_of(&cluster, 1)];
    let charges = [0, 1].map(|place| Charge::new(&policies[place], &keys[place], 40));
    let decision = here.check_all(&charges).await.unwrap();
    let token = Reservation::new(&here, &decision).into_token(&secret, HOUR).unwrap();

    cluster.nodes[1].signal("STOP");
    let error = elsewhere.settle_token(&secret, &token, &policies, 10).await.unwrap_err();
    cluster.nodes[1].signal("CONT");
    let text = error.to_string();
    assert!(text.starts_with("the settlement token is not settled under `user`: "), "{text}");
    assert!(text.ends_with("; repeat the settlement (1 of its other rules are settled)"), "{text}");
    // The stopped node may have made the settlement later.
    let settled = here.settle_token(&secret, &token, &policies, 10).await.unwrap();
    assert!(settled.rules()[0].is_repeated());
    let settled = here.settle_token(&secret, &token, &policies, 10).await.unwrap();
    assert!(settled.is_repeated());
    for (policy, key) in policies.iter().zip(&keys) {
        assert_eq!(here.peek(policy, key, 0).await.unwrap().remaining(), Some(90), "{policy}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_is_made_once_when_its_connection_breaks() {
    let (_cluster, store, cut) = store_that_is_cut().await;
    let (limiter, key) = (Limiter::new(store), Key::new("a"));
    let secret = SettlementSecret::new([7; 32]);
    for (number, units) in [10, 40, 70].into_iter().enumerate() {
        let policy = closed(&format!("p{number}"), 100).algorithm(FixedWindow::anchored());
        let decision = limiter.check(&policy, &key, 40).await.unwrap();
        let token = Reservation::new(&limiter, &decision).into_token(&secret, HOUR).unwrap();
        cut.store(true, Ordering::Relaxed);
        let policies = [policy];
        let mut calls = 0;
        while !limiter
            .settle_token(&secret, &token, &policies, units)
            .await
            .is_ok_and(|settled| settled.is_repeated())
        {
            calls += 1;
            assert!(calls < 1_000, "it is never settled");
            tokio::task::yield_now().await;
        }
        assert_eq!(limiter.peek(&policies[0], &key, 0).await.unwrap().remaining(), Some(100 - units));
    }
}
