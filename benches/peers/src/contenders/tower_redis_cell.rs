//! tower-redis-cell: the module redis-cell in Redis, and a connection manager, as in its documentation.

use axum::body::Body;
use http::{HeaderValue, Request, Response, StatusCode, header::RETRY_AFTER};
use redis::{Client, aio::ConnectionManager};
use tower::Layer;
use tower_redis_cell::{
    Error, ProvideRule, ProvideRuleResult, RateLimitConfig, RateLimitLayer, Rule, redis_cell,
};

use crate::contender::{Contender, Handler, Limit, Place, Role, key_of, subject};

pub(super) fn contender() -> Contender {
    Contender {
        name: "tower-redis-cell, a native module".into(),
        role: Role::ModulePeer,
        place: Place::RedisCell,
        packages: &["tower-redis-cell", "redis-cell-rs", "redis-cell", "redis@1"],
        make: Box::new(|setup| {
            Box::pin(async move {
                let connection = ConnectionManager::new(Client::open(setup.url)?).await?;
                let rule = ByHeader { prefix: setup.prefix, policy: policy(setup.limit) };
                let config = RateLimitConfig::new(rule, |error: Error<'_>, _: &Request<Body>| denial(&error));
                Ok(subject(RateLimitLayer::new(config, connection).layer(Handler)))
            })
        }),
    }
}

/// The module admits one more than its burst.
fn policy(limit: Limit) -> redis_cell::Policy {
    let count = limit.count as usize;
    redis_cell::Policy::from_tokens_per_period(count, limit.period).max_burst(count - 1)
}

fn denial(error: &Error<'_>) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = match error {
        Error::RateLimit(blocked) => {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(blocked.details.retry_after));
            StatusCode::TOO_MANY_REQUESTS
        }
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
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
