//! `PolicySource::watched`.

use crate::support::inner::{ask, get};
use tokio::sync::watch;
use tower_ratelimit::{
    Key, KeyExtractor, MemoryStore, Policy, PolicySource, Quota, RateLimitLayer, Rule, key::Constant,
};

fn policy(name: &str, limit: u64) -> Policy {
    Policy::new(name, Quota::per_hour(limit))
}

fn all() -> impl KeyExtractor {
    Constant::new("all")
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
    // Lowered: the limit binds at once.
    sender.send_replace(policy("p", 1));
    assert_eq!(status().await, 429);
    sender.send_replace(policy("p", 2));
    drop(sender);
    assert!(format!("{layer:?}").contains("Watched"), "{layer:?}");
    // A bucket never holds more than its capacity, so the second unit was forgotten when the limit was 1.
    assert_eq!([status().await, status().await], [200, 429]);
}

#[tokio::test]
async fn a_watched_policy_is_one_of_several_rules() {
    let (sender, receiver) = watch::channel(policy("watched", 1));
    let layer = RateLimitLayer::new(MemoryStore::new(), policy("constant", 3), all())
        .and(Rule::new(PolicySource::watched(receiver), all()));
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
        .and(Rule::new(PolicySource::watched(receiver), |_: &http::request::Parts| Key::new("a")));
}
