//! A store that follows the primary that Redis Sentinel names.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use support::{
    RedisServer,
    certificates::Authority,
    day,
    redis_sentinel::{PRIMARY, SentinelGroup},
    settings, within,
};
use tower_ratelimit::{
    ErrorKind, FailureMode, Key, Limiter, Policy, Quota, RedisStore,
    store::{RedisStoreBuilder, Servers},
};

/// A promotion needs some seconds on an idle machine.
const PROMOTION: Duration = Duration::from_secs(60);

fn policy() -> Policy {
    Policy::new("p", Quota::per_hour(1000)).failure_mode(FailureMode::Closed)
}

async fn decides_again(limiter: &Limiter) -> bool {
    within(PROMOTION, async || limiter.check(&policy(), &Key::new("alice"), 1).await.is_ok()).await
}

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
    let limiter = Limiter::new(settings().connect(Servers::sentinel(group.urls(), PRIMARY)).await.unwrap());
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
    let limiter = Limiter::new(settings().connect_lazy(Servers::sentinel(group.urls(), PRIMARY)).unwrap());
    limiter.check(&policy(), &Key::new("alice"), 1).await.unwrap();
    // The old primary goes on as a replica, which answers READONLY.
    let () = group.sentinels[0].command(&["SENTINEL", "FAILOVER", PRIMARY]);
    assert!(within(PROMOTION, async || has_role(&group.servers[0], "slave")).await);
    assert!(decides_again(&limiter).await);
    let before = group.servers[1].script_calls();
    limiter.check(&policy(), &Key::new("alice"), 1).await.unwrap();
    // The store may announce its instance at the same time.
    assert!(group.servers[1].script_calls() > before);
}

