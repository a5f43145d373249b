//! Networks that operators block: on every instance, through outages, and in the router.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::future::join_all;
use http::{Method, Request};
use proptest::prelude::*;
use serde_json::{Value, json};
use support::{
    RedisServer, eventually,
    inner::{ask, layer, statuses},
    redis_store, settings,
    slow::far,
    store, within,
};
use tokio::time::timeout;
use tower_ratelimit::{
    ClientIp, ErrorKind, FailureMode, Key, Limiter, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer,
    RedisStore, key::TrustedProxies, policy::Enforcement,
};
use tower_ratelimit_operate::{
    admin::Admin,
    live::{BlockedNetwork, Blocklist},
};

use crate::admin::router::Operator;

/// So often that a test does not wait.
const OFTEN: Duration = Duration::from_millis(20);
const HOUR: Duration = Duration::from_secs(3_600);

async fn in_redis(store: &RedisStore) -> Blocklist {
    Blocklist::redis(store).await.unwrap().poll_every(OFTEN)
}

fn blocking(list: &Blocklist) -> RateLimitLayer {
    layer(1_000).block_if(PeerIp::new().matching(list.matcher()))
}

fn from(peer: &str) -> Request<String> {
    Request::get("/").extension(SocketAddr::new(peer.parse().unwrap(), 4711)).body(String::new()).unwrap()
}

async fn status(layer: &RateLimitLayer, peer: &str) -> u16 {
    ask(layer, from(peer)).await.status().as_u16()
}

fn contains(list: &Blocklist, address: &str) -> bool {
    list.contains(address.parse().unwrap())
}

fn networks(list: &Blocklist) -> Vec<String> {
    list.networks().into_iter().map(|blocked| blocked.network).collect()
}

fn set(server: &RedisServer, network: &str, value: &str) {
    let _: redis::Value = server.command(&["HSET", "rl:blocklist", network, value]);
}

fn fields(server: &RedisServer) -> Vec<String> {
    let mut fields: Vec<String> = server.command(&["HKEYS", "rl:blocklist"]);
    fields.retain(|field| field != "@version");
    fields.sort();
    fields
}

/// How often the server has run `command`.
fn calls(server: &RedisServer, command: &str) -> u64 {
    let stats: String = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&*format!("cmdstat_{command}:calls=")));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

fn error(list: &Blocklist) -> String {
    list.last_error().map(|error| error.to_string()).unwrap_or_default()
}

/// Seconds since 1970 on this machine, on which the server runs too.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[tokio::test]
async fn a_network_is_blocked_on_every_instance_until_it_is_unblocked() {
    let server = RedisServer::start();
    let (one, other) = (in_redis(&store(&server).await).await, in_redis(&store(&server).await).await);
    let (here, there) = (blocking(&one), blocking(&other));
    one.block(BlockedNetwork::new("203.0.113.66/24").blocked_for(HOUR).reason("a scraper").who("ann"))
        .await
        .unwrap();
    one.block(BlockedNetwork::new("2001:db8::/32")).await.unwrap();

    assert_eq!(status(&here, "203.0.113.7").await, 429);
    assert!(eventually(async || networks(&other) == ["203.0.113.0/24", "2001:db8::/32"]).await);
    assert_eq!(status(&there, "203.0.113.7").await, 429);
    for layer in [&here, &there] {
        let peers = ["203.0.113.255", "::ffff:203.0.113.1", "2001:db8:1::5", "203.0.114.0", "2001:db9::1"];
        assert_eq!(statuses(layer, peers.map(from)).await, [429, 429, 429, 200, 200]);
    }
    assert!(contains(&other, "::ffff:203.0.113.7") && !contains(&other, "::ffff:203.0.114.7"));
    let [blocked] = &other.networks_containing("203.0.113.7")[..] else { panic!("{other:?}") };
    assert_eq!((blocked.reason.as_deref(), blocked.who.as_deref()), (Some("a scraper"), Some("ann")));
    assert!(blocked.blocked_for.is_some_and(|rest| rest <= HOUR + Duration::from_secs(1) && rest > HOUR / 2));

    // An instance that starts later, and a block in the place of another.
    let third = in_redis(&store(&server).await).await;
    assert_eq!(networks(&third), networks(&other));
    third.block(BlockedNetwork::new("203.0.113.0/24")).await.unwrap();
    assert!(eventually(async || one.networks_containing("203.0.113.7")[0].blocked_for.is_none()).await);

    assert!(other.unblock("203.0.113.0/24").await.unwrap());
    assert_eq!(status(&there, "203.0.113.7").await, 200);
    assert!(eventually(async || status(&here, "203.0.113.7").await == 200).await);
    assert!(!other.unblock("203.0.113.0/24").await.unwrap());
    assert_eq!(fields(&server), ["2001:db8::/32"]);
    assert_eq!([error(&one), error(&other)], ["", ""]);
}

