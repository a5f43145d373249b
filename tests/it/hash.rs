//! `RedisStore::hash`: what instances share beside counts.

use std::{collections::BTreeMap, time::Duration};

use support::{on_redis, redis_store};
use tower_ratelimit::ErrorKind;

fn fields<const N: usize>(fields: [(&str, &str); N]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    fields.map(|(name, value)| (name.into(), value.into())).into()
}

#[tokio::test]
async fn fields_are_set_read_removed_and_expire_together() {
    let (server, store) = redis_store().await;
    let (hash, same) = (store.hash("plans"), store.hash("plans"));
    assert_eq!((hash.key(), hash.fields().await.unwrap()), ("rl:plans", BTreeMap::new()));
    hash.set(&[("alice", "gold"), ("bob", "free")]).await.unwrap();
    same.set(&[("bob", "gold")]).await.unwrap();
    assert_eq!(hash.fields().await.unwrap(), fields([("alice", "gold"), ("bob", "gold")]));
    hash.remove(&["bob", "eve"]).await.unwrap();
    assert_eq!(same.fields().await.unwrap(), fields([("alice", "gold")]));
    assert_eq!(server.command::<i64>(&["PTTL", "rl:plans"]), -1);
    hash.expire(Duration::from_secs(60)).await.unwrap();
    let left: i64 = server.command(&["PTTL", "rl:plans"]);
    assert!((1..=60_000).contains(&left), "{left}");
    hash.expire(Duration::ZERO).await.unwrap();
    assert_eq!(hash.fields().await.unwrap(), BTreeMap::new());
}

#[tokio::test]
async fn without_fields_nothing_is_sent() {
    let (server, store) = redis_store().await;
    let () = server.command(&["CONFIG", "RESETSTAT"]);
    store.hash("plans").set(&[]).await.unwrap();
    store.hash("plans").remove(&[] as &[&str]).await.unwrap();
    let stats: String = server.command(&["INFO", "commandstats"]);
    assert!(!stats.contains("cmdstat_hset") && !stats.contains("cmdstat_hdel"), "{stats}");
}

#[tokio::test]
async fn known_fields_are_not_read_again_and_no_more_than_the_bound() {
    let (server, store) = redis_store().await;
    let hash = store.hash("networks");
    let empty = hash.read(b"", 2).await.unwrap();
    assert_eq!(empty.fields, Some(BTreeMap::new()));
    assert_eq!(hash.read(&empty.mark, 2).await.unwrap().fields, None);
    hash.change(&[], &[("a", "1")]).await.unwrap();
    let one = hash.read(&empty.mark, 2).await.unwrap();
    let found = one.fields.unwrap();
    assert_eq!((found.len(), &found[&b"a"[..]]), (2, &b"1".to_vec()), "the field and `@version`");
    assert_eq!(hash.read(&one.mark, 2).await.unwrap().fields, None);
    // The same number of fields, with another value.
    hash.change(&[], &[("a", "2")]).await.unwrap();
    let other = hash.read(&one.mark, 2).await.unwrap();
    assert_eq!(other.fields.unwrap()[&b"a"[..]], b"2");
    assert!(other.time.as_secs() > 1_700_000_000);

    hash.change(&[], &[("b", "1")]).await.unwrap();
    let error = hash.read(&one.mark, 2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("`rl:networks` has more than 2 fields"), "{error}");
    let () = server.command(&["DEL", "rl:networks"]);
    assert_eq!(hash.read(&one.mark, 2).await.unwrap().fields, Some(BTreeMap::new()));
}

#[tokio::test]
async fn a_change_removes_only_fields_that_still_have_their_value() {
    let (_server, store) = redis_store().await;
    let hash = store.hash("networks");
    hash.set(&[("a", "1"), ("b", "1"), ("c", "1")]).await.unwrap();
    let removed = ["a", "b", "none"].map(|name| (name.as_bytes().to_vec(), b"1".to_vec()));
    // Another instance writes a field that is about to be removed.
    hash.set(&[("b", "2")]).await.unwrap();
    hash.change(&removed, &[("c", "3")]).await.unwrap();
    let mut found = hash.fields().await.unwrap();
    assert!(found.remove(&b"@version"[..]).is_some());
    assert_eq!(found, fields([("b", "2"), ("c", "3")]));
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error_that_says_so() {
    let (server, store) = redis_store().await;
    server.set("rl:plans", b"text");
    let hash = store.hash("plans");
    for error in [
        hash.fields().await.unwrap_err(),
        hash.set(&[("a", "1")]).await.unwrap_err(),
        hash.read(b"", 9).await.unwrap_err(),
        hash.change(&[], &[("a", "1")]).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::ForeignValue, "{error}");
    }
    // Decisions go on.
    let (_server, limiter) = on_redis().await;
    assert_eq!(support::units_left(&limiter, &support::day("p", 5)).await, 5);
}

#[tokio::test]
async fn a_server_that_is_gone_is_an_error_within_the_timeout() {
    let (mut server, store) = redis_store().await;
    let hash = store.hash("plans").timeout(Duration::from_millis(200));
    server.signal("STOP");
    let error = hash.fields().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreTimeout, "{error}");
    server.signal("CONT");
    server.kill();
    assert!(hash.set(&[("a", "1")]).await.is_err());
}
