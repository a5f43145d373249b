//! One reservation covers the rules of all layers, and settles each unit apart.

use std::{convert::Infallible, time::Duration};

use futures_util::{FutureExt as _, future::join_all};
use http::{Request, Response};
use support::{Counted, PATIENT, RedisServer, day, memory_and_redis};
use tokio::time::timeout;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_ratelimit::{
    Charge, ErrorKind, Key, Limiter, MemoryStore, PolicySource, RateLimitLayer, Reservation, Rule,
    layer::Rules,
};

const LIMIT: u64 = 10_000_000;

fn key() -> Key {
    Key::new("all")
}

async fn used(limiter: &Limiter, name: &str) -> u64 {
    LIMIT - limiter.peek(&day(name, LIMIT), &key(), 0).await.unwrap().remaining().unwrap()
}

/// A rule for `unit`. If `is_dynamic`, its policy is looked up for each request, and has another name than the rule's
/// unit.
fn rule(unit: &'static str, is_dynamic: bool, refunds: bool) -> Rule {
    let plan = day(if unit == "tokens" { "token-plan" } else { "money-plan" }, LIMIT);
    let source: PolicySource =
        if is_dynamic { PolicySource::per_request(move |_, _| Some(plan.clone())) } else { plan.into() };
    let rule = Rule::new(source, key()).cost(move |_| if unit == "tokens" { 400 } else { 20 }).unit(unit);
    if refunds { rule.reserve_or_refund() } else { rule.reserve() }
}

/// What a request uses.
fn usage(request: u64) -> (u64, u64) {
    (request * 7 % 900, request * 3 % 50)
}

/// Settles, records, fails before it knows, or waits for a client that leaves.
async fn handle(request: Request<u64>) -> Result<Response<String>, Infallible> {
    let number = *request.body();
    let reservation = Reservation::from_extensions(request.extensions()).unwrap().clone();
    let (tokens, money) = usage(number);
    let all = [("tokens", tokens), ("micro-dollars", money)];
    match number % 4 {
        0 => drop(reservation.settle(all).await.unwrap()),
        1 => reservation.record(all),
        2 => {
            reservation.record([("tokens", 1), ("micro-dollars", 1)]);
            reservation.extend_to(all).await.unwrap();
            drop(reservation.settle(all));
        }
        _ => {
            reservation.record(all);
            drop((request, reservation));
            std::future::pending::<()>().await;
        }
    }
    Ok(Response::new(String::new()))
}

