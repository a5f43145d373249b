//! Functions that decide something panic through their own request, and through no other.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Wake, Waker},
    time::Duration,
};

use http::{Request, Response, request::Parts};
use support::{RedisServer, day, eventually, memory_and_redis};
use tokio::task::JoinSet;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_ratelimit::{
    Answer, Charge, Error, Key, Limiter, MemoryStore, Policy, PolicySource, Quota, RateLimitLayer, Rejection,
    Rule,
    algorithm::{Algorithm, Evaluation, Input, Twin},
    decision::DecisionSource,
    keyed::KeyedRateLimitLayer,
    store::Action,
};

use super::{Panics, left};

/// Panics for a request that asks for it.
fn panics(parts: &Parts) -> bool {
    assert!(!parts.headers.contains_key("x-panic"), "foreign code panics on purpose");
    false
}

fn permits() -> Rule {
    Rule::new(Policy::concurrency("permits", 1), Key::new("all"))
}

fn counted(limit: u64) -> Policy {
    day("counted", limit)
}

/// Whether a request through `layer` panics, or its status.
async fn ask(layer: &RateLimitLayer, asks: &'static str) -> Option<u16> {
    let service = layer
        .clone()
        .layer(service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) }));
    let request = Request::get("/").header(asks, "1").body(String::new()).unwrap();
    let task = tokio::spawn(async move {
        let Ok(response) = service.oneshot(request).await;
        response.status().as_u16()
    });
    task.await.ok()
}

/// After each panic a request needs the only permit, and `drain` waits for nothing that is not there.
#[tokio::test]
async fn a_function_of_a_layer_panics_through_its_own_request() {
    type Build = fn(Limiter) -> RateLimitLayer;
    let extractor = |limiter| {
        let key = |parts: &Parts| {
            panics(parts);
            "all"
        };
        RateLimitLayer::with_rules(limiter, permits()).rule(Rule::new(counted(9), key))
    };
    let source = |limiter| {
        let source = PolicySource::per_request(|parts, _| {
            panics(parts);
            counted(9)
        });
        RateLimitLayer::with_rules(limiter, permits()).rule(Rule::new(source, Key::new("all")))
    };
    let later = |limiter| {
        let source = PolicySource::per_request(|parts, _| {
            let parts = parts.clone();
            Answer::pending(async move {
                tokio::task::yield_now().await;
                panics(&parts);
                Ok(counted(9))
            })
        });
        RateLimitLayer::with_rules(limiter, permits()).rule(Rule::new(source, Key::new("all")))
    };
    let cost = |limiter| {
        let rule = Rule::new(counted(9), Key::new("all")).cost(|parts| u64::from(panics(parts)) + 1);
        RateLimitLayer::with_rules(limiter, permits()).rule(rule)
    };
    let skip_if = |limiter| {
        RateLimitLayer::with_rules(limiter, permits())
            .rule(Rule::new(counted(9), Key::new("all")).skip_if(panics))
    };
    let count_if = |limiter| {
        let counts = |response: &http::response::Parts| {
            assert!(!response.headers.contains_key("x-panic"), "foreign code panics on purpose");
            true
        };
        RateLimitLayer::with_rules(limiter, permits())
            .rule(Rule::new(counted(9), Key::new("all")).count_if(counts))
    };
    let exempt_if = |limiter| RateLimitLayer::with_rules(limiter, permits()).exempt_if(panics);
    let block_if = |limiter| RateLimitLayer::with_rules(limiter, permits()).block_if(panics);
    let mapper = |limiter| {
        let mapper = |rejection: &Rejection, parts: &Parts| {
            panics(parts);
            Response::builder().status(rejection.status()).body(String::new()).unwrap()
        };
        RateLimitLayer::with_rules(limiter, permits())
            .rule(
                Rule::new(counted(9), Key::new("all"))
                    .cost(|parts| if parts.headers.contains_key("x-panic") { 10 } else { 1 }),
            )
            .response(mapper)
    };
    let rows: [(&str, Build); 9] = [
        ("key extractor", extractor),
        ("policy source", source),
        ("policy source, later", later),
        ("cost", cost),
        ("skip_if", skip_if),
        ("count_if", count_if),
        ("exempt_if", exempt_if),
        ("block_if", block_if),
        ("response mapper", mapper),
    ];
    for (name, build) in rows {
        let server = RedisServer::start();
        for (store, limiter) in memory_and_redis(&server).await {
            let layer = build(limiter.clone());
            // The service of this row answers with the header of the request.
            let echo = name == "count_if";
            let ask = async |asks| if echo { ask_echo(&layer, asks).await } else { ask(&layer, asks).await };
            assert_eq!(ask("x-panic").await, None, "{name}, {store}");
            assert!(eventually(async || ask("x-other").await == Some(200)).await, "{name}, {store}");
            limiter.drain(Duration::from_secs(60)).await.unwrap();
        }
    }
}

