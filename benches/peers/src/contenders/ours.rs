//! This crate, in each mode that has a row.
//!
//! To add a mode, add an element to [`modes`]: a name, a [`Role`] and its changes of the store or the policy. The
//! targets for leases use [`Role::OurLeased`]; settings that only explain others (the
//! deny cache off, another pool size) are [`Role::OurOther`].

use std::{error::Error, time::Duration};

use tower::Layer;
use tower_ratelimit::{
    FailureMode, Header, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, RedisStore, Rule,
    algorithm::FixedWindow, policy::Penalty, store::RedisStoreBuilder,
};

use crate::{
    contender::{Contender, Handler, Place, Role, Setup, Subject, subject},
    request::KEY,
};

/// Saturation must show as throughput, not as decisions that miss the deadline.
const DEADLINE: Duration = Duration::from_secs(10);

pub(super) fn modes() -> Vec<Contender> {
    vec![
        redis("tower-ratelimit, RedisStore", Role::OurRedis, |store| store, |policy| policy),
        several("tower-ratelimit, RedisStore, two policies", &["q"]),
        several("tower-ratelimit, RedisStore, three policies", &["q", "r"]),
        redis(
            "tower-ratelimit, RedisStore, a penalty",
            Role::OurPenalty,
            |settings| settings,
            |policy| {
                policy.penalty(Penalty::after(1_000, Duration::from_secs(10)).ban(Duration::from_secs(60)))
            },
        ),
        redis(
            "tower-ratelimit, RedisStore, fixed window",
            Role::OurOther,
            |settings| settings,
            |policy| policy.algorithm(FixedWindow::anchored()),
        ),
        redis(
            "tower-ratelimit, RedisStore, leased(10,000)",
            Role::OurLeased(10_000),
            |settings| settings,
            |policy| policy.max_lease(10_000),
        ),
        redis(
            "tower-ratelimit, RedisStore, leased(1000)",
            Role::OurLeased(1000),
            |settings| settings,
            |policy| policy.max_lease(1000),
        ),
        redis(
            "tower-ratelimit, RedisStore, deny cache off",
            Role::OurOther,
            |settings| settings.deny_cache(Duration::ZERO),
            |policy| policy,
        ),
        memory("tower-ratelimit, MemoryStore", |policy| policy),
    ]
}

/// On Redis, with the default settings except the deadline and the changes by `settings` and `policy`.
fn redis(
    name: &str,
    role: Role,
    settings: fn(RedisStoreBuilder) -> RedisStoreBuilder,
    policy: fn(Policy) -> Policy,
) -> Contender {
    on_redis(name, role, settings, policy, &[])
}

/// On Redis, with the policies `others` as well, of the same quota.
fn several(name: &str, others: &'static [&'static str]) -> Contender {
    on_redis(name, Role::OurSeveral(1 + others.len()), |settings| settings, |policy| policy, others)
}

fn on_redis(
    name: &str,
    role: Role,
    settings: fn(RedisStoreBuilder) -> RedisStoreBuilder,
    policy: fn(Policy) -> Policy,
    others: &'static [&'static str],
) -> Contender {
    Contender {
        name: name.into(),
        role,
        place: Place::Redis,
        packages: &["tower-ratelimit", "bb8-redis", "redis@1"],
        make: Box::new(move |setup| {
            Box::pin(async move {
                let ours = settings(RedisStore::builder().prefix(&setup.prefix).deadline(DEADLINE));
                limited(ours.connect(&setup.url).await?, policy, others, &setup)
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
        make: Box::new(move |setup| {
            Box::pin(async move { limited(MemoryStore::new(), policy, &[], &setup) })
        }),
    }
}

fn limited(
    store: impl Into<Limiter>,
    policy: fn(Policy) -> Policy,
    others: &[&str],
    setup: &Setup,
) -> Result<Box<dyn Subject>, Box<dyn Error>> {
    let quota = Quota::try_new(setup.limit.count.into(), setup.limit.period)?;
    // A store that fails must show as wrong answers, and not as requests that were admitted without a decision.
    let named = |name: &str| policy(Policy::new(name, quota).failure_mode(FailureMode::Closed));
    let layer = RateLimitLayer::new(store, named("p"), Header::from(KEY));
    let layer =
        others.iter().fold(layer, |layer, name| layer.rule(Rule::new(named(name), Header::from(KEY))));
    Ok(subject(layer.layer(Handler)))
}
