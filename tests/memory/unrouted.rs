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
use std::{
    io,
    sync::{Arc, Mutex},
};
use support::listen_with;
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

/// The lines of the log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn listen(&self) -> tracing::subscriber::DefaultGuard {
        let lines = self.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_max_level(tracing::Level::TRACE);
        listen_with(subscriber.with_writer(move || lines.clone()).finish())
    }

    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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

async fn status(app: &Router, path: &str) -> u16 {
    let request = Request::get(path).body(Body::empty()).unwrap();
    app.clone().oneshot(request).await.unwrap().status().as_u16()
}

/// The statuses of two requests for each path.
async fn twice<const N: usize>(app: &Router, paths: [&str; N]) -> [(u16, u16); N] {
    let mut statuses = [(0, 0); N];
    for (path, seen) in paths.into_iter().zip(&mut statuses) {
        *seen = (status(app, path).await, status(app, path).await);
    }
    statuses
}

#[tokio::test]
async fn a_rule_whose_path_parameter_is_missing_does_not_apply() {
    // A route, another one, one without parameters, one with two, and none.
    let paths = ["/acme", "/globex", "/health/live", "/acme/users/7", "/acme/unknown", "/nested/in"];
    let limited = (200, 429);
    let (free, missing, wrong) = ((200, 200), (404, 404), (500, 500));
    let rows: [(&str, RateLimitLayer, _); 8] = [
        (
            "the only one",
            layer(from_extractor((), |Path(t): Path<String>| t)),
            [limited, limited, free, wrong, missing, free],
        ),
        (
            "by name",
            layer(from_extractor((), |Path(Tenant { tenant }): Path<Tenant>| tenant)),
            [limited, limited, free, (429, 429), missing, free],
        ),
        (
            "two",
            layer(from_extractor((), |Path((a, b)): Path<(String, String)>| (a, b))),
            [free, free, free, limited, missing, free],
        ),
        (
            "two extractors",
            layer(from_extractor((), |(Path(t), _): (Path<String>, MatchedPath)| t)),
            [limited, limited, free, wrong, missing, free],
        ),
        (
            "the route",
            layer(from_extractor((), |path: MatchedPath| path.as_str().to_owned())),
            [limited, (429, 429), limited, limited, missing, limited],
        ),
        (
            "a nested one",
            layer(from_extractor((), |path: NestedPath| path.as_str().to_owned())),
            [free, free, free, free, missing, free],
        ),
        // All that have no parameter have one key.
        (
            "or one key",
            layer(from_extractor((), |Path(t): Path<String>| t).or(Key::new("all"))),
            [limited, limited, limited, wrong, (429, 429), (429, 429)],
        ),
        (
            "hashed",
            layer(from_extractor((), |Path(t): Path<String>| t).hashed("a secret of 16 bytes")),
            [limited, limited, free, wrong, missing, free],
        ),
    ];
    for (name, layer, expected) in rows {
        assert_eq!(twice(&app().layer(layer), paths).await, expected, "{name}");
    }
}

fn layer(key: impl KeyExtractor) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new(), one("per-tenant"), key)
}

#[tokio::test]
async fn other_rules_charge_a_request_without_a_route() {
    let tenant = || from_extractor((), |Path(t): Path<String>| t);
    let all = || Rule::new(Policy::new("all", Quota::per_day(2)), Key::new("all"));
    let tables = [
        ("beside", layer(tenant()).rule(all())),
        ("before", RateLimitLayer::with_rules(MemoryStore::new(), all()).rule(Rule::new(one("t"), tenant()))),
        (
            "after a rule that skips",
            RateLimitLayer::with_rules(
                MemoryStore::new(),
                Rules::new().always(all()).always(Rule::new(one("t"), tenant()).skip_if(|_| false)),
            ),
        ),
        ("as a lookup", layer(from_extractor((), async_tenant)).rule(all())),
    ];
    for (name, layer) in tables {
        let app = app().layer(layer);
        let seen = [status(&app, "/a/b").await, status(&app, "/c/d").await, status(&app, "/e/f").await];
        assert_eq!(seen, [404, 404, 429], "{name}");
    }
}

fn async_tenant(Path(tenant): Path<String>) -> tower_ratelimit::Answer<Key> {
    tower_ratelimit::Answer::pending(async move { Ok(Key::new(tenant)) })
}

#[tokio::test]
async fn a_request_that_no_rule_limits_is_reported_as_such_and_no_failure_is_logged() {
    let lines = Lines::default();
    let _guard = lines.listen();
    let kinds = Arc::new(Mutex::new(Vec::new()));
    let seen = kinds.clone();
    let tenant = from_extractor((), |Path(t): Path<String>| t);
    let layer = layer(tenant).on_decision(move |event| seen.lock().unwrap().push(event.kind));
    let reporting = app().layer(layer.clone().enforcement(Enforcement::ReportOnly));
    let app = app().layer(layer);
    assert_eq!(
        [status(&app, "/a/b").await, status(&app, "/acme").await, status(&reporting, "/a/b").await],
        [404, 200, 404]
    );
    assert_eq!(*kinds.lock().unwrap(), [DecisionKind::Exempt, DecisionKind::Admitted, DecisionKind::Exempt]);
    let text = lines.take();
    assert!(!text.contains("outage") && !text.contains("misconfigured"), "{text}");
}

