//! A checkout beside a crawler, and recommendations that a page does without.

use axum::{Router, body::Body, routing::get};
use http::Request;
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;
use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer};

mod program {
    use http::request::Parts;
    use tower_ratelimit::{Criticality, Rule, layer::Degraded, policy::Headroom};

    use super::*;

    #[derive(Clone)]
    pub(super) struct Crawler;

    // Without criticality: `RateLimitLayer::new(limiter, Policy::new("site", Quota::per_minute(10)), Key::new("all"))`.
    pub(super) fn site(limiter: impl Into<Limiter>) -> RateLimitLayer {
        let site = Policy::new("site", Quota::per_minute(10))
            .headroom(Criticality::Sheddable, Headroom::Percent(50));
        let rule = Rule::new(site, Key::new("all")).criticality(|request: &Parts| {
            let is_crawler = request.extensions.get::<Crawler>().is_some();
            if is_crawler { Criticality::Sheddable } else { Criticality::CriticalPlus }
        });
        RateLimitLayer::with_rules(limiter, rule)
    }

    pub(super) fn recommendations() -> Rule {
        Rule::new(Policy::new("recommendations", Quota::per_minute(2)), Key::new("all")).or_degrade()
    }

    pub(super) async fn page(degraded: Option<Degraded>) -> &'static str {
        if degraded.is_some() { "page" } else { "page with recommendations" }
    }
}

/// The body of each page until one is denied.
async fn pages(app: &Router, is_crawler: bool) -> Vec<String> {
    let mut pages = Vec::new();
    loop {
        let mut request = Request::new(Body::empty());
        if is_crawler {
            request.extensions_mut().insert(program::Crawler);
        }
        let response = app.clone().oneshot(request).await.unwrap();
        if response.status() == 429 {
            return pages;
        }
        let body = response.into_body().collect().await.unwrap().to_bytes();
        pages.push(String::from_utf8(body.to_vec()).unwrap());
    }
}

#[tokio::test]
async fn a_crawler_leaves_the_other_half() {
    let app = Router::new().route("/", get(async || "page")).layer(program::site(MemoryStore::new()));
    assert_eq!([pages(&app, true).await.len(), pages(&app, false).await.len()], [5, 5]);
}

#[tokio::test]
async fn a_page_is_served_without_recommendations_once_they_are_used() {
    let layer = program::site(MemoryStore::new()).rule(program::recommendations());
    let app = Router::new().route("/", get(program::page)).layer(layer);
    let pages = pages(&app, false).await;
    let with = pages.iter().filter(|page| page.ends_with("recommendations")).count();
    assert_eq!((pages.len(), with), (10, 2));
}
