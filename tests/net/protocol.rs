//! The version of the Redis protocol that connections speak.

use support::{
    RedisServer, pool,
    redis_cluster::RedisCluster,
    redis_sentinel::{PRIMARY, SentinelGroup},
    redis_server::protocol,
    settings,
};
use tower_ratelimit::{Key, Limiter, Policy, Quota, RedisStore, store::Servers};

/// The protocols of the connections to `server`, without the one that asks.
fn spoken(server: &RedisServer) -> Vec<u8> {
    let clients: String = server.command(&["CLIENT", "LIST", "TYPE", "normal"]);
    let others = clients.lines().filter(|line| !line.contains("cmd=client"));
    others
        .map(|line| match line.split_once(" resp=") {
            Some((_, version)) => version[..1].parse().unwrap(),
            // Redis 6.2 does not tell. Only a client with protocol 3 sends `HELLO`, and the probe of `connect`.
            None => {
                let stats: String = server.command(&["INFO", "commandstats"]);
                if stats.contains("cmdstat_hello:") { 3 } else { 2 }
            }
        })
        .collect()
}

async fn decides(store: &RedisStore) {
    let policy = Policy::new("p", Quota::per_hour(10));
    let decision = Limiter::new(store.clone()).check(&policy, &Key::new("alice"), 1).await.unwrap();
    assert!(decision.failure().is_none(), "{:?}", decision.failure());
}

#[tokio::test]
async fn a_store_speaks_the_protocol_of_its_url() {
    for protocol in [2, 3] {
        let server = RedisServer::start();
        let store = settings().connect_lazy(server.url_with(protocol)).unwrap();
        decides(&store).await;
        let spoken = spoken(&server);
        assert!(!spoken.is_empty() && spoken.iter().all(|&each| each == protocol), "{protocol}: {spoken:?}");
    }
}

/// `make test-servers` runs the tests with both protocols.
#[tokio::test]
async fn the_tests_speak_the_protocol_of_their_environment() {
    let server = RedisServer::start();
    let store = settings().connect_lazy(server.url()).unwrap();
    decides(&store).await;
    let with_pool = RedisServer::start();
    let on_pool = settings().build(pool(&with_pool).await).unwrap();
    decides(&on_pool).await;
    let cluster = RedisCluster::start(1);
    let on_cluster = settings().connect_lazy(Servers::cluster(cluster.urls())).unwrap();
    decides(&on_cluster).await;
    let group = SentinelGroup::start();
    let behind_sentinels = settings().connect_lazy(Servers::sentinel(group.urls(), PRIMARY)).unwrap();
    decides(&behind_sentinels).await;
    let rows = [("a server", &server), ("a pool of the user", &with_pool), ("a cluster", &cluster.nodes[0])];
    for (name, server) in rows {
        let spoken = spoken(server);
        assert!(!spoken.is_empty() && spoken.iter().all(|&each| each == protocol()), "{name}: {spoken:?}");
    }
    // The sentinels have connections to it too.
    let spoken = spoken(&group.servers[0]);
    assert!(spoken.contains(&protocol()), "behind sentinels: {spoken:?}");
}
