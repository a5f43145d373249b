//! Log lines about what operators change.

use std::{
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::body::Body;
use http::{Method, Request};
use support::{
    Directory, EachLine, Lines, current_thread, ends, eventually, file_of, listen_with, redis_store,
};
use tokio::time::sleep;
use tower::ServiceExt as _;
use tower_ratelimit::{
    FailureMode, MemoryStore, Policy, Quota,
    policy::{Enforcement, EnforcementSwitch, Penalty},
};
use tower_ratelimit_operate::{
    admin::Admin,
    live::{Blocklist, LivePolicies, LivePrices},
};

use crate::admin::router::Operator;

#[tokio::test(start_paused = true)]
async fn an_invalid_file_of_policies_is_one_warning_and_not_one_for_each_read() {
    let directory = Directory::new();
    let path = directory.file("limits.toml");
    let write = |quota: &str| {
        fs::write(&path, format!("[[policies]]\nname = \"api\"\nquota = \"{quota}\"\n")).unwrap();
    };
    let five_minutes = async || sleep(Duration::from_secs(300)).await;
    let (lines, _guard) = Lines::listen();
    write("1/s");
    let _live = LivePolicies::file(&path).unwrap();
    let stay = "the policies stay as they are";
    for (quota, expected, changed) in [("many", 1, 0), ("more", 2, 0), ("2/s", 2, 1), ("3/s", 2, 2)] {
        write(quota);
        five_minutes().await;
        let seen = (lines.with(stay), lines.with("policies changed"));
        assert_eq!(seen, (expected, changed), "{}", lines.text());
    }
    // One that comes and goes.
    for _ in 0..10 {
        write("many");
        sleep(Duration::from_secs(2)).await;
        write("3/s");
        sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(lines.with(stay), 3, "{}", lines.text());
    // Two that alternate, as the texts of an outage do. One of them was just logged.
    for _ in 0..5 {
        for quota in ["more", "many"] {
            write(quota);
            sleep(Duration::from_secs(2)).await;
        }
    }
    assert_eq!(lines.with(stay), 4, "{}", lines.text());
    assert_eq!(lines.with("changed=api"), 2, "{}", lines.text());
    assert_eq!(lines.with("policy `api`: entry `quota`: invalid quota `many`"), 2, "{}", lines.text());
}

#[tokio::test(start_paused = true)]
async fn a_file_that_moves_the_switch_is_logged_with_the_position_that_the_switch_had() {
    let directory = Directory::new();
    let path = directory.file("limits.toml");
    let write = async |enforcement: &str| {
        let policy = "[[policies]]\nname = \"api\"\nquota = \"1/s\"\n";
        fs::write(&path, format!("enforcement = \"{enforcement}\"\n{policy}")).unwrap();
        sleep(Duration::from_secs(2)).await;
    };
    write("on").await;
    let live = LivePolicies::file(&path).unwrap();
    let (lines, _guard) = Lines::listen();
    let moved = "the switch of enforcement moved";
    // In an emergency, by the router for operators.
    live.enforcement().set(Enforcement::Off);
    write("report-only").await;
    assert_eq!((lines.with(moved), lines.with("old=off new=report-only")), (1, 1), "{}", lines.text());
    // Moved already.
    live.enforcement().set(Enforcement::Off);
    write("off").await;
    assert_eq!((lines.with(moved), live.enforcement().get()), (1, Enforcement::Off), "{}", lines.text());
    write("on").await;
    assert_eq!((lines.with(moved), lines.with("old=off new=on")), (2, 1), "{}", lines.text());
}

#[tokio::test]
async fn a_blocklist_that_is_lost_or_that_no_layer_has_is_a_warning() {
    let (server, store) = redis_store().await;
    let (lines, _guard) = Lines::listen();
    let list = Blocklist::redis(&store).await.unwrap().poll_every(Duration::from_millis(20));
    let api = Policy::new("api", Quota::per_hour(2));
    let operator = Operator::of(Admin::new(store, api).blocklist(&list).router()).await;
    let block = async || operator.ask(Method::PUT, "/blocklist/203.0.113.0/24", Some("{}")).await.0;
    let without = "no layer has the blocklist of the router: give its matcher to `block_if`";
    assert_eq!((block().await, lines.with(without)), (204, 1), "{}", lines.text());
    let matcher = list.matcher();
    assert_eq!((block().await, lines.with(without)), (204, 1), "{}", lines.text());

    // An operator unblocks the last network, here and on another instance.
    let gone = "the Redis hash `rl:blocklist` is gone: no network is blocked";
    assert!(list.unblock("203.0.113.0/24").await.unwrap());
    let () = server.command(&["HSET", "rl:blocklist", "192.0.2.0/24", "{}", "@version", "1"]);
    assert!(eventually(async || lines.text().contains("networks=1")).await, "{}", lines.text());
    let () = server.command(&["HDEL", "rl:blocklist", "192.0.2.0/24"]);
    assert!(eventually(async || lines.text().contains("networks=0")).await, "{}", lines.text());
    assert_eq!(lines.with(gone), 0, "{}", lines.text());
    let () = server.command(&["HSET", "rl:blocklist", "192.0.2.0/24", "{}", "@version", "2"]);
    assert!(eventually(async || matcher([192, 0, 2, 1].into())).await);
    let () = server.command(&["FLUSHALL"]);
    assert!(eventually(async || lines.with(gone) == 1).await, "{}", lines.text());
    let () = server.command(&["HSET", "rl:blocklist", "203.0.113.7", "a scraper", "@version", "3"]);
    let invalid = "the blocklist differs from its hash error=a field is invalid, which `last_error` names";
    assert!(eventually(async || lines.with(invalid) == 1).await, "{}", lines.text());
    assert!(list.last_error().unwrap().to_string().contains("field `203.0.113.7`"));
    assert!(!format!("{list:?}").contains("203.0.113"), "{list:?}");
    // No line has an address.
    assert!(!lines.text().contains("203.0.113") && !lines.text().contains("192.0.2"), "{}", lines.text());
}

#[tokio::test]
async fn changes_of_live_policies_are_logged_and_what_weakens_limits_at_warn() {
    let (server, store) = redis_store().await;
    let defaults = [
        Policy::new("api", Quota::per_hour(2)),
        Policy::new("login", Quota::per_minute(5))
            .penalty(Penalty::manual())
            .failure_mode(FailureMode::Closed),
    ];
    let (lines, _guard) = Lines::listen();
    let live = LivePolicies::redis(&store, defaults).await.unwrap().poll_every(Duration::from_millis(20));
    let edit = |words: &[&str]| {
        let _: redis::Value = server.command(words);
    };
    let logged = async |level: &str, what: &str| {
        let has = || lines.text().lines().any(|line| line.contains(level) && line.contains(what));
        assert!(eventually(async || has()).await, "{level} {what}: {}", lines.text());
    };
    edit(&["HSET", "rl:policies", "api", "3/h", "export", "{\"quota\":\"1/s\"}"]);
    logged("INFO", "api: quota 2/h -> 3/h, export: added (1/s, gcra, failure mode local)").await;
    edit(&["HSET", "rl:policies", "login", r#"{"penalty":null,"failure_mode":"open","enforced":0.5}"#]);
    logged("INFO", "login: penalty manual -> none, enforced 1 -> 0.5, failure mode closed -> open").await;
    let window = r#"{"algorithm":{"name":"fixed-window","aligned":true},"max_lease":3,"max_debt":1,"quota_unit": "content-bytes"}"#;
    edit(&["HSET", "rl:policies", "api", window]);
    edit(&["HDEL", "rl:policies", "export"]);
    logged("INFO", "export: removed").await;
    logged("INFO", "lease 0 -> 3").await;
    logged("INFO", "algorithm gcra -> fixed-window").await;

    edit(&["HSET", "rl:policies", "@enforcement", "off"]);
    logged("WARN", "the switch of enforcement moved").await;
    logged("WARN", "old=on new=off").await;
    assert_eq!(lines.with("is empty"), 0, "{}", lines.text());
    // As after a restart without persistence.
    edit(&["FLUSHALL"]);
    logged("WARN", "the Redis hash `rl:policies` is empty: the defaults of the service apply again").await;
    logged("WARN", "login: penalty none -> manual, enforced 0.5 -> 1, failure mode open -> closed").await;
    assert_eq!((live.enforcement().get(), lines.with("is empty")), (Enforcement::On, 1));
}

#[tokio::test]
async fn changes_by_an_operator_are_one_line_each_without_the_key() {
    let (lines, _guard) = Lines::listen();
    let policy = Policy::new("login", Quota::per_minute(5));
    let admin = Admin::new(MemoryStore::new(), policy).enforcement(&EnforcementSwitch::default()).router();
    let key = "/policies/login/keys/alice-of-acme";
    let refund = format!("{key}/refund");
    let changes: [(&str, &str, &str, &[&str]); 3] = [
        ("DELETE", key, "", &["INFO", "reset a key", "policy=\"login\" key_hash=4dd3ca0d6f122dc7"]),
        ("POST", &refund, r#"{"units": 3}"#, &["INFO", "refunded a key", "policy=\"login\"", "units=3"]),
        (
            "PUT",
            "/enforcement",
            r#"{"enforcement": "off"}"#,
            &["WARN", "moved the switch", "enforcement=off"],
        ),
    ];
    for (method, path, body, expected) in changes {
        let before = lines.text().lines().count();
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let response = admin.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
        assert!(response.status().is_success(), "{method} {path}");
        let text = lines.text();
        let new: Vec<&str> = text.lines().skip(before).collect();
        assert_eq!(new.len(), 1, "{new:?}");
        assert!(expected.iter().all(|part| new[0].contains(part)), "{new:?}");
    }
    // Looking changes nothing.
    let before = lines.text();
    let look = Request::get(key).body(Body::empty()).unwrap();
    assert_eq!(admin.oneshot(look).await.unwrap().status(), 200);
    assert_eq!(lines.text(), before);
    assert!(!before.contains("alice"), "{before}");
}

#[test]
fn a_subscriber_may_use_the_live_policies_and_prices_of_a_line() {
    ends(|| {
        current_thread().block_on(async {
            let directory = Directory::new();
            let (limits, prices) = (directory.file("limits.toml"), directory.file("prices.toml"));
            let text = file_of(&[("api", "1/h")]);
            fs::write(&limits, &text).unwrap();
            let price =
                |input: &str| format!("version = \"{input}\"\n[models.m]\ninput = {input}\noutput = 1\n");
            fs::write(&prices, price("1")).unwrap();
            let interval = Duration::from_millis(20);
            let live = Arc::new(LivePolicies::file(&limits).unwrap().poll_every(interval));
            let live_prices = Arc::new(LivePrices::file(&prices).unwrap().poll_every(interval));
            let seen = Arc::<Mutex<Vec<String>>>::default();
            let (all, own, costs) = (seen.clone(), live.clone(), live_prices.clone());
            let _listening = listen_with(EachLine(move |line: &str| {
                drop((own.policy("api"), own.get("api"), own.current(), own.recent_changes()));
                drop((own.version(), own.last_error(), own.enforcement().get()));
                drop((costs.current(), costs.last_error()));
                all.lock().unwrap().push(line.to_owned());
            }));
            let written = async |path, text: &str, line: &str| {
                fs::write(path, text).unwrap();
                let is_seen = async || seen.lock().unwrap().iter().any(|seen| seen.contains(line));
                assert!(eventually(is_seen).await, "{line}: {seen:?}");
            };
            written(&limits, &file_of(&[("api", "2/h")]), "policies changed").await;
            let reports = format!("enforcement = \"report-only\"\n{text}");
            written(&limits, &reports, "the switch of enforcement moved").await;
            written(&limits, "nonsense", "the policies stay as they are").await;
            written(&prices, &price("2"), "prices changed").await;
        });
    });
}
