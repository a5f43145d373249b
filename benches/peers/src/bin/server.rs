//! The server of the second part: `server none|memory|redis|module REDIS_URL`. Prints its address and serves until its
//! standard input closes, so that it never outlives its parent process.

use std::{env, error::Error, io::Read, process, thread, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{HeaderName, HeaderValue, Request, Response, StatusCode},
    routing::get,
};
use redis::{Client, IntoConnectionInfo, aio::ConnectionManager, io::tcp::TcpSettings};
use tokio::net::TcpListener;
use tower_ratelimit::{FailureMode, Header, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, RedisStore};
use tower_redis_cell::{
    Error as CellError, ProvideRule, ProvideRuleResult, RateLimitConfig, RequestAllowedDetails, Rule,
    redis_cell,
};

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [kind, redis] = &arguments[..] else {
        return Err("server none|memory|redis|module REDIS_URL".into());
    };
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        process::exit(0);
    });

    let mut app = Router::new().route("/", get(async || ""));
    match kind.as_str() {
        "none" => {}
        "memory" => app = app.layer(limit(MemoryStore::new())?),
        "redis" => {
            // As in the first part, saturation must show as throughput, not as timeouts.
            let store = RedisStore::builder()
                .prefix("server")
                .deadline(Duration::from_secs(10))
                .connect(redis)
                .await?;
            app = app.layer(limit(store)?);
        }
        "module" => app = limited_by_module(app, redis).await?,
        other => return Err(format!("no such kind of server: {other}").into()),
    }
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("http://{}/", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

/// A limit that is never reached.
fn limit(store: impl Into<Limiter>) -> Result<RateLimitLayer, Box<dyn Error>> {
    let quota = Quota::try_new(10_000_000, Duration::from_secs(365 * 24 * 60 * 60))?;
    // A store that fails must show as answers other than 2xx.
    let policy = Policy::new("p", quota).failure_mode(FailureMode::Closed);
    Ok(RateLimitLayer::new(store, policy, Header::new("x-api-key")))
}

/// `app` behind the layer of tower-redis-cell, with the headers of the legacy dialect, as in the first part.
async fn limited_by_module(app: Router, redis: &str) -> Result<Router, Box<dyn Error>> {
    let server = redis.into_connection_info()?.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let connection = ConnectionManager::new(Client::open(server)?).await?;
    let config = RateLimitConfig::new(ByHeader, |error: CellError<'_>, _: &Request<Body>| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = match error {
            CellError::RateLimit(_) => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        response
    })
    .on_success(|allowed: RequestAllowedDetails, response: &mut Response<Body>| {
        let details = allowed.details;
        for (name, value) in [
            ("x-ratelimit-limit", details.total),
            ("x-ratelimit-remaining", details.remaining),
            ("x-ratelimit-reset", details.reset_after as usize),
        ] {
            response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from(value));
        }
    });
    Ok(app.layer(tower_redis_cell::RateLimitLayer::new(config, connection)))
}

#[derive(Clone)]
struct ByHeader;

impl<B> ProvideRule<Request<B>> for ByHeader {
    fn provide<'a>(&self, request: &'a Request<B>) -> ProvideRuleResult<'a> {
        let key = request.headers().get("x-api-key").and_then(|key| key.to_str().ok()).ok_or("no key")?;
        let policy = redis_cell::Policy::from_tokens_per_period(10_000, Duration::from_secs(24 * 60 * 60));
        Ok(Some(Rule::new(redis_cell::Key::pair("server", key), policy.max_burst(9_999))))
    }
}
