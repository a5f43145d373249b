//! A store that follows the primary that Redis Sentinel names.

use std::time::Duration;

use support::{
    RedisServer,
    redis_sentinel::{PRIMARY, SentinelGroup},
    settings, within,
};
use tower_ratelimit::{ErrorKind, FailureMode, Key, Limiter, Policy, Quota, RedisStore, store::ProblemKind};

/// A promotion needs some seconds on an idle machine.
const PROMOTION: Duration = Duration::from_secs(60);

fn policy() -> Policy {
    Policy::new("p", Quota::per_hour(1000)).on_store_failure(FailureMode::Closed)
}

async fn decides_again(limiter: &Limiter) -> bool {
    within(PROMOTION, async || limiter.check(&policy(), &Key::new("alice"), 1).await.is_ok()).await
}

/// Whether the server says so. A server that changes its role closes its connections.
/// A server whose role changes closes its connections.
fn has_role(server: &RedisServer, role: &str) -> bool {
    let info = server
        .try_connection()
        .and_then(|mut connection| redis::cmd("INFO").arg("replication").query::<String>(&mut connection));
    info.is_ok_and(|info| info.contains(&format!("\nrole:{role}\r")))
}

#[tokio::test]
async fn decisions_work_again_after_a_primary_is_killed_and_its_replica_promoted() {
    let mut group = SentinelGroup::start();
    let limiter = Limiter::new(settings().connect_sentinel(group.urls(), PRIMARY).await.unwrap());
    limiter.check(&policy(), &Key::new("alice"), 1).await.unwrap();
    // One sentinel is lost together with the primary, as if they were on one host. It hangs, and answers nothing.
    group.sentinels[0].signal("STOP");
    group.servers[0].kill();
    let error = limiter.check(&policy(), &Key::new("alice"), 1).await.unwrap_err();
    let expected = [ErrorKind::StoreUnreachable, ErrorKind::StoreDisconnected, ErrorKind::StoreTimeout];
    assert!(expected.contains(&error.kind()), "{error}");
    assert!(decides_again(&limiter).await);
    assert!(has_role(&group.servers[1], "master"));
    let mut keys: Vec<String> = group.servers[1].command(&["KEYS", "*"]);
    // Where instances announce themselves.
    keys.retain(|key| !key.contains("%25instances"));
    assert_eq!(keys, ["rl:p:gcra:{alice}"]);
}

#[tokio::test]
async fn connections_to_a_demoted_primary_are_replaced() {
    let group = SentinelGroup::start();
    let limiter = Limiter::new(settings().connect_sentinel_lazy(group.urls(), PRIMARY).unwrap());
    limiter.check(&policy(), &Key::new("alice"), 1).await.unwrap();
    // The old primary goes on as a replica, which answers READONLY.
    let () = group.sentinels[0].command(&["SENTINEL", "FAILOVER", PRIMARY]);
    assert!(within(PROMOTION, async || has_role(&group.servers[0], "slave")).await);
    assert!(decides_again(&limiter).await);
    let before = group.servers[1].script_calls();
    limiter.check(&policy(), &Key::new("alice"), 1).await.unwrap();
    assert_eq!(group.servers[1].script_calls(), before + 1);
}

#[tokio::test]
async fn servers_and_sentinels_have_passwords_of_their_own() {
    let group = SentinelGroup::with_passwords(Some("data"), Some("guard"));
    let urls = || group.urls().into_iter().map(|url| url.replace("//", "//:data@"));
    let sentinel = |password: &str| settings().sentinel_credentials("default", password);
    let store = sentinel("guard").connect_sentinel(urls(), PRIMARY).await.unwrap();
    Limiter::new(store).check(&policy(), &Key::new("alice"), 1).await.unwrap();
    let rows = [
        ("no password of the sentinels", settings(), "set RedisStoreBuilder::sentinel_credentials"),
        ("a wrong one", sentinel("hunter2"), "does not accept this user and password"),
    ];
    for (name, settings, remedy) in rows {
        assert!(!format!("{settings:?}").contains("hunter2"));
        let error = settings.connect_sentinel(urls(), PRIMARY).await.unwrap_err();
        assert!(error.to_string().contains(remedy), "{name}: {error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{name}: {error:?}");
    }
    let wrong = group.urls().into_iter().map(|url| url.replace("//", "//:hunter2@"));
    let error = sentinel("guard").connect_sentinel(wrong, PRIMARY).await.unwrap_err();
    assert!(error.to_string().contains("does not accept this user and password"), "{error}");
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    // The rule of a store on Sentinel is enough.
    // Without a user, the user is `default`.
    settings().sentinel_credentials("", "guard").connect_sentinel(urls(), PRIMARY).await.unwrap();
    let rule = sentinel("guard").connect_sentinel_lazy(urls(), PRIMARY).unwrap().acl_rule();
    for server in &group.servers {
        let mut connection = server.connection();
        let () = redis::cmd("AUTH").arg("data").query(&mut connection).unwrap();
        let mut grant = redis::cmd("ACL");
        grant.arg("SETUSER").arg("limiter").arg("on").arg(">secret").arg(rule.split(' ').collect::<Vec<_>>());
        let () = grant.query(&mut connection).unwrap();
    }
    let limited = group.urls().into_iter().map(|url| url.replace("//", "//limiter:secret@"));
    sentinel("guard").connect_sentinel(limited, PRIMARY).await.unwrap();
}

#[tokio::test]
async fn errors_about_sentinels_say_what_to_do() {
    let sentinel = RedisServer::sentinel("");
    let server = RedisServer::start();
    let none: [&str; 0] = [];
    let (at, not_a_sentinel) = (sentinel.url(), server.url());
    let other_password = at.replace("//", "//:hunter2@");
    let invalid = ErrorKind::InvalidConfig;
    let rows: [(&str, Vec<&str>, &str, ErrorKind, &str); 7] = [
        ("no URL", none.to_vec(), PRIMARY, invalid, "at least one sentinel"),
        ("no name", vec![&at], "", invalid, "sentinel monitor"),
        ("a URL in its place", vec![&at], &other_password, invalid, "sentinel monitor"),
        ("a malformed URL", vec!["10.0.0.1:26379"], PRIMARY, invalid, "write redis://"),
        ("two passwords", vec![&at, &other_password], PRIMARY, invalid, "the same scheme, user, password"),
        ("an unknown name", vec![&at], "other", ErrorKind::StoreUnreachable, "sentinel monitor"),
        ("a server", vec![&not_a_sentinel], PRIMARY, ErrorKind::StoreUnreachable, "not a sentinel"),
    ];
    for (name, urls, primary, kind, remedy) in rows {
        let error = RedisStore::connect_sentinel(urls, primary).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(error.to_string().contains(remedy), "{name}: {error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{name}: {error:?}");
    }
    // A sentinel instead of a server.
    let report = settings().connect_lazy(&at).unwrap().probe().await.unwrap();
    assert_eq!(report.problems()[0].kind(), ProblemKind::WrongTopology, "{report}");
    let error = RedisStore::connect(&at).await.unwrap_err();
    assert!(error.to_string().contains("RedisStore::connect_sentinel"), "{error}");
}
