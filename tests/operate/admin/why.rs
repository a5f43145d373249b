//! Why a client is denied, in one call.

use std::time::Duration;

use axum::{Router, extract::Request as AxumRequest, middleware, routing::get};
use http::{Method, Request};
use serde_json::{Value, json};
use support::{
    Directory, Down, RedisServer, eventually,
    http::{Client, serve},
    settings,
};
use tower_ratelimit::{
    FailureMode, Header, Key, KeyExtractor as _, Limiter, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer,
    Rule,
    layer::Rules,
    policy::{EnforcementSwitch, Penalty},
    store::ManualClock,
};
use tower_ratelimit_operate::{
    admin::{Admin, OperatorName},
    live::{BlockedNetwork, Blocklist, LivePolicies},
};

use super::router::Operator;

fn policy(name: &str) -> Policy {
    Policy::new(name, Quota::per_hour(2))
}

/// The values of `name` in each entry of `list`.
fn all(list: &Value, name: &str) -> Vec<Value> {
    list.as_array().unwrap().iter().map(|entry| entry[name].clone()).collect()
}

#[tokio::test]
async fn a_key_is_explained_under_all_policies_on_either_store() {
    let server = RedisServer::start();
    let redis = settings().manual_clock(ManualClock::new()).connect(&server.url()).await.unwrap();
    let memory = MemoryStore::with_clock(ManualClock::new());
    for (name, limiter) in [("memory", Limiter::new(memory)), ("redis", Limiter::new(redis))] {
        let switch = EnforcementSwitch::default();
        let banning = policy("banning").penalty(Penalty::manual());
        let debts = policy("debts").max_debt(5);
        let policies = [policy("api"), banning.clone(), debts.clone(), policy("per-ip")];
        let admin =
            Admin::new(limiter.clone(), policies).keys_of("per-ip", PeerIp::new()).enforcement(&switch);
        let operator = Operator::of(admin.router()).await;
        let client = Key::new("42");

        let untouched = operator.get("/keys/42").await;
        assert_eq!(
            (&untouched["verdict"], &untouched["denials"]),
            (&json!("admitted"), &json!([])),
            "{name}"
        );

        for _ in 0..5 {
            limiter.check(&policy("api"), &client, 1).await.unwrap();
        }
        let charged = limiter.check(&debts, &client, 1).await.unwrap();
        limiter.debit(&charged, 4).await.unwrap();
        let ban = Some(r#"{"seconds": 600}"#);
        assert_eq!(operator.ask(Method::POST, "/policies/banning/keys/42/ban", ban).await.0, 204, "{name}");
        assert_eq!(operator.ask(Method::DELETE, "/policies/api/keys/other", None).await.0, 204, "{name}");

        let why = operator.get("/keys/42").await;
        assert_eq!((&why["verdict"], &why["enforcement"]), (&json!("denied"), &json!("on")), "{name}");
        let explanations = &why["explanations"];
        assert_eq!(all(explanations, "verdict"), ["denied", "denied", "denied"], "{name}: {why}");
        let charges: Vec<&Value> =
            explanations.as_array().unwrap().iter().map(|explanation| &explanation["charges"][0]).collect();
        assert_eq!(charges[0]["policy"]["name"], "api", "{name}");
        assert_eq!(charges[0]["retry_after"], 1_800.0, "{name}");
        assert_eq!(charges[1]["banned_for"], 600.0, "{name}");
        assert_eq!(charges[2]["owed"], 3, "{name}");
        // Of one policy, the explanation is the one of the other route.
        assert_eq!(explanations[0], operator.get("/policies/api/keys/42").await, "{name}");
        // No client of this policy has the identity.
        assert_eq!(why["errors"][0]["policy"], "per-ip", "{name}");
        assert!(why["errors"][0]["detail"].as_str().unwrap().contains("is not an IP address"), "{name}");

        let denials = &why["denials"];
        assert_eq!((denials.as_array().unwrap().len(), &denials[0]["denials"]), (1, &json!(3)), "{name}");
        assert_eq!(
            (&denials[0]["policy"], &denials[0]["verdict"]),
            (&json!("api"), &json!("denied")),
            "{name}"
        );
        assert_eq!(denials[0]["key_hash"], charges[0]["key_hash"], "{name}");
        // Not the reset of another key.
        assert_eq!(all(&why["changes"], "kind"), ["ban"], "{name}");

        let dear = operator.get("/keys/43?cost=3").await;
        assert_eq!(
            (&dear["verdict"], &dear["explanations"][0]["charges"][0]["cost"]),
            (&json!("denied"), &json!(3))
        );
        operator.problem(Method::GET, "/keys/", None, 400, "the path has no key").await;
        operator.problem(Method::GET, "/keys/100%25", None, 400, "write `%25` for a percent sign").await;
        operator.problem(Method::GET, "/keys/42?cost=many", None, 400, "write `?cost=5`").await;
    }
}

#[tokio::test]
async fn a_policy_whose_store_fails_does_not_hide_the_others() {
    let closed = policy("closed").failure_mode(FailureMode::Closed);
    let operator = Operator::of(Admin::new(Down, [closed.clone(), policy("local")]).router()).await;
    let why = operator.get("/keys/42").await;
    assert_eq!(why["errors"][0]["policy"], "closed");
    assert_eq!(why["explanations"][0]["charges"][0]["policy"]["name"], "local");
    assert!(why["explanations"][0]["failure"].as_str().unwrap().contains("secret of the store"));
    assert_eq!(why["verdict"], "unknown");
    // What this instance knows is not in the store.
    let per_ip = policy("per-ip");
    let admin = Admin::new(Down, [closed, per_ip]).keys_of("per-ip", PeerIp::new());
    let list = Blocklist::new();
    let operator = Operator::of(admin.blocklist(&list).router()).await;
    operator.ask(Method::PUT, "/blocklist/198.51.100.0/24", Some("{}")).await;
    let why = operator.get("/keys/42").await;
    assert_eq!((&why["verdict"], &why["explanations"]), (&json!("unknown"), &json!([])), "{why}");
    assert!(why["errors"][0]["detail"].as_str().unwrap().contains("secret of the store"), "{why}");
    assert_eq!(all(&why["changes"], "kind"), [""; 0]);
    let why = operator.get("/keys/198.51.100.7").await;
    assert_eq!((&why["verdict"], all(&why["changes"], "kind")), (&json!("rejected"), vec![json!("block")]));
    let layer = RateLimitLayer::new(MemoryStore::new(), policy("per-ip"), PeerIp::new());
    let admin = Admin::new(MemoryStore::new(), policy("per-ip")).layer(&layer).blocklist(&list);
    let operator = Operator::of(admin.router()).await;
    list.block(BlockedNetwork::new("2001:db8::/32")).await.unwrap();
    for value in
        ["198.51.100.7", "10.0.0.1, 198.51.100.7:80", "For=198.51.100.7;proto=https", "[2001:db8::7]"]
            .into_iter()
            .chain(["proto=http;for=\"[2001:db8::7]:80\", for=10.0.0.1"])
    {
        let request =
            json!({"path": "/", "address": "127.0.0.1", "headers": {"x-forwarded": value}}).to_string();
        let (_, _, answer) = operator.ask(Method::POST, "/explain", Some(&request)).await;
        assert_eq!(answer["blocked"].as_array().unwrap().len(), 1, "{value}: {answer}");
    }
    let operator = Operator::of(Admin::new(Down, policy("per-ip")).keys_of("per-ip", PeerIp::new()).router());
    operator.await.problem(Method::GET, "/keys/42", None, 400, "is not an IP address").await;
}

#[tokio::test]
async fn a_request_is_explained_under_each_layer_as_the_layer_decides() {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let key = || Header::new("x-api-key");
    let rules = Rules::new()
        .always(Rule::new(policy("address"), PeerIp::new()))
        .route("POST /login", Rule::new(policy("login"), key()));
    let outer = RateLimitLayer::with_rules(limiter.clone(), rules)
        .block_if(key().any_of(["bad"]))
        .exempt_if(|parts| parts.uri.path() == "/health");
    let inner = RateLimitLayer::new(limiter.clone(), policy("tenant"), key());
    let service = Router::new().fallback(get(async || "hello").post(async || "hello"));
    let service = format!("http://{}", serve(service.layer(inner.clone()).layer(outer.clone())).await);
    let admin = Admin::new(limiter, policy("login")).layer(&outer).layer(&inner);
    let operator = Operator::of(admin.router()).await;

    let explain = async |request: Value| {
        let (status, _, answer) = operator.ask(Method::POST, "/explain", Some(&request.to_string())).await;
        assert_eq!(status, 200, "{request}: {answer}");
        answer
    };
    let login = json!({"method": "POST", "path": "/login?next=1", "headers": {"X-Api-Key": "k-ann"}, "address": "127.0.0.1"});
    let client = Client::new();
    // The service and the explanation agree about each request.
    for status in [200, 200, 429, 429] {
        let answer = explain(login.clone()).await;
        let verdict = if status == 200 { "admitted" } else { "denied" };
        assert_eq!(answer["layers"][0]["verdict"], verdict, "{answer}");
        let request = Request::post(format!("{service}/login?next=1")).header("x-api-key", "k-ann");
        assert_eq!(client.send(request.body(String::new()).unwrap()).await.status(), status);
    }
    let answer = explain(login).await;
    let charges = &answer["layers"][0]["explanation"]["charges"];
    assert_eq!(all(charges, "key"), ["127.0.0.1", "k-ann"]);
    assert_eq!(all(&answer["denials"], "denials"), [2, 2], "{answer}");

    // Each layer is explained, even if another one rejects the request.
    let get = |path: &str, key: &str| json!({"path": path, "headers": {"x-api-key": [key]}, "address": "[2001:db8::1]:443"});
    let answer = explain(get("/health", "k-bob")).await;
    assert_eq!(all(&answer["layers"], "verdict"), ["not_limited", "admitted"]);
    let answer = explain(get("/", "bad")).await;
    assert_eq!(all(&answer["layers"], "verdict"), ["rejected", "admitted"]);
    assert_eq!(answer["layers"][0]["rejection"]["status"], 429);
    let answer = explain(get("/", "k-bob")).await;
    assert_eq!(answer["layers"][0]["explanation"]["charges"][0]["key"], "2001:db8::/64");
    // Operators see the cause, which the client does not see.
    let answer = explain(json!({"path": "/"})).await;
    assert_eq!(answer["layers"][0]["rejection"]["status"], 500, "{answer}");
    assert!(
        answer["layers"][0]["rejection"]["detail"].as_str().unwrap().contains("`SocketAddr`"),
        "{answer}"
    );
    assert_eq!(answer["layers"][1]["rejection"]["status"], 400);

    for (body, detail) in [
        (r#"{"path": "search"}"#, "it does not begin with `/`"),
        (r#"{"path": "/", "method": "G T"}"#, "the method of the request is invalid"),
        (r#"{"path": "/", "address": "localhost"}"#, "write one such as 203.0.113.7"),
        (r#"{"path": "/", "headers": {"a b": "c"}}"#, "the path or a header of the request is invalid"),
        (r#"{"path": "/", "header": {}}"#, "unknown field `header`"),
        (r#"{"method": "GET"}"#, "missing field `path`"),
    ] {
        operator.problem(Method::POST, "/explain", Some(body), 400, detail).await;
    }
    let none = Operator::of(Admin::new(MemoryStore::new(), policy("api")).router()).await;
    none.problem(Method::POST, "/explain", Some(r#"{"path": "/"}"#), 404, "add them with `Admin::layer`")
        .await;
    none.problem(Method::POST, "/explain", None, 415, "application/json").await;
}

#[tokio::test]
async fn changes_are_listed_with_the_operator_and_without_the_key() {
    let switch = EnforcementSwitch::default();
    let limiter = Limiter::new(MemoryStore::new());
    let api = policy("api").penalty(Penalty::manual());
    limiter.check(&api, &Key::new("alice"), 2).await.unwrap();
    // As an operator's middleware, which has checked the credentials.
    let name = middleware::from_fn(async |mut request: AxumRequest, next: middleware::Next| {
        if let Some(name) = request.headers().get("x-operator") {
            let name = OperatorName::new(name.to_str().unwrap());
            request.extensions_mut().insert(name);
        }
        next.run(request).await
    });
    let router = Admin::new(limiter, api).enforcement(&switch).router().layer(name);
    let base = format!("http://{}", serve(router).await);
    let client = Client::new();
    let key = "/policies/api/keys/alice";
    for (method, path, body, who) in [
        (Method::POST, format!("{key}/refund"), r#"{"units": 1}"#, Some("ann")),
        (Method::DELETE, key.to_owned(), "", Some("bob")),
        (Method::POST, format!("{key}/ban"), r#"{"seconds": 90}"#, None),
        (Method::DELETE, format!("{key}/ban"), "", None),
        (Method::PUT, "/enforcement".to_owned(), r#"{"enforcement": "off"}"#, Some("ann")),
        // Not a change, because it fails.
        (Method::POST, format!("{key}/refund"), r#"{"units": 0}"#, Some("ann")),
    ] {
        let request = Request::builder().method(method).uri(format!("{base}{path}"));
        let request = request.header("content-type", "application/json");
        let request = who.into_iter().fold(request, |request, who| request.header("x-operator", who));
        client.send(request.body(body.to_owned()).unwrap()).await;
    }
    let text = client.get(&format!("{base}/changes")).await.into_body();
    assert!(!text.contains("alice"), "{text}");
    let changes: Value = serde_json::from_str(&text).unwrap();
    let changes = &changes["changes"];
    assert_eq!(all(changes, "kind"), ["enforcement", "unban", "ban", "reset", "refund"]);
    assert_eq!(all(changes, "who"), [json!("ann"), Value::Null, Value::Null, json!("bob"), json!("ann")]);
    assert_eq!(all(changes, "amount"), [Value::Null, Value::Null, json!(90), Value::Null, json!(1)]);
    assert_eq!(changes[1]["key_hash"], Key::new("alice").digest());
    assert_eq!((&changes[1]["policy"], &changes[0]["policy"]), (&json!("api"), &Value::Null));
    assert_eq!(changes[0]["detail"], "on -> off, this instance");
    assert!(changes[0]["time"].as_f64().unwrap() > 1.7e9);
}

#[tokio::test]
async fn a_new_version_of_live_policies_is_a_change_and_an_old_change_leaves_a_full_list() {
    let directory = Directory::new();
    let path = directory.file("limits.toml");
    let write = |quota: &str, switch: &str| {
        let text = format!("enforcement = '{switch}'\n[[policies]]\nname = 'api'\nquota = '{quota}'\n");
        std::fs::write(&path, text).unwrap();
    };
    write("5/min", "on");
    let live = LivePolicies::file(&path).unwrap().poll_every(Duration::from_millis(10));
    let operator = Operator::of(Admin::new(MemoryStore::new(), &live).enforcement(&live).router()).await;
    assert_eq!(operator.get("/changes").await, json!({"changes": []}));
    write("6/min", "off");
    let changes = async || operator.get("/changes").await["changes"].clone();
    assert!(eventually(async || changes().await[0]["kind"] == "policies").await);
    let detail = changes().await[0]["detail"].as_str().unwrap().to_owned();
    assert!(detail.starts_with("api: ") && detail.ends_with("enforcement: on -> off"), "{detail}");

    for _ in 0..1_001 {
        assert_eq!(operator.ask(Method::DELETE, "/policies/api/keys/alice", None).await.0, 204);
    }
    let changes = changes().await;
    assert_eq!(changes.as_array().unwrap().len(), 1_000);
    assert!(all(&changes, "kind").iter().all(|kind| kind == "reset"));
}

#[tokio::test]
async fn denials_are_listed_by_time_and_by_number() {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    let operator = Operator::of(Admin::new(limiter.clone(), [policy("api"), policy("a b")]).router()).await;
    assert_eq!(operator.get("/denials/recent").await, json!({"denials": []}));
    let deny = async |policy: &Policy, key: &str, times: usize| {
        for _ in 0..times {
            assert!(limiter.check(policy, &Key::new(key), 3).await.unwrap().is_denied());
        }
    };
    deny(&policy("api"), "José", 5).await;
    deny(&policy("a b"), "bob", 1).await;
    deny(&policy("api"), "carol", 2).await;

    let recent = operator.get("/denials/recent").await["denials"].clone();
    assert_eq!(all(&recent, "denials").len(), 3);
    let jose = recent.as_array().unwrap().iter().find(|entry| entry["identity"] == "José").unwrap();
    assert_eq!((&jose["key"], &jose["denials"]), (&json!("Jos%C3%A9"), &json!(5)));
    assert_eq!(jose["key_hash"], Key::new("José").digest());
    assert_eq!((&jose["verdict"], &jose["source"]), (&json!("denied"), &json!("store")));
    assert!(jose["first"].as_f64() <= jose["last"].as_f64() && jose["retry_after"].is_null());
    let of_one = operator.get("/denials/recent?policy=a%20b").await["denials"].clone();
    assert_eq!(all(&of_one, "key"), ["bob"]);

    let top = operator.get("/denials/top?limit=2").await["denials"].clone();
    assert_eq!(
        (all(&top, "identity"), all(&top, "denials")),
        (vec![json!("José"), json!("carol")], vec![json!(5), json!(2)])
    );
    assert_eq!(all(&top, "error"), [0, 0]);
    let top = operator.get("/denials/top?policy=a+b&limit=5").await["denials"].clone();
    assert_eq!(all(&top, "key"), ["bob"]);
    operator
        .problem(Method::GET, "/denials/top?limit=many", None, 400, "such as `?policy=api&limit=20`")
        .await;
    operator.problem(Method::GET, "/denials/recent?polcy=api", None, 400, "unknown field `polcy`").await;

    let none = Operator::of(Admin::new(MemoryStore::new(), policy("api")).without_denials().router()).await;
    for path in ["/denials/recent", "/denials/top"] {
        none.problem(Method::GET, path, None, 404, "records no denials").await;
    }
    assert_eq!(none.get("/keys/42").await["denials"], json!([]));
}

#[tokio::test]
async fn the_server_is_probed_and_its_permissions_are_listed() {
    let mut server = RedisServer::start();
    let store = settings().connect(&server.url()).await.unwrap();
    let admin = Admin::new(Limiter::new(store.clone()), policy("api")).store(&store);
    let operator = Operator::of(admin.router()).await;
    assert_eq!(operator.get("/acl").await, json!({"acl_rule": store.acl_rule()}));
    let probe = operator.get("/probe").await;
    assert_eq!((&probe["can_decide"], &probe["findings"]), (&json!(true), &json!([])), "{probe}");
    let report = probe["report"].as_str().unwrap();
    assert!(report.starts_with("Redis ") || report.starts_with("Valkey "), "{probe}");
    server.kill();
    operator.problem(Method::GET, "/probe", None, 503, "Redis").await;

    let none = Operator::of(Admin::new(MemoryStore::new(), policy("api")).router()).await;
    for path in ["/probe", "/acl"] {
        none.problem(Method::GET, path, None, 404, "add it with `Admin::store`").await;
    }
}
