//! One table of routes and their rules: which rules apply to a request, and that no spelling of a path evades one.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
};

use axum::{
    Extension, Router,
    body::Body,
    routing::{any, get, post},
};
use http::{Method, Request, Response};
use support::{
    RedisServer,
    inner::{ask, statuses, text},
    store,
    table::{rows, unescaped},
};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_http::normalize_path::NormalizePathLayer;
use tower_ratelimit::{
    Decision, ErrorKind, Header, Key, Limiter, MemoryStore, PeerIp, Policy, PolicySource, Quota,
    RateLimitLayer, Reservation, Rule, layer::Rules,
};

fn policy(name: &'static str, limit: u64) -> Policy {
    Policy::new(name, Quota::per_day(limit))
}

/// A rule that limits all clients together to `limit` requests.
fn at_most(limit: u64, name: &'static str) -> Rule {
    Rule::new(policy(name, limit), Key::new("all"))
}

fn rule(name: &'static str) -> Rule {
    at_most(1_000, name)
}

/// The policies under which the request is charged, in order.
async fn names(layer: &RateLimitLayer, method: &str, path: &str) -> String {
    let service = layer.layer(service_fn(|request: Request<String>| {
        let decision = Decision::from_extensions(request.extensions());
        let outcomes = decision.map_or(&[][..], Decision::outcomes);
        let names: Vec<_> = outcomes.iter().map(|one| one.policy().name().to_owned()).collect();
        async move { Ok::<_, Infallible>(Response::new(names.join(" "))) }
    }));
    let request = Request::builder().method(method).uri(path).body(String::new()).unwrap();
    let Ok(response) = service.oneshot(request).await;
    assert_eq!(response.status(), 200, "{method} {path}");
    text(response).await
}

fn table(rules: Rules) -> RateLimitLayer {
    RateLimitLayer::with_rules(MemoryStore::new(), rules)
}

#[tokio::test]
async fn the_most_specific_route_of_the_method_applies_with_all_its_rules() {
    let layer = table(
        Rules::new()
            .route("/login", rule("login"))
            .route("/login", rule("login-too"))
            .route("POST /login", rule("login-post"))
            .always(rule("every"))
            .route("GET /orders/{id}", rule("order-get"))
            .route("POST /orders/{order}", rule("order-post"))
            .route("/orders/new", rule("new"))
            .route("DELETE /orders/old", rule("old"))
            .route("/orders/{id}/items/{item}", rule("item"))
            .route("/files/{*path}", rule("files"))
            .route("/files/readme", rule("readme"))
            .route("/v{version}/status", rule("status"))
            .route("/shop.Cart/Add", rule("add"))
            .route("/shop.Cart/{method}", rule("cart"))
            .route("PURGE /cache", rule("purge"))
            .route("PUT|PATCH /cache", rule("write"))
            .route("/{{id}}", rule("braces"))
            .route("/", rule("root"))
            .fallback(rule("otherwise"))
            .fallback(rule("otherwise-too")),
    );
    let otherwise = "every otherwise otherwise-too";
    for (name, method, path, expected) in [
        ("several rules, any method", "GET", "/login", "login login-too every"),
        ("several rules, and the method's rule", "POST", "/login", "login login-too login-post every"),
        ("query", "GET", "/login?next=/orders/new", "login login-too every"),
        ("parameter", "GET", "/orders/7", "every order-get"),
        ("parameter with another name", "POST", "/orders/7", "every order-post"),
        ("HEAD is GET", "HEAD", "/orders/7", "every order-get"),
        ("no route of the method", "DELETE", "/orders/7", otherwise),
        ("static before parameter", "GET", "/orders/new", "every new"),
        ("static of the method", "DELETE", "/orders/old", "every old"),
        ("static of another method", "GET", "/orders/old", "every order-get"),
        ("two parameters", "PUT", "/orders/7/items/8", "every item"),
        ("shorter than the route", "PUT", "/orders/7/items", otherwise),
        ("rest of the path", "GET", "/files/a/b/c", "every files"),
        ("static before rest", "GET", "/files/readme", "every readme"),
        ("no rest", "GET", "/files", otherwise),
        ("text before a parameter", "GET", "/v2/status", "every status"),
        ("gRPC method", "POST", "/shop.Cart/Add", "every add"),
        ("another gRPC method", "POST", "/shop.Cart/Drop", "every cart"),
        ("separate method", "PURGE", "/cache", "every purge"),
        ("separate method elsewhere", "PURGE", "/login", "login login-too every"),
        ("separate method, GET", "GET", "/cache", otherwise),
        ("one of two methods", "PUT", "/cache", "every write"),
        ("the other of two methods", "PATCH", "/cache", "every write"),
        ("braces", "GET", "/%7Bid%7D", "every braces otherwise otherwise-too"),
        ("root", "GET", "/", "every root"),
        ("absolute form", "GET", "http://example.org/login", "login login-too every"),
        ("asterisk form", "OPTIONS", "*", otherwise),
        ("authority form", "CONNECT", "example.org:443", otherwise),
        ("case", "GET", "/Login", otherwise),
    ] {
        assert_eq!(names(&layer, method, path).await, expected, "{name}");
    }
}

