//! The cost of each part of a decision: keys, algorithms, policies, headers, bodies.
//!
//! ```text
//! cargo bench -p benches --bench parts
//! ```

use std::{convert::Infallible, hint::black_box, net::SocketAddr, time::Duration};

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use futures_util::FutureExt as _;
use http::{Request, Response, request::Parts};
use tower::{Layer, Service, service_fn};
use tower_ratelimit::{
    Charge, ClientIp, Header, Key, KeyExtractor, Limiter, MemoryStore, PeerIp, Policy, Quota,
    RateLimitHeaders, RateLimitLayer, Rejection, Rule,
    algorithm::{
        Algorithm, Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket,
    },
    key::{Cookie, TrustedProxies},
    layer::Rules,
    response::{Dialect, GrpcStatus, ProblemDetails, ResponseMapper},
};

/// A request behind one proxy, with an API key.
fn request(content_type: &str) -> Request<()> {
    let peer: SocketAddr = ([10, 0, 0, 1], 4711).into();
    let request = Request::post("/")
        .header("content-type", content_type)
        .header("x-forwarded-for", "203.0.113.7")
        .header("x-api-key", "client-a-00000000001")
        .extension(peer);
    request.body(()).unwrap_or_default()
}

fn head(content_type: &str) -> Parts {
    request(content_type).into_parts().0
}

/// Enough for any benchmark, or for a single request.
fn quota(limit: u64) -> Quota {
    Quota::per_day(limit)
}

const PLENTY: u64 = 1_000_000_000_000;

fn keys(criterion: &mut Criterion) {
    let Ok(proxies) = TrustedProxies::cidrs(["10.0.0.0/8"]) else { return };
    let header = || Header::new("x-api-key");
    let rows: [(&str, Box<dyn KeyExtractor>); 5] = [
        ("PeerIp", Box::new(PeerIp::new())),
        ("ClientIp behind one proxy", Box::new(ClientIp::behind(proxies))),
        ("Header", Box::new(header())),
        ("PeerIp and Header", Box::new((PeerIp::new(), header()))),
        ("Header, hashed", Box::new(header().hashed([7; 32]))),
    ];
    let request = head("text/plain");
    let mut group = criterion.benchmark_group("key");
    for (name, extractor) in rows {
        group.bench_function(name, |bencher| bencher.iter(|| extractor.extract(&request).now_or_never()));
    }
    group.finish();
}

fn algorithms(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("algorithm");
    let key = Key::new("client-a-00000000001");
    let mut bench = |name: &str, allowed: Policy, denied: Option<Policy>| {
        let limiter = Limiter::new(MemoryStore::new());
        let check = |policy| limiter.check(policy, &key, 1).now_or_never();
        group.bench_function(format!("{name}, allowed"), |bencher| bencher.iter(|| check(&allowed)));
        if let Some(denied) = denied {
            let held = check(&denied);
            group.bench_function(format!("{name}, denied"), |bencher| bencher.iter(|| check(&denied)));
            drop(held);
        }
    };
    fn two(algorithm: impl Algorithm + Copy) -> (Policy, Option<Policy>) {
        let policy = |name, limit| Policy::new(name, quota(limit)).algorithm(algorithm);
        (policy("plenty", PLENTY), Some(policy("one", 1)))
    }
    let rows = [
        ("Gcra", two(Gcra::new())),
        ("TokenBucket", two(TokenBucket::new())),
        ("LeakyBucket, meter", two(LeakyBucket::meter())),
        ("LeakyBucket, queue", two(LeakyBucket::queue(Duration::from_secs(1)))),
        ("FixedWindow", two(FixedWindow::anchored())),
        ("SlidingWindow", two(SlidingWindow::new())),
    ];
    for (name, (allowed, denied)) in rows {
        bench(name, allowed, denied);
    }
    // The permits are released immediately.
    let held = |name, limit| Policy::new(name, quota(limit)).algorithm(Concurrency::new());
    bench("Concurrency", held("plenty", 1_000), Some(held("one", 1)));
    // More units than requests in a period, after which entries leave the log.
    let log = |name, quota| Policy::new(name, quota).algorithm(SlidingLog::new());
    let Ok(brief) = Quota::try_new(100_000, Duration::from_millis(1)) else { return };
    bench("SlidingLog", log("brief", brief), Some(log("one", quota(1))));
    group.finish();
}

fn policies(criterion: &mut Criterion) {
    let limiter = Limiter::new(MemoryStore::new());
    let key = Key::new("client-a-00000000001");
    let policies = ["a", "b", "c", "d"].map(|name| Policy::new(name, quota(PLENTY)));
    let charges = policies.map(|policy| Charge::new(&policy, &key, 1));
    let mut group = criterion.benchmark_group("policies");
    for count in [1, 2, 4] {
        let charges = &charges[..count];
        group.bench_function(count.to_string(), |bencher| {
            bencher.iter(|| limiter.check_all(charges).now_or_never());
        });
    }
    group.finish();
}

