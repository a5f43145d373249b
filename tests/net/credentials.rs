//! Credentials that rotate, on a Cluster and behind sentinels.

use std::time::{Duration, SystemTime};

use support::{
    redis_cluster::RedisCluster,
    redis_sentinel::{PRIMARY, SentinelGroup},
    settings,
    users::Users,
};
use tower_ratelimit::{
    Error, ErrorKind, Key, Limiter, RedisStore,
    store::{Credentials, Servers},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_decision_of_a_cluster_is_without_redis_while_credentials_rotate() {
    let (cluster, users) = (RedisCluster::start(3), Users::default());
    users.rotate(&cluster.nodes);
    let settings = settings().credentials(users.clone());
    let limiter = Limiter::new(settings.connect(Servers::cluster(cluster.urls())).await.unwrap());
    users.assert_no_decision_without_redis(&cluster.nodes, &limiter).await;
}

/// The sentinels have a password that does not change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_decision_behind_sentinels_is_without_redis_while_credentials_rotate() {
    let (group, users) = (SentinelGroup::with_passwords(None, Some("guard")), Users::default());
    users.rotate(&group.servers);
    let servers = Servers::sentinel(group.urls(), PRIMARY).sentinel_credentials("", "guard");
    let limiter = Limiter::new(settings().credentials(users.clone()).connect(servers).await.unwrap());
    users.assert_no_decision_without_redis(&group.servers, &limiter).await;
}

#[tokio::test]
async fn a_cluster_reports_the_failure_of_the_provider() {
    let cluster = RedisCluster::shared();
    let down =
        || async { Err::<Credentials, _>(Error::new(ErrorKind::StoreFailed, "the token service is down")) };
    let lazy =
        RedisStore::builder().credentials(down).connect_lazy(Servers::cluster(cluster.urls())).unwrap();
    let policy = support::day("plan", 10);
    let failed = Limiter::new(lazy.clone()).check(&policy, &Key::new("all"), 1).await.unwrap();
    assert!(failed.failure().is_some());
    let error = lazy.probe().await.map(|report| report.findings().collect::<String>());
    let problem = error.unwrap_or_else(|error| error.to_string());
    assert!(problem.contains("the credentials provider failed"), "{problem}");
    let ended = || async {
        Ok(Credentials::new("", "secret").valid_until(SystemTime::now() - Duration::from_secs(1)))
    };
    let connected = settings().credentials(ended).connect(Servers::cluster(cluster.urls())).await;
    let error = connected.unwrap_err().to_string();
    assert!(error.contains("credentials that have ended"), "{error}");
}
