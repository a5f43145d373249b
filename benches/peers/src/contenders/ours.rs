//! This crate, in each mode that is worth a row.
//!
//! A further mode is one more element of [`modes`]: a name, a [`Role`] and what it changes of the store or the
//! policy. [`Role::OurLeased`] is what the target for leases looks for; settings that only explain others (the
//! deny cache off, another pool size) are [`Role::OurOther`].

use std::{error::Error, time::Duration};

use tower::Layer;
use tower_ratelimit::{algorithm::FixedWindow, Header, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, RedisStore};

use crate::contender::{Contender, Handler, KEY, Place, Role, Setup, Subject, subject};

/// Saturation is to show as throughput, not as decisions that were given up.
const DEADLINE: Duration = Duration::from_secs(10);

pub(super) fn modes() -> Vec<Contender> {
    vec![
        redis("tower-ratelimit, RedisStore", Role::OurRedis, |store| store, |policy| policy),
        redis(
            "tower-ratelimit, RedisStore, fixed window",
            Role::OurOther,
            |store| store,
            |policy| policy.algorithm(FixedWindow::anchored()),
        ),
        redis(
            "tower-ratelimit, RedisStore, leased",
            Role::OurLeased,
            |store| store,
            |policy| policy.leased(10_000),
        ),
        redis(
            "tower-ratelimit, RedisStore, deny cache off",
            Role::OurOther,
            |store| store.deny_cache(Duration::ZERO),
            |policy| policy,
        ),
        memory("tower-ratelimit, MemoryStore", |policy| policy),
    ]
}

/// On Redis, with the default settings but for the deadline and what `store` and `policy` change.
fn redis(
    name: &str,
    role: Role,
    store: fn(RedisStore) -> RedisStore,
    policy: fn(Policy) -> Policy,
) -> Contender {
    Contender {
        name: name.into(),
        role,
        place: Place::Redis,
        packages: &["tower-ratelimit", "bb8-redis", "redis@1"],
        make: Box::new(move |setup| {
            Box::pin(async move {
                let connected =
                    RedisStore::builder().prefix(&setup.prefix).deadline(DEADLINE).connect(&setup.url).await?;
                limited(store(connected), policy, &setup)
            })
        }),
    }
}

fn memory(name: &str, policy: fn(Policy) -> Policy) -> Contender {
    Contender {
        name: name.into(),
        role: Role::OurMemory,
        place: Place::Process,
        packages: &["tower-ratelimit"],
        make: Box::new(move |setup| Box::pin(async move { limited(MemoryStore::new(), policy, &setup) })),
    }
}

fn limited(
    store: impl Into<Limiter>,
    policy: fn(Policy) -> Policy,
    setup: &Setup,
) -> Result<Box<dyn Subject>, Box<dyn Error>> {
    let quota = Quota::new(setup.limit.count.into(), setup.limit.period)?;
    let layer = RateLimitLayer::new(store, policy(Policy::new("p", quota)), Header::from(KEY));
    Ok(subject(layer.layer(Handler)))
}
