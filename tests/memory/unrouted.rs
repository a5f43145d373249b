//! Requests that match no route of axum, or one without the parameter that is the key; and which requests a layer
//! does not see.

use axum::{
    Router,
    body::Body,
    extract::{Extension, FromRequestParts, MatchedPath, NestedPath, Path},
    routing::get,
};
use http::{Request, StatusCode, request::Parts};
use http_body_util::BodyExt as _;
use serde::Deserialize;
use std::sync::{Arc, Mutex};
use support::{Lines, script::check_app};
use tower::ServiceExt as _;
use tower_ratelimit::{
    ErrorKind, Key, KeyExtractor, MemoryStore, Policy, Quota, RateLimitLayer, Rule,
    key::{from_extractor, from_fn},
    layer::{DecisionKind, Rules},
    policy::Enforcement,
};

#[derive(Deserialize)]
struct Tenant {
    tenant: String,
}

/// What fails as a session store does.
struct Session;

impl<S: Send + Sync> FromRequestParts<S> for Session {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(_: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Err((StatusCode::INTERNAL_SERVER_ERROR, "the session store is unavailable"))
    }
}

fn one(name: &str) -> Policy {
    Policy::new(name, Quota::per_day(1))
}

fn app() -> Router {
    let nested = Router::new().route("/in", get(async || "in"));
    Router::new()
        .route("/{tenant}", get(async || "a tenant"))
        .route("/health/live", get(async || "yes"))
        .route("/{tenant}/users/{id}", get(async || "a user"))
        .nest("/nested", nested)
}

#[tokio::test]
async fn a_rule_whose_path_parameter_is_missing_does_not_apply() {
    // A route, another one, one without parameters, one with two, and none.
    let paths = ["/acme", "/globex", "/health/live", "/acme/users/7", "/acme/unknown", "/nested/in"];
    let (limited, denied) = ((200, 429), (429, 429));
    let (free, missing, wrong) = ((200, 200), (404, 404), (500, 500));
    let only = || from_extractor((), |Path(tenant): Path<String>| tenant);
    let named = from_extractor((), |Path(Tenant { tenant }): Path<Tenant>| tenant);
    let two = from_extractor((), |Path((a, b)): Path<(String, String)>| (a, b));
    let extractors = from_extractor((), |(Path(tenant), _): (Path<String>, MatchedPath)| tenant);
    let route = from_extractor((), |path: MatchedPath| path.as_str().to_owned());
    let nested = from_extractor((), |path: NestedPath| path.as_str().to_owned());
    for (name, layer, expected) in [
        ("the only one", layer(only()), [limited, limited, free, wrong, missing, free]),
        ("by name", layer(named), [limited, limited, free, denied, missing, free]),
        ("two", layer(two), [free, free, free, limited, missing, free]),
        ("two extractors", layer(extractors), [limited, limited, free, wrong, missing, free]),
        ("the route", layer(route), [limited, denied, limited, limited, missing, limited]),
        ("a nested one", layer(nested), [free, free, free, free, missing, free]),
        // All that have no parameter have one key.
        ("or one key", layer(only().or(Key::new("all"))), [limited, limited, limited, wrong, denied, denied]),
        ("hashed", layer(only().hashed([7; 32])), [limited, limited, free, wrong, missing, free]),
    ] {
        let app = app().layer(layer);
        for (path, (first, second)) in paths.into_iter().zip(expected) {
            check_app(name, &app, &format!("{path} {first} {second}")).await;
        }
    }
}

fn layer(key: impl KeyExtractor) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new(), one("per-tenant"), key)
}