/// The response to `request` by `layer` over a service that answers with nothing.
fn answer(criterion: &mut Criterion, group: &str, layer: &RateLimitLayer, name: &str, content_type: &str) {
    let hello = |_: Request<()>| async { Ok::<_, Infallible>(Response::new(String::new())) };
    let mut service = layer.layer(service_fn(hello));
    let mut group = criterion.benchmark_group(group);
    group.bench_function(name, |bencher| {
        let call = |request| black_box(service.call(request).now_or_never());
        bencher.iter_batched(|| request(content_type), call, BatchSize::SmallInput);
    });
    group.finish();
}

/// Includes the rest of the layer: subtract the time of "none".
fn headers(criterion: &mut Criterion) {
    let rows = [
        ("none", RateLimitHeaders::off()),
        ("ietf", RateLimitHeaders::default()),
        ("ietf and legacy, delta", RateLimitHeaders::default().and(Dialect::LegacyDelta)),
        ("ietf and legacy, epoch", RateLimitHeaders::default().and(Dialect::LegacyEpoch)),
    ];
    for (name, headers) in rows {
        let policy = Policy::new("p", quota(PLENTY));
        let layer = RateLimitLayer::new(MemoryStore::new(), policy, Key::new("all")).headers(headers);
        answer(criterion, "headers", &layer, name, "text/plain");
    }
}

fn denials(criterion: &mut Criterion) {
    let limiter = Limiter::new(MemoryStore::new());
    let (policy, key) = (Policy::new("p", quota(1)), Key::new("all"));
    let check = || limiter.check(&policy, &key, 1).now_or_never();
    let (Some(Ok(_)), Some(Ok(denied))) = (check(), check()) else { return };
    let rejection = Rejection::Denied(denied);
    let plain = |rejection: &Rejection, _: &Parts| {
        let mut response = Response::new(String::from("slow down"));
        *response.status_mut() = rejection.status();
        response
    };
    let rows: [(&str, &str, &dyn ResponseMapper); 3] = [
        ("problem+json", "text/plain", &ProblemDetails::default()),
        ("plain closure", "text/plain", &plain),
        // With details, where the feature `tonic` is on.
        ("gRPC", "application/grpc", &GrpcStatus::default()),
    ];
    let mut group = criterion.benchmark_group("denial");
    for (name, content_type, mapper) in rows {
        let request = head(content_type);
        group.bench_function(name, |bencher| bencher.iter(|| mapper.response(&rejection, &request)));
    }
    group.finish();
}

/// What a request may cost that is made to be expensive, in a layer that denies it.
fn hostile(criterion: &mut Criterion) {
    let rule = |name: &str, key| Rule::new(Policy::new(name, quota(1)), key);
    let of_address = |name| rule(name, Box::new(PeerIp::new()) as Box<dyn KeyExtractor>);
    let routes = || {
        let rules = Rules::new().route("POST /login", of_address("login"));
        rules.route("/users/{id}", of_address("users")).always(of_address("all"))
    };
    let filled = |filler: &str, bytes: usize| format!("/{}", filler.repeat(bytes / filler.len()));
    let long = |name: &str| "session=a; ".repeat(60_000 / 11).replace("session", name);
    let session = || Box::new(Cookie::new("session")) as Box<dyn KeyExtractor>;
    let rows = [
        ("path, 60 KB", routes(), filled("a", 60_000), String::new()),
        ("path with one other reading, 60 KB", routes(), filled("%61", 60_000), String::new()),
        ("path with most readings, 1.5 KB", routes(), filled("//%2F%2f/./%25/..//", 1_500), String::new()),
        ("path with most readings, 60 KB", routes(), filled("//%2F%2f/./%25/..//", 60_000), String::new()),
        ("5,400 other cookies, 60 KB", rule("all", session()).into(), "/".into(), long("other")),
        ("5,400 equal cookies, 60 KB", rule("all", session()).into(), "/".into(), long("session")),
    ];
    let mut group = criterion.benchmark_group("hostile");
    for (name, rules, path, cookies) in rows {
        let layer = RateLimitLayer::with_rules(MemoryStore::new(), rules);
        let mut service =
            layer.layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) }));
        let peer: SocketAddr = ([203, 0, 113, 7], 4711).into();
        let request =
            Request::get(path).header("cookie", cookies).extension(peer).body(()).unwrap_or_default();
        let ask = move |request| service.call(request).now_or_never();
        group.bench_function(name, |bencher| {
            bencher.iter_batched(|| request.clone(), ask.clone(), BatchSize::SmallInput);
        });
    }
    group.finish();
}

criterion_group!(benches, keys, algorithms, policies, headers, denials, hostile);
criterion_main!(benches);
