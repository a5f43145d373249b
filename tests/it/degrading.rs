//! A request that a rule denies goes on without its charge, and its handler answers with less.

use std::time::Duration;

use axum::{Router, body::Body, routing::get};
use http::Request;
use http_body_util::BodyExt as _;
use support::{RedisServer, settings};
use tower::ServiceExt as _;
use tower_ratelimit::{
    Charge, Criticality, FailureMode, Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, Rejection,
    Reservation, Rule,
    layer::Degraded,
    policy::{Enforcement, Headroom},
};

use crate::stores::stores;

fn per_hour(name: &str, limit: u64) -> Policy {
    Policy::new(name, Quota::per_hour(limit))
}

async fn remaining(limiter: &Limiter, policy: &Policy) -> Option<u64> {
    limiter.peek(policy, &Key::new("all"), 0).await.unwrap().remaining()
}

#[tokio::test]
async fn a_denied_charge_that_degrades_is_not_made_and_the_others_are() {
    for (name, limiter) in stores("degrading").await {
        let (requests, large, small) = (per_hour("requests", 3), per_hour("large", 1), per_hour("small", 9));
        let of = |policy: &Policy| Charge::new(policy, &Key::new("all"), 1);
        // In any order.
        let charges = [of(&large).or_degrade(), of(&requests), of(&small)];
        assert!(limiter.check_all(&charges).await.unwrap().degraded().next().is_none(), "{name}");
        for left in [1, 0] {
            let decision = limiter.check_all(&charges).await.unwrap();
            let denied = decision.degraded().next().unwrap();
            assert!(
                decision.is_admitted() && denied.verdict().retry_after().is_some(),
                "{name}: {decision:?}"
            );
            assert_eq!((denied.policy().name(), decision.outcomes().len()), ("large", 2), "{name}");
            assert_eq!(remaining(&limiter, &requests).await, Some(left), "{name}");
        }
        let denied = limiter.check_all(&charges).await.unwrap();
        assert!(denied.is_denied(), "{name}");
        assert_eq!(remaining(&limiter, &small).await, Some(6), "{name}: nothing is charged");
    }
}

#[tokio::test]
async fn a_less_critical_request_degrades_before_a_more_critical_one() {
    for (name, limiter) in stores("degrading-criticality").await {
        let large = per_hour("large", 2).headroom(Criticality::Sheddable, Headroom::Units(1));
        let degraded = async |criticality| {
            let charge = Charge::new(&large, &Key::new("all"), 1).with_criticality(criticality).or_degrade();
            limiter.check_all(&[charge]).await.unwrap().degraded().next().map(|outcome| outcome.is_shed())
        };
        assert_eq!(degraded(Criticality::Sheddable).await, None, "{name}");
        assert_eq!(degraded(Criticality::Sheddable).await, Some(true), "{name}");
        assert_eq!(degraded(Criticality::Critical).await, None, "{name}");
        assert_eq!(degraded(Criticality::Critical).await, Some(false), "{name}");
    }
}

async fn page(degraded: Option<Degraded>) -> String {
    let Some(degraded) = degraded else { return "all".into() };
    let names: Vec<&str> = degraded.outcomes().iter().map(|outcome| outcome.policy().name()).collect();
    format!("without {}", names.join(" "))
}

/// The pages, and which of them have the header.
async fn pages(app: &Router, count: usize) -> Vec<(String, bool)> {
    let mut pages = Vec::new();
    for _ in 0..count {
        let response = app.clone().oneshot(Request::new(Body::empty())).await.unwrap();
        let is_marked = response.headers().contains_key("x-ratelimit-degraded");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        pages.push((String::from_utf8(body.to_vec()).unwrap(), is_marked));
    }
    pages
}

fn layer(limiter: &Limiter, large: Policy) -> RateLimitLayer {
    let requests = Rule::new(per_hour("requests", 9), Key::new("all"));
    RateLimitLayer::with_rules(limiter.clone(), requests).rule(Rule::new(large, Key::new("all")).or_degrade())
}

#[tokio::test]
async fn the_handler_and_the_client_read_it_also_behind_a_further_layer() {
    let limiter = Limiter::new(MemoryStore::new());
    let inner = RateLimitLayer::new(limiter.clone(), per_hour("inner", 9), Key::new("all"));
    let app = Router::new().route("/", get(page)).layer(inner).layer(layer(&limiter, per_hour("large", 1)));
    let expected = [("all", false), ("without large", true), ("without large", true)];
    assert_eq!(pages(&app, 3).await, expected.map(|(page, is_marked)| (page.to_owned(), is_marked)));
}

