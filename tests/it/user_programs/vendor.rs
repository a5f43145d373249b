//! Tenants of one vendor's budget, each with a guarantee.

use axum::{Router, body::Body, routing::get};
use http::Request;
use tower::ServiceExt as _;
use tower_ratelimit::{Limiter, MemoryStore, RateLimitLayer, Rule, store::ManualClock};

mod program {
    use http::request::Parts;
    use tower_ratelimit::{
        Criticality, Key, Policy, PolicySource, Quota, key::from_extension, policy::Headroom,
    };

    use super::*;

    #[derive(Clone)]
    pub(super) struct Tenant {
        pub(super) name: &'static str,
        pub(super) tokens_per_minute: u64,
    }

    fn tokens(request: &Parts) -> u64 {
        if request.uri.path() == "/long" { 8_000 } else { 1_000 }
    }

    /// All tenants together may use 100,000 tokens a minute. Of three that have 30,000 each, none is denied for the others.
    pub(super) fn vendor(limiter: impl Into<Limiter>) -> RateLimitLayer {
        let all = Policy::new("vendor", Quota::per_minute(100_000))
            .headroom(Criticality::Sheddable, Headroom::Units(3 * 8_000 + 5));
        let tenant = PolicySource::from_extension(|tenant: &Tenant| {
            Policy::new("tenant", Quota::per_minute(tenant.tokens_per_minute).burst(8_000))
        });
        let rule = Rule::new(all, Key::new("all"))
            .cost(tokens)
            .guarantee(tenant, from_extension(|tenant: &Tenant| tenant.name));
        RateLimitLayer::with_rules(limiter, rule)
    }
}

#[tokio::test]
async fn a_tenant_that_floods_takes_nothing_that_the_others_are_guaranteed() {
    let clock = ManualClock::new();
    let layer = program::vendor(MemoryStore::with_clock(clock.clone()));
    assert_eq!(layer.warnings(), Vec::<String>::new());
    let app = Router::new().fallback(get(async || "answer")).layer(layer);
    let ask = async |name: &'static str, path: &'static str| {
        let mut request = Request::get(path).body(Body::empty()).unwrap();
        request.extensions_mut().insert(program::Tenant { name, tokens_per_minute: 30_000 });
        app.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    for tenant in ["acme", "globex", "crawler"] {
        assert_eq!(ask(tenant, "/").await, 200, "{tenant}");
    }
    clock.advance(std::time::Duration::from_secs(60));
    let mut tokens = 0;
    while ask("crawler", "/").await == 200 {
        tokens += 1_000;
    }
    assert_eq!(tokens, 75_000, "all but the headroom");
    assert_eq!([ask("acme", "/long").await, ask("globex", "/long").await], [200, 200]);
    assert_eq!(ask("acme", "/").await, 429);
}
