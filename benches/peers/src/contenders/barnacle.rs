//! barnacle-rs: a fixed-window script, on a deadpool with default settings.

use barnacle_rs::{BarnacleKey, BarnacleLayer, Identity, Limit, RateLimitScope, RedisBarnacleStore};
use tower::Layer;

use crate::{
    contender::{Contender, Handler, Place, Role, subject},
    request::KEY,
};

pub(super) fn contender() -> Contender {
    Contender {
        name: "barnacle-rs, fixed window".into(),
        role: Role::ScriptPeer,
        place: Place::Redis,
        packages: &["barnacle-rs", "deadpool-redis", "redis@0.32"],
        make: Box::new(|setup| {
            Box::pin(async move {
                let limit = Limit::new(setup.limit.count, setup.limit.period)
                    .with_scope(RateLimitScope::Named(setup.prefix));
                let layer: BarnacleLayer<RedisBarnacleStore> = BarnacleLayer::builder()
                    .with_store(RedisBarnacleStore::from_url(&setup.url)?)
                    .with_limits([limit])
                    .with_identifier(|parts, ()| {
                        let key = parts.headers.get(KEY)?.to_str().ok()?;
                        Some(Identity::new(BarnacleKey::Custom(key.to_owned())))
                    })
                    .build()?;
                Ok(subject(layer.layer(Handler)))
            })
        }),
    }
}
