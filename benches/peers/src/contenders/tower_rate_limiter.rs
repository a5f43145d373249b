//! tower-rate-limiter: a script for each decision, on one multiplexed connection.

use http::Request;
use redis::Client;
use tower::Layer;
use tower_rate_limiter::{
    FixedWindow, GcraQuota, KeyExtractor, RateLimitError, RateLimitLayer, RedisGcra, RedisStore,
};

use crate::contender::{Contender, Handler, Make, Place, Role, key_of, subject};

pub(super) fn gcra() -> Contender {
    contender(
        "tower-rate-limiter, GCRA",
        Box::new(|setup| {
            Box::pin(async move {
                let connection = Client::open(setup.url)?.get_multiplexed_async_connection().await?;
                let quota = GcraQuota::new(setup.limit.count, setup.limit.period, setup.limit.count)?;
                let policy = RedisGcra::new(connection, quota).with_namespace(setup.prefix);
                let layer = RateLimitLayer::builder(ByHeader).policy_name("p").with_policy(policy).build()?;
                Ok(subject(layer.layer(Handler)))
            })
        }),
    )
}

pub(super) fn fixed_window() -> Contender {
    contender(
        "tower-rate-limiter, fixed window",
        Box::new(|setup| {
            Box::pin(async move {
                let connection = Client::open(setup.url)?.get_multiplexed_async_connection().await?;
                let store = RedisStore::new(connection).with_namespace(setup.prefix);
                let policy = FixedWindow::new(store, setup.limit.count.into(), setup.limit.period)?;
                let layer = RateLimitLayer::builder(ByHeader).policy_name("p").with_policy(policy).build()?;
                Ok(subject(layer.layer(Handler)))
            })
        }),
    )
}

fn contender(name: &str, make: Make) -> Contender {
    Contender {
        name: name.into(),
        role: Role::ScriptPeer,
        place: Place::Redis,
        packages: &["tower-rate-limiter", "redis@1"],
        make,
    }
}

#[derive(Clone)]
struct ByHeader;

impl KeyExtractor for ByHeader {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, RateLimitError> {
        let missing = || RateLimitError::Key("missing".into(), "no key".into());
        key_of(request).map(str::to_owned).ok_or_else(missing)
    }
}
