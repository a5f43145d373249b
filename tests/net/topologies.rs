//! What keeps a hash in Redis, or lists keys, finds the right server of a Cluster and behind Sentinel.

use std::time::Duration;

use support::{
    RedisServer, day, eventually,
    redis_cluster::RedisCluster,
    redis_sentinel::{PRIMARY, SentinelGroup},
    settings,
};
use tower_ratelimit::{Key, Limiter, Policy, Quota, RedisStore, store::Servers};
use tower_ratelimit_extra::adaptive::{Adaptive, AdaptivePolicy};
use tower_ratelimit_operate::live::{BlockedNetwork, Blocklist, LivePolicies};

use crate::each_store::penalties::{provoke, texts, three};

/// So often that a test does not wait, and not so often that the server does nothing else.
const OFTEN: Duration = Duration::from_millis(20);

fn defaults() -> [Policy; 2] {
    [Policy::new("api", Quota::per_hour(2)), Policy::new("login", Quota::per_minute(5))]
}

async fn live(store: &RedisStore) -> LivePolicies {
    LivePolicies::redis(store, defaults()).await.unwrap().poll_every(OFTEN)
}

fn quotas(live: &LivePolicies) -> Vec<String> {
    live.current().iter().map(|policy| format!("{} {}", policy.name(), policy.quota())).collect()
}

fn error(live: &LivePolicies) -> String {
    live.last_error().map(|error| error.to_string()).unwrap_or_default()
}

fn edit(server: &RedisServer, words: &[&str]) {
    let _: redis::Value = server.command(words);
}

#[tokio::test]
async fn every_node_of_a_cluster_may_have_the_hash() {
    let cluster = RedisCluster::shared();
    for prefix in ["live-a", "live-b", "live-c", "live-d"] {
        let store = settings().prefix(prefix).connect(Servers::cluster(cluster.urls())).await.unwrap();
        let live = live(&store).await;
        assert_eq!((live.current(), error(&live)), (defaults().to_vec(), String::new()));
        let key = format!("{prefix}:policies");
        let owner = &cluster.nodes[cluster.first_owner(cluster.slot(&key))];
        edit(owner, &["HSET", &key, "api", "9/h"]);
        assert!(eventually(async || quotas(&live) == ["api 9/h", "login 5/min"]).await, "{prefix}");
        edit(owner, &["HSET", &key, "api", "many"]);
        assert!(eventually(async || error(&live).contains("invalid quota `many`")).await, "{prefix}");
        edit(owner, &["DEL", &key]);
        assert!(eventually(async || live.current() == defaults()).await, "{prefix}");
        let list = Blocklist::redis(&store).await.unwrap().poll_every(OFTEN);
        list.block(BlockedNetwork::new("203.0.113.0/24")).await.unwrap();
        let other = Blocklist::redis(&store).await.unwrap();
        assert!(other.contains([203, 0, 113, 7].into()), "{prefix}: {other:?}");
        assert!(list.unblock("203.0.113.0/24").await.unwrap(), "{prefix}");
    }
}

#[tokio::test]
async fn a_store_that_follows_sentinels_reads_the_hash_of_the_primary() {
    let group = SentinelGroup::start();
    let store = settings().connect(Servers::sentinel(group.urls(), PRIMARY)).await.unwrap();
    let live = live(&store).await;
    edit(&group.servers[0], &["HSET", "rl:policies", "api", "9/h"]);
    assert!(eventually(async || quotas(&live) == ["api 9/h", "login 5/min"]).await, "{}", error(&live));
    Blocklist::redis(&store).await.unwrap().block(BlockedNetwork::new("203.0.113.0/24")).await.unwrap();
    let blocked: bool = group.servers[0].command(&["HEXISTS", "rl:blocklist", "203.0.113.0/24"]);
    assert!(blocked);
}

#[tokio::test]
async fn in_a_cluster_the_hash_is_on_one_node() {
    let cluster = RedisCluster::shared();
    let store = settings().prefix("adaptive").connect(Servers::cluster(cluster.urls())).await.unwrap();
    let api = Policy::new("api", Quota::per_second(1_000).burst(200));
    let instance = |share: f64| -> AdaptivePolicy {
        Adaptive::new(api.clone()).every(OFTEN).follow(move || share).shared(&store).start().unwrap()
    };
    let (busy, idle) = (instance(0.25), instance(0.75));
    let both = [&busy, &idle];
    assert!(eventually(async || both.iter().all(|one| one.share() == 0.5)).await, "{both:?}");
}

#[tokio::test]
async fn bans_are_listed_behind_a_sentinel() {
    let group = SentinelGroup::start();
    let limiter = Limiter::new(settings().connect(Servers::sentinel(group.urls(), PRIMARY)).await.unwrap());
    let policy = day("p", 1).penalty(three());
    provoke(&limiter, &policy, &Key::new("alice")).await;
    assert_eq!(texts(&limiter.operator().bans(&policy).await.unwrap()), ["alice"]);
}
