//! Costs that depend on what a request has, and may fail.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http::{Request, request::Parts};
use support::{PATIENT, RedisServer, day, inner::ask, memory_and_redis, units_left};
use tower_ratelimit::{
    Answer, Error, ErrorKind, Key, Limiter, MemoryStore, Policy, PolicySource, RateLimitLayer, Rule,
    layer::Rules, policy::Enforcement,
};

/// What another layer has read of the body.
#[derive(Clone)]
struct Orders(u64);

fn request(orders: Option<u64>) -> Request<String> {
    let mut request = Request::new(String::new());
    if let Some(orders) = orders {
        request.extensions_mut().insert(Orders(orders));
    }
    request
}

/// A cost that fails if the client has sent no orders, or too many.
fn orders(request: &Parts) -> Result<u64, Error> {
    match request.extensions.get() {
        Some(Orders(count @ ..=50)) => Ok(*count),
        Some(_) => Err(Error::new(ErrorKind::InvalidIdentity, "a request must not have more than 50 orders")),
        None => Err(Error::new(ErrorKind::MissingSetup, "add `OrdersLayer`")),
    }
}

/// Policies that are known when the layer is built, when a request comes, and later.
fn sources(policy: &Policy) -> [(&'static str, PolicySource); 3] {
    let (now, later) = (policy.clone(), policy.clone());
    [
        ("constant", policy.clone().into()),
        ("of the request", PolicySource::per_request(move |_, _| Some(now.clone()))),
        (
            "looked up",
            PolicySource::per_request(move |_: &Parts, _: &Key| {
                let policy = later.clone();
                Answer::pending(async move {
                    tokio::task::yield_now().await;
                    Ok(policy)
                })
            }),
        ),
    ]
}

#[tokio::test]
async fn a_cost_that_fails_rejects_the_request_as_a_key_that_fails_does() {
    let redis = RedisServer::start();
    for (store, limiter) in memory_and_redis(&redis).await {
        for (source, policy) in sources(&day("orders", 100)) {
            let other = day("all", 100);
            let rule = || Rule::new(policy.clone(), Key::new("all")).cost(orders);
            let all = || Rule::new(other.clone(), Key::new("all"));
            let layers = [
                ("alone", RateLimitLayer::with_rules(limiter.clone(), rule()), false),
                ("first", RateLimitLayer::with_rules(limiter.clone(), rule()).rule(all()), true),
                ("last", RateLimitLayer::with_rules(limiter.clone(), all()).rule(rule()), true),
                (
                    "of a route",
                    RateLimitLayer::with_rules(
                        limiter.clone(),
                        Rules::new().route("/", rule()).always(all()),
                    ),
                    true,
                ),
            ];
            for (place, layer, has_other) in layers {
                let name = format!("{store}, {source}, {place}");
                let left = async || {
                    limiter.drain(PATIENT).await.unwrap();
                    (units_left(&limiter, &day("orders", 100)).await, units_left(&limiter, &other).await)
                };
                assert_eq!(ask(&layer, request(Some(7))).await.status(), 200, "{name}");
                assert_eq!(left().await, (93, 100 - u64::from(has_other)), "{name}");
                // The client's fault: it is charged under the other rules.
                assert_eq!(ask(&layer, request(Some(51))).await.status(), 400, "{name}");
                assert_eq!(left().await, (93, 100 - 2 * u64::from(has_other)), "{name}");
                // The server's fault: nothing is charged.
                assert_eq!(ask(&layer, request(None)).await.status(), 500, "{name}");
                assert_eq!(left().await, (93, 100 - 2 * u64::from(has_other)), "{name}");
                let reports = layer.enforcement(Enforcement::ReportOnly);
                assert_eq!(ask(&reports, request(None)).await.status(), 200, "{name}");
                for policy in [&day("orders", 100), &other] {
                    limiter.operator().reset(policy, &Key::new("all")).await.unwrap();
                }
            }
        }
    }
}

#[tokio::test]
async fn a_cost_is_found_once_for_each_request_and_the_charges_show_why_it_is_unknown() {
    let calls = Arc::new(AtomicUsize::new(0));
    for (source, policy) in sources(&day("orders", 100)) {
        let counted = calls.clone();
        let cost = move |request: &Parts| {
            counted.fetch_add(1, Ordering::SeqCst);
            orders(request)
        };
        let rule = Rule::new(policy, Key::new("all")).cost(cost);
        let layer = RateLimitLayer::with_rules(MemoryStore::new(), rule);
        for (orders, status) in [(Some(1), 200), (Some(51), 400), (None, 500)] {
            calls.store(0, Ordering::SeqCst);
            assert_eq!(ask(&layer, request(orders)).await.status(), status, "{source}");
            assert_eq!(calls.load(Ordering::SeqCst), 1, "{source}, {status}");
        }
        let (head, _) = request(Some(9)).into_parts();
        assert_eq!(layer.charges(&head).await.unwrap()[0].0.cost(), 9);
        let (head, _) = request(None).into_parts();
        assert_eq!(layer.charges(&head).await.unwrap_err().status(), 500);
    }
}

#[tokio::test]
async fn the_cost_of_an_extension_is_500_without_it() {
    let policy = day("orders", 100);
    let limiter = Limiter::new(MemoryStore::new());
    let rule = Rule::new(policy.clone(), Key::new("all")).cost_from_extension(|orders: &Orders| orders.0);
    let layer = RateLimitLayer::with_rules(limiter.clone(), rule);
    for (orders, status, left) in
        [(Some(60), 200, 40), (None, 500, 40), (Some(60), 429, 40), (Some(0), 200, 40)]
    {
        assert_eq!(ask(&layer, request(orders)).await.status(), status);
        assert_eq!(units_left(&limiter, &policy).await, left);
    }
}
