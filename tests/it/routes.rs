//! One table of routes and their rules: which rules apply to a request, and that no spelling of a path evades one.

use std::{collections::BTreeSet, convert::Infallible, panic::catch_unwind};

use axum::{
    Extension, Router,
    body::Body,
    routing::{any, get, post},
};
use http::{Request, Response};
use support::{
    RedisServer,
    inner::{ask, ask_for, text},
    script::{check, check_app, request},
    store,
    table::{rows, unescaped},
    units_left,
};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_http::normalize_path::NormalizePathLayer;
use tower_ratelimit::{
    Decision, ErrorKind, Header, Key, Limiter, MemoryStore, PeerIp, Policy, PolicySource, Quota,
    RateLimitLayer, Reservation, Rule, layer::Rules,
};

fn policy(name: &str, limit: u64) -> Policy {
    Policy::new(name, Quota::per_day(limit))
}

/// A rule that limits all clients together to `limit` requests.
fn at_most(limit: u64, name: &str) -> Rule {
    Rule::new(policy(name, limit), Key::new("all"))
}

fn rule(name: &str) -> Rule {
    at_most(1_000, name)
}

/// The rules of a text such as `POST /login: login 1, logins; always: every; fallback: rest`: the names of their policies, and
/// their limits if they are reached.
fn rules(text: &str) -> Rules {
    let mut rules = Rules::new();
    for part in text.split("; ").filter(|part| !part.is_empty()) {
        let (place, names) = part.split_once(": ").unwrap();
        for name in names.split(", ") {
            let (name, limit) = name.split_once(' ').unwrap_or((name, "1000"));
            let rule = at_most(limit.parse().unwrap(), name);
            rules = match place {
                "always" => rules.always(rule),
                "fallback" => rules.fallback(rule),
                route => rules.route(route, rule),
            };
        }
    }
    rules
}

/// The policies under which the request is charged, in order.
async fn names(layer: &RateLimitLayer, step: &str) -> String {
    let service = layer.layer(service_fn(|request: Request<String>| {
        let decision = Decision::from_extensions(request.extensions());
        let outcomes = decision.map_or(&[][..], Decision::outcomes);
        let names: Vec<_> = outcomes.iter().map(|one| one.policy().name().to_owned()).collect();
        async move { Ok::<_, Infallible>(Response::new(names.join(" "))) }
    }));
    let Ok(response) = service.oneshot(request(step)).await;
    assert_eq!(response.status(), 200, "{step}");
    text(response).await
}

fn table(rules: Rules) -> RateLimitLayer {
    RateLimitLayer::with_rules(MemoryStore::new(), rules)
}