/// [`ask`] for a service whose response has the headers of the request.
async fn ask_echo(layer: &RateLimitLayer, asks: &'static str) -> Option<u16> {
    let service = layer.clone().layer(service_fn(|request: Request<String>| async move {
        let mut response = Response::new(String::new());
        *response.headers_mut() = request.headers().clone();
        Ok::<_, Infallible>(response)
    }));
    let request = Request::get("/").header(asks, "1").body(String::new()).unwrap();
    let task = tokio::spawn(async move {
        let Ok(response) = service.oneshot(request).await;
        response.status().as_u16()
    });
    task.await.ok()
}

#[tokio::test]
async fn a_function_of_a_keyed_layer_panics_through_its_own_request() {
    let server = RedisServer::start();
    for (store, limiter) in memory_and_redis(&server).await {
        let layer = KeyedRateLimitLayer::new(limiter, counted(1), |message: &String| {
            assert!(message != "panic", "foreign code panics on purpose");
            Key::new(message)
        });
        let service = layer
            .layer(service_fn(|_: String| async { Ok::<_, Box<dyn std::error::Error + Send + Sync>>(()) }));
        for (message, expected) in [("panic", None), ("a", Some(true)), ("a", Some(false)), ("b", Some(true))]
        {
            let asked = tokio::spawn(service.clone().oneshot(message.to_owned()));
            assert_eq!(asked.await.ok().map(|answer| answer.is_ok()), expected, "{store}: {message}");
        }
    }
}

/// A store that panics, in the request that asks it.
#[tokio::test]
async fn a_store_panics_through_its_own_request_and_a_permit_that_it_may_have_is_released() {
    let server = RedisServer::start();
    for name in ["memory", "redis"] {
        for is_late in [false, true] {
            let limiter = if name == "redis" {
                Limiter::new(Panics::new(support::store(&server).await, Action::Charge, 1, is_late))
            } else {
                Limiter::new(Panics::new(MemoryStore::new(), Action::Charge, 1, is_late))
            };
            let policy = Policy::concurrency(if is_late { "late" } else { "now" }, 1);
            let asks = limiter.clone();
            let of = policy.clone();
            let asked = tokio::spawn(async move { asks.check(&of, &Key::new("all"), 1).await.map(|_| ()) });
            assert!(asked.await.unwrap_err().is_panic(), "{name}");
            let held = limiter.check(&policy, &Key::new("all"), 1).await.unwrap();
            assert!(held.is_admitted(), "{name}");
            drop(held);
            limiter.drain(Duration::from_secs(60)).await.unwrap();
            assert_eq!(left(&limiter, &policy, &Key::new("all")).await.unwrap(), 1, "{name}");
        }
    }
}

/// A twin that panics for large costs.
#[derive(Debug)]
struct PanickingTwin;

impl Algorithm for PanickingTwin {
    fn name(&self) -> &str {
        "panicking"
    }
    fn lua(&self) -> &str {
        ""
    }
    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        Ok(vec![quota.limit()])
    }
    fn twin(&self) -> Option<&dyn Twin> {
        Some(self)
    }
}

