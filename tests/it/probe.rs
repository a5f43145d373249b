//! What a probe finds, and which problems prevent a connection.

use std::time::Duration;

use support::{
    RedisServer, eventually, fake_server, settings,
    slow::{far, jitter},
};
use tower_ratelimit::{ErrorKind, FailureMode, Key, Limiter, Policy, Quota, RedisStore};

#[tokio::test]
async fn a_usual_server_has_no_problem_and_keeps_no_key() {
    let server = RedisServer::start();
    let report = RedisStore::builder().connect_lazy(server.url()).unwrap().probe().await.unwrap();
    assert!(report.can_decide() && report.findings().next().is_none(), "{report}");
    let info: String = server.command(&["INFO", "server"]);
    let text = report.to_string();
    let version = text.split([' ', ',']).nth(1).unwrap();
    assert!(info.contains(&format!("_version:{version}\r\n")), "{report}");
    assert!(report.to_string().ends_with("noeviction: no problem found"), "{report}");
    let keys: Vec<String> = server.command(&["KEYS", "*"]);
    assert_eq!(keys, [""; 0]);
}

#[tokio::test]
async fn what_prevents_decisions_is_an_error_of_connect_with_its_remedy() {
    let server = RedisServer::start();
    let rule = RedisStore::builder().connect_lazy(server.url()).unwrap().acl_rule();
    let elsewhere = server.user("elsewhere", &rule.replace("~rl:*", "~other:*"));
    let no_scripts = server.user("no-scripts", &rule.replace("+evalsha ", ""));
    let no_texts = server.user("no-texts", &rule.replace("+eval ", ""));
    let no_commands = server.user("no-commands", &rule.replace(" +set ", " "));
    let primary = RedisServer::start();
    let replica = RedisServer::with(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    let accepts_writes = RedisServer::with(&[
        "--replicaof",
        "127.0.0.1",
        &primary.port().to_string(),
        "--replica-read-only",
        "no",
    ]);
    let node = RedisServer::node(&[]);
    let full = RedisServer::with(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    let fails = |error: &'static str| fake_server::scripted(move |_| error.to_owned());
    let unsaved = fails("-MISCONF Redis is configured to save RDB snapshots\r\n").await;
    let no_engine = fails("-ERR Could not find scripting engine 'lua'\r\n").await;
    let no_eval = fails("-ERR unknown command 'EVAL', with args beginning with: \r\n").await;
    let rows = [
        ("a Valkey without its module for Lua", no_engine, "load its module `lua`"),
        ("a server without scripts", no_eval, "the server runs no Lua scripts"),
        ("keys of another prefix", elsewhere, "ACL SETUSER <user> ~rl:* -@all +evalsha"),
        ("no scripts", no_scripts, "ACL SETUSER <user> ~rl:* -@all +evalsha"),
        // The server has the scripts already.
        ("no texts of scripts", no_texts, "ACL SETUSER <user> ~rl:* -@all +evalsha +eval"),
        ("no command", no_commands, "ACL SETUSER <user> ~rl:* -@all +evalsha"),
        ("a replica", replica.url(), "leads to the primary"),
        ("a replica that accepts writes", accepts_writes.url(), "leads to the primary"),
        ("full", full.url(), "raise maxmemory, set maxmemory-policy to volatile-ttl"),
        ("no space on its disk", unsaved, "free space"),
        ("a cluster node", node.url(), "Servers::cluster"),
    ];
    for (name, url, remedy) in rows {
        let report = settings().connect_lazy(&url).unwrap().probe().await.unwrap();
        assert_eq!(report.findings().count(), 1, "{name}: {report}");
        assert!(!report.can_decide(), "{name}");
        let error = settings().connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreFailed, "{name}: {error}");
        assert!(error.to_string().contains(remedy), "{name}: {error}");
        assert!(report.to_string().contains(&format!("\nerror: {error}")), "{name}: {report}");
        assert!(!format!("{error:?} {report:?}").contains("secret"), "{name}: {error:?} {report:?}");
    }
}

#[tokio::test]
async fn other_problems_are_in_the_report_and_the_store_connects() {
    let evicting = RedisServer::with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let fails = |error: &'static str| fake_server::scripted(move |_| error.to_owned());
    let loading = fails("-LOADING Redis is loading the dataset in memory\r\n").await;
    let busy = fails("-BUSY Redis is busy running a script\r\n").await;
    let narrow = RedisServer::start();
    let rule = RedisStore::builder().connect_lazy(narrow.url()).unwrap().acl_rule();
    let narrow_url = narrow.user("narrow", &rule.replace(" +zadd", ""));
    let old = fake_server::scripted(|_| "$0\r\n\r\n".into()).await;
    let rows = [
        ("eviction", evicting.url(), "set maxmemory-policy to volatile-ttl"),
        ("loading", loading, "wait until it is done"),
        ("a script of another client", busy, "SCRIPT KILL"),
        ("one algorithm", narrow_url, "Concurrency"),
    ];
    for (name, url, remedy) in rows {
        let report = settings().connect(&url).await.unwrap().probe().await.unwrap();
        assert_eq!(report.findings().count(), 1, "{name}: {report}");
        assert!(report.can_decide(), "{name}");
        assert!(report.to_string().contains(remedy), "{name}: {report}");
        assert!(report.to_string().contains("\nwarning: "), "{name}: {report}");
    }
    // Its replies are not decisions.
    let error = settings().connect(&old).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreReply, "{error}");
}