#[tokio::test]
async fn a_block_ends_in_time_by_the_clock_of_redis_and_even_while_redis_is_unavailable() {
    let (mut server, store) = redis_store().await;
    let list = in_redis(&store).await;
    set(&server, "192.0.2.0/24", &format!(r#"{{"until":{}}}"#, now() - 5));
    set(&server, "198.51.100.0/24", &format!(r#"{{"until":{}}}"#, now() + 3_600));
    assert!(eventually(async || contains(&list, "198.51.100.1")).await);
    assert!(!contains(&list, "192.0.2.1"));
    assert_eq!(networks(&list), ["198.51.100.0/24"]);

    let (seconds, micros): (u64, u64) = server.command(&["TIME"]);
    list.block(BlockedNetwork::new("203.0.113.0/24").blocked_for(Duration::from_secs(2))).await.unwrap();
    assert!(contains(&list, "203.0.113.7"));
    let value: String = server.command(&["HGET", "rl:blocklist", "203.0.113.0/24"]);
    let value: Value = serde_json::from_str(&value).unwrap();
    let earliest = seconds + 2 + u64::from(micros > 0);
    assert!(
        value["until"].as_u64().is_some_and(|until| until >= earliest),
        "{value} at {seconds}.{micros:06}"
    );
    server.kill();
    assert!(eventually(async || !contains(&list, "203.0.113.7")).await);
    assert!(contains(&list, "198.51.100.1"));
    let failed = list.block(BlockedNetwork::new("192.0.2.0/24")).await.unwrap_err();
    assert!(!failed.kind().may_have_charged() && failed.kind() != ErrorKind::InvalidConfig, "{failed}");
    assert!(!contains(&list, "192.0.2.1"));
    assert!(eventually(async || error(&list).contains("the Redis hash `rl:blocklist` cannot be read")).await);

    // A server that has lost its data.
    server.restart();
    assert!(eventually(async || networks(&list).is_empty()).await);
    assert!(eventually(async || error(&list).is_empty()).await);
}

#[tokio::test]
async fn an_invalid_field_neither_unblocks_nor_hides_another_network() {
    let (server, store) = redis_store().await;
    set(&server, "203.0.113.0/24", "{}");
    let list = in_redis(&store).await;
    let blocked = "its value is invalid, so the network is blocked until it is corrected: ";
    let binary = "\u{fffd}";
    let rows = [
        ("203.0.113.0/33", "{}", false, "it is ignored: \"203.0.113.0/33\" is neither a network"),
        (
            "0.0.0.0/0",
            "{}",
            false,
            "0.0.0.0/0 has too many clients to block: a blocked network has a prefix of at least /8",
        ),
        ("2000::/3", "{}", false, "or /16 for IPv6"),
        ("::ffff:10.0.0.0/90", "{}", false, "contains all IPv4 addresses in IPv6 form"),
        (binary, "{}", false, "is ignored"),
        ("198.51.100.0/24", "forever", true, "write a JSON object such as"),
        ("198.51.100.0/24", "[1]", true, "write a JSON object such as"),
        ("198.51.100.0/24", r#"{"until":-1}"#, true, "invalid value: integer `-1`"),
        ("198.51.100.0/24", r#"{"untli":1}"#, true, "unknown field `untli`"),
        ("198.51.100.0/24", r#"{"reason":"a\nb"}"#, true, "`reason` has a control character"),
    ];
    for (at, (network, value, is_blocked, problem)) in rows.into_iter().enumerate() {
        // A change beside the invalid field is applied.
        let beside = format!("192.0.2.{at}");
        let _: redis::Value =
            server.command(&["HSET", "rl:blocklist", network, value, &beside, "{}", "@version", &beside]);
        assert!(eventually(async || contains(&list, &beside)).await, "{network}");
        assert!(eventually(async || error(&list).contains(problem)).await, "{network}: {}", error(&list));
        assert!(error(&list).starts_with("the Redis hash `rl:blocklist`, field `"), "{}", error(&list));
        assert_eq!(error(&list).contains(blocked), is_blocked, "{}", error(&list));
        assert!(contains(&list, "203.0.113.7"), "{network}");
        assert_eq!(contains(&list, "198.51.100.1"), is_blocked, "{network}");
        // Back to what was valid before.
        let _: redis::Value = server.command(&["HDEL", "rl:blocklist", network, &beside]);
        assert!(eventually(async || error(&list).is_empty()).await, "{}", error(&list));
        assert_eq!(networks(&list), ["203.0.113.0/24"], "{network}");
    }
    // Neither a hash nor a text of one.
    let _: redis::Value = server.command(&["DEL", "rl:blocklist"]);
    let _: redis::Value = server.command(&["SET", "rl:blocklist", "203.0.113.0/24"]);
    assert!(eventually(async || error(&list).contains("WRONGTYPE")).await, "{}", error(&list));
}

#[tokio::test]
async fn any_bytes_may_be_the_version() {
    let (server, store) = redis_store().await;
    let list = in_redis(&store).await;
    let mut connection = server.connection();
    for (at, version) in [&b"\xff\xfe"[..], b"", b"\xff\xff"].into_iter().enumerate() {
        let network = format!("192.0.2.{at}");
        let () = redis::cmd("HSET")
            .arg(&["rl:blocklist", &network, "{}", "@version"])
            .arg(version)
            .query(&mut connection)
            .unwrap();
        assert!(eventually(async || contains(&list, &network)).await, "{version:?}: {}", error(&list));
    }
    list.block(BlockedNetwork::new("203.0.113.0/24")).await.unwrap();
    assert_eq!((networks(&list).len(), error(&list)), (4, String::new()));
}

#[tokio::test]
async fn what_cannot_be_blocked_is_an_error_that_says_what_to_do() {
    let (server, store) = redis_store().await;
    for list in [Blocklist::new(), in_redis(&store).await] {
        let long = "x".repeat(257);
        let rows = [
            (BlockedNetwork::new("everyone"), "\"everyone\" is neither a network"),
            (BlockedNetwork::new("10.0.0.0/7"), "has too many clients to block"),
            (BlockedNetwork::new("::/0"), "contains all IPv4 addresses in IPv6 form"),
            (BlockedNetwork::new("2000::/3"), "has too many clients to block"),
            (
                BlockedNetwork::new("10.0.0.0/8").blocked_for(Duration::ZERO),
                "can be blocked for 1 second to 3,650 days",
            ),
            (
                BlockedNetwork::new("10.0.0.0/8").blocked_for(Duration::MAX),
                "can be blocked for 1 second to 3,650 days",
            ),
            (BlockedNetwork::new("10.0.0.0/8").reason(&long), "`reason` is longer than 256 characters"),
            (BlockedNetwork::new("10.0.0.0/8").who("a\0"), "`who` has a control character"),
        ];
        for (network, problem) in rows {
            let error = list.block(network).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(error.to_string().contains(problem), "{error}");
        }
        assert!(list.unblock("everyone").await.is_err());
        assert_eq!(networks(&list), [""; 0]);
    }
    assert_eq!(fields(&server), [""; 0]);
}

#[tokio::test]
async fn blocking_removes_what_has_ended_and_other_spellings_and_nothing_else() {
    let (server, store) = redis_store().await;
    let list = in_redis(&store).await;
    let ended = format!(r#"{{"until":{}}}"#, now() - 5);
    for at in 0..50 {
        set(&server, &format!("192.0.2.{at}/32"), &ended);
    }
    set(&server, "203.0.113.7/24", &format!(r#"{{"until":{}}}"#, now() + 3_600));
    set(&server, "203.0.113.9/24", "{}");
    set(&server, "198.51.100.1", "{}");
    set(&server, "invalid", "{}");
    // Of several entries for one network, the longest counts.
    assert!(eventually(async || list.networks_containing("203.0.113.1").len() == 1).await);
    assert_eq!(list.networks_containing("203.0.113.1")[0].blocked_for, None);

    list.block(BlockedNetwork::new("203.0.113.0/24").blocked_for(HOUR)).await.unwrap();
    assert_eq!(fields(&server), ["198.51.100.1", "203.0.113.0/24", "invalid"]);
    assert!(eventually(async || list.networks_containing("203.0.113.1")[0].blocked_for.is_some()).await);
    set(&server, "198.51.100.1/32", "{}");
    assert!(list.unblock("198.51.100.1").await.unwrap());
    assert_eq!(fields(&server), ["203.0.113.0/24", "invalid"]);
}

#[tokio::test]
async fn what_another_operator_writes_between_the_read_and_the_change_stays() {
    let server = Arc::new(RedisServer::start());
    let ended = format!(r#"{{"until":{}}}"#, now() - 5);
    let again = r#"{"reason":"again"}"#;
    // The first reply of each operation has the fields. It arrives after the other operator's change.
    let (other, is_armed) = (server.clone(), Arc::new(AtomicBool::new(false)));
    let armed = is_armed.clone();
    let delay = move || {
        if armed.swap(false, Ordering::Relaxed) {
            set(&other, "192.0.2.0/24", again);
        }
        0
    };
    let store = settings().connect(&format!("redis://{}", far(server.port(), delay).await)).await.unwrap();
    let list = Blocklist::redis(&store).await.unwrap().poll_every(HOUR);
    let value = || server.command::<Option<String>>(&["HGET", "rl:blocklist", "192.0.2.0/24"]);
    for change in ["block", "unblock"] {
        set(&server, "192.0.2.0/24", &ended);
        is_armed.store(true, Ordering::Relaxed);
        match change {
            "block" => list.block(BlockedNetwork::new("203.0.113.0/24")).await.unwrap(),
            _ => assert!(!list.unblock("192.0.2.0/24").await.unwrap()),
        }
        assert!(!is_armed.load(Ordering::Relaxed));
        assert_eq!(value().as_deref(), Some(again), "{change}");
    }
}

#[tokio::test]
async fn ended_fields_do_not_fill_a_list() {
    let (server, store) = redis_store().await;
    let list = in_redis(&store).await;
    let mut pipe = redis::pipe();
    for at in 0..11_500_u32 {
        pipe.hset("rl:blocklist", format!("10.{}.{}.0/24", at / 250, at % 250), r#"{"until":5}"#).ignore();
    }
    pipe.query::<()>(&mut server.connection()).unwrap();
    list.block(BlockedNetwork::new("203.0.113.0/24")).await.unwrap();
    let left: u64 = server.command(&["HLEN", "rl:blocklist"]);
    assert!((10_000..11_000).contains(&left), "{left}");
    assert!(contains(&list, "203.0.113.7") && list.networks().len() == 1);
}

#[tokio::test]
async fn a_list_has_at_most_ten_thousand_networks() {
    let (server, store) = redis_store().await;
    let (here, shared) = (Blocklist::new(), in_redis(&store).await);
    let mut connection = server.connection();
    let mut pipe = redis::pipe();
    for at in 0..10_000_u32 {
        let network = format!("10.{}.{}.0/24", at / 250, at % 250);
        here.block(BlockedNetwork::new(&*network)).await.unwrap();
        pipe.hset("rl:blocklist", network, "{}").ignore();
    }
    pipe.query::<()>(&mut connection).unwrap();
    assert!(eventually(async || contains(&shared, "10.39.249.1")).await);
    for list in [here, shared] {
        let full = list.block(BlockedNetwork::new("203.0.113.0/24")).await.unwrap_err();
        assert!(full.to_string().starts_with("the blocklist has 10000 networks"), "{full}");
        // A network that has an entry is not another one.
        list.block(BlockedNetwork::new("10.0.0.0/24").reason("a scraper")).await.unwrap();
        assert!(list.unblock("10.0.0.0/24").await.unwrap());
        list.block(BlockedNetwork::new("203.0.113.0/24")).await.unwrap();
        assert!(
            contains(&list, "203.0.113.7") && !contains(&list, "10.0.0.1") && contains(&list, "10.0.1.1")
        );
    }
    for at in 0..10_001_u32 {
        pipe.hset("rl:blocklist", format!("11.{}.{}.0/24", at / 250, at % 250), "{}").ignore();
    }
    pipe.query::<()>(&mut connection).unwrap();
    let list = in_redis(&store).await;
    assert!(
        error(&list).contains("has more than 20000 fields: is it of another program?"),
        "{}",
        error(&list)
    );
}

/// Its key is the IPv4 address, so that is what operators see and block.
#[tokio::test]
async fn an_address_that_stands_for_a_blocked_one_is_blocked_too() {
    let list = Blocklist::new();
    list.block(BlockedNetwork::new("203.0.113.7")).await.unwrap();
    let layer = blocking(&list);
    let of_client = [
        "203.0.113.7",
        "::ffff:203.0.113.7",
        "::203.0.113.7",
        "64:ff9b::203.0.113.7",
        "2002:cb00:7107::1",
        "2001:0:4136:e378:8000:63bf:34ff:8ef8",
    ];
    assert_eq!(statuses(&layer, of_client.map(from)).await, [429; 6]);
    for address in of_client {
        assert_eq!(list.networks_containing(address).len(), 1, "{address}");
    }
    assert_eq!(list.networks_containing("64:ff9b::/96").len(), 0);
    let others =
        ["::203.0.113.8", "64:ff9b::203.0.113.8", "2002:cb00:7108::1", "2001:db8::203.0.113.7", "::1"];
    assert_eq!(statuses(&layer, others.map(from)).await, [200; 5]);
    list.block(BlockedNetwork::new("64:ff9b::/96")).await.unwrap();
    assert_eq!(status(&layer, "64:ff9b::203.0.113.8").await, 429);
}

/// A large list, or a server that is far away.
#[tokio::test]
async fn a_list_that_is_read_more_slowly_than_decisions_is_followed() {
    let server = RedisServer::start();
    let address = far(server.port(), || 100).await;
    let store = RedisStore::builder()
        .deadline(Duration::from_millis(50))
        .connect_lazy(format!("redis://{address}"))
        .unwrap();
    let list = in_redis(&store).await;
    for network in ["192.0.2.1", "192.0.2.2"] {
        let _: redis::Value = server.command(&["HSET", "rl:blocklist", network, "{}", "@version", network]);
        assert!(eventually(async || contains(&list, network)).await, "{}", error(&list));
    }
    assert_eq!(error(&list), "");
}

#[tokio::test]
async fn a_client_behind_a_proxy_is_blocked_by_its_own_address() {
    let list = Blocklist::new();
    list.block(BlockedNetwork::new("203.0.113.0/24")).await.unwrap();
    list.block(BlockedNetwork::new("10.0.0.2")).await.unwrap();
    let client = ClientIp::behind(TrustedProxies::cidrs(["10.0.0.0/24"]).unwrap());
    let layer = layer(1_000).block_if(client.matching(list.matcher()));
    let request = |proxy: &str, forwarded_for: &str| {
        let mut request = from(proxy);
        request.headers_mut().insert("x-forwarded-for", forwarded_for.parse().unwrap());
        request
    };
    let requests = [
        request("10.0.0.1", "1.2.3.4, 203.0.113.7"),
        request("10.0.0.1", "203.0.113.7, 198.51.100.1"),
        // The client cannot be determined, and the proxy's address is blocked: it may be a client's.
        request("10.0.0.2", "unknown"),
        request("10.0.0.1", "unknown"),
        // Not a proxy's.
        request("203.0.113.7", "198.51.100.1"),
    ];
    assert_eq!(statuses(&layer, requests).await, [429, 200, 400, 200, 429]);
    // With the switch off, nothing is blocked.
    let off = layer.enforcement(Enforcement::Off);
    assert_eq!(statuses(&off, [from("203.0.113.7")]).await, [200]);
}

#[tokio::test]
async fn a_blocked_request_needs_no_store_and_is_not_charged() {
    let list = Blocklist::new();
    let policy = Policy::new("api", Quota::per_hour(1)).failure_mode(FailureMode::Closed);
    let limiter = Limiter::new(MemoryStore::new());
    let layer = RateLimitLayer::new(limiter.clone(), policy.clone(), Key::new("all"))
        .block_if(PeerIp::new().matching(list.matcher()));
    list.block(BlockedNetwork::new("203.0.113.7")).await.unwrap();
    let blocked = ask(&layer, from("203.0.113.7")).await;
    assert_eq!((blocked.status().as_u16(), blocked.headers().contains_key("retry-after")), (429, false));
    assert_eq!(limiter.peek(&policy, &Key::new("all"), 0).await.unwrap().remaining(), Some(1));
    let down = RateLimitLayer::new(support::Down, policy, Key::new("all"))
        .block_if(PeerIp::new().matching(list.matcher()));
    assert_eq!([status(&down, "203.0.113.7").await, status(&down, "203.0.113.8").await], [429, 503]);
}

#[tokio::test]
async fn a_redis_user_with_the_acl_rule_may_block() {
    let server = RedisServer::start();
    let admin = store(&server).await;
    let _hash = admin.hash("any");
    let rule = admin.acl_rule();
    let list = in_redis(&settings().connect(&server.user("enough", &rule)).await.unwrap()).await;
    set(&server, "192.0.2.0/24", &format!(r#"{{"until":{}}}"#, now() - 5));
    list.block(BlockedNetwork::new("203.0.113.0/24")).await.unwrap();
    assert_eq!(fields(&server), ["203.0.113.0/24"]);
    assert!(list.unblock("203.0.113.0/24").await.unwrap());
    let less = settings().connect(&server.user("less", &rule.replace(" +hset", ""))).await.unwrap();
    let list = in_redis(&less).await;
    let error = list.block(BlockedNetwork::new("203.0.113.0/24")).await.unwrap_err().to_string();
    assert!(error.contains("grant what RedisStore::acl_rule returns"), "{error}");
    assert!(!contains(&list, "203.0.113.7"));
}

#[tokio::test]
async fn fields_are_read_when_their_number_or_the_version_changes_and_otherwise_seldom() {
    let (server, store) = redis_store().await;
    set(&server, "203.0.113.0/24", "{}");
    let list = in_redis(&store).await;
    let looks = async |times: u64| {
        let before = calls(&server, "eval");
        assert!(eventually(async || calls(&server, "eval") >= before + times).await);
    };
    let reads = calls(&server, "hgetall");
    looks(5).await;
    assert_eq!((reads, calls(&server, "hgetall")), (1, 1));

    let until = format!(r#"{{"until":{}}}"#, now() + 3_600);
    let ends = || list.networks()[0].blocked_for.is_some();
    set(&server, "203.0.113.0/24", &until);
    looks(3).await;
    assert!(!ends());
    set(&server, "@version", "2");
    assert!(eventually(async || ends()).await);
    // A change by hand without the version.
    set(&server, "203.0.113.0/24", "{}");
    assert!(within(Duration::from_secs(60), async || !ends()).await);
}

#[tokio::test]
async fn the_list_is_read_until_the_last_handle_is_dropped() {
    let (server, store) = redis_store().await;
    let list = in_redis(&store).await;
    let matcher = list.matcher();
    drop(list);
    set(&server, "203.0.113.0/24", "{}");
    assert!(eventually(async || matcher("203.0.113.7".parse().unwrap())).await);
    drop(matcher);
    let stops = async || {
        let before = calls(&server, "eval");
        tokio::time::sleep(4 * OFTEN).await;
        calls(&server, "eval") == before
    };
    assert!(eventually(stops).await);
}

#[tokio::test]
async fn operators_block_networks_with_the_router() {
    let (server, store) = redis_store().await;
    let shared = in_redis(&store).await;
    for (list, applies_to) in [(Blocklist::new(), "this-instance"), (shared, "all-instances")] {
        let policy = Policy::new("per-ip", Quota::per_hour(5));
        let layer = RateLimitLayer::new(MemoryStore::new(), policy.clone(), PeerIp::new())
            .block_if(PeerIp::new().matching(list.matcher()));
        let admin =
            Admin::new(layer.limiter().clone(), policy).keys_of("per-ip", PeerIp::new()).layer(&layer);
        let operator = Operator::of(admin.clone().blocklist(&list).router()).await;
        let empty = json!({"networks": [], "applies_to": applies_to, "error": null});
        assert_eq!(operator.get("/blocklist").await, empty);

        let path = "/blocklist/203.0.113.0/24";
        let block = Some(r#"{"seconds": 600, "reason": "a scraper"}"#);
        assert_eq!(operator.ask(Method::PUT, path, block).await.0, 204);
        assert_eq!(operator.ask(Method::PUT, "/blocklist/2001:db8::%2F32", Some("{}")).await.0, 204);
        let listed = operator.get("/blocklist").await["networks"].clone();
        assert_eq!(
            (&listed[0]["network"], &listed[0]["reason"], &listed[0]["who"]),
            (&json!("203.0.113.0/24"), &json!("a scraper"), &Value::Null)
        );
        assert!(
            listed[0]["blocked_for"].as_f64().is_some_and(|rest| rest > 300.0 && rest <= 601.0),
            "{listed}"
        );
        assert_eq!(
            (&listed[1]["network"], &listed[1]["blocked_for"]),
            (&json!("2001:db8::/32"), &Value::Null)
        );
        assert_eq!(status(&layer, "203.0.113.7").await, 429);

        // An operator who asks why sees the network.
        let why = operator.get("/keys/203.0.113.7").await;
        assert_eq!(
            (&why["verdict"], &why["blocked"][0]["network"]),
            (&json!("rejected"), &listed[0]["network"])
        );
        // Not the block of another network.
        assert_eq!(why["changes"].as_array().unwrap().len(), 1, "{why}");
        assert_eq!(
            (&why["changes"][0]["kind"], &why["changes"][0]["detail"], &why["changes"][0]["amount"]),
            (&json!("block"), &json!("203.0.113.0/24: a scraper"), &json!(600))
        );
        assert_eq!(operator.get("/changes").await["changes"].as_array().unwrap().len(), 2);
        let of_network = operator.get("/keys/2001:db8:1:2::%2F64").await;
        assert_eq!(
            (&of_network["verdict"], &of_network["blocked"][0]["network"]),
            (&json!("rejected"), &json!("2001:db8::/32"))
        );
        let request = r#"{"path": "/", "address": "[2001:db8::5]:80"}"#;
        let (_, _, explained) = operator.ask(Method::POST, "/explain", Some(request)).await;
        assert_eq!(
            (&explained["layers"][0]["verdict"], &explained["blocked"][0]["network"]),
            (&json!("rejected"), &json!("2001:db8::/32"))
        );
        assert_eq!(operator.get("/keys/203.0.114.7").await["verdict"], "admitted");

        operator
            .problem(Method::PUT, "/blocklist/0.0.0.0/0", Some("{}"), 400, "has too many clients to block")
            .await;
        operator
            .problem(Method::PUT, path, Some(r#"{"seconds": 0}"#), 400, "can be blocked for 1 second to")
            .await;
        operator.problem(Method::PUT, path, Some(r#"{"time": 5}"#), 400, "unknown field `time`").await;
        operator.problem(Method::PUT, path, None, 415, "content-type").await;
        operator
            .problem(Method::DELETE, "/blocklist/203.0.113.0/25", None, 404, "not in the blocklist")
            .await;
        assert_eq!(operator.ask(Method::DELETE, path, None).await.0, 204);
        assert_eq!(status(&layer, "203.0.113.7").await, 200);
        operator.problem(Method::PUT, "/blocklist/", Some("{}"), 400, "the path has no network").await;
        let nested = axum::Router::new().nest("/{tenant}/limits", admin.clone().blocklist(&list).router());
        let nested = Operator::of(nested).await;
        assert_eq!(nested.ask(Method::PUT, "/acme/limits/blocklist/192.0.2.0/24", Some("{}")).await.0, 204);
        let without = Operator::of(admin.router()).await;
        without.problem(Method::GET, "/blocklist", None, 404, "add it with `Admin::blocklist`").await;
    }
    drop(server);
}

#[tokio::test]
async fn the_router_says_whether_redis_was_changed() {
    let (mut server, store) = redis_store().await;
    let list = in_redis(&store).await;
    let operator =
        Operator::of(Admin::new(store, Policy::new("api", Quota::per_hour(5))).blocklist(&list).router())
            .await;
    server.kill();
    let (status, _, problem) = operator.ask(Method::PUT, "/blocklist/203.0.113.0/24", Some("{}")).await;
    assert_eq!(status, 503, "{problem}");
    // No server was there, so nothing was sent.
    assert!(!problem["detail"].as_str().unwrap().contains("may have been made"), "{problem}");
    assert!(!contains(&list, "203.0.113.7"));
    server.restart();
    let unblock = async || operator.ask(Method::DELETE, "/blocklist/192.0.2.0/24", None).await.0;
    // The change needs an open connection beside the one on which the hash is read: a new one would hang, and the change
    // would not be sent.
    let is_connected = async || {
        let answers = join_all([unblock(), unblock(), unblock()]).await;
        answers == [404; 3] && server.connections() > 1
    };
    assert!(eventually(is_connected).await);
    server.signal("STOP");
    let (status, _, problem) = operator.ask(Method::PUT, "/blocklist/203.0.113.0/24", Some("{}")).await;
    assert_eq!(status, 503, "{problem}");
    assert!(problem["detail"].as_str().unwrap().ends_with("the change may have been made"), "{problem}");
    server.signal("CONT");
    server.kill();
    assert!(eventually(async || !operator.get("/blocklist").await["error"].is_null()).await);
}

#[tokio::test]
async fn a_change_is_carried_out_and_noted_even_if_the_operator_does_not_wait_for_it() {
    let (server, store) = redis_store().await;
    let list = in_redis(&store).await;
    let admin = Admin::new(store, Policy::new("api", Quota::per_hour(5))).blocklist(&list);
    let operator = Operator::of(admin.router()).await;
    assert_eq!(operator.ask(Method::PUT, "/blocklist/192.0.2.0/24", Some("{}")).await.0, 204);
    server.signal("STOP");
    let block = operator.ask(Method::PUT, "/blocklist/203.0.113.0/24", Some("{}"));
    assert!(timeout(Duration::from_millis(100), block).await.is_err());
    server.signal("CONT");
    let is_noted = async || {
        let changes = operator.get("/changes").await.to_string();
        changes.contains("203.0.113.0/24")
    };
    assert!(eventually(is_noted).await);
    assert!(contains(&list, "203.0.113.7"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A list agrees with comparing the bits of each network.
    #[test]
    fn an_address_is_blocked_if_one_of_the_networks_contains_it(
        networks in proptest::collection::vec((any::<[u8; 16]>(), any::<bool>(), 0_u8..=128), 0..12),
        addresses in proptest::collection::vec((any::<[u8; 16]>(), any::<bool>(), any::<prop::sample::Index>()), 1..40),
    ) {
        use std::net::IpAddr;
        let runtime = support::current_thread();
        let list = Blocklist::new();
        // None of the addresses that stand for another one.
        let address = |mut bytes: [u8; 16], is_v4: bool| match is_v4 {
            true => IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]]),
            false => {
                bytes[0] |= 0x40;
                IpAddr::from(bytes)
            }
        };
        let bits = |address: IpAddr| match address {
            IpAddr::V4(v4) => u128::from(u32::from(v4)) << 96,
            IpAddr::V6(v6) => u128::from(v6),
        };
        let mut blocked = Vec::new();
        for (bytes, is_v4, length) in networks {
            let base = address(bytes, is_v4);
            let length = if base.is_ipv4() { 8 + length % 25 } else { length.max(16) };
            runtime.block_on(list.block(BlockedNetwork::new(format!("{base}/{length}")))).unwrap();
            blocked.push((base, length));
        }
        for (mut bytes, is_v4, near) in addresses {
            // Often near to a network.
            if !blocked.is_empty() && is_v4 {
                let (base, length) = near.get(&blocked);
                let mask = u128::MAX.checked_shr(u32::from(*length)).unwrap_or(0);
                bytes = (bits(*base) ^ (u128::from_be_bytes(bytes) & mask)).to_be_bytes();
                if bytes[15] & 1 == 0 {
                    bytes[usize::from(*length / 8).min(15)] ^= 0x80;
                }
            }
            let address = match near.get(&[true, false]) {
                true => address(bytes, true),
                false => address(bytes, false),
            };
            let expected = blocked.iter().any(|(base, length)| {
                base.is_ipv4() == address.is_ipv4()
                    && (bits(*base) ^ bits(address)).checked_shr(128 - u32::from(*length)).unwrap_or(0) == 0
            });
            prop_assert_eq!(list.contains(address), expected, "{} in {:?}", address, blocked);
        }
    }
}
