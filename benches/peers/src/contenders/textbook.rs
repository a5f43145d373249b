//! A typical handwritten limiter: a bb8 pool with default settings, a GCRA script, and a connection per call.

use std::{
    convert::Infallible,
    error::Error,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::Body;
use bb8_redis::{RedisConnectionManager, bb8::Pool};
use http::{HeaderValue, Request, Response, StatusCode, header::RETRY_AFTER};
use redis::Script;
use tower::Service;

use crate::contender::{Contender, Handler, Place, Role, Setup, key_of, subject};

const GCRA: &str = r"
local interval, capacity = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local busy_until = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
local wait = busy_until + interval - now - interval * capacity
if wait > 0 then
    return math.ceil(wait / 1000000)
end
busy_until = busy_until + interval
redis.call('SET', KEYS[1], string.format('%.0f', busy_until), 'PX', math.ceil((busy_until - now) / 1000))
return 0
";

pub(super) fn contender() -> Contender {
    Contender {
        name: "textbook: bb8 and a GCRA script".into(),
        role: Role::ScriptPeer,
        place: Place::Redis,
        packages: &["bb8", "bb8-redis", "redis@1"],
        make: Box::new(|setup| {
            Box::pin(async move {
                let pool = Pool::builder().build(RedisConnectionManager::new(setup.url.as_str())?).await?;
                Ok(subject(Textbook(Arc::new(Limiter { pool, script: Script::new(GCRA), setup }), Handler)))
            })
        }),
    }
}

struct Limiter {
    pool: Pool<RedisConnectionManager>,
    script: Script,
    setup: Setup,
}

impl Limiter {
    /// The seconds to wait, 0 if the request is admitted.
    async fn wait(&self, key: &str) -> Result<u64, Box<dyn Error + Send + Sync>> {
        let Setup { limit, prefix, .. } = &self.setup;
        let mut invocation = self.script.key(format!("{prefix}:{key}"));
        invocation.arg(limit.interval().as_micros() as u64).arg(limit.count);
        let mut connection = self.pool.get().await?;
        Ok(invocation.invoke_async(&mut *connection).await?)
    }
}

#[derive(Clone)]
struct Textbook(Arc<Limiter>, Handler);

impl Service<Request<Body>> for Textbook {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.1.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Self(limiter, mut handler) = self.clone();
        Box::pin(async move {
            let Some(key) = key_of(&request) else {
                return Ok(denial(StatusCode::BAD_REQUEST));
            };
            match limiter.wait(key).await {
                Ok(0) => handler.call(request).await,
                Ok(seconds) => {
                    let mut response = denial(StatusCode::TOO_MANY_REQUESTS);
                    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
                    Ok(response)
                }
                Err(_) => Ok(denial(StatusCode::INTERNAL_SERVER_ERROR)),
            }
        })
    }
}

fn denial(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}
