//! Futures that are polled a few times and then kept delay no other caller of a Cluster or behind Sentinel.

use support::{
    RedisServer,
    redis_cluster::RedisCluster,
    redis_sentinel::{PRIMARY, SentinelGroup},
};
use tower_ratelimit::store::Servers;

use crate::each_store::kept_futures::{hold, settings_of};

fn flush(servers: &[RedisServer]) {
    for server in servers {
        let _: redis::Value = server.command(&["SCRIPT", "FLUSH"]);
    }
}

#[tokio::test]
async fn futures_that_are_polled_and_kept_fail_no_other_caller_of_a_cluster() {
    // Its own, because of its scripts.
    let cluster = RedisCluster::start(3);
    for (name, shards) in [("cluster", 8), ("cluster of many shards", 1_024)] {
        let store =
            settings_of(8).cluster_shards(shards).connect(Servers::cluster(cluster.urls())).await.unwrap();
        hold(name, store, || flush(&cluster.nodes)).await;
    }
}

#[tokio::test]
async fn futures_that_are_polled_and_kept_fail_no_other_caller_behind_sentinel() {
    let group = SentinelGroup::start();
    for pool in [8, 1] {
        let store = settings_of(pool).connect(Servers::sentinel(group.urls(), PRIMARY)).await.unwrap();
        hold(&format!("sentinel, pool of {pool}"), store, || flush(&group.servers[..1])).await;
    }
}