#[tokio::test]
async fn what_stays_charged_is_what_was_used_for_each_unit_in_one_layer_or_two() {
    let server = RedisServer::start();
    for is_dynamic in [false, true] {
        for layers in [1, 2] {
            for (name, limiter) in memory_and_redis(&server).await {
                let name = format!("{name}, dynamic: {is_dynamic}, {layers} layers");
                let (tokens, money) =
                    (rule("tokens", is_dynamic, true), rule("micro-dollars", is_dynamic, true));
                let both = Rules::new().always(tokens.clone()).always(money.clone());
                let inner = RateLimitLayer::with_rules(
                    limiter.clone(),
                    if layers == 1 { both } else { money.into() },
                );
                let outer = (layers == 2).then(|| RateLimitLayer::with_rules(limiter.clone(), tokens));
                let before = (used(&limiter, "token-plan").await, used(&limiter, "money-plan").await);
                let ask = async |number: u64| {
                    let request = Request::new(number);
                    let service = inner.layer(service_fn(handle));
                    let time = Duration::from_millis(if number % 4 == 3 { 50 } else { 60_000 });
                    match &outer {
                        Some(outer) => {
                            let answer = timeout(time, outer.layer(service).oneshot(request)).await;
                            answer.is_ok_and(|response| response.unwrap().status() == 200)
                        }
                        None => {
                            let answer = timeout(time, service.oneshot(request)).await;
                            answer.is_ok_and(|response| response.unwrap().status() == 200)
                        }
                    }
                };
                let numbers: Vec<u64> = (0..200).collect();
                let answered = join_all(numbers.iter().map(|number| ask(*number))).await;
                limiter.drain(PATIENT).await.unwrap();
                // A client may leave before its request was charged: then nothing was used.
                let complete = numbers.iter().zip(&answered).filter(|(number, _)| **number % 4 != 3);
                assert!(complete.clone().all(|(_, answered)| *answered), "{name}");
                let sum = |of: fn((u64, u64)) -> u64, left: bool| -> u64 {
                    let counts = numbers.iter().filter(|number| left || **number % 4 != 3);
                    counts.map(|number| of(usage(*number))).sum()
                };
                let spent = (
                    used(&limiter, "token-plan").await - before.0,
                    used(&limiter, "money-plan").await - before.1,
                );
                if name.starts_with("memory") {
                    assert_eq!(spent, (sum(|one| one.0, true), sum(|one| one.1, true)), "{name}");
                }
                let (least, most) = (
                    (sum(|one| one.0, false), sum(|one| one.1, false)),
                    (sum(|one| one.0, true), sum(|one| one.1, true)),
                );
                assert!(spent.0 >= least.0 && spent.0 <= most.0, "{name}: {spent:?}, {least:?}, {most:?}");
                assert!(spent.1 >= least.1 && spent.1 <= most.1, "{name}: {spent:?}, {least:?}, {most:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_number_without_its_unit_is_an_error_and_refunds_nothing() {
    let limiter = Limiter::new(MemoryStore::new());
    let layer = RateLimitLayer::with_rules(limiter.clone(), rule("tokens", false, true)).rule(rule(
        "micro-dollars",
        false,
        true,
    ));
    let service = layer.layer(service_fn(|request: Request<()>| async move {
        let reservation = Reservation::from_extensions(request.extensions()).unwrap();
        for (error, named) in [
            (reservation.settle(5).await.unwrap_err(), "several units"),
            (
                reservation.extend_to(5).await.unwrap_err(),
                "give each its number, such as `[(\"tokens\", 5)]`",
            ),
            (reservation.settle([("tokens", 5), ("cents", 1)]).await.unwrap_err(), "`cents`"),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            let text = error.to_string();
            assert!(text.contains(named) && text.contains("`tokens`, `micro-dollars`"), "{text}");
        }
        reservation.record(5);
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    service.oneshot(Request::new(())).await.unwrap();
    assert_eq!((used(&limiter, "token-plan").await, used(&limiter, "money-plan").await), (400, 20));
}

/// The first unit is charged and the charge of the second one is pending, while another handle sets a total.
#[tokio::test]
async fn a_denial_of_one_unit_keeps_a_total_that_another_handle_sets_during_it() {
    for (name, total) in [("settle", 30), ("extend", 130), ("charge more", 107), ("settle to more", 500)] {
        let limiter = Limiter::new(Counted::new(MemoryStore::new()));
        let (tokens, money) = (day("tokens", LIMIT), day("money", LIMIT));
        let charges = [Charge::new(&tokens, &key(), 100), Charge::new(&money, &key(), 20)];
        let decision = limiter.check_all(&charges).await.unwrap();
        let part = |name| Reservation::of_unit(&limiter, &decision.for_policy(name).unwrap(), name);
        let reservation = part("tokens").and(part("money"));

        let mut more = reservation.charge_more([("tokens", 50), ("money", LIMIT)]);
        // Each answer of this store takes two polls: at the second one, the charge of the other unit is made.
        for _ in 0..2 {
            assert!((&mut more).now_or_never().is_none(), "{name}");
        }
        assert_eq!(used(&limiter, "tokens").await, 150, "{name}");
        let set = match name {
            "extend" => reservation.extend_to([("tokens", total)]),
            "charge more" => reservation.charge_more([("tokens", 7)]),
            _ => reservation.settle([("tokens", total)]),
        };
        set.await.unwrap();
        assert!(!more.await.unwrap().is_admitted(), "{name}");
        assert_eq!((used(&limiter, "tokens").await, used(&limiter, "money").await), (total, 20), "{name}");
    }
}
