//! The counted program: tasks that send one request after another through a layer to a service that does nothing.
//! `workload CONTENDER IN_FLIGHT DECISIONS`, with the server's URL in `REDIS_URL`.
//!
//! A separate binary: changes to the program that counts do not change how this one is compiled.

use std::{
    convert::Infallible,
    env,
    error::Error,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tokio::{runtime::Builder, task::JoinSet};
use tower::{Layer, Service, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_ratelimit::{
    Criticality, Header, Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, RedisStore, Rule,
    algorithm::FixedWindow,
    policy::{Headroom, Penalty},
};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

type Failure = Box<dyn Error + Send + Sync>;
type Contender = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

const KEYS: u64 = 10_000;
/// A multiple of the decisions in each call, so that no call has a key twice.
const KEYS_IN_TURN: u64 = 256;
/// Callgrind makes programs up to 50 times slower.
const DEADLINE: Duration = Duration::from_secs(5);

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [contender, in_flight, decisions] = arguments.as_slice() else {
        return Err("usage: workload CONTENDER IN_FLIGHT DECISIONS".into());
    };
    let (in_flight, decisions): (u64, u64) = (in_flight.parse()?, decisions.parse()?);
    listen(contender);
    let is_exact =
        ["stored", "idle", "shared", "pool", "denied"].iter().any(|start| contender.starts_with(start));
    let mut runtime = if is_exact {
        // On one thread, all tasks send their next request before the next call, which then has a decision of each.
        Builder::new_current_thread()
    } else {
        Builder::new_multi_thread()
    };
    runtime.worker_threads(2).enable_all().build()?.block_on(async {
        let service = service(contender).await?;
        let mut callers = JoinSet::new();
        for caller in 0..in_flight {
            let keys = match contender.as_str() {
                // A denied client is one client.
                "memory-denied" | "memory-denied-recorded" => {
                    Keys::Random { state: caller * 7919 + 1, keys: 1 }
                }
                // Some hundred clients are denied all the time. The log of denials has an entry of each.
                "memory-denied-many" | "memory-denied-many-recorded" => {
                    Keys::Random { state: caller * 7919 + 1, keys: 256 }
                }
                // Each request has a new identity, and none is admitted.
                "memory-denied-flood" | "memory-denied-flood-recorded" => {
                    Keys::Random { state: caller * 7919 + 1, keys: 1 << 31 }
                }
                _ if is_exact => Keys::InTurn { next: caller, step: in_flight },
                _ => Keys::Random { state: caller * 7919 + 1, keys: KEYS },
            };
            callers.spawn(call(service.clone(), keys, decisions / in_flight));
        }
        while let Some(caller) = callers.join_next().await {
            caller??;
        }
        Ok(())
    })
}

/// Installs the subscriber of a contender that has one. It only keeps the spans that it wants.
fn listen(contender: &str) {
    let wanted = match contender {
        "memory-info" => Targets::new().with_default(LevelFilter::INFO),
        "memory-spans" => Targets::new().with_target("tower_ratelimit::span", LevelFilter::DEBUG),
        _ => return,
    };
    tracing_subscriber::registry().with(wanted).init();
}

/// The keys of a task, the same in each run.
enum Keys {
    /// Of a linear congruential generator.
    Random { state: u64, keys: u64 },
    /// Each key of [`KEYS_IN_TURN`] is charged equally often.
    InTurn { next: u64, step: u64 },
}

impl Keys {
    fn next(&mut self) -> u64 {
        match self {
            Self::Random { state, keys } => {
                *state =
                    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (*state >> 33) % *keys
            }
            Self::InTurn { next, step } => {
                let key = *next;
                *next = (key + *step) % KEYS_IN_TURN;
                key
            }
        }
    }
}

async fn call(mut service: Contender, mut keys: Keys, decisions: u64) -> Result<(), Failure> {
    for _ in 0..decisions {
        let key = format!("k{}", keys.next());
        let request = Request::builder().header("x-key", key).body(Body::empty())?;
        let Ok(ready) = service.ready().await;
        let Ok(response) = ready.call(request).await;
        if !matches!(response.status(), StatusCode::OK | StatusCode::TOO_MANY_REQUESTS) {
            return Err(format!("a request got the status {}", response.status()).into());
        }
    }
    Ok(())
}

async fn service(contender: &str) -> Result<Contender, Failure> {
    let key = || Header::new("x-key");
    let also = |name| Rule::new(policy(name), key());
    let layer = match contender {
        "none" => return Ok(mapped(service_fn(handler))),
        "memory" | "memory-info" | "memory-spans" => {
            RateLimitLayer::new(MemoryStore::new(), lasting_policy("bench"), key())
        }
        "memory-denied" | "memory-denied-many" | "memory-denied-recorded" | "memory-denied-many-recorded" => {
            RateLimitLayer::new(denying(contender), denied_policy(), key())
        }
        // A cost above the capacity.
        "memory-denied-flood" | "memory-denied-flood-recorded" => {
            RateLimitLayer::with_rules(denying(contender), Rule::new(denied_policy(), key()).cost(|_| 2))
        }
        "one" | "alone" => RateLimitLayer::new(redis().await?, policy("bench"), key()),
        "two" => RateLimitLayer::new(redis().await?, policy("bench"), key()).rule(also("second")),
        "three" => RateLimitLayer::new(redis().await?, policy("bench"), key())
            .rule(also("second"))
            .rule(also("third")),
        "penalty" => {
            let penalty = Penalty::after(1_000, Duration::from_secs(10)).ban(Duration::from_secs(60));
            RateLimitLayer::new(redis().await?, policy("bench").penalty(penalty), key())
        }
        "leased" => RateLimitLayer::new(redis().await?, policy("bench").max_lease(1_000), key()),
        "one-stored" => RateLimitLayer::new(redis().await?, lasting_policy("bench"), key()),
        "alone-stored" => RateLimitLayer::new(redis().await?, daily_policy("bench"), key()),
        "two-stored" => RateLimitLayer::new(redis().await?, lasting_policy("bench"), key())
            .rule(Rule::new(lasting_policy("second"), key())),
        "stored" => RateLimitLayer::new(one_connection().await?, daily_policy("bench"), key()),
        "stored-pair" => RateLimitLayer::new(one_connection().await?, daily_policy("bench"), key())
            .rule(Rule::new(window_policy("second"), key())),
        "stored-window" => RateLimitLayer::new(one_connection().await?, window_policy("bench"), key()),
        "stored-month" => RateLimitLayer::new(
            one_connection().await?,
            Policy::new("bench", Quota::per_month(300_000)),
            key(),
        ),
        "shared" => RateLimitLayer::new(one_connection().await?, large_policy("bench"), Key::new("all")),
        "shared-pair" => RateLimitLayer::new(one_connection().await?, daily_policy("bench"), key())
            .rule(Rule::new(large_policy("second"), Key::new("all"))),
        "pool" => {
            let pool = Policy::new("bench", Quota::per_second(1_000_000).burst(20_000_000));
            let pool = pool.headroom(Criticality::Sheddable, Headroom::Units(10_000_000));
            let tenant = Policy::new("tenant", Quota::per_second(1_000));
            let rule = Rule::new(pool, Key::new("all")).guarantee(tenant, key());
            RateLimitLayer::with_rules(one_connection().await?, rule)
        }
        "stored-headroom" => {
            let policy = daily_policy("bench").headroom(Criticality::Sheddable, Headroom::Percent(20));
            RateLimitLayer::with_rules(one_connection().await?, sheddable(policy, key(), 0))
        }
        "denied" => RateLimitLayer::new(without_deny_cache().await?, small_policy(10), key()),
        "denied-headroom" => {
            let policy = small_policy(20).headroom(Criticality::Sheddable, Headroom::Units(10));
            RateLimitLayer::with_rules(without_deny_cache().await?, sheddable(policy, key(), 0))
        }
        "denied-below" => {
            let policy = small_policy(20).headroom(Criticality::Sheddable, Headroom::Units(15));
            RateLimitLayer::with_rules(without_deny_cache().await?, sheddable(policy, key(), 15))
        }
        "idle" => RateLimitLayer::new(one_connection().await?, policy("bench"), key()),
        "idle-pair" => {
            RateLimitLayer::new(one_connection().await?, policy("bench"), key()).rule(also("second"))
        }
        other => return Err(format!("there is no contender {other}").into()),
    };
    Ok(mapped(layer.layer(service_fn(handler))))
}

/// `service` with one type for all contenders. Without a limit, too, so the difference is only the limit.
fn mapped<S, B>(service: S) -> Contender
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
    B: 'static,
{
    BoxCloneSyncService::new(service.map_response(|response: Response<B>| {
        let (parts, _) = response.into_parts();
        Response::from_parts(parts, Body::empty())
    }))
}

/// A quota that denies nothing, and is full again at the next request of a key: Redis has no state of most keys.
fn policy(name: &str) -> Policy {
    Policy::new(name, Quota::per_second(1_000_000).burst(1_000_000))
}

/// A quota that denies none of the few requests of a key, and whose keys last.
fn lasting_policy(name: &str) -> Policy {
    Policy::new(name, Quota::per_hour(1_000))
}

/// A quota for a day, which denies nothing.
fn daily_policy(name: &str) -> Policy {
    Policy::new(name, Quota::per_day(10_000).burst(10_000))
}

/// The same for a key that all requests share.
fn large_policy(name: &str) -> Policy {
    Policy::new(name, Quota::per_day(10_000_000).burst(10_000_000))
}

/// As many units in a window of a day.
fn window_policy(name: &str) -> Policy {
    Policy::new(name, Quota::per_day(10_000)).algorithm(FixedWindow::anchored())
}

/// A quota of which each key uses all with its first request. The response says `1 day` for an hour. A shorter wait
/// would get more words after a second.
fn denied_policy() -> Policy {
    Policy::new("bench", Quota::per_day(1))
}

/// A quota that the first requests of a key use.
fn small_policy(limit: u64) -> Policy {
    Policy::new("bench", Quota::per_day(limit).burst(limit))
}

/// A rule whose requests leave headroom, but for the first of each key: this many.
fn sheddable(policy: Policy, key: Header, critical: u64) -> Rule {
    let requests = AtomicU64::new(0);
    Rule::new(policy, key).criticality(move |_| {
        if requests.fetch_add(1, Ordering::Relaxed) < critical * KEYS_IN_TURN {
            Criticality::CriticalPlus
        } else {
            Criticality::Sheddable
        }
    })
}

/// A limiter in process, which records denials if the contender says so.
fn denying(contender: &str) -> Limiter {
    let limiter = Limiter::new(MemoryStore::new());
    if contender.ends_with("-recorded") {
        let _ = limiter.record_denials();
    }
    limiter
}

async fn redis() -> Result<RedisStore, Failure> {
    Ok(RedisStore::builder().deadline(DEADLINE).connect(&url()?).await?)
}

/// A store whose decisions wait for a single connection, so that all share its next call.
async fn one_connection() -> Result<RedisStore, Failure> {
    Ok(RedisStore::builder().deadline(DEADLINE).pool_size(1).connect(&url()?).await?)
}

/// The same, and each denial is made by Redis.
async fn without_deny_cache() -> Result<RedisStore, Failure> {
    let settings = RedisStore::builder().deadline(DEADLINE).pool_size(1).deny_cache(Duration::ZERO);
    Ok(settings.connect(&url()?).await?)
}

fn url() -> Result<String, Failure> {
    env::var("REDIS_URL").map_err(|error| format!("REDIS_URL: {error}").into())
}

async fn handler(_: Request<Body>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Body::empty()))
}
