//! Keys that are found in Redis.

use support::{RedisServer, redis_cluster::RedisCluster, settings};
use tower_ratelimit::{
    ErrorKind, Key, Limiter, Policy, Quota, RedisStore,
    algorithm::{FixedWindow, SlidingLog},
    policy::Penalty,
    store::{Servers, StoredKeys},
};

fn policies() -> [Policy; 3] {
    let quota = Quota::per_hour(9);
    [
        Policy::new("a:{b}", quota),
        Policy::new("a", quota).algorithm(SlidingLog::new()),
        Policy::new("all", quota).algorithm(FixedWindow::aligned()),
    ]
}

fn keys() -> Vec<Key> {
    let mut keys: Vec<Key> = ["", "alice", "a}:{b", "José", "*", &"x".repeat(200)].map(Key::new).into();
    keys.push(Key::from(("acme", "alice")));
    keys.sort();
    keys
}

async fn charge_all(store: &RedisStore) {
    let limiter = Limiter::new(store.clone());
    for policy in &policies() {
        for key in &keys() {
            limiter.check(policy, key, 1).await.unwrap();
        }
    }
}

fn of(found: &StoredKeys, place: usize) -> Vec<Key> {
    found.keys.iter().filter(|(found, _)| *found == place).map(|(_, key)| key.clone()).collect()
}

#[tokio::test]
async fn every_key_under_a_policy_is_found_and_no_other() {
    let server = RedisServer::start();
    let cluster = RedisCluster::shared();
    let settings = || settings().prefix("k*[e]y^s");
    let stores = [
        ("one server", settings().connect(&server.url()).await.unwrap()),
        ("a cluster", settings().connect(Servers::cluster(cluster.urls())).await.unwrap()),
        (
            "many shards",
            settings().cluster_shards(1_024).connect(Servers::cluster(cluster.urls())).await.unwrap(),
        ),
    ];
    let other = support::settings().prefix("kxey^s").connect(&server.url()).await.unwrap();
    charge_all(&other).await;
    for (name, store) in &stores {
        charge_all(store).await;
        let operator = Limiter::new(store.clone()).operator();
        let found = operator.keys(&policies(), 10_000).await.unwrap();
        assert!(found.is_complete, "{name}");
        for (place, policy) in policies().iter().enumerate() {
            assert_eq!(of(&found, place), keys(), "{name}, {}", policy.name());
        }
        // The names of the other number of shards.
        let others = if *name == "many shards" { 3 * keys().len() } else { 0 };
        assert_eq!(found.others, others, "{name}");
        let one = operator.keys(&policies()[1..2], 10_000).await.unwrap();
        assert_eq!((one.keys.len(), one.others), (keys().len(), 2 * keys().len() + others), "{name}");
        assert!(!format!("{found:?}").contains("alice"));
        let none = operator.keys(&[], 10_000).await.unwrap();
        assert_eq!((none.keys.len(), none.others), (0, 3 * keys().len() + others), "{name}");
    }
    // Nor do those in many shards hide or change what the first store of the cluster finds.
    let found = Limiter::new(stores[1].1.clone()).operator().keys(&policies(), 10_000).await.unwrap();
    assert_eq!((found.keys.len(), found.others), (3 * keys().len(), 3 * keys().len()));
}

#[tokio::test]
async fn a_look_at_a_large_redis_ends() {
    let server = RedisServer::start();
    let store = settings().connect(&server.url()).await.unwrap();
    let () = server.command(&["EVAL", "for i = 1, 20000 do redis.call('SET', 'other:' .. i, 1) end", "0"]);
    charge_all(&store).await;
    let operator = Limiter::new(store).operator();
    let some = operator.keys(&policies(), 3_000).await.unwrap();
    assert!(!some.is_complete);
    let all = operator.keys(&policies(), 1_000_000).await.unwrap();
    assert!(all.is_complete && all.keys.len() == 3 * keys().len());
}

#[tokio::test]
async fn a_user_without_a_permission_gets_an_error_that_names_it() {
    let server = RedisServer::start();
    let rule = settings().connect(&server.url()).await.unwrap().acl_rule();
    let limiter = Limiter::new(settings().connect(&server.user("limiter", &rule)).await.unwrap());
    let error = limiter.operator().keys(&policies(), 1_000).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreFailed);
    assert_eq!(error.to_string(), "keys cannot be listed: run ACL SETUSER <user> +scan");
    let banning = Policy::new("banning", Quota::per_hour(1)).penalty(Penalty::manual());
    let error_of_bans = limiter.operator().bans(&banning).await.unwrap_err();
    assert_eq!(error_of_bans.to_string(), error.to_string());
    let () = server.command(&["ACL", "SETUSER", "limiter", "+scan"]);
    assert!(limiter.operator().keys(&policies(), 1_000).await.unwrap().is_complete);
}
