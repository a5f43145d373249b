//! One reservation covers the rules of all layers, and settles each unit apart.

use std::{convert::Infallible, time::Duration};

use futures_util::{FutureExt as _, future::join_all};
use http::{Request, Response};
use support::{Counted, Down, PATIENT, RedisServer, day, memory_and_redis};
use tokio::time::timeout;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_ratelimit::{
    Charge, Decision, ErrorKind, FailureMode, Key, Limiter, MemoryStore, PolicySource, RateLimitLayer,
    Reservation, Rule, layer::Rules, policy::Enforcement,
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

/// The estimate of the outer layer is settled too.
#[tokio::test]
async fn settling_in_one_unit_settles_the_rules_of_all_layers() {
    let limiter = Limiter::new(MemoryStore::new());
    let reserving = |name| Rule::new(day(name, 1_000), key()).cost(|_| 20).reserve_or_refund();
    let [inner, outer] =
        ["inner", "outer"].map(|name| RateLimitLayer::with_rules(limiter.clone(), reserving(name)));
    let service = outer.layer(inner.layer(service_fn(|request: Request<()>| async move {
        let reservation = Reservation::from_extensions(request.extensions()).unwrap();
        assert_eq!(reservation.decision().outcomes().len(), 2);
        let settled = reservation.settle(100).await.unwrap();
        assert_eq!(settled.outcomes().len(), 2);
        Ok::<_, Infallible>(Response::new(String::new()))
    })));
    let mut admitted = 0;
    for _ in 0..50 {
        admitted += u32::from(service.clone().oneshot(Request::new(())).await.unwrap().status() == 200);
    }
    assert_eq!(admitted, 10, "each uses 100 of 1,000");
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

#[tokio::test]
async fn a_unit_of_which_a_request_is_charged_nothing_can_be_settled() {
    let limiter = Limiter::new(MemoryStore::new());
    let layer = RateLimitLayer::with_rules(limiter.clone(), rule("tokens", true, false))
        .rule(rule("micro-dollars", true, false).skip_if(|_| true));
    let service = layer.layer(service_fn(|request: Request<()>| async move {
        let reservation = Reservation::from_extensions(request.extensions()).unwrap();
        reservation.settle([("tokens", 5), ("micro-dollars", 1)]).await.unwrap();
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    service.oneshot(Request::new(())).await.unwrap();
    assert_eq!((used(&limiter, "token-plan").await, used(&limiter, "money-plan").await), (5, 0));
}

/// The answer of a handler that calls `charge` with its reservation, behind a layer with a limit of two requests for each
/// address, and rules for tokens and money in that layer or in one around it.
async fn charging<F: Future<Output = Decision> + Send + 'static>(
    limiter: &Limiter,
    layers: usize,
    enforcement: Enforcement,
    charge: impl Fn(Reservation) -> F + Clone + Send + 'static,
) -> Decision {
    let addresses = Rule::new(day("addresses", 2), key());
    let (tokens, money) = (rule("tokens", true, false), rule("micro-dollars", true, false));
    let around = RateLimitLayer::with_rules(limiter.clone(), tokens.clone());
    let rules = Rules::new().always(addresses).always(money);
    let rules = if layers == 1 { rules.always(tokens) } else { rules };
    let around = around.enforcement(if layers == 1 { Enforcement::Off } else { enforcement });
    let layer = RateLimitLayer::with_rules(limiter.clone(), rules).enforcement(enforcement);
    let service = around.layer(layer.layer(service_fn(move |request: Request<()>| {
        let reservation = Reservation::from_extensions(request.extensions()).unwrap().clone();
        let charged = charge(reservation);
        async move {
            let mut response = Response::new(String::new());
            response.extensions_mut().insert(charged.await);
            Ok::<_, Infallible>(response)
        }
    })));
    let mut request = Request::new(());
    request.extensions_mut().insert(Decision::new([]));
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let decision = response.extensions().get::<Decision>().unwrap().clone();
    // The layers keep the reservation until the body ends.
    drop(response);
    limiter.drain(PATIENT).await.unwrap();
    decision
}

#[tokio::test]
async fn a_handler_charges_more_to_the_rules_of_a_unit_and_to_no_other() {
    let server = RedisServer::start();
    for layers in [1, 2] {
        for (name, limiter) in memory_and_redis(&server).await {
            let name = format!("{name}, {layers} layers");
            limiter.operator().reset(&day("addresses", 2), &key()).await.unwrap();
            let spent = async || (used(&limiter, "token-plan").await, used(&limiter, "money-plan").await);
            let before = spent().await;
            charging(&limiter, layers, Enforcement::On, |reservation| async move {
                let more = reservation.charge_more([("tokens", 99)]).await.unwrap();
                assert!(more.is_admitted());
                more
            })
            .await;
            let after = spent().await;
            assert_eq!((after.0 - before.0, after.1 - before.1), (499, 20), "{name}");

            // One unit is denied, so none is charged. The total includes what was charged before.
            charging(&limiter, layers, Enforcement::On, |reservation| async move {
                for units in
                    [[("tokens", 7), ("micro-dollars", LIMIT)], [("tokens", LIMIT), ("micro-dollars", 7)]]
                {
                    assert!(!reservation.charge_more(units).await.unwrap().is_admitted());
                }
                let both = [("tokens", 50), ("micro-dollars", 30)];
                assert!(reservation.charge_more(both).await.unwrap().is_admitted());
                reservation.settle([("tokens", 410)]).await.unwrap()
            })
            .await;
            let end = spent().await;
            assert_eq!((end.0 - after.0, end.1 - after.1), (410, 50), "{name}");
            let requests = limiter.peek(&day("addresses", 2), &key(), 0).await.unwrap().remaining();
            assert_eq!(requests, Some(0), "each request counts once: {name}");
        }
    }
}

#[tokio::test]
async fn more_is_charged_and_denied_as_the_layer_enforces_it() {
    for layers in [1, 2] {
        for (enforcement, spent) in
            [(Enforcement::On, 449), (Enforcement::ReportOnly, 449), (Enforcement::Off, 0)]
        {
            let limiter = Limiter::new(MemoryStore::new());
            charging(&limiter, layers, enforcement, move |reservation| async move {
                let too_much = reservation.charge_more([("tokens", LIMIT)]).await.unwrap();
                assert_eq!(too_much.is_admitted(), enforcement != Enforcement::On, "{enforcement:?}");
                reservation.charge_more([("tokens", 49)]).await.unwrap()
            })
            .await;
            assert_eq!(used(&limiter, "token-plan").await, spent, "{enforcement:?}, {layers} layers");
        }
    }
}

#[tokio::test]
async fn more_is_charged_without_a_unit_if_one_rule_reserves() {
    let limiter = Limiter::new(MemoryStore::new());
    let reserved = limiter.check(&day("token-plan", LIMIT), &key(), 400).await.unwrap();
    let reservation = Reservation::new(&limiter, &reserved).or_refund();
    assert!(reservation.charge_more(100).await.unwrap().is_admitted());
    assert_eq!(used(&limiter, "token-plan").await, 500);
    // What was charged more belongs to the estimate.
    drop(reservation);
    limiter.drain(PATIENT).await.unwrap();
    assert_eq!(used(&limiter, "token-plan").await, 0);
}

/// A policy that has no more room in this process's share denies, and a closed one fails.
#[tokio::test]
async fn more_is_denied_in_an_outage_by_the_failure_mode() {
    for (mode, expected) in [(FailureMode::default(), Some(false)), (FailureMode::Open, Some(true))] {
        let limiter = Limiter::new(Down);
        let plan = day("tokens", 100).failure_mode(mode);
        let reserved = limiter.check(&plan, &key(), 60).await.unwrap();
        let reservation = Reservation::new(&limiter, &reserved);
        let more = reservation.charge_more(60).await;
        assert_eq!(more.ok().map(|more| more.is_admitted()), expected, "{mode:?}");
        assert!(reservation.charge_more(40).await.unwrap().is_admitted(), "{mode:?}");
    }
}

/// The outer layer only reports its denial, which has charged nothing.
#[tokio::test]
async fn a_denial_of_one_unit_refunds_what_the_others_were_charged_and_no_estimate() {
    let limiter = Limiter::new(MemoryStore::new());
    let outer = RateLimitLayer::with_rules(limiter.clone(), rule("tokens", false, false));
    let inner = RateLimitLayer::with_rules(limiter.clone(), rule("micro-dollars", false, false));
    let outer = outer.enforcement(Enforcement::ReportOnly);
    let service = outer.layer(inner.layer(service_fn(|request: Request<()>| async move {
        let reservation = Reservation::from_extensions(request.extensions()).unwrap();
        let too_much = [("tokens", LIMIT), ("micro-dollars", LIMIT)];
        assert!(!reservation.charge_more(too_much).await.unwrap().is_admitted());
        Ok::<_, Infallible>(Response::new(String::new()))
    })));
    drop(service.oneshot(Request::new(())).await.unwrap());
    limiter.drain(PATIENT).await.unwrap();
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
