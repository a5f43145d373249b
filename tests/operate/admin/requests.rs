//! What a layer would do with a request.

use http::{Request, request::Parts};
use support::{
    Down,
    inner::{ask, get},
};
use tower_ratelimit::{
    FailureMode, Header, Key, KeyExtractor as _, MemoryStore, PeerIp, Policy, PolicySource, Quota,
    RateLimitLayer, Rejection, Rule,
    layer::Rules,
    policy::{Enforcement, EnforcementSwitch},
    store::ManualClock,
};
use tower_ratelimit_operate::explain::Explanation;

fn policy(name: &str) -> Policy {
    Policy::new(name, Quota::per_hour(2))
}

fn request(line: &str, key: Option<&str>) -> Parts {
    let (method, path) = line.split_once(' ').unwrap();
    let request = Request::builder().method(method).uri(path);
    let request = key.into_iter().fold(request, |request, key| request.header("x-api-key", key));
    request.body(()).unwrap().into_parts().0
}

fn names(explanation: Option<&Explanation>) -> Vec<(String, String)> {
    let charges = explanation.into_iter().flat_map(Explanation::charges);
    charges.map(|charge| (charge.policy().name().into(), charge.key().as_str().into())).collect()
}

#[tokio::test]
async fn the_rules_that_apply_are_named_with_their_keys() {
    let rule = |name: &str| Rule::new(policy(name), Header::new("x-api-key"));
    let free = PolicySource::per_request(|parts: &Parts, _: &Key| {
        (!parts.uri.path().starts_with("/free")).then(|| policy("paid"))
    });
    let rules = Rules::new()
        .route("POST /login", rule("login").cost(|_| 2))
        .route("/skipped", rule("skipped").skip_if(|_| true))
        .fallback(Rule::new(free, Header::new("x-api-key").hashed("0123456789abcdef")));
    let layer = RateLimitLayer::with_rules(MemoryStore::new(), rules)
        .exempt_if(|parts| parts.uri.path() == "/health");
    let hashed = "%*a6949588618bfddffa881161bfd2fd6d";
    let rows: [(&str, &[(&str, &str)]); 6] = [
        ("POST /login", &[("login", "user-4")]),
        ("GET /login", &[("paid", hashed)]),
        ("GET /", &[("paid", hashed)]),
        ("GET /free", &[]),
        ("GET /skipped", &[]),
        ("GET /health", &[]),
    ];
    for (line, expected) in rows {
        let explanation = Explanation::of_request(&layer, &request(line, Some("user-4"))).await.unwrap();
        let expected: Vec<_> =
            expected.iter().map(|(name, key)| (name.to_string(), key.to_string())).collect();
        assert_eq!(names(explanation.as_ref()), expected, "{line}");
        assert_eq!(explanation.is_some(), !expected.is_empty(), "{line}");
    }
    let explanation =
        Explanation::of_request(&layer, &request("POST /login", Some("user-4"))).await.unwrap().unwrap();
    assert_eq!(explanation.charges()[0].cost(), 2);
    let explanation =
        Explanation::of_request(&layer, &request("GET /", Some("user-4"))).await.unwrap().unwrap();
    assert_eq!(explanation.charges()[0].identity(), Some("user-4"));
}

#[tokio::test]
async fn it_says_what_the_next_request_gets_and_charges_nothing() {
    let store = MemoryStore::with_clock(ManualClock::new());
    let layer = RateLimitLayer::new(store, policy("one"), Key::new("all"))
        .rule(Rule::new(policy("other"), Key::new("all")));
    let parts = || request("GET /", None);
    for status in [200, 200, 429, 429] {
        for _ in 0..3 {
            let explanation = Explanation::of_request(&layer, &parts()).await.unwrap().unwrap();
            assert_eq!(explanation.decision().is_admitted(), status == 200);
        }
        assert_eq!(ask(&layer, get()).await.status(), status);
    }
}

#[tokio::test]
async fn a_request_that_is_not_decided_is_explained_by_its_rejection() {
    let layer = || RateLimitLayer::new(MemoryStore::new(), policy("p"), Header::new("x-api-key"));
    let explain =
        async |layer: RateLimitLayer, key| Explanation::of_request(&layer, &request("GET /", key)).await;
    let banned = layer().block_if(Header::new("x-api-key").any_of(["bad"]));
    assert!(matches!(explain(banned.clone(), Some("bad")).await, Err(Rejection::Blocked)));
    assert!(explain(banned, Some("good")).await.unwrap().is_some());
    assert_eq!(explain(layer(), None).await.unwrap_err().status(), 400);
    let no_peer = RateLimitLayer::new(MemoryStore::new(), policy("p"), PeerIp::new());
    assert_eq!(explain(no_peer, None).await.unwrap_err().status(), 500);
    let closed = policy("p").failure_mode(FailureMode::Closed);
    let closed = RateLimitLayer::new(Down, closed, Header::new("x-api-key"));
    assert_eq!(explain(closed, Some("k")).await.unwrap_err().status(), 503);

    assert!(explain(layer().enforcement(Enforcement::Off), None).await.unwrap().is_none());
    let switch = EnforcementSwitch::new(Enforcement::Off);
    assert!(explain(layer().enforcement(&switch), Some("k")).await.unwrap().is_none());
    switch.set(Enforcement::ReportOnly);
    assert!(explain(layer().enforcement(&switch), Some("k")).await.unwrap().is_some());
}
