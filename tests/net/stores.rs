//! The stores that `each_store` runs on in this program.

use std::time::Duration;

use support::{redis_cluster::RedisCluster, settings};
use tower_ratelimit::{
    Limiter,
    store::{ManualClock, Servers},
};

pub(crate) async fn stores(prefix: &str) -> Vec<(&'static str, Limiter)> {
    let settings = settings().prefix(format!("{prefix}-many")).cluster_shards(1_024);
    let many = settings.connect(Servers::cluster(RedisCluster::shared().urls())).await.unwrap();
    let [(name, [cluster, _])] = pairs(prefix).await;
    vec![(name, cluster), ("cluster of many shards", Limiter::new(many))]
}

/// Two instances on each store.
pub(crate) async fn pairs(prefix: &str) -> [(&'static str, [Limiter; 2]); 1] {
    let urls = RedisCluster::shared().urls();
    let cluster = async || {
        Limiter::new(settings().prefix(prefix).connect(Servers::cluster(urls.clone())).await.unwrap())
    };
    [("cluster", [cluster().await, cluster().await])]
}

/// Makes a store with this clock, and the number of random cases that it is worth.
pub(crate) fn on_a_clock(prefix: &str) -> [(&'static str, u32, Box<dyn Fn(ManualClock) -> Limiter + '_>); 1] {
    let cluster = move |clock| {
        // The deny cache repeats a denial, with what remained then.
        let store = settings().prefix(prefix).manual_clock(clock).deny_cache(Duration::ZERO);
        Limiter::new(store.connect_lazy(Servers::cluster(RedisCluster::shared().urls())).unwrap())
    };
    [("cluster", 30, Box::new(cluster))]
}
