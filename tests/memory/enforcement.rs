//! The switch that turns enforcement off and on while the service runs.

use std::{convert::Infallible, future::poll_fn, task::Poll};

use http::{Request, Response};
use serde_json::json;
use support::{
    Counted,
    inner::{ask, get},
};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_ratelimit::{
    ErrorKind, Key, MemoryStore, Policy, Quota, RateLimitLayer, Rule,
    policy::{Enforcement, EnforcementSwitch},
};

const ALL: [Enforcement; 3] = [Enforcement::On, Enforcement::ReportOnly, Enforcement::Off];

fn once() -> Policy {
    Policy::new("once", Quota::per_hour(1))
}

/// The status and whether the response is marked.
async fn outcome(layer: &RateLimitLayer) -> (u16, bool) {
    let response = ask(layer, get()).await;
    (response.status().as_u16(), response.headers().contains_key("x-ratelimit-exceeded"))
}

#[tokio::test]
async fn a_fixed_enforcement_and_the_position_of_a_switch_mean_the_same() {
    let [denied, marked, ignored] = [(429, false), (200, true), (200, false)];
    let new = || RateLimitLayer::new(MemoryStore::new(), once(), Key::new("all"));
    let switch = EnforcementSwitch::default();
    let switched = new().enforcement(&switch);
    ask(&switched, get()).await;
    for (enforcement, expected) in ALL.into_iter().zip([denied, marked, ignored]) {
        switch.set(enforcement);
        assert_eq!(outcome(&switched).await, expected, "{enforcement}, by a switch");
        for (name, fixed) in [
            ("fixed", new().enforcement(enforcement)),
            ("the last one wins", new().enforcement(&switch).enforcement(enforcement)),
            ("a switch by value", new().enforcement(EnforcementSwitch::new(enforcement))),
        ] {
            ask(&fixed, get()).await;
            assert_eq!(outcome(&fixed).await, expected, "{enforcement}, {name}");
        }
    }
    switch.set(Enforcement::On);
    assert_eq!(outcome(&switched).await, denied, "on again");
}

#[tokio::test]
async fn one_switch_is_for_all_layers_that_share_it() {
    let switch = EnforcementSwitch::new(Enforcement::Off);
    let first = RateLimitLayer::new(MemoryStore::new(), once(), Key::new("a")).enforcement(&switch);
    let layers = [
        first.with_same_settings(Rule::new(Policy::new("other", Quota::per_hour(1)), Key::new("b"))),
        first,
        RateLimitLayer::new(MemoryStore::new(), once(), Key::new("c")).enforcement(switch.clone()),
    ];
    let statuses = async || {
        let mut statuses = Vec::new();
        for layer in &layers {
            statuses.push(ask(layer, get()).await.status().as_u16());
        }
        statuses
    };
    assert_eq!(statuses().await, [200; 3]);
    switch.set(Enforcement::On);
    // What passed while it was off was not counted.
    assert_eq!(statuses().await, [200; 3]);
    assert_eq!(statuses().await, [429; 3]);
}

#[tokio::test]
async fn blocked_requests_are_rejected_unless_the_switch_is_off() {
    let switch = EnforcementSwitch::default();
    let layer = RateLimitLayer::new(MemoryStore::new(), once(), Key::new("all"))
        .block_if(|_| true)
        .enforcement(&switch);
    for (enforcement, status) in ALL.into_iter().zip([429, 429, 200]) {
        switch.set(enforcement);
        assert_eq!(ask(&layer, get()).await.status(), status, "{enforcement}");
    }
}

#[tokio::test]
async fn a_request_that_has_begun_is_treated_as_before() {
    for (before, after, expected) in [
        (Enforcement::On, Enforcement::Off, (429, false)),
        (Enforcement::On, Enforcement::ReportOnly, (429, false)),
        (Enforcement::ReportOnly, Enforcement::On, (200, true)),
    ] {
        let switch = EnforcementSwitch::new(before);
        // Its decisions are not ready immediately.
        let store = Counted::new(MemoryStore::new());
        let layer = RateLimitLayer::new(store, once(), Key::new("all")).enforcement(&switch);
        ask(&layer, get()).await;
        let service = layer.layer(service_fn(|_: Request<String>| async {
            Ok::<_, Infallible>(Response::new(String::new()))
        }));
        let mut request = Box::pin(service.oneshot(get()));
        assert!(poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx).is_pending())).await);
        switch.set(after);
        let Ok(response) = request.await;
        let marked = response.headers().contains_key("x-ratelimit-exceeded");
        assert_eq!((response.status().as_u16(), marked), expected, "{before} to {after}");
    }
}

#[test]
fn an_enforcement_reads_its_own_text_and_names_an_unknown_one() {
    for enforcement in ALL {
        let text = enforcement.to_string();
        assert_eq!(text.to_uppercase().parse::<Enforcement>().unwrap(), enforcement);
        assert_eq!(serde_json::to_value(enforcement).unwrap(), json!(text));
        assert_eq!(serde_json::from_value::<Enforcement>(json!(text)).unwrap(), enforcement);
    }
    let error = "false".parse::<Enforcement>().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert_eq!(error.to_string(), "invalid enforcement `false`: write `on`, `report-only` or `off`");
    let error = serde_json::from_value::<Enforcement>(json!(true)).unwrap_err().to_string();
    assert!(error.contains("expected \"on\", \"report-only\" or \"off\""), "{error}");
}
