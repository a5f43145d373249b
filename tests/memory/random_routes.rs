//! Random tables of routes, services of axum and paths: the rule of the route that serves a request applies.

use std::{collections::BTreeSet, convert::Infallible, env};

use axum::{
    Extension, Router,
    body::Body,
    routing::{MethodFilter, any, on},
};
use fastrand::Rng;
use http::{Request, Response, Uri};
use support::inner::text;
use tower::{Layer as _, Service, ServiceExt as _, util::BoxCloneService};
use tower_http::normalize_path::NormalizePathLayer;
use tower_ratelimit::{Decision, Key, MemoryStore, Policy, Quota, RateLimitLayer, Rule, layer::Rules};

const TABLES: u64 = 20;
const PATHS: usize = 60;

/// Static segments of routes.
const SEGMENTS: [&str; 7] = ["a", "login", "files", "v1", "caf%C3%A9", "log%69n", ".well-known"];
/// Values of parameters.
const VALUES: [&str; 14] =
    ["x", "7", ".", "..", "...", "%2e", "%2E%2e", ".%2e", "a%2Fb", "login", "a", "%61", "x;y", "%"];
/// What is put into a path.
const INSERTED: [&str; 9] = ["/", "//", "/.", "/..", "/./", "/x/..", "/%2e", "/%2E%2E/", "%"];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Setup {
    /// The layer is around the router.
    Outside,
    /// The layer is in the router.
    Inside,
    /// The middleware that trims slashes is between the layer and the router.
    AroundTrim,
    /// The middleware is around the layer.
    InsideTrim,
    AroundAppend,
    /// The routes are in a nested router.
    AroundNested,
    InsideNested,
    /// The nested router is a service of the outer one.
    AroundNestedService,
    NestedBehindTrim,
}

const SETUPS: [Setup; 9] = [
    Setup::Outside,
    Setup::Inside,
    Setup::AroundTrim,
    Setup::InsideTrim,
    Setup::AroundAppend,
    Setup::AroundNested,
    Setup::InsideNested,
    Setup::AroundNestedService,
    Setup::NestedBehindTrim,
];

impl Setup {
    const fn is_nested(self) -> bool {
        matches!(
            self,
            Self::AroundNested | Self::InsideNested | Self::AroundNestedService | Self::NestedBehindTrim
        )
    }

    /// Whether the service sees no path with a slash at the end.
    const fn trims(self) -> bool {
        matches!(self, Self::AroundTrim | Self::InsideTrim | Self::NestedBehindTrim)
    }
}

type Boxed = BoxCloneService<Request<Body>, Response<Body>, Infallible>;

/// A route of a table and of a router.
struct Route {
    method: Option<&'static str>,
    path: String,
}

impl Route {
    fn random(rng: &mut Rng, setup: Setup) -> Self {
        let mut path = String::new();
        for depth in 0..rng.usize(..4) {
            path.push('/');
            match rng.u8(..10) {
                0..5 => path.push_str(SEGMENTS[rng.usize(..SEGMENTS.len())]),
                5..9 => path.push_str(&format!("{{p{depth}}}")),
                _ => path.push_str(&format!("v{{p{depth}}}")),
            }
        }
        let catches_all = rng.u8(..6) == 0;
        if catches_all {
            path.push_str("/{*rest}");
        }
        let may_end = setup == Setup::AroundAppend || (rng.u8(..8) == 0 && !setup.trims());
        if path.is_empty() || (may_end && !catches_all) {
            path.push('/');
        }
        let method = [None, None, Some("GET"), Some("POST")][rng.usize(..4)];
        Self { method, path }
    }

    fn text(&self, prefix: &str) -> String {
        let method = self.method.map(|method| format!("{method} ")).unwrap_or_default();
        // Axum serves the root of a nested router without a slash.
        let path = if self.path == "/" && !prefix.is_empty() { "" } else { &*self.path };
        format!("{method}{prefix}{path}")
    }
}

/// Whose handler served the request, and the policies under which it was charged.
async fn served(Extension(name): Extension<String>, decision: Option<Decision>) -> String {
    let outcomes = decision.iter().flat_map(Decision::outcomes);
    let names: Vec<_> = outcomes.map(|one| one.policy().name().to_owned()).collect();
    format!("{name}|{}", names.join("|"))
}

fn rule(name: &str) -> Rule {
    Rule::new(Policy::new(name, Quota::per_day(1_000_000)), Key::new("all"))
}

fn boxed<S, B>(service: S) -> Boxed
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: http_body::Body<Data = bytes::Bytes, Error: Into<axum::BoxError>> + Send + 'static,
{
    service.map_response(|response| response.map(Body::new)).boxed_clone()
}

