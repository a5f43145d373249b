//! tower-rate-limit-redis: a GCRA script, on one multiplexed connection.
//!
//! Its capacity has 16 bits, so the limit that is never reached is lower here. If it is reached, the
//! table shows that.

use axum::body::Body;
use http::{Request, Response, StatusCode};
use redis032::Client;
use tower::Layer;
use tower_rate_limit_redis::{KeyResolver, RateLimitLayer};

use crate::contender::{Contender, Handler, Place, Role, key_of, subject};

pub(super) fn contender() -> Contender {
    Contender {
        name: "tower-rate-limit-redis".into(),
        role: Role::ScriptPeer,
        place: Place::Redis,
        packages: &["tower-rate-limit-redis", "redis@0.32"],
        make: Box::new(|setup| {
            Box::pin(async move {
                let connection = Client::open(setup.url)?.get_multiplexed_async_connection().await?;
                let layer = RateLimitLayer::builder()
                    .conn(connection)
                    .key_resolver(ByHeader { prefix: setup.prefix })
                    .capacity(u16::try_from(setup.limit.count).unwrap_or(u16::MAX))
                    .emission_interval(setup.limit.interval())
                    .build();
                Ok(subject(layer.layer(Handler)))
            })
        }),
    }
}

#[derive(Clone)]
struct ByHeader {
    prefix: String,
}

impl KeyResolver for ByHeader {
    type Key = String;
    type ErrorBody = Body;

    fn key<T>(&self, request: &Request<T>) -> Result<String, Response<Body>> {
        let key = key_of(request).map(|key| format!("{}:{key}", self.prefix));
        key.ok_or_else(|| {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::BAD_REQUEST;
            response
        })
    }
}
