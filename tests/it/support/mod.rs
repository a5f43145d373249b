//! Shared by the tests: Redis servers, a naive model, and small services.

pub(crate) mod certificates;
pub(crate) mod fake_server;
pub(crate) mod http;
pub(crate) mod model;
pub(crate) mod pool;
pub(crate) mod programs;
pub(crate) mod redis_cluster;
pub(crate) mod redis_sentinel;
pub(crate) mod redis_server;
pub(crate) mod stores;

pub(crate) use pool::{RedisPool, pool};
pub(crate) use programs::program;
pub(crate) use redis_server::RedisServer;
pub(crate) use stores::{Counted, Down, Says};

use std::{sync::LazyLock, time::Duration};

use tokio::time::Instant;

use tower_ratelimit::{RedisStore, store::RedisStoreBuilder};

/// So long that no decision is late on a busy machine.
pub(crate) const PATIENT: Duration = Duration::from_secs(20);

/// The settings of a store that waits for its decisions.
pub(crate) fn settings() -> RedisStoreBuilder {
    RedisStore::builder().deadline(PATIENT)
}

/// A store on `server` that waits for its decisions.
pub(crate) async fn store(server: &RedisServer) -> RedisStore {
    settings().connect(&server.url()).await.unwrap()
}

/// Polls until `holds` returns true, for at most `patience`. Returns whether it did.
pub(crate) async fn within(patience: Duration, mut holds: impl AsyncFnMut() -> bool) -> bool {
    let started = Instant::now();
    while !holds().await {
        if started.elapsed() > patience {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    true
}

/// Polls until `holds` returns true, for as long as background work may take on a busy machine. Returns whether it
/// did.
pub(crate) async fn eventually(holds: impl AsyncFnMut() -> bool) -> bool {
    within(Duration::from_secs(10), holds).await
}

/// Makes `subscriber` the one of this thread.
///
/// As long as a process has only one subscriber, the first thread that reaches a line decides for all threads whether it
/// is logged, and another test's thread has none. So there is always a second one.
pub(crate) fn listen_with(
    subscriber: impl tracing::Subscriber + Send + Sync,
) -> tracing::subscriber::DefaultGuard {
    static SECOND: LazyLock<tracing::Dispatch> = LazyLock::new(|| {
        tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(std::io::sink).finish())
    });
    LazyLock::force(&SECOND);
    tracing::subscriber::set_default(subscriber)
}

/// A service with no network, for tests that must set the clock.
pub(crate) mod inner {
    use std::convert::Infallible;

    use ::http::{Request, Response};
    use http_body_util::BodyExt as _;
    use tower::{Layer, ServiceExt, service_fn};
    use tower_ratelimit::{RateLimitLayer, layer::ResponseBody};

    /// Answers `request` with `response` if `layer` admits it.
    pub(crate) async fn ask_for(
        layer: &RateLimitLayer,
        request: Request<String>,
        response: impl Fn() -> Response<String> + Clone,
    ) -> Response<ResponseBody<String>> {
        let service = service_fn(|_: Request<String>| {
            let response = response();
            async { Ok::<_, Infallible>(response) }
        });
        let Ok(response) = layer.layer(service).oneshot(request).await;
        response
    }

    pub(crate) async fn ask(
        layer: &RateLimitLayer,
        request: Request<String>,
    ) -> Response<ResponseBody<String>> {
        ask_for(layer, request, || Response::new("hello".into())).await
    }

    pub(crate) fn get() -> Request<String> {
        Request::get("/").body(String::new()).unwrap()
    }

    pub(crate) async fn text(response: Response<ResponseBody<String>>) -> String {
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }
}