/// A service with some routes, each with its own rule, and one rule for the rest.
fn service(rng: &mut Rng, setup: Setup) -> (Boxed, Vec<Route>) {
    let prefix = if setup.is_nested() { "/api" } else { "" };
    let (mut routes, mut rules, mut router) = (Vec::new(), Rules::new(), Router::new());
    let mut paths = BTreeSet::new();
    // Axum has no table of routes whose names of parameters or whose catch-alls conflict.
    let mut accepted = matchit::Router::new();
    for _ in 0..rng.usize(1..7) {
        let route = Route::random(rng, setup);
        let name = route.text("");
        if !paths.insert(route.path.clone()) || accepted.insert(route.path.clone(), ()).is_err() {
            continue;
        }
        let Ok(with) = rules.clone().try_route(&route.text(prefix), rule(&name)) else { continue };
        rules = with;
        let method = match route.method {
            None => any(served),
            Some("GET") => on(MethodFilter::GET, served),
            _ => on(MethodFilter::POST, served),
        };
        router = router.route(&route.path, method.layer(Extension(name)));
        routes.push(route);
    }
    let layer = RateLimitLayer::with_rules(MemoryStore::new(), rules.fallback(rule("otherwise")));
    let fallback = || any(served).layer(Extension(String::from("otherwise")));
    let app = if setup == Setup::AroundNestedService {
        Router::new().nest_service(prefix, router).fallback(fallback())
    } else if setup.is_nested() {
        Router::new().nest(prefix, router).fallback(fallback())
    } else {
        router.fallback(fallback())
    };
    let trim = NormalizePathLayer::trim_trailing_slash();
    let service = match setup {
        Setup::Outside | Setup::AroundNested | Setup::AroundNestedService => boxed(layer.layer(app)),
        Setup::Inside | Setup::InsideNested => boxed(app.layer(layer)),
        Setup::AroundTrim | Setup::NestedBehindTrim => boxed(layer.layer(trim.layer(app))),
        Setup::InsideTrim => boxed(trim.layer(layer.layer(app))),
        Setup::AroundAppend => boxed(layer.layer(NormalizePathLayer::append_trailing_slash().layer(app))),
    };
    (service, routes)
}

fn path(rng: &mut Rng, routes: &[Route], prefix: &str) -> String {
    let mut path = prefix.to_owned();
    match rng.choice(routes).filter(|_| rng.u8(..10) > 0) {
        Some(route) => {
            for segment in route.path.split('/').skip(1) {
                path.push('/');
                match segment.split_once('{') {
                    Some((before, name)) => {
                        path.push_str(before);
                        for at in 0..if name == "*rest}" { rng.usize(1..4) } else { 1 } {
                            path.push_str(if at == 0 { "" } else { "/" });
                            path.push_str(VALUES[rng.usize(..VALUES.len())]);
                        }
                    }
                    None => path.push_str(segment),
                }
            }
        }
        None => {
            for _ in 0..rng.usize(..4) {
                path.push('/');
                let all = [&SEGMENTS[..], &VALUES].concat();
                path.push_str(all[rng.usize(..all.len())]);
            }
        }
    }
    for _ in 0..rng.usize(..3) {
        let inserted = INSERTED[rng.usize(..INSERTED.len())];
        let places: Vec<_> = path.match_indices('/').map(|(at, _)| at).chain([path.len()]).collect();
        path.insert_str(*rng.choice(&places).unwrap(), inserted);
    }
    if rng.u8(..4) == 0 {
        let places: Vec<_> = path.char_indices().filter(|(_, c)| c.is_ascii_alphabetic()).collect();
        if let Some((at, char)) = rng.choice(places) {
            path.replace_range(at..=at, &format!("%{:02X}", u32::from(char)));
        }
    }
    if rng.u8(..4) == 0 {
        path.push('/');
    }
    if path.starts_with('/') { path } else { format!("/{path}") }
}

/// Tables that once had a request which evaded a rule.
const FOUND: [u64; 2] = [166_738_958_245, 495_362_237_748];

#[tokio::test]
async fn the_rule_of_the_serving_route_applies() {
    // For more tables, and for the tables of a failure: `RANDOM_ROUTES=first-seed,tables`.
    let (seeds, first, tables) = match env::var("RANDOM_ROUTES") {
        Ok(text) => {
            let (first, tables) = text.split_once(',').unwrap();
            (&[][..], first.parse().unwrap(), tables.parse().unwrap())
        }
        Err(_) => (&FOUND[..], Rng::new().u64(..1 << 40), TABLES),
    };
    let (mut evaded, mut total) = (Vec::new(), [0; SETUPS.len()]);
    for seed in seeds.iter().copied().chain(first..first + tables) {
        let mut rng = Rng::with_seed(seed);
        for (at, setup) in SETUPS.into_iter().enumerate() {
            let (service, routes) = service(&mut rng, setup);
            let texts: Vec<_> = routes.iter().map(|route| route.text("")).collect();
            for _ in 0..PATHS {
                let prefix = if setup.is_nested() && rng.u8(..10) > 0 { "/api" } else { "" };
                let path = path(&mut rng, &routes, prefix);
                let method = ["GET", "POST", "HEAD", "PURGE"][rng.usize(..4)];
                let Ok(uri) = path.parse::<Uri>() else { continue };
                let request = Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
                let response = service.clone().oneshot(request).await.unwrap();
                if response.status() != 200 || method == "HEAD" {
                    continue;
                }
                let text = text(response).await;
                let mut names = text.split('|');
                let name = names.next().unwrap();
                let applied: Vec<_> = names.collect();
                total[at] += 1;
                if !applied.contains(&name) {
                    evaded.push(format!(
                        "{setup:?}, seed {seed}: {method} {path} is served by {name:?} and has the rules \
                         {applied:?}; the table has {texts:?}"
                    ));
                }
            }
        }
    }
    assert!(
        evaded.is_empty(),
        "{} of {total:?} requests evade a rule:\n{}",
        evaded.len(),
        evaded.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n")
    );
    assert!(total.iter().all(|one| *one > 0), "{total:?}");
}