impl Twin for PanickingTwin {
    fn decide(&self, _: &Input<'_>, cost: u64) -> Evaluation {
        assert!(cost < 7, "foreign code panics on purpose");
        Evaluation::admit(9, 0)
    }
    fn refund(
        &self,
        _: &Input<'_>,
        _: u64,
        _: Option<tower_ratelimit::algorithm::Receipt>,
    ) -> Option<tower_ratelimit::algorithm::Update> {
        panic!("foreign code panics on purpose")
    }
}

/// The twin runs under the lock of a shard, which others use afterwards.
#[tokio::test]
async fn a_twin_panics_through_its_own_request_and_charges_nothing() {
    let store = MemoryStore::new();
    let limiter = Limiter::new(store);
    let (policy, plain, key) =
        (Policy::new("twin", Quota::per_day(9)).algorithm(PanickingTwin), counted(9), Key::new("all"));
    for _ in 0..3 {
        let charges = [Charge::new(&plain, &key, 1), Charge::new(&policy, &key, 7)];
        let asks = limiter.clone();
        let asked = tokio::spawn(async move { asks.check_all(&charges).await.map(|_| ()) });
        assert!(asked.await.unwrap_err().is_panic());
        // The same shard.
        assert_eq!(left(&limiter, &plain, &key).await.unwrap(), 9);
    }
    assert!(limiter.check(&policy, &key, 0).await.unwrap().is_admitted());
}

/// Wakes nothing, and panics.
struct PanickingWaker(Mutex<usize>);

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() += 1;
        panic!("foreign code panics on purpose");
    }
}

/// A lane wakes the callers of a batch.
#[tokio::test]
async fn a_waker_that_panics_stops_no_batch() {
    let (server, limiter) = support::on_redis().await;
    let policy = day("p", 1_000_000);
    let wakes = Arc::new(PanickingWaker(Mutex::default()));
    let waker = Waker::from(wakes.clone());
    for round in 0..50_u32 {
        let (mut kept, mut others) = (Vec::new(), JoinSet::new());
        for number in 0..8 {
            let (limiter, policy) = (limiter.clone(), policy.clone());
            others.spawn(async move { limiter.check(&policy, &Key::new(format!("{number}")), 1).await });
        }
        // Their tasks poll a lane, so that the runtime does not wake the waker itself. It is open for as long as Redis does
        // not answer.
        server.signal("STOP");
        tokio::task::yield_now().await;
        for _ in 0..8 {
            let mut answer = limiter.check(&policy, &Key::new("kept"), 0);
            assert!(Pin::new(&mut answer).poll(&mut Context::from_waker(&waker)).is_pending());
            kept.push(answer);
        }
        server.signal("CONT");
        while let Some(decided) = others.join_next().await {
            let decided = decided.unwrap().unwrap();
            assert_eq!(decided.source(), DecisionSource::Store, "{round}: {:?}", decided.failure());
        }
    }
    assert!(*wakes.0.lock().unwrap() > 0);
}

/// A lone caller polls its lane itself. When it leaves, a task goes on with the lane.
#[tokio::test]
async fn a_waker_of_a_lone_caller_that_leaves_may_panic() {
    let (server, limiter) = support::on_redis().await;
    let policy = day("p", 1_000_000);
    let alone = |key: &str| limiter.check(&policy, &Key::new(key), 1);
    alone("connects").await.unwrap();
    let wakes = Arc::new(PanickingWaker(Mutex::default()));
    let waker = Waker::from(wakes.clone());
    server.signal("STOP");
    let mut leaves = alone("leaves");
    assert!(Pin::new(&mut leaves).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(leaves);
    assert_eq!(*wakes.0.lock().unwrap(), 1);
    server.signal("CONT");
    assert_eq!(alone("stays").await.unwrap().source(), DecisionSource::Store);
}