#[tokio::test]
async fn tables_without_routes_or_without_a_rule_for_the_request() {
    let one = |name| Rules::from(rule(name));
    type Row = (&'static str, RateLimitLayer, &'static str, &'static str);
    let common = table(one("b"));
    let rows: [Row; 8] = [
        ("one rule", table(one("a")), "/", "a"),
        ("one rule, directly", RateLimitLayer::with_rules(MemoryStore::new(), rule("a")), "/", "a"),
        ("no route", table(one("a").fallback(rule("b"))), "/", "a b"),
        ("no rule for it", table(Rules::new().route("/a", rule("a"))), "/", ""),
        ("a rule for it", table(Rules::new().route("/a", rule("a"))), "/a", "a"),
        ("and one more", table(Rules::new().route("/a", rule("a"))).rule(rule("b")), "/", "b"),
        ("and one more on it", table(Rules::new().route("/a", rule("a"))).rule(rule("b")), "/a", "a b"),
        ("a sibling", common.with_same_settings(Rules::new().route("/a", rule("a"))), "/a", "a"),
    ];
    for (name, layer, path, expected) in rows {
        assert_eq!(names(&layer, "GET", path).await, expected, "{name}");
    }
}

/// A service that answers every way to write `/login` that a router may take for it.
#[tokio::test]
async fn no_spelling_of_a_path_evades_a_rule() {
    let spellings = [
        "/login",
        "/login/",
        "//login",
        "//login//",
        "/./login",
        "/x/../login",
        "/../login",
        "/%6Cogin",
        "/%6cogin/",
        "/l%6Fgi%6e",
        "/%2e/login",
        "/x/%2E%2e/login",
        "/login/.",
        "/login?x",
        "/login/?x",
    ];
    for (name, rules) in [
        ("static", Rules::new().route("/login", at_most(1, "login"))),
        ("with a slash", Rules::new().route("/login/", at_most(1, "login"))),
        ("encoded", Rules::new().route("/log%69n", at_most(1, "login"))),
        ("method", Rules::new().route("GET /login", at_most(1, "login"))),
        ("beside a page", Rules::new().route("/login", at_most(1, "login")).route("/{page}", rule("page"))),
        ("beside a rest", Rules::new().route("/login", at_most(1, "login")).route("/{*rest}", rule("rest"))),
        ("beside otherwise", Rules::new().route("/login", at_most(1, "login")).fallback(rule("otherwise"))),
    ] {
        let layer = table(rules);
        let mut admitted = 0;
        for path in spellings {
            for method in ["GET", "HEAD"] {
                let request = Request::builder().method(method).uri(path).body(String::new()).unwrap();
                admitted += usize::from(ask(&layer, request).await.status() == 200);
            }
        }
        assert_eq!(admitted, 1, "{name}");
    }
}

/// A path costs a bounded time, regardless of its length. One that would cost more is rejected.
#[tokio::test]
async fn no_length_of_a_path_evades_a_rule() {
    let layer = table(Rules::new().route("/login", at_most(1, "login")).fallback(at_most(1_000, "rest")));
    let status = async |path: String| {
        let request = Request::get(path).body(String::new()).unwrap();
        ask(&layer, request).await.status().as_u16()
    };
    assert_eq!(status("/login".into()).await, 200);
    for filler in ["/", "/.", "/x/..", "/%2e", "/%78/%2e%2e", "//%2e/./x//..", "/%2F/%25/..//../.."] {
        let mut seen = Vec::new();
        for length in [1, 10, 100, 1_000, 10_000, 60_000] {
            for path in [
                format!("{}/login", filler.repeat(length / filler.len())),
                format!("/login{}/../login", filler.repeat(length / filler.len())),
            ] {
                seen.push(status(path).await);
            }
        }
        let (denied, rejected) = (|status: &u16| *status == 429, |status: &u16| *status == 400);
        assert!(seen.iter().all(|status| denied(status) || rejected(status)), "{filler:?}: {seen:?}");
        assert!(seen[..6].iter().all(denied), "a short path, {filler:?}: {seen:?}");
    }
    let long = "a".repeat(60_000);
    for path in [format!("/{long}"), format!("/{long}/"), format!("/{long}%20"), format!("/a/%20{long}")] {
        assert_eq!(status(path).await, 200);
    }
    let error = ask(&layer, Request::get("//./%61".repeat(8_000)).body(String::new()).unwrap()).await;
    let body = text(error).await;
    assert!(body.contains("the path is too long for one with"), "{body}");
}

#[tokio::test]
async fn a_path_that_can_be_read_in_two_ways_has_the_rules_of_both() {
    let layer = table(
        Rules::new()
            .route("/login", rule("login"))
            .route("/{page}", rule("page"))
            .route("/files/{name}", rule("file"))
            .route("/files/{name}/{part}", rule("part"))
            .route("/caf%C3%A9/{id}", rule("cafe"))
            .route("/docs", rule("docs"))
            .route("/docs/", rule("docs-too"))
            .fallback(rule("otherwise")),
    );
    for (name, path, expected) in [
        ("one way", "/login", "login"),
        ("axum takes it for a page", "/%6Cogin", "login page"),
        ("a slash at the end", "/login/", "login otherwise"),
        ("both ways one route", "/files/a%20b", "file"),
        ("an encoded slash is not a slash", "/files/a%2Fb", "file"),
        ("an encoded slash in the other case", "/files/a%2fb", "file"),
        ("two segments", "/files/a/b", "part"),
        // To axum, the parameter is empty.
        ("an empty segment", "/files//b", "file part"),
        ("a dot segment", "/files/x/../b", "file otherwise"),
        ("an encoded route", "/caf%C3%A9/1", "cafe"),
        ("an encoded route in the other case", "/caf%c3%a9/1", "cafe otherwise"),
        ("routes that differ in a slash are one", "/docs", "docs docs-too"),
        ("and with the slash", "/docs/", "docs docs-too"),
        ("no percent encoding", "/100%", "page"),
        ("not UTF-8", "/%FF%FE", "page"),
        ("a dot in a name", "/files/.hidden", "file"),
    ] {
        assert_eq!(names(&layer, "GET", path).await, expected, "{name}");
    }
}

/// A router that resolves dots and does not decode serves `/shop` as a path without a route.
#[tokio::test]
async fn a_path_that_one_way_to_read_it_matches_no_route_has_the_rules_of_the_fallback() {
    let layer = table(
        Rules::new()
            .route("/s%68op", rule("shop"))
            .route("/{a}/{b}/shop", rule("three"))
            .fallback(rule("otherwise")),
    );
    for (name, path, expected) in [
        ("encoded as the route", "/s%68op", "shop"),
        ("decoded", "/shop", "shop otherwise"),
        ("decoded, with a dot segment", "/x/../shop", "shop three otherwise"),
        ("and an encoded one", "/%61/../shop", "shop three otherwise"),
    ] {
        assert_eq!(names(&layer, "GET", path).await, expected, "{name}");
    }
}

#[tokio::test]
async fn axums_routers_are_limited_by_the_full_path_wherever_the_layer_is() {
    let orders = || Router::new().route("/orders/{id}", any(async || "order"));
    let layer = |name| {
        let rules = Rules::new()
            .route("/api/v1/orders/{id}", at_most(1, name))
            .route("/orders/{id}", at_most(9, "without-prefix"));
        table(rules)
    };
    let api = |inner: Router| Router::new().nest("/api", Router::new().nest("/v1", inner));
    let rows = [
        ("around all", api(orders()).layer(layer("outer"))),
        ("route_layer around all", api(orders()).route_layer(layer("outer-route"))),
        (
            "in the middle",
            Router::new().nest("/api", Router::new().nest("/v1", orders()).layer(layer("middle"))),
        ),
        ("inside", api(orders().layer(layer("inner")))),
        ("route_layer inside", api(orders().route_layer(layer("inner-route")))),
        (
            "on the route",
            api(Router::new().route("/orders/{id}", any(async || "order").layer(layer("route")))),
        ),
        (
            "a service",
            Router::new()
                .nest_service("/api", Router::new().nest_service("/v1", orders().layer(layer("service")))),
        ),
        ("merged", Router::new().merge(api(orders().layer(layer("merged"))))),
    ];
    for (name, app) in rows {
        let mut statuses = Vec::new();
        for id in 1..=2 {
            let request = Request::get(format!("/api/v1/orders/{id}")).body(Body::empty()).unwrap();
            statuses.push(app.clone().oneshot(request).await.unwrap().status().as_u16());
        }
        assert_eq!(statuses, [200, 429], "{name}");
    }
}

#[tokio::test]
async fn a_slash_that_a_middleware_removes_evades_no_rule() {
    let login = || Router::new().route("/login", post(async || "in")).route("/", get(async || "home"));
    let rules = || table(Rules::new().route("POST /login", at_most(1, "login")).fallback(rule("otherwise")));
    // The layer is outside of the middleware and sees the path of the client, or inside.
    let outside = rules().layer(NormalizePathLayer::trim_trailing_slash().layer(login()));
    let inside = NormalizePathLayer::trim_trailing_slash().layer(login().layer(rules()));
    let mut seen = [Vec::new(), Vec::new()];
    for path in ["/login/", "/login", "//login", "/login//"] {
        let request = || Request::post(path).body(Body::empty()).unwrap();
        seen[0].push(outside.clone().oneshot(request()).await.unwrap().status().as_u16());
        seen[1].push(inside.clone().oneshot(request()).await.unwrap().status().as_u16());
    }
    assert_eq!(seen, [[200, 429, 429, 429], [200, 429, 429, 429]]);
}

/// To axum, `.` and `%2e` are values of a parameter. A middleware that trims slashes makes `/./login` of `/./login/`.
#[tokio::test]
async fn a_dot_segment_as_a_parameter_behind_a_middleware_that_trims_evades_no_rule() {
    let app = Router::new()
        .route("/{tenant}/login", post(async || "in"))
        .route("/files/{name}", get(async || "file"));
    let rules = Rules::new()
        .route("POST /{tenant}/login", at_most(1, "login"))
        .route("/files/{name}", at_most(1, "files"));
    for (method, paths) in [
        ("POST", ["/acme/login", "/./login/", "/../login/", "/%2e/login/", "//./login//"]),
        ("GET", ["/files/x", "/files/../", "/files/./", "/files/%2E%2e/", "//files/.."]),
    ] {
        let service =
            table(rules.clone()).layer(NormalizePathLayer::trim_trailing_slash().layer(app.clone()));
        for (path, status) in paths.into_iter().zip([200, 429, 429, 429, 429]) {
            let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
            assert_eq!(service.clone().oneshot(request).await.unwrap().status(), status, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn all_rules_of_a_route_are_decided_in_one_step_on_both_stores() {
    let server = RedisServer::start();
    for limiter in [Limiter::new(MemoryStore::new()), Limiter::new(store(&server).await)] {
        let layer = RateLimitLayer::with_rules(
            limiter.clone(),
            Rules::new()
                .route("/login", at_most(2, "login"))
                .route("/signup", at_most(1, "signup"))
                .always(at_most(10, "every")),
        );
        let status = async |path: &str| {
            ask(&layer, Request::get(path).body(String::new()).unwrap()).await.status().as_u16()
        };
        let seen = [
            status("/login").await,
            status("/login").await,
            status("/login").await,
            status("/signup").await,
            status("/signup").await,
            status("/").await,
        ];
        assert_eq!(seen, [200, 200, 429, 200, 429, 200]);
        // The denials charged nothing.
        let left = limiter.peek(&policy("every", 10), &Key::new("all"), 0).await.unwrap().remaining();
        assert_eq!(left, Some(6));
    }
}

#[tokio::test]
async fn one_rule_on_several_routes_has_one_count() {
    let logins = at_most(2, "logins");
    let layer = table(Rules::new().route("/login", logins.clone()).route("POST /token", logins));
    let status = async |method: Method, path: &str| {
        let request = Request::builder().method(method).uri(path).body(String::new()).unwrap();
        ask(&layer, request).await.status().as_u16()
    };
    let seen = [
        status(Method::GET, "/login").await,
        status(Method::POST, "/token").await,
        status(Method::POST, "/token").await,
        status(Method::GET, "/token").await,
        status(Method::GET, "/login").await,
    ];
    assert_eq!(seen, [200, 200, 429, 200, 429]);
}

/// A path that matches several routes with one rule is charged once.
#[tokio::test]
async fn one_rule_on_two_readings_of_a_path_is_charged_once() {
    let limiter = Limiter::new(MemoryStore::new());
    let pages = at_most(9, "pages");
    let rules = Rules::new().route("/login", pages.clone()).route("/{page}", pages.clone()).fallback(pages);
    let layer = RateLimitLayer::with_rules(limiter.clone(), rules);
    for (charged, path) in (1..).zip(["/login", "/%6Cogin", "/login/", "/./login/", "//x"]) {
        assert_eq!(names(&layer, "GET", path).await, "pages", "{path}");
        let left = limiter.peek(&policy("pages", 9), &Key::new("all"), 0).await.unwrap().remaining();
        assert_eq!(left, Some(9 - charged), "{path}");
    }
}

/// Each rule alone is fine: only some spellings of a path get both.
#[tokio::test]
async fn two_rules_on_two_readings_of_a_path_are_charged_once_at_the_larger_cost() {
    let pages = || policy("pages", 90);
    let peer = "203.0.113.7:1".parse::<SocketAddr>().unwrap();
    let chosen = || PolicySource::per_request(move |_, _| pages());
    let by_peer = |policy: PolicySource| Rule::new(policy, PeerIp::new());
    type Row = (&'static str, Rule, Rule, [u64; 2]);
    let rows: [Row; 5] = [
        ("one cost", by_peer(pages().into()), by_peer(pages().into()), [1, 1]),
        ("the route's cost is larger", by_peer(pages().into()).cost(|_| 5), by_peer(pages().into()), [5, 5]),
        ("its cost is smaller", by_peer(pages().into()), by_peer(pages().into()).cost(|_| 5), [1, 5]),
        ("chosen policies", by_peer(chosen()), by_peer(chosen()).cost(|_| 5), [1, 5]),
        ("chosen and fixed", by_peer(chosen()).cost(|_| 5), by_peer(pages().into()), [5, 5]),
    ];
    for (name, on_route, otherwise, charged) in rows {
        let limiter = Limiter::new(MemoryStore::new());
        let rules = Rules::new().route("/a", on_route).fallback(otherwise);
        let layer = RateLimitLayer::with_rules(limiter.clone(), rules);
        let mut expected = 90;
        for (path, charged) in ["/a", "/a/"].into_iter().zip(charged) {
            let request = Request::get(path).extension(peer).body(String::new()).unwrap();
            let (parts, body) = request.into_parts();
            let costs: Vec<_> =
                layer.charges(&parts).await.unwrap().iter().map(|(charge, _)| charge.cost()).collect();
            assert_eq!(costs, [charged], "{name}: {path}");
            let status = ask(&layer, Request::from_parts(parts, body)).await.status();
            assert_eq!(status, 200, "{name}: {path}");
            expected -= charged;
            let left = limiter.peek(&pages(), &Key::new("203.0.113.7"), 0).await.unwrap().remaining();
            assert_eq!(left, Some(expected), "{name}: {path}");
        }
    }
}

/// No spelling evades a rule that counts more responses than another one with its policy.
#[tokio::test]
async fn a_response_counts_if_it_counts_for_one_of_the_rules_with_its_policy() {
    let status = |counted: u16| at_most(9, "pages").count_if(move |response| response.status == counted);
    let two =
        [("/a", 401, 8), ("/a", 403, 8), ("/a/", 401, 7), ("/a/", 403, 6), ("/a/", 200, 6), ("/b", 403, 5)];
    let one =
        [("/a", 401, 8), ("/a", 200, 8), ("/a/", 401, 7), ("/a/", 200, 6), ("/a/", 500, 5), ("/b", 200, 4)];
    type Row = (&'static str, Rule, Rule, [(&'static str, u16, u64); 6]);
    let rows: [Row; 2] = [
        ("two functions", status(401), status(403), two),
        ("one always counts", status(401), at_most(9, "pages"), one),
    ];
    for (name, on_route, otherwise, asked) in rows {
        let limiter = Limiter::new(MemoryStore::new());
        let layer = RateLimitLayer::with_rules(
            limiter.clone(),
            Rules::new().route("/a", on_route).fallback(otherwise),
        );
        let service = layer.layer(service_fn(async |request: Request<String>| {
            let status: u16 = request.body().parse().unwrap();
            Ok::<_, Infallible>(Response::builder().status(status).body(String::new()).unwrap())
        }));
        for (path, status, expected) in asked {
            let request = Request::get(path).body(status.to_string()).unwrap();
            assert_eq!(service.clone().oneshot(request).await.unwrap().status(), status, "{name}: {path}");
            let left = limiter.peek(&policy("pages", 9), &Key::new("all"), 0).await.unwrap().remaining();
            assert_eq!(left, Some(expected), "{name}: {path}, {status}");
        }
    }
}

#[tokio::test]
async fn a_request_has_a_reservation_if_one_of_the_rules_with_its_policy_reserves() {
    let limiter = Limiter::new(MemoryStore::new());
    let estimated = || at_most(90, "pages").cost(|_| 10);
    let rules = Rules::new().fallback(estimated()).route("/a", estimated().reserve());
    let layer = RateLimitLayer::with_rules(limiter.clone(), rules);
    let service = layer.layer(service_fn(async |request: Request<String>| {
        let reservation = Reservation::from_extensions(request.extensions()).unwrap();
        reservation.settle(3).await.unwrap();
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    for (path, expected) in [("/a", 87), ("/a/", 84), ("/b", 74)] {
        let request = Request::get(path).body(String::new()).unwrap();
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), 200, "{path}");
        let left = limiter.peek(&policy("pages", 90), &Key::new("all"), 0).await.unwrap().remaining();
        assert_eq!(left, Some(expected), "{path}");
    }
}

#[tokio::test]
async fn only_the_keys_of_rules_that_apply_are_needed_and_rules_can_skip() {
    let by_key = || Rule::new(policy("by-key", 9), Header::new("x-api-key"));
    let layer = table(
        Rules::new()
            .route("/api/{*rest}", by_key().skip_if(|parts| parts.uri.path() == "/api/status"))
            .route("/open", rule("open")),
    );
    for (path, status) in [("/api/x", 400), ("/api/status", 200), ("/open", 200), ("/elsewhere", 200)] {
        let request = Request::get(path).body(String::new()).unwrap();
        assert_eq!(ask(&layer, request).await.status(), status, "{path}");
    }
}

#[tokio::test]
async fn a_preflight_is_an_options_request_and_charges_a_separate_budget() {
    let limiter = Limiter::new(MemoryStore::new());
    let rules = Rules::new()
        .route("POST /login", at_most(1, "post"))
        .route("/login", at_most(2, "any"))
        .fallback(at_most(1, "otherwise"));
    let layer = RateLimitLayer::with_rules(limiter.clone(), rules);
    let preflight = |path: &str| {
        let request = Request::options(path).header("origin", "https://example.org");
        request.header("access-control-request-method", "POST").body(String::new()).unwrap()
    };
    let paths = ["/login", "/login", "/login", "/else", "/else"];
    assert_eq!(statuses(&layer, paths.map(preflight)).await, [200, 200, 429, 200, 429]);
    // The client's own quota is whole.
    let login = Request::post("/login").body(String::new()).unwrap();
    assert_eq!(ask(&layer, login).await.status(), 200);
    let left = limiter.peek(&policy("any", 2), &Key::new("all"), 0).await.unwrap().remaining();
    assert_eq!(left, Some(1));
}

#[test]
fn an_invalid_route_is_an_error_that_says_what_to_write() {
    let table = || Rules::new().route("/{page}", rule("page")).route("/a/{id}/b", rule("b"));
    for [route, remedy] in rows(include_str!("tables/invalid-routes.txt")) {
        let route = unescaped(&route);
        let error = table().try_route(&route, rule("new")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{route}");
        assert_eq!(error.to_string(), format!("the route {route:?} is invalid: {remedy}"));
        let panic = catch_unwind(|| Rules::new().route(&route, rule("new"))).unwrap_err();
        assert!(panic.downcast_ref::<String>().unwrap().contains(&remedy), "{route}");
    }
    for (route, other) in [("/{*rest}", "/{page}"), ("POST /a/{*rest}", "/a/{id}/b")] {
        let error = table().try_route(route, rule("new")).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "the route {route:?} is invalid: the table has {other:?}, and no table tells a parameter and the rest of \
                 the path at the same place apart; write the routes under it one by one, or use `fallback`"
            )
        );
    }
    for route in ["/{other}", "GET /{page}/", "/%7Bpage%7D", "/a/{x}/c", "/a/b/{*rest}", "/{page}/{*rest}"] {
        assert!(table().try_route(route, rule("new")).is_ok(), "{route}");
    }
}

#[test]
fn policies_of_a_table_that_cannot_be_told_apart_are_a_panic_when_the_layer_is_made() {
    let other = || Rule::new(policy("a", 7), Key::new("all"));
    let twice = "a request falls under two policies named \"a\": give each its own name";
    let differ = "the table has two policies named \"a\" that differ: give each its own name";
    type Row = (&'static str, Rules, Option<&'static str>);
    let a = || Rules::new().route("/a", rule("a"));
    let crowded = (0..=65_536).fold(Rules::new(), |rules, _| rules.always(rule("a")));
    let rows: [Row; 12] = [
        ("too many", crowded, Some("the table has more than 65536 rules: split it into several layers")),
        (
            "no rule",
            Rules::new(),
            Some("the table has no rule: add one with `route`, `always` or `fallback`"),
        ),
        ("the same route", a().route("/a", rule("a")), Some(twice)),
        ("the same route, written otherwise", a().route("/%61/", rule("a")), Some(twice)),
        ("the same route, one method", a().route("POST /a", rule("a")), Some(twice)),
        ("GET and HEAD", Rules::new().route("GET /a", rule("a")).route("HEAD /a", rule("a")), Some(twice)),
        ("every", a().always(rule("a")), Some(twice)),
        ("otherwise twice", Rules::new().fallback(rule("a")).fallback(rule("a")), Some(twice)),
        ("other routes, other policy", a().route("/b", other()), Some(differ)),
        ("other routes, same policy", a().route("/b", rule("a")), None),
        ("other methods", Rules::new().route("GET /a", rule("a")).route("POST /a", rule("a")), None),
        ("otherwise", a().fallback(rule("a")), None),
    ];
    for (name, rules, message) in rows {
        let made = catch_unwind(AssertUnwindSafe(|| drop(table(rules))));
        let said = made.err().map(|panic| panic.downcast_ref::<String>().unwrap().clone());
        assert_eq!(said.as_deref(), message, "{name}");
    }
}

/// Who served the request, and whether the rule of this route was charged.
async fn charged(Extension(name): Extension<&'static str>, decision: Option<Decision>) -> String {
    let outcomes = decision.as_ref().map_or(&[][..], Decision::outcomes);
    let is_charged = outcomes.iter().any(|one| one.policy().name() == name);
    format!("{name}, charged: {is_charged}")
}

/// `nest_service` drops one of the slashes behind the prefix. To axum, a parameter between two slashes is empty.
#[tokio::test]
async fn no_slash_that_a_nested_service_of_axum_drops_evades_a_rule() {
    let routes = [("login", "/login"), ("two", "/{a}/{b}"), ("three", "/{a}/{b}/{c}")];
    for prefixes in [
        &["/v1"][..],
        &["/v1", "/v2"],
        &["/v1", "/v2", "/v3"],
        &["/v1/v2"],
        &["/{tenant}/v1"],
        &["/v1", "/{tenant}/v2"],
        &["/{tenant}/v1", "/v2"],
    ] {
        let whole = prefixes.concat();
        let (mut app, mut rules) = (Router::new(), Rules::new().fallback(rule("otherwise")));
        for (name, path) in routes {
            app = app.route(path, any(charged).layer(Extension(name)));
            rules = rules.route(&format!("{whole}{path}"), rule(name));
        }
        let app = prefixes.iter().rev().fold(app, |inner, prefix| Router::new().nest_service(prefix, inner));
        let service = table(rules).layer(app);
        let (mut served, mut evaded) = (BTreeSet::new(), Vec::new());
        for rest in ["login", "x/y", "x/y/z", "y", "y/z", "", "/", "login/"] {
            // Each place has one to four slashes.
            for number in 0..256_usize {
                let mut path = String::new();
                for (at, part) in whole.split('/').skip(1).chain([rest]).enumerate() {
                    path.push_str(&"/".repeat(1 + (number >> (2 * at)) % 4));
                    path.push_str(if part == "{tenant}" { "" } else { part });
                }
                let request = Request::get(&path).body(Body::empty()).unwrap();
                let response = service.clone().oneshot(request).await.unwrap();
                if response.status() != 200 {
                    continue;
                }
                let text = text(response).await;
                if text.ends_with("false") {
                    evaded.push(format!("{path} is served by {text}"));
                }
                served.insert(text);
            }
        }
        assert!(evaded.is_empty(), "{prefixes:?}: {} paths, such as {:?}", evaded.len(), evaded.first());
        assert_eq!(served.len(), routes.len(), "{prefixes:?}: {served:?}");
    }
}