#[tokio::test]
async fn other_rules_charge_a_request_without_a_route() {
    let tenant = || from_extractor((), |Path(t): Path<String>| t);
    let all = || Rule::new(Policy::new("all", Quota::per_day(2)), Key::new("all"));
    let skipping = || Rule::new(one("t"), tenant()).skip_if(|_| false);
    let table = |rules: Rules| RateLimitLayer::with_rules(MemoryStore::new(), rules);
    for (name, layer) in [
        ("beside", layer(tenant()).rule(all())),
        ("before", table(all().into()).rule(Rule::new(one("t"), tenant()))),
        ("after a rule that skips", table(Rules::new().always(all()).always(skipping()))),
        ("as a lookup", layer(from_extractor((), async_tenant)).rule(all())),
    ] {
        check_app(name, &app().layer(layer), "/a/b 404; /c/d 404; /e/f 429").await;
    }
}

fn async_tenant(Path(tenant): Path<String>) -> tower_ratelimit::Answer<Key> {
    tower_ratelimit::Answer::pending(async move { Ok(Key::new(tenant)) })
}

#[tokio::test]
async fn a_request_that_no_rule_limits_is_reported_as_such_and_no_failure_is_logged() {
    let (lines, _guard) = Lines::listen();
    let kinds = Arc::new(Mutex::new(Vec::new()));
    let seen = kinds.clone();
    let tenant = from_extractor((), |Path(t): Path<String>| t);
    let layer = layer(tenant).on_decision(move |event| seen.lock().unwrap().push(event.kind));
    let reporting = app().layer(layer.clone().enforcement(Enforcement::ReportOnly));
    check_app("enforced", &app().layer(layer), "/a/b 404; /acme 200").await;
    check_app("reported", &reporting, "/a/b 404").await;
    assert_eq!(*kinds.lock().unwrap(), [DecisionKind::Exempt, DecisionKind::Admitted, DecisionKind::Exempt]);
    let text = lines.take();
    assert!(!text.contains("outage") && !text.contains("misconfigured"), "{text}");
}

#[tokio::test]
async fn a_real_failure_and_a_layer_around_the_router_stay_500() {
    let session = from_extractor((), |_: Session| "all");
    let extension = from_extractor((), |Extension(name): Extension<String>| name);
    for (name, layer) in [("session", layer(session)), ("extension", layer(extension))] {
        let script = "/acme 500 500; /health/live 500 500; /a/b 500 500; /acme/users/7 500 500";
        check_app(name, &app().layer(layer), script).await;
    }
    // No router has looked for a route.
    let outside = Router::new().fallback_service(tower::ServiceBuilder::new().service(app()));
    check_app("outside", &outside, "/acme 200").await;
    let (request, ()) = Request::get("/acme").body(()).unwrap().into_parts();
    let error = from_extractor((), |Path(t): Path<String>| t).extract(&request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IdentityUnavailable);
}

#[tokio::test]
async fn a_matcher_without_its_parameter_does_not_match() {
    let tenant = || from_extractor((), |Path(t): Path<String>| t);
    let all = || RateLimitLayer::new(MemoryStore::new(), one("all"), Key::new("all"));
    let blocking = app().layer(all().block_if(tenant().any_of(["acme"])));
    check_app("the blocked one is charged nothing", &blocking, "/acme 429; /a/b 404; /c/d 429").await;
    let exempting = app().layer(all().exempt_if(tenant().any_of(["acme"])));
    check_app("exempt", &exempting, "/acme 200; /a/b 404; /acme 200; /c/d 429").await;
}

#[tokio::test]
async fn an_extractor_of_a_service_can_say_that_its_rule_does_not_apply() {
    let key = from_fn(|parts| match parts.uri.path() {
        "/acme" => Ok("acme"),
        _ => Err(tower_ratelimit::Error::new(ErrorKind::NotApplicable, "not a tenant")),
    });
    check_app("", &app().layer(layer(key)), "/acme 200 429; /globex 200 200; /a/b 404 404").await;
}