/// Charges `policy` all the time. Returns how many units were admitted, and the kinds of the failures.
fn load(
    limiter: &Limiter,
    policy: &Policy,
    stop: &Arc<AtomicBool>,
) -> tokio::task::JoinHandle<(u64, Vec<ErrorKind>)> {
    let (limiter, policy, stop) = (limiter.clone(), policy.clone(), stop.clone());
    tokio::spawn(async move {
        let (mut admitted, mut failures) = (0, Vec::new());
        while !stop.load(Relaxed) {
            match limiter.check(&policy, &Key::new("alice"), 1).await {
                Ok(decision) => admitted += u64::from(decision.is_admitted()),
                Err(error) => failures.push(error.kind()),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        (admitted, failures)
    })
}

/// A failover by command, with two stores under load. The sentinels demote the old primary only seconds later.
async fn is_followed_before_the_old_primary_is_demoted(
    name: &str,
    group: &SentinelGroup,
    settings: impl Fn() -> RedisStoreBuilder,
) -> Vec<ErrorKind> {
    const LIMIT: u64 = 100_000;
    let policy = day("p", LIMIT).failure_mode(FailureMode::Closed);
    let (mut limiters, stop) = (Vec::new(), Arc::new(AtomicBool::new(false)));
    for _ in 0..2 {
        limiters
            .push(Limiter::new(settings().connect(Servers::sentinel(group.urls(), PRIMARY)).await.unwrap()));
    }
    let loads: Vec<_> = limiters.iter().map(|limiter| load(limiter, &policy, &stop)).collect();
    let charged = async || limiters[0].peek(&policy, &Key::new("alice"), 0).await.unwrap().remaining();
    assert!(within(PROMOTION, async || charged().await < Some(LIMIT - 100)).await);
    let named = |sentinel: &RedisServer| -> Vec<String> {
        sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY])
    };
    let old = named(&group.sentinels[0]);
    let () = group.sentinels[0].command(&["SENTINEL", "FAILOVER", PRIMARY]);
    let is_named = || group.sentinels.iter().filter(|sentinel| named(sentinel) != old).count() >= 2;
    assert!(within(PROMOTION, async || is_named()).await);
    let started = Instant::now();
    // All connections of both stores are used.
    let is_followed = async || {
        let before = group.servers[0].script_calls();
        for limiter in &limiters {
            let checks = (0..64).map(|_| limiter.check(&policy, &Key::new("bob"), 1));
            futures_util::future::join_all(checks).await;
        }
        has_role(&group.servers[0], "master") && group.servers[0].script_calls() == before
    };
    let is_followed = within(Duration::from_secs(8), is_followed).await;
    let seconds = started.elapsed().as_secs_f64();
    stop.store(true, Relaxed);
    let (mut admitted, mut failures) = (0, Vec::new());
    for load in loads {
        let (units, kinds) = load.await.unwrap();
        admitted += units;
        failures.extend(kinds);
    }
    let counted = LIMIT - charged().await.unwrap();
    eprintln!(
        "{name}: followed {seconds:.1} s after two sentinels named the new primary; {admitted} admitted, of which it \
         counts {counted}; {} failures",
        failures.len()
    );
    assert!(is_followed, "{name}: the old primary was charged until it was demoted");
    failures
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_failover_is_followed_before_the_old_primary_is_demoted() {
    let group = SentinelGroup::start();
    let failures = is_followed_before_the_old_primary_is_demoted("tcp", &group, settings).await;
    // What replaced connections had in flight.
    assert!(failures.len() <= 20, "{failures:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_lost_its_replicas_is_left_before_it_is_demoted() {
    let group = SentinelGroup::start();
    let port = group.servers[0].port().to_string();
    let other = RedisServer::with(&["--replicaof", "127.0.0.1", &port]);
    let knows_it = async || {
        let replicas: Vec<Vec<String>> = group.sentinels[0].command(&["SENTINEL", "REPLICAS", PRIMARY]);
        let is_linked =
            |replica: &Vec<String>| replica.windows(2).any(|pair| pair == ["master-link-status", "ok"]);
        replicas.len() == 2 && replicas.iter().all(is_linked)
    };
    assert!(within(PROMOTION, knows_it).await);
    for server in group.servers.iter().chain([&other]) {
        let () = server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    }
    is_followed_before_the_old_primary_is_demoted("min-replicas-to-write", &group, settings).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_failover_is_followed_over_tls() {
    let authority = Authority::new();
    let group = SentinelGroup::over_tls(&authority);
    let settings = || {
        settings()
            .deadline(Duration::from_secs(2))
            .tls_ca_certificate(authority.ca.clone())
            .tls_client_certificate(authority.certificate.clone(), authority.key.clone())
    };
    let failures = is_followed_before_the_old_primary_is_demoted("tls", &group, settings).await;
    assert!(failures.len() <= 20, "{failures:?}");
}

#[tokio::test]
async fn a_stale_sentinel_is_outvoted() {
    let (group, stale) = (SentinelGroup::start(), RedisServer::start());
    let port = stale.port();
    let outdated = RedisServer::sentinel(&format!("sentinel monitor {PRIMARY} 127.0.0.1 {port} 1\n"));
    let urls = [outdated.url()].into_iter().chain(group.urls().into_iter().take(2));
    let limiter = Limiter::new(settings().connect(Servers::sentinel(urls, PRIMARY)).await.unwrap());
    let checks = (0..200).map(|_| limiter.check(&policy(), &Key::new("alice"), 1));
    assert!(futures_util::future::join_all(checks).await.into_iter().all(|decided| decided.is_ok()));
    assert_eq!(stale.script_calls(), 0);
}

#[tokio::test]
async fn servers_and_sentinels_have_separate_passwords() {
    let group = SentinelGroup::with_passwords(Some("data"), Some("guard"));
    let urls = || group.urls().into_iter().map(|url| url.replace("//", "//:data@"));
    let without = Servers::sentinel(urls(), PRIMARY);
    let with = |password: &str| without.clone().sentinel_credentials("default", password);
    let store = settings().connect(with("guard")).await.unwrap();
    Limiter::new(store).check(&policy(), &Key::new("alice"), 1).await.unwrap();
    let rows = [
        ("no password of the sentinels", without.clone(), "set Servers::sentinel_credentials"),
        ("a wrong one", with("hunter2"), "does not accept this user and password"),
    ];
    for (name, servers, remedy) in rows {
        assert!(!format!("{servers:?}").contains("hunter2"));
        let error = settings().connect(servers).await.unwrap_err();
        assert!(error.to_string().contains(remedy), "{name}: {error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{name}: {error:?}");
    }
    let wrong = group.urls().into_iter().map(|url| url.replace("//", "//:hunter2@"));
    let wrong = Servers::sentinel(wrong, PRIMARY).sentinel_credentials("default", "guard");
    let error = settings().connect(wrong).await.unwrap_err();
    assert!(error.to_string().contains("does not accept this user and password"), "{error}");
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    // The rule of a store on Sentinel is enough.
    // Without a user, the user is `default`.
    settings().connect(without.clone().sentinel_credentials("", "guard")).await.unwrap();
    let rule = settings().connect_lazy(with("guard")).unwrap().acl_rule();
    for server in &group.servers {
        let mut connection = server.connection();
        let () = redis::cmd("AUTH").arg("data").query(&mut connection).unwrap();
        let mut grant = redis::cmd("ACL");
        grant.arg("SETUSER").arg("limiter").arg("on").arg(">secret").arg(rule.split(' ').collect::<Vec<_>>());
        let () = grant.query(&mut connection).unwrap();
    }
    let limited = group.urls().into_iter().map(|url| url.replace("//", "//limiter:secret@"));
    let limited = Servers::sentinel(limited, PRIMARY).sentinel_credentials("default", "guard");
    settings().connect(limited.clone()).await.unwrap();
    // As is the rule of the guide for a user of the sentinels.
    for sentinel in &group.sentinels {
        let mut connection = sentinel.connection();
        let () = redis::cmd("AUTH").arg("guard").query(&mut connection).unwrap();
        let rule = ["-@all", "+sentinel|get-master-addr-by-name", "+sentinel|masters"];
        let mut grant = redis::cmd("ACL");
        let () = grant
            .arg("SETUSER")
            .arg("asker")
            .arg("on")
            .arg(">ask")
            .arg(&rule)
            .query(&mut connection)
            .unwrap();
    }
    settings().connect(limited.sentinel_credentials("asker", "ask")).await.unwrap();
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
        let error = RedisStore::connect(Servers::sentinel(urls, primary)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(error.to_string().contains(remedy), "{name}: {error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{name}: {error:?}");
    }
    // A sentinel instead of a server.
    let report = settings().connect_lazy(&at).unwrap().probe().await.unwrap();
    assert!(!report.can_decide(), "{report}");
    let error = RedisStore::connect(&at).await.unwrap_err();
    assert!(error.to_string().contains("Servers::sentinel"), "{error}");
}