#[tokio::test]
async fn the_acl_rule_is_enough_for_a_probe_and_info_for_the_eviction_policy() {
    let server = RedisServer::start();
    let rule = RedisStore::builder().connect_lazy(server.url()).unwrap().acl_rule();
    for (name, more, policy) in [("rule", "", "unknown"), ("more", " +info", "noeviction")] {
        let url = server.user(name, &format!("{rule}{more}"));
        let report = settings().connect(&url).await.unwrap().probe().await.unwrap();
        assert!(report.findings().next().is_none(), "{name}: {report}");
        let text = report.to_string();
        assert!(text.contains(&format!("maxmemory-policy {policy}")), "{name}: {report}");
        assert!(!text.contains("unknown version"), "{name}: {report}");
    }
}

#[tokio::test]
async fn the_acl_rule_suffices_for_another_database_and_its_error_names_the_command() {
    let server = RedisServer::start();
    let in_database = |url: &str, number: u8| match url.split_once('?') {
        Some((address, options)) => format!("{}/{number}?{options}", address.trim_end_matches('/')),
        None => format!("{url}/{number}"),
    };
    let rule = |number| {
        let url = in_database(&server.url(), number);
        RedisStore::builder().connect_lazy(&url).unwrap().acl_rule()
    };
    assert!(!rule(0).contains("select"), "{}", rule(0));
    let enough = in_database(&server.user("enough", &rule(1)), 1);
    let report = settings().connect(&enough).await.unwrap().probe().await.unwrap();
    assert!(report.findings().next().is_none(), "{report}");
    let less = in_database(&server.user("less", &rule(0)), 1);
    let error = settings().connect(&less).await.unwrap_err().to_string();
    assert!(
        error.contains("the Redis user may not run SELECT: grant what RedisStore::acl_rule returns"),
        "{error}"
    );
    let error = settings().connect(&in_database(&server.url(), 99)).await.unwrap_err().to_string();
    assert!(error.contains("the server has no database with this number"), "{error}");
}

#[tokio::test]
async fn an_absent_server_is_an_error_of_a_probe_and_not_of_a_lazy_store() {
    let mut server = RedisServer::start();
    server.kill();
    let store = settings().connect_lazy(server.url()).unwrap();
    assert_eq!(store.probe().await.unwrap_err().kind(), ErrorKind::StoreUnreachable);
    assert_eq!(settings().connect(&server.url()).await.unwrap_err().kind(), ErrorKind::StoreUnreachable);
    server.restart();
    assert!(eventually(async || store.probe().await.is_ok()).await);
}

#[tokio::test]
async fn a_round_trip_longer_than_the_deadline_is_a_problem_that_names_the_setting() {
    let server = RedisServer::start();
    let url = format!("redis://{}", far(server.port(), jitter(60..61)).await);
    let rows = [(50, true), (2_000, false)];
    for (deadline, is_problem) in rows {
        let settings = RedisStore::builder().deadline(Duration::from_millis(deadline));
        let store = settings.connect(&url).await.unwrap();
        let report = store.probe().await.unwrap().to_string();
        assert_eq!(report.contains("raise RedisStoreBuilder::deadline"), is_problem, "{deadline}: {report}");
        assert_eq!(report.contains("a round trip to Redis takes "), is_problem, "{deadline}: {report}");
    }
}

/// Nothing is known of the load.
#[tokio::test]
async fn a_server_that_never_answered_is_not_called_busy() {
    let silent = fake_server::start(|_| String::new()).await;
    let error = RedisStore::builder().connect_lazy(&silent).unwrap().probe().await.unwrap_err().to_string();
    assert!(error.contains("whether the server expects TLS"), "{error}");
    assert!(!error.contains("busy") && !error.contains("500ms"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_reports_a_primary_that_was_demoted_and_still_accepts_writes() {
    let (server, other) = (RedisServer::start(), RedisServer::start());
    let store = settings().connect(&server.url()).await.unwrap();
    assert!(store.probe().await.unwrap().can_decide());
    server.command::<()>(&["CONFIG", "SET", "replica-read-only", "no"]);
    server.command::<()>(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    let is_reported = async || store.probe().await.is_ok_and(|report| !report.can_decide());
    assert!(eventually(is_reported).await);
    // Its decisions do not show it.
    let limiter = Limiter::new(store.clone());
    let policy = Policy::new("p", Quota::per_day(1_000)).failure_mode(FailureMode::Closed);
    let decides = async || limiter.check(&policy, &Key::new("alice"), 1).await.is_ok();
    assert!(eventually(decides).await);
}
