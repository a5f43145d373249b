//! What the tests share: a Redis server of one's own, a naive model, and small services.

pub(crate) mod fake_server;
pub(crate) mod http;
pub(crate) mod model;
pub(crate) mod programs;
pub(crate) mod redis_cluster;
pub(crate) mod redis_server;

pub(crate) use programs::program;
pub(crate) use redis_server::RedisServer;

use std::time::Duration;

use tower_ratelimit::{Action, Answer, Charge, Decision, Error, ErrorKind, Key, Policy, RedisStore, Store};

/// As long as redis-rs waits: tests count, they do not race a busy machine.
pub(crate) const PATIENT: Duration = Duration::from_millis(500);

/// A store on `server` that waits for its decisions.
pub(crate) async fn store(server: &RedisServer) -> RedisStore {
    RedisStore::connect(&server.url()).await.unwrap().deadline(PATIENT)
}

/// A store that nobody reaches, and that says more than a client should see.
pub(crate) struct Down;

impl Store for Down {
    fn decide(&self, _: Action, _: &[Charge]) -> Answer<Decision> {
        Answer::ready(Err(Error::new(ErrorKind::StoreUnreachable, "secret of the store")))
    }
    fn reset(&self, _: &Policy, _: &Key) -> Answer<()> {
        Answer::ready(Ok(()))
    }
}

/// A service with no network, for tests that must set the clock.
pub(crate) mod inner {
    use std::convert::Infallible;

    use ::http::{Request, Response};
    use http_body_util::BodyExt as _;
    use tower::{Layer, ServiceExt, service_fn};
    use tower_ratelimit::{RateLimitLayer, ResponseBody};

    /// Answers `request` with `response`, unless `layer` does not let it through.
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
