//! tower-redis-cell: the module redis-cell in Redis, and a connection manager, as in its documentation; and the same
//! with TCP_NODELAY, which redis-rs leaves off. Its hook for successful requests writes the headers of the legacy
//! dialect, because it writes none itself.

use axum::body::Body;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header::RETRY_AFTER};
use redis::{Client, IntoConnectionInfo, aio::ConnectionManager, io::tcp::TcpSettings};
use tower::Layer;
use tower_redis_cell::{
    Error, ProvideRule, ProvideRuleResult, RateLimitConfig, RateLimitLayer, RequestAllowedDetails, Rule,
    redis_cell,
};

use crate::contender::{Contender, Handler, Limit, Place, Role, key_of, subject};

pub(super) fn as_documented() -> Contender {
    contender("tower-redis-cell, a native module", false)
}

pub(super) fn nodelay() -> Contender {
    contender("tower-redis-cell, TCP_NODELAY", true)
}

fn contender(name: &str, nodelay: bool) -> Contender {
    Contender {
        name: name.into(),
        role: Role::ModulePeer,
        place: Place::RedisCell,
        packages: &["tower-redis-cell", "redis-cell-rs", "redis-cell", "redis@1"],
        make: Box::new(move |setup| {
            Box::pin(async move {
                let server = setup.url.as_str().into_connection_info()?;
                let server = server.set_tcp_settings(TcpSettings::default().set_nodelay(nodelay));
                let connection = ConnectionManager::new(Client::open(server)?).await?;
                let rule = ByHeader { prefix: setup.prefix, policy: policy(setup.limit) };
                let config = RateLimitConfig::new(rule, |error: Error<'_>, _: &Request<Body>| denial(&error))
                    .on_success(|allowed: RequestAllowedDetails, response: &mut Response<Body>| {
                        let details = allowed.details;
                        write(response, details.total, details.remaining, details.reset_after);
                    });
                Ok(subject(RateLimitLayer::new(config, connection).layer(Handler)))
            })
        }),
    }
}

pub(super) fn write(response: &mut Response<Body>, limit: usize, remaining: usize, reset: u64) {
    let headers = response.headers_mut();
    headers.insert(HeaderName::from_static("x-ratelimit-limit"), HeaderValue::from(limit));
    headers.insert(HeaderName::from_static("x-ratelimit-remaining"), HeaderValue::from(remaining));
    headers.insert(HeaderName::from_static("x-ratelimit-reset"), HeaderValue::from(reset));
}

/// The module admits one more than its burst.
pub(crate) fn policy(limit: Limit) -> redis_cell::Policy {
    let count = limit.count as usize;
    redis_cell::Policy::from_tokens_per_period(count, limit.period).max_burst(count - 1)
}

fn denial(error: &Error<'_>) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    let status = match error {
        Error::RateLimit(blocked) => {
            let details = &blocked.details;
            write(&mut response, details.total, details.remaining, details.reset_after);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(details.retry_after));
            StatusCode::TOO_MANY_REQUESTS
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    *response.status_mut() = status;
    response
}

#[derive(Clone)]
struct ByHeader {
    prefix: String,
    policy: redis_cell::Policy,
}

impl<B> ProvideRule<Request<B>> for ByHeader {
    fn provide<'a>(&self, request: &'a Request<B>) -> ProvideRuleResult<'a> {
        let key = key_of(request).ok_or("no key")?;
        Ok(Some(Rule::new(redis_cell::Key::pair(self.prefix.clone(), key), self.policy)))
    }
}
