//! `PolicySource::watched`.

use support::{
    RedisServer,
    inner::{ask, get},
};
use tokio::sync::watch;
use tower_ratelimit::{
    FailureMode, Key, KeyExtractor, Limiter, MemoryStore, Policy, PolicySource, Quota, RateLimitLayer, Rule,
    algorithm::SlidingLog, decision::Outcome,
};

fn policy(name: &str, limit: u64) -> Policy {
    Policy::new(name, Quota::per_hour(limit))
}

fn all() -> impl KeyExtractor {
    Key::new("all")
}

#[tokio::test]
async fn a_watched_policy_follows_its_channel_and_outlives_the_sender() {
    let (sender, receiver) = watch::channel(policy("p", 1));
    // `or` is for sources that may have no policy.
    let source = PolicySource::watched(receiver).or(policy("other", 9));
    let layer = RateLimitLayer::new(MemoryStore::new(), source, all());
    let status = async || ask(&layer, get()).await.status().as_u16();
    assert_eq!([status().await, status().await], [200, 429]);
    sender.send_replace(policy("p", 2));
    assert_eq!([status().await, status().await], [200, 429]);
    // Lowered: the limit binds immediately.
    sender.send_replace(policy("p", 1));
    assert_eq!(status().await, 429);
    // Raised: the two units that were charged still count.
    sender.send_replace(policy("p", 3));
    drop(sender);
    assert!(format!("{layer:?}").contains("Watched"), "{layer:?}");
    assert_eq!([status().await, status().await], [200, 429]);
}

#[tokio::test]
async fn counts_are_kept_unless_the_name_or_the_algorithm_changes() {
    let server = RedisServer::start();
    let (old, quota) = (policy("p", 5), Quota::per_day(8));
    // What remains of a key that has used 3 of 5 an hour.
    let rows = [
        ("a raised limit", policy("p", 9), 6),
        ("a lowered limit", policy("p", 4), 1),
        ("another period", Policy::new("p", quota), 5),
        ("a debt, mode and share", old.clone().max_debt(9).failure_mode(FailureMode::Closed).rollout(0.5), 2),
        ("another algorithm", policy("p", 5).algorithm(SlidingLog::new()), 5),
        ("another name", policy("q", 5), 5),
    ];
    for (name, new, remaining) in rows {
        let redis = Limiter::new(support::store(&server).await);
        for limiter in [Limiter::new(MemoryStore::new()), redis] {
            let (sender, receiver) = watch::channel(old.clone());
            let layer = RateLimitLayer::new(limiter.clone(), PolicySource::watched(receiver), Key::new(name));
            for _ in 0..3 {
                ask(&layer, get()).await;
            }
            sender.send_replace(new.clone());
            let peek = limiter.peek(&new, &Key::new(name), 0).await.unwrap();
            assert_eq!(peek.outcomes().first().map(Outcome::remaining), Some(remaining), "{name}");
        }
    }
}

#[tokio::test]
async fn a_watched_policy_is_one_of_several_rules() {
    let (sender, receiver) = watch::channel(policy("watched", 1));
    let layer = RateLimitLayer::new(MemoryStore::new(), policy("constant", 3), all())
        .rule(Rule::new(PolicySource::watched(receiver), all()));
    let status = async || ask(&layer, get()).await.status().as_u16();
    assert_eq!([status().await, status().await], [200, 429]);
    sender.send_replace(policy("watched", 9));
    assert_eq!([status().await, status().await, status().await], [200, 200, 429]);
    // A client could not tell the two apart.
    sender.send_replace(policy("constant", 9));
    assert_eq!(status().await, 500);
}

#[test]
#[should_panic(expected = "two policies named \"p\"")]
fn a_layer_checks_the_first_policy_of_a_channel() {
    let (_sender, receiver) = watch::channel(policy("p", 1));
    let _ = RateLimitLayer::new(MemoryStore::new(), policy("p", 3), all())
        .rule(Rule::new(PolicySource::watched(receiver), |_: &http::request::Parts| Key::new("a")));
}
