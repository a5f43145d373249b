//! Connections that a device on the way forgets or closes: to one server, over TLS, behind sentinels and in a Cluster.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use support::{
    PATIENT, day, fake_server, modes::Mode, redis_sentinel::PRIMARY, settings,
    sockets::keepalive_of_connections, within,
};
use tower_ratelimit::{FailureMode, Key, Limiter, Policy, RedisStore, store::Servers};

fn closed() -> Policy {
    day("p", 1_000).failure_mode(FailureMode::Closed)
}

/// Decisions on keys of all shards.
async fn decide(mode: &Mode, limiter: &Limiter) {
    for key in ["a", "b", "c", "d", "e", "f"] {
        let decision = limiter.check(&closed(), &Key::new(key), 1).await;
        decision.unwrap_or_else(|error| panic!("{}: {error}", mode.name));
    }
}

#[tokio::test]
async fn decisions_after_a_silence_are_made_by_redis_although_all_connections_are_forgotten() {
    for mode in Mode::all().await {
        let silence = Duration::from_millis(50);
        let limiter = mode.connect(settings().check_idle_after(silence)).await;
        for _ in 0..3 {
            decide(&mode, &limiter).await;
            mode.forget();
            tokio::time::sleep(2 * silence).await;
        }
        let left = limiter.peek(&closed(), &Key::new("a"), 0).await.unwrap().remaining();
        assert_eq!(left, Some(997), "{}: nothing is charged twice", mode.name);
    }
}

#[tokio::test]
async fn a_connection_that_is_closed_during_its_setup_is_opened_again() {
    for mode in Mode::all().await {
        mode.close_next(1);
        let limiter = mode.connect(settings()).await;
        decide(&mode, &limiter).await;
    }
}

#[tokio::test]
async fn servers_that_work_are_not_unavailable_because_they_close_connections_again_and_again() {
    for mode in Mode::all().await {
        let limiter = mode.connect(settings()).await;
        for _ in 0..3 {
            decide(&mode, &limiter).await;
            mode.close_next(4);
            mode.close_all_and_wait().await;
        }
        mode.close_next(0);
    }
}

#[tokio::test]
async fn all_sockets_have_tcp_keepalive() {
    for mode in Mode::all().await {
        let limiter = mode.connect(settings()).await;
        decide(&mode, &limiter).await;
        // Until all that was sent is acknowledged, another timer runs.
        let all_have_it = async || {
            mode.proxies.iter().all(|proxy| {
                let connections = keepalive_of_connections(proxy.port());
                // The sentinels have connections to the primary.
                let others = if mode.name == "Sentinel" { 0 } else { connections.len() };
                !connections.is_empty()
                    && connections.iter().filter(|has_it| **has_it).count() >= others.max(1)
            })
        };
        assert!(within(PATIENT, all_have_it).await, "{}", mode.name);
    }
}

#[tokio::test]
async fn a_node_or_a_sentinel_that_accepts_no_connection_states_why() {
    let address = fake_server::closing("-ERR max number of clients reached\r\n").await;
    let url = || [format!("redis://{address}")];
    for servers in [Servers::cluster(url()), Servers::sentinel(url(), PRIMARY)] {
        let error = settings().connect(servers).await.unwrap_err().to_string();
        assert!(error.contains("raise maxclients") && !error.contains("TLS"), "{error}");
    }
}

#[tokio::test]
async fn a_node_or_a_sentinel_that_sends_without_end_is_given_up_early() {
    for name in ["Cluster", "Sentinel"] {
        let (address, most) = fake_server::flooding().await;
        let urls = [format!("redis://{address}")];
        let servers =
            if name == "Cluster" { Servers::cluster(urls) } else { Servers::sentinel(urls, PRIMARY) };
        let error = RedisStore::connect(servers).await.unwrap_err().to_string();
        // What the buffers of the sockets hold.
        let taken = most.load(Relaxed);
        assert!(taken < 32 << 20, "{name}: {taken} bytes, {error}");
    }
}