#[tokio::test]
async fn a_real_failure_and_a_layer_around_the_router_stay_500() {
    let session = || from_extractor((), |_: Session| "all");
    let extension = || from_extractor((), |Extension(name): Extension<String>| name);
    for paths in [["/acme", "/health/live"], ["/a/b", "/acme/users/7"]] {
        assert_eq!(twice(&app().layer(layer(session())), paths).await, [(500, 500); 2], "{paths:?}");
        assert_eq!(twice(&app().layer(layer(extension())), paths).await, [(500, 500); 2], "{paths:?}");
    }
    // No router has looked for a route.
    let outside = Router::new().fallback_service(tower::ServiceBuilder::new().service(app()));
    assert_eq!(status(&outside, "/acme").await, 200);
    let (request, ()) = Request::get("/acme").body(()).unwrap().into_parts();
    let error = from_extractor((), |Path(t): Path<String>| t).extract(&request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IdentityUnavailable);
}

#[tokio::test]
async fn a_matcher_without_its_parameter_does_not_match() {
    let tenant = || from_extractor((), |Path(t): Path<String>| t);
    let all = || RateLimitLayer::new(MemoryStore::new(), one("all"), Key::new("all"));
    let blocking = app().layer(all().block_if(tenant().any_of(["acme"])));
    let seen =
        [status(&blocking, "/acme").await, status(&blocking, "/a/b").await, status(&blocking, "/c/d").await];
    // The first one is blocked, and charged nothing.
    assert_eq!(seen, [429, 404, 429]);
    let exempting = app().layer(all().exempt_if(tenant().any_of(["acme"])));
    let seen = [
        status(&exempting, "/acme").await,
        status(&exempting, "/a/b").await,
        status(&exempting, "/acme").await,
        status(&exempting, "/c/d").await,
    ];
    assert_eq!(seen, [200, 404, 200, 429]);
}

#[tokio::test]
async fn an_extractor_of_a_service_can_say_that_its_rule_does_not_apply() {
    let key = from_fn(|parts| match parts.uri.path() {
        "/acme" => Ok("acme"),
        _ => Err(tower_ratelimit::Error::new(ErrorKind::NotApplicable, "not a tenant")),
    });
    assert_eq!(
        twice(&app().layer(layer(key)), ["/acme", "/globex", "/a/b"]).await,
        [(200, 429), (200, 200), (404, 404)]
    );
}

/// The table of [`RateLimitLayer`] in "Which requests it sees".
#[tokio::test]
async fn which_requests_a_layer_sees_depends_on_where_the_router_has_it() {
    let limit = || RateLimitLayer::new(MemoryStore::new(), one("all"), Key::new("all"));
    let routes = || Router::new().route("/a", get(async || "a"));
    let nested = || Router::new().route("/b", get(async || "b")).layer(limit());
    let rows = [
        // A known path, and an unknown one, each twice.
        ("`layer`", routes().layer(limit()), ["/a", "/x"], [(200, 429), (429, 429)]),
        ("`layer`, unknown first", routes().layer(limit()), ["/x", "/a"], [(404, 429), (429, 429)]),
        ("`route_layer`", routes().route_layer(limit()), ["/a", "/x"], [(200, 429), (404, 404)]),
        (
            "a route added later",
            routes().layer(limit()).route("/c", get(async || "c")),
            ["/c", "/a"],
            [(200, 200), (200, 429)],
        ),
        (
            "`fallback` before",
            routes().fallback(async || "f").layer(limit()),
            ["/x", "/a"],
            [(200, 429), (429, 429)],
        ),
        (
            "`fallback` after",
            routes().layer(limit()).fallback(async || "f"),
            ["/x", "/a"],
            [(200, 200), (200, 429)],
        ),
        (
            "`fallback_service` after",
            routes().layer(limit()).fallback_service(get(async || "f")),
            ["/x", "/a"],
            [(200, 200), (200, 429)],
        ),
        ("a nested router", routes().nest("/n", nested()), ["/n/b", "/n/x"], [(200, 429), (404, 404)]),
        (
            "around the outer router",
            routes().nest("/n", Router::new().route("/b", get(async || "b"))).layer(limit()),
            ["/n/b", "/n/x"],
            [(200, 429), (429, 429)],
        ),
        ("a merged router", routes().merge(nested()), ["/b", "/a"], [(200, 429), (200, 200)]),
        (
            "a method that the route lacks",
            Router::new().route("/a", axum::routing::post(async || "a")).layer(limit()),
            ["/a", "/a"],
            [(405, 429), (429, 429)],
        ),
    ];
    for (name, app, paths, expected) in rows {
        assert_eq!(twice(&app, paths).await, expected, "{name}");
    }
    // Scans are counted where the layer sees unknown paths.
    let scans = Rule::new(Policy::new("scans", Quota::per_day(2)), Key::new("all"))
        .count_if(|response| response.status == 404);
    let app = routes().layer(RateLimitLayer::with_rules(MemoryStore::new(), scans));
    let seen = [
        status(&app, "/a").await,
        status(&app, "/x").await,
        status(&app, "/y").await,
        status(&app, "/a").await,
    ];
    assert_eq!(seen, [200, 404, 404, 429]);
}

#[tokio::test]
async fn the_log_names_the_rule_and_the_policy_that_cannot_identify_a_client_and_the_client_does_not() {
    let lines = Lines::default();
    let _guard = lines.listen();
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
    assert_eq!(status(&Router::new().route("/", get(async || "")).layer(sessions), "/").await, 500);
    let text = take();
    let expected = ["outage of client identification", "rule=1", "policy=\"sessions\""];
    assert!(expected.iter().all(|part| text.contains(part)), "{text}");
}