#[tokio::test]
async fn the_most_specific_route_and_each_reading_of_a_path_apply_with_all_their_rules() {
    let mut differ = Vec::new();
    for part in include_str!("tables/routes.txt").split("\n= ").skip(1) {
        let (part, requests) = part.split_once("\n\n").unwrap();
        let (title, text) = part.split_once('\n').unwrap();
        let layer = table(rules(&text.replace('\n', "; ")));
        for [name, step, expected] in rows(requests) {
            let seen = names(&layer, &step).await;
            if seen != expected {
                differ.push(format!("{title}, {name}: expected {expected:?}, seen {seen:?}"));
            }
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

#[tokio::test]
async fn tables_without_routes_or_without_a_rule_for_the_request() {
    let one = |name| Rules::from(rule(name));
    for (name, layer, path, expected) in [
        ("one rule", table(one("a")), "/", "a"),
        ("one rule, directly", RateLimitLayer::with_rules(MemoryStore::new(), rule("a")), "/", "a"),
        ("no route", table(one("a").fallback(rule("b"))), "/", "a b"),
        ("no rule for it", table(rules("/a: a")), "/", ""),
        ("a rule for it", table(rules("/a: a")), "/a", "a"),
        ("and one more", table(rules("/a: a")).rule(rule("b")), "/", "b"),
        ("and one more on it", table(rules("/a: a")).rule(rule("b")), "/a", "a b"),
        ("a sibling", table(one("b")).with_same_settings(rules("/a: a")), "/a", "a"),
    ] {
        assert_eq!(names(&layer, path).await, expected, "{name}");
    }
}

/// A service that answers every way to write `/login` that a router may take for it.
#[tokio::test]
async fn no_spelling_of_a_path_evades_a_rule() {
    let spellings = "/login /login/ //login //login// /./login /x/../login /../login /%6Cogin /%6cogin/ /l%6Fgi%6e \
                     /%2e/login /x/%2E%2e/login /login/. /login?x /login/?x";
    for text in [
        "/login: login 1",
        "/login/: login 1",
        "/log%69n: login 1",
        "GET /login: login 1",
        "/login: login 1; /{page}: page",
        "/login: login 1; /{*rest}: rest",
        "/login: login 1; fallback: otherwise",
    ] {
        let layer = table(rules(text));
        let mut admitted = 0;
        for path in spellings.split(' ') {
            for method in ["GET", "HEAD"] {
                admitted +=
                    usize::from(ask(&layer, request(&format!("{method} {path}"))).await.status() == 200);
            }
        }
        assert_eq!(admitted, 1, "{text}");
    }
}

/// A path costs a bounded time, regardless of its length. One that would cost more is rejected.
#[tokio::test]
async fn no_length_of_a_path_evades_a_rule() {
    let layer = table(rules("/login: login 1; fallback: rest"));
    let status = async |path: String| ask(&layer, request(&path)).await.status().as_u16();
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
    let error = ask(&layer, request(&"//./%61".repeat(8_000))).await;
    let body = text(error).await;
    assert!(body.contains("the path is too long for one with"), "{body}");
}

#[tokio::test]
async fn axums_routers_are_limited_by_the_full_path_wherever_the_layer_is() {
    let orders = || Router::new().route("/orders/{id}", any(async || "order"));
    let layer = || table(rules("/api/v1/orders/{id}: full 1; /orders/{id}: without-prefix 9"));
    let v1 = |inner: Router| Router::new().nest("/v1", inner);
    let api = |inner: Router| Router::new().nest("/api", v1(inner));
    let limited = Router::new().route("/orders/{id}", any(async || "order").layer(layer()));
    let service = Router::new().nest_service("/v1", orders().layer(layer()));
    for (name, app) in [
        ("around all", api(orders()).layer(layer())),
        ("route_layer around all", api(orders()).route_layer(layer())),
        ("in the middle", Router::new().nest("/api", v1(orders()).layer(layer()))),
        ("inside", api(orders().layer(layer()))),
        ("route_layer inside", api(orders().route_layer(layer()))),
        ("on the route", api(limited)),
        ("a service", Router::new().nest_service("/api", service)),
        ("merged", Router::new().merge(api(orders().layer(layer())))),
    ] {
        check_app(name, &app, "/api/v1/orders/1 200; /api/v1/orders/2 429").await;
    }
}

#[tokio::test]
async fn a_slash_that_a_middleware_removes_evades_no_rule() {
    let login = || Router::new().route("/login", post(async || "in")).route("/", get(async || "home"));
    let layer = || table(rules("POST /login: login 1; fallback: otherwise"));
    // The layer is outside of the middleware and sees the path of the client, or inside.
    let outside = layer().layer(NormalizePathLayer::trim_trailing_slash().layer(login()));
    let inside = NormalizePathLayer::trim_trailing_slash().layer(login().layer(layer()));
    let script = "POST /login/ 200; POST /login 429; POST //login 429; POST /login// 429";
    check_app("outside", &Router::new().fallback_service(outside), script).await;
    check_app("inside", &Router::new().fallback_service(inside), script).await;
}

/// To axum, `.` and `%2e` are values of a parameter. A middleware that trims slashes makes `/./login` of `/./login/`.
#[tokio::test]
async fn a_dot_segment_as_a_parameter_behind_a_middleware_that_trims_evades_no_rule() {
    let app = Router::new()
        .route("/{tenant}/login", post(async || "in"))
        .route("/files/{name}", get(async || "file"));
    let layer = table(rules("POST /{tenant}/login: login 1; /files/{name}: files 1"));
    let service = layer.layer(NormalizePathLayer::trim_trailing_slash().layer(app));
    let app = Router::new().fallback_service(service);
    let login = "POST /acme/login 200; POST /./login/ 429; POST /../login/ 429; POST /%2e/login/ 429; POST //./login// 429";
    check_app("login", &app, login).await;
    let files = "/files/x 200; /files/../ 429; /files/./ 429; /files/%2E%2e/ 429; //files/.. 429";
    check_app("files", &app, files).await;
}

#[tokio::test]
async fn all_rules_of_a_route_are_decided_in_one_step_on_both_stores() {
    let server = RedisServer::start();
    for limiter in [Limiter::new(MemoryStore::new()), Limiter::new(store(&server).await)] {
        let rules = rules("/login: login 2; /signup: signup 1; always: every 10");
        let layer = RateLimitLayer::with_rules(limiter.clone(), rules);
        check("", &layer, "/login 200 200 429; /signup 200 429; / 200").await;
        // The denials charged nothing.
        assert_eq!(units_left(&limiter, &policy("every", 10)).await, 6);
    }
}

#[tokio::test]
async fn one_rule_on_several_routes_has_one_count() {
    let logins = at_most(2, "logins");
    let layer = table(Rules::new().route("/login", logins.clone()).route("POST /token", logins));
    check("", &layer, "/login 200; POST /token 200 429; /token 200; /login 429").await;
}

/// A path that matches several routes with one rule is charged once.
#[tokio::test]
async fn one_rule_on_two_readings_of_a_path_is_charged_once() {
    let limiter = Limiter::new(MemoryStore::new());
    let pages = at_most(9, "pages");
    let rules = Rules::new().route("/login", pages.clone()).route("/{page}", pages.clone()).fallback(pages);
    let layer = RateLimitLayer::with_rules(limiter.clone(), rules);
    for (charged, path) in (1..).zip(["/login", "/%6Cogin", "/login/", "/./login/", "//x"]) {
        assert_eq!(names(&layer, path).await, "pages", "{path}");
        assert_eq!(units_left(&limiter, &policy("pages", 9)).await, 9 - charged, "{path}");
    }
}

/// Each rule alone is fine: only some spellings of a path get both.
#[tokio::test]
async fn two_rules_on_two_readings_of_a_path_are_charged_once_at_the_larger_cost() {
    let pages = || policy("pages", 90);
    let fixed = || Rule::new(pages(), PeerIp::new());
    let chosen = || Rule::new(PolicySource::per_request(move |_, _| pages()), PeerIp::new());
    for (name, on_route, otherwise, charged) in [
        ("one cost", fixed(), fixed(), [1, 1]),
        ("the route's cost is larger", fixed().cost(|_| 5), fixed(), [5, 5]),
        ("its cost is smaller", fixed(), fixed().cost(|_| 5), [1, 5]),
        ("chosen policies", chosen(), chosen().cost(|_| 5), [1, 5]),
        ("chosen and fixed", chosen().cost(|_| 5), fixed(), [5, 5]),
    ] {
        let limiter = Limiter::new(MemoryStore::new());
        let rules = Rules::new().route("/a", on_route).fallback(otherwise);
        let layer = RateLimitLayer::with_rules(limiter.clone(), rules);
        let mut expected = 90;
        for (path, charged) in ["/a", "/a/"].into_iter().zip(charged) {
            let step = format!("{path} from=203.0.113.7");
            let charges = layer.charges(&request(&step).into_parts().0).await.unwrap();
            let costs: Vec<_> = charges.iter().map(|(charge, _)| charge.cost()).collect();
            assert_eq!(costs, [charged], "{name}: {path}");
            check(name, &layer, &format!("{step} 200")).await;
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
    for (name, on_route, otherwise, asked) in [
        ("two functions", status(401), status(403), two),
        ("one always counts", status(401), at_most(9, "pages"), one),
    ] {
        let limiter = Limiter::new(MemoryStore::new());
        let rules = Rules::new().route("/a", on_route).fallback(otherwise);
        let layer = RateLimitLayer::with_rules(limiter.clone(), rules);
        for (path, status, left) in asked {
            let answer = || Response::builder().status(status).body(String::new()).unwrap();
            assert_eq!(ask_for(&layer, request(path), answer).await.status(), status, "{name}: {path}");
            assert_eq!(units_left(&limiter, &policy("pages", 9)).await, left, "{name}: {path}, {status}");
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
    for (path, left) in [("/a", 87), ("/a/", 84), ("/b", 74)] {
        assert_eq!(service.clone().oneshot(request(path)).await.unwrap().status(), 200, "{path}");
        assert_eq!(units_left(&limiter, &policy("pages", 90)).await, left, "{path}");
    }
}

#[tokio::test]
async fn only_the_keys_of_rules_that_apply_are_needed_and_rules_can_skip() {
    let by_key = Rule::new(policy("by-key", 9), Header::new("x-api-key"));
    let by_key = by_key.skip_if(|parts| parts.uri.path() == "/api/status");
    let layer = table(rules("/open: open").route("/api/{*rest}", by_key));
    check("", &layer, "/api/x 400; /api/status 200; /open 200; /elsewhere 200").await;
}

#[tokio::test]
async fn a_preflight_is_an_options_request_and_charges_a_separate_budget() {
    let limiter = Limiter::new(MemoryStore::new());
    let rules = rules("POST /login: post 1; /login: any 2; fallback: otherwise 1");
    let layer = RateLimitLayer::with_rules(limiter.clone(), rules);
    check("preflights", &layer, "PREFLIGHT /login 200 200 429; PREFLIGHT /else 200 429").await;
    // The client's own quota is whole.
    check("the client", &layer, "POST /login 200").await;
    assert_eq!(units_left(&limiter, &policy("any", 2)).await, 1);
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
    let twice = "a request falls under two policies named \"a\": give each its own name";
    let differ = "the table has two policies named \"a\" that differ: give each its own name";
    let none = "the table has no rule: add one with `route`, `always` or `fallback`";
    let many = "the table has more than 65536 rules: split it into several layers";
    let crowded = format!("always: {}", ["a"; 65_537].join(", "));
    for (text, message) in [
        (&*crowded, Some(many)),
        ("", Some(none)),
        ("/a: a; /a: a", Some(twice)),
        ("/a: a; /%61/: a", Some(twice)),
        ("/a: a; POST /a: a", Some(twice)),
        ("GET /a: a; HEAD /a: a", Some(twice)),
        ("/a: a; always: a", Some(twice)),
        ("fallback: a; fallback: a", Some(twice)),
        ("/a: a; /b: a 7", Some(differ)),
        ("/a: a; /b: a", None),
        ("GET /a: a; POST /a: a", None),
        ("/a: a; fallback: a", None),
    ] {
        let made = catch_unwind(|| drop(table(rules(text))));
        let said = made.err().map(|panic| panic.downcast_ref::<String>().unwrap().clone());
        assert_eq!(said.as_deref(), message, "{:.30}", text);
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