/// The table of [`RateLimitLayer`] in "Which requests it sees".
#[tokio::test]
async fn which_requests_a_layer_sees_depends_on_where_the_router_has_it() {
    let limit = || RateLimitLayer::new(MemoryStore::new(), one("all"), Key::new("all"));
    let routes = || Router::new().route("/a", get(async || "a"));
    let limited = || routes().layer(limit());
    let inner = || Router::new().route("/b", get(async || "b"));
    let nested = || inner().layer(limit());
    let posts = Router::new().route("/a", axum::routing::post(async || "a"));
    for (name, app, script) in [
        // A known path, and an unknown one, each twice.
        ("`layer`", limited(), "/a 200 429; /x 429 429"),
        ("`layer`, unknown first", limited(), "/x 404 429; /a 429 429"),
        ("`route_layer`", routes().route_layer(limit()), "/a 200 429; /x 404 404"),
        ("a route added later", limited().route("/c", get(async || "c")), "/c 200 200; /a 200 429"),
        ("`fallback` before", routes().fallback(async || "f").layer(limit()), "/x 200 429; /a 429 429"),
        ("`fallback` after", limited().fallback(async || "f"), "/x 200 200; /a 200 429"),
        ("`fallback_service`", limited().fallback_service(get(async || "f")), "/x 200 200; /a 200 429"),
        ("a nested router", routes().nest("/n", nested()), "/n/b 200 429; /n/x 404 404"),
        ("around the outer one", routes().nest("/n", inner()).layer(limit()), "/n/b 200 429; /n/x 429 429"),
        ("a merged router", routes().merge(nested()), "/b 200 429; /a 200 200"),
        ("a method that the route lacks", posts.layer(limit()), "/a 405 429; /a 429 429"),
    ] {
        check_app(name, &app, script).await;
    }
    let scans = Rule::new(Policy::new("scans", Quota::per_day(2)), Key::new("all"))
        .count_if(|response| response.status == 404);
    let app = routes().layer(RateLimitLayer::with_rules(MemoryStore::new(), scans));
    let script = "/a 200; /x 404; /y 404; /a 429";
    check_app("scans are counted where the layer sees unknown paths", &app, script).await;
}

#[tokio::test]
async fn the_log_names_the_rule_and_the_policy_that_cannot_identify_a_client_and_the_client_does_not() {
    let (lines, _guard) = Lines::listen();
    let rules = || {
        Rules::new()
            .always(Rule::new(Policy::new("all", Quota::per_day(9)), Key::new("all")))
            .always(Rule::new(one("per-user"), from_fn(|parts| parts.headers.get("x-user").map(|_| "u"))))
    };
    let layer = RateLimitLayer::with_rules(MemoryStore::new(), rules());
    let take = || lines.take();
    let app = app().layer(layer.clone());
    let request = Request::get("/acme").body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 400);
    let body = String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
    assert!(body.contains("the request has no identity") && !body.contains("per-user"), "{body}");
    let expected = [
        "the client cannot be identified",
        "status=400",
        "rule=2",
        "policy=\"per-user\"",
        "the request has no identity",
    ];
    let text = take();
    assert!(expected.iter().all(|part| text.contains(part)), "{text}");

    // A page that finds charges without making them.
    let (request, ()) = Request::get("/acme").body(()).unwrap().into_parts();
    assert!(layer.charges(&request).await.is_err());
    let text = take();
    assert!(expected.iter().all(|part| text.contains(part)), "{text}");
    assert_eq!(layer.charges_under(&request, |policy| policy.name() != "per-user").await.unwrap().len(), 1);
    assert_eq!(take(), "");

    // The only rule of a layer, and a failure of the server.
    let sessions =
        RateLimitLayer::new(MemoryStore::new(), one("sessions"), from_extractor((), |_: Session| "all"));
    check_app("sessions", &Router::new().route("/", get(async || "")).layer(sessions), "/ 500").await;
    let text = take();
    let expected = ["outage of client identification", "rule=1", "policy=\"sessions\""];
    assert!(expected.iter().all(|part| text.contains(part)), "{text}");
}