#[tokio::test]
async fn the_rules_of_all_layers_are_told_apart() {
    let limiter = Limiter::new(MemoryStore::new());
    let rule = |name: &str, limit| Rule::new(per_hour(name, limit), Key::new("all")).or_degrade();
    let outer = RateLimitLayer::with_rules(limiter.clone(), rule("a", 1)).rule(rule("b", 2));
    let inner = RateLimitLayer::with_rules(limiter, rule("c", 3));
    let app = Router::new().route("/", get(page)).layer(inner).layer(outer);
    let pages: Vec<String> = pages(&app, 4).await.into_iter().map(|(page, _)| page).collect();
    assert_eq!(pages, ["all", "without a", "without a b", "without a b c"]);
}

/// Each would have denied nothing without `or_degrade`.
#[tokio::test]
async fn a_shadow_and_a_layer_that_only_reports_degrade_nothing() {
    let limiter = Limiter::new(MemoryStore::new());
    let shadow = layer(&limiter, per_hour("shadow", 1).shadow());
    let reporting = layer(&limiter, per_hour("large", 1)).enforcement(Enforcement::ReportOnly);
    for layer in [shadow, reporting] {
        let app = Router::new().route("/", get(page)).layer(layer);
        assert_eq!(pages(&app, 3).await, vec![("all".to_owned(), false); 3]);
    }
}

async fn settled(reservation: Reservation) -> Result<&'static str, Rejection> {
    reservation.settle(9).await?;
    Ok("settled")
}

#[tokio::test]
async fn a_degraded_rule_reserves_and_counts_nothing() {
    for (name, limiter) in stores("degrading-reservation").await {
        let (requests, tokens) = (per_hour("requests", 9), per_hour("tokens", 10));
        let reserving = Rule::new(tokens.clone(), Key::new("all")).cost(|_| 8).reserve().or_degrade();
        let counting =
            Rule::new(requests.clone(), Key::new("all")).count_if(|response| response.status.is_success());
        let layer = RateLimitLayer::with_rules(limiter.clone(), counting).rule(reserving);
        let app = Router::new().route("/", get(settled)).layer(layer);
        for left in [Some(1), Some(1)] {
            let response = app.clone().oneshot(Request::new(Body::empty())).await.unwrap();
            assert_eq!(response.status(), 200, "{name}");
            limiter.drain(Duration::from_secs(5)).await.unwrap();
            assert_eq!(remaining(&limiter, &tokens).await, left, "{name}");
        }
        assert_eq!(remaining(&limiter, &requests).await, Some(7), "{name}");
    }
}

#[tokio::test]
async fn in_an_outage_a_rule_degrades_by_the_share_of_its_instance_and_rejects_nothing() {
    let server = RedisServer::start();
    let limiter = Limiter::new(settings().connect(&server.url()).await.unwrap());
    drop(server);
    let large = per_hour("large", 4).failure_mode(FailureMode::Local { instances: 2 });
    let charge = Charge::new(&large, &Key::new("all"), 1).or_degrade();
    for is_degraded in [false, false, true, true] {
        let decision = limiter.check_all(std::slice::from_ref(&charge)).await.unwrap();
        assert!(decision.is_admitted() && decision.failure().is_some(), "{decision:?}");
        assert_eq!(decision.degraded().count() == 1, is_degraded, "{decision:?}");
    }
    let closed = per_hour("closed", 4).failure_mode(FailureMode::Closed);
    let charge = Charge::new(&closed, &Key::new("all"), 1);
    assert!(limiter.check_all(std::slice::from_ref(&charge)).await.is_err());
    let degraded = limiter.check_all(&[charge.or_degrade()]).await.unwrap();
    assert!(degraded.is_admitted() && degraded.degraded().count() == 1, "{degraded:?}");
}

/// A handler that charges more gets a denial if it does not fit, and charges nothing to what was degraded before.
#[tokio::test]
async fn what_a_handler_charges_more_is_denied_if_it_does_not_fit() {
    for (name, limiter) in stores("degrading-more").await {
        let (requests, tokens) = (per_hour("requests", 9), per_hour("tokens", 5));
        let charges = |cost| {
            let tokens = Charge::new(&tokens, &Key::new("all"), cost).or_degrade();
            [Charge::new(&requests, &Key::new("all"), 1), tokens]
        };
        let first = limiter.check_all(&charges(4)).await.unwrap();
        assert!(limiter.charge_more(&first, 2).await.unwrap().is_denied(), "{name}");
        let degraded = limiter.check_all(&charges(4)).await.unwrap();
        assert_eq!(degraded.degraded().count(), 1, "{name}");
        assert!(limiter.charge_more(&degraded, 1).await.unwrap().is_admitted(), "{name}");
        assert_eq!(remaining(&limiter, &tokens).await, Some(1), "{name}");
    }
}
