//! The cost of the layer with decisions made in process: the same service with and without it.
//!
//! ```text
//! cargo bench -p benches --bench overhead
//! ```

use std::{
    convert::Infallible,
    hint::black_box,
    net::SocketAddr,
    time::{Duration, Instant},
};

use criterion::{Criterion, criterion_group, criterion_main};
use http::{Request, Response};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{Key, MemoryStore, PeerIp, Policy, Quota, RateLimitHeaders, RateLimitLayer};

fn request() -> Request<()> {
    let peer: SocketAddr = ([203, 0, 113, 7], 4711).into();
    Request::builder().extension(peer).body(()).unwrap_or_default()
}

async fn hello(_: Request<()>) -> Result<Response<String>, Infallible> {
    Ok(Response::new(String::new()))
}

/// Requests through `service` one after the other, as a connection sends them: ready, then call.
async fn many<S>(service: &mut S, requests: u64) -> Duration
where
    S: Service<Request<()>, Error = Infallible>,
{
    let started = Instant::now();
    for _ in 0..requests {
        let Ok(service) = service.ready().await;
        let Ok(response) = service.call(request()).await;
        black_box(response);
    }
    started.elapsed()
}

fn overhead(criterion: &mut Criterion) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return;
    };
    let plenty = Quota::try_new(1_000_000_000_000, Duration::from_millis(1));
    let Ok(plenty) = plenty else { return };
    let allow = |headers| {
        RateLimitLayer::new(MemoryStore::new(), Policy::new("p", plenty), Key::new("all")).headers(headers)
    };
    let mut group = criterion.benchmark_group("overhead");

    group.bench_function("no layer", |bencher| {
        let mut service = service_fn(hello);
        bencher.iter_custom(|requests| runtime.block_on(many(&mut service, requests)));
    });
    group.bench_function("allowed, no headers", |bencher| {
        let mut service = allow(RateLimitHeaders::off()).layer(service_fn(hello));
        bencher.iter_custom(|requests| runtime.block_on(many(&mut service, requests)));
    });
    group.bench_function("allowed", |bencher| {
        let mut service = allow(RateLimitHeaders::default()).layer(service_fn(hello));
        bencher.iter_custom(|requests| runtime.block_on(many(&mut service, requests)));
    });
    group.bench_function("allowed, by address", |bencher| {
        let layer = RateLimitLayer::new(MemoryStore::new(), Policy::new("p", plenty), PeerIp::new());
        let mut service = layer.layer(service_fn(hello));
        bencher.iter_custom(|requests| runtime.block_on(many(&mut service, requests)));
    });
    group.bench_function("denied", |bencher| {
        let policy = Policy::new("p", Quota::per_day(1));
        let mut service =
            RateLimitLayer::new(MemoryStore::new(), policy, Key::new("all")).layer(service_fn(hello));
        runtime.block_on(many(&mut service, 1));
        bencher.iter_custom(|requests| runtime.block_on(many(&mut service, requests)));
    });
    group.finish();
}

criterion_group!(benches, overhead);
criterion_main!(benches);
