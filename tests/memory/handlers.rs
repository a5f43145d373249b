//! What a handler gets from the layer in front of it, whether the layer has charged the request or not.

use std::{convert::Infallible, fs, path::Path};

use axum::{Router, body::Body, middleware::map_request, routing::post};
use http::{Request, Response, StatusCode};
use support::{Down, inner::text};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_ratelimit::{
    Charge, Decision, ErrorKind, FailureMode, Key, Limiter, MemoryStore, Policy, PolicySource, Quota,
    RateLimitLayer, Rejection, Reservation, Rule,
    policy::{Enforcement, EnforcementSwitch, Penalty},
};

const LIMIT: u64 = 100;
const ESTIMATE: u64 = 10;

fn tokens() -> Policy {
    Policy::new("tokens", Quota::per_day(LIMIT))
}

/// A kind of request that reaches its handler.
struct Row {
    name: &'static str,
    policy: Policy,
    /// What the key is charged before.
    charged: u64,
    is_down: bool,
    build: fn(RateLimitLayer) -> RateLimitLayer,
}

fn rows() -> Vec<Row> {
    let row = |name, policy, build| Row { name, policy, charged: 0, is_down: false, build };
    let over = |row| Row { charged: LIMIT, ..row };
    let outage = |row| Row { is_down: true, ..row };
    let plain = |layer| layer;
    let report_only = |layer: RateLimitLayer| layer.enforcement(Enforcement::ReportOnly);
    let off = |layer: RateLimitLayer| layer.enforcement(EnforcementSwitch::new(Enforcement::Off));
    let exempt = |layer: RateLimitLayer| layer.exempt_if(|_| true);
    let penalty = Penalty::after(1, std::time::Duration::from_secs(60));
    let failing = |mode| tokens().failure_mode(mode);
    vec![
        row("charged", tokens(), plain),
        row("`ReportOnly`, within the limit", tokens(), report_only),
        over(row("`ReportOnly`, over the limit", tokens(), report_only)),
        over(row("`ReportOnly`, banned by a penalty", tokens().penalty(penalty), report_only)),
        outage(row("`ReportOnly`, the store fails, `Closed`", failing(FailureMode::Closed), report_only)),
        row("`Off`", tokens(), off),
        row("exempt", tokens(), exempt),
        row("exempt, and `ReportOnly`", tokens(), |layer| {
            layer.exempt_if(|_| true).enforcement(Enforcement::ReportOnly)
        }),
        row("its `PolicySource` returned `None`", Policy::new("none", Quota::per_day(1)), plain),
        outage(row("the store fails, `Open`", failing(FailureMode::Open), plain)),
        outage(row("the store fails, `Local`", failing(FailureMode::default()), plain)),
        row("a shadow, within the limit", tokens().shadow(), plain),
        over(row("a shadow, over the limit", tokens().shadow(), plain)),
    ]
}

impl Row {
    fn limiter(&self) -> Limiter {
        if self.is_down { Limiter::new(Down) } else { Limiter::new(MemoryStore::new()) }
    }

    fn layer(&self, limiter: &Limiter) -> RateLimitLayer {
        let policy = Some(self.policy.clone()).filter(|policy| policy.name() == "tokens");
        let source = PolicySource::per_request(move |_, _| policy.clone());
        let rule = Rule::new(source, Key::new("all")).cost(|_| ESTIMATE).reserve();
        (self.build)(RateLimitLayer::with_rules(limiter.clone(), rule))
    }

    /// What the handler answers to `body`, and how many units the request is charged then.
    async fn ask(&self, body: &'static str) -> (String, u64) {
        let (limiter, key) = (self.limiter(), Key::new("all"));
        if self.charged > 0 {
            limiter.check(&self.policy, &key, self.charged).await.unwrap();
        }
        let left = async || match limiter.peek(&self.policy, &key, 0).await {
            Ok(peeked) => {
                peeked.outcomes().iter().chain(peeked.shadows()).next().map_or(LIMIT, |one| one.remaining())
            }
            Err(_) => LIMIT,
        };
        let before = left().await;
        let app = Router::new().route("/", post(handle)).layer(self.layer(&limiter));
        let response = app.oneshot(Request::post("/").body(Body::from(body)).unwrap()).await.unwrap();
        let status = response.status();
        let text = text(response).await;
        assert_eq!(status, StatusCode::OK, "{}, {body}: {text}", self.name);
        (text, before - left().await)
    }
}

async fn handle(
    reservation: Reservation,
    decision: Decision,
    optional: Option<Decision>,
    limiter: Limiter,
    asked: String,
) -> Result<String, Rejection> {
    let said = match &*asked {
        "Reservation" => {
            let covered = reservation.decision();
            let units: u64 =
                covered.outcomes().iter().chain(covered.shadows()).map(|outcome| outcome.granted()).sum();
            if units == ESTIMATE { "the estimate" } else { "nothing" }
        }
        "Decision" => match decision.remaining() {
            _ if !decision.is_admitted() => "denied",
            _ if decision.failure().is_some() => "admitted, with the failure",
            None if decision.shadows().is_empty() => "not limited",
            _ => "admitted",
        },
        "Option<Decision>" => optional.map_or("`None`", |_| "`Some`"),
        "check" => {
            let other = Policy::new("other", Quota::per_day(1));
            if limiter.check(&other, &Key::new("all"), 2).await?.is_admitted() { "admits" } else { "denies" }
        }
        "charge_more" => {
            limiter.charge_more(&decision, 5).await?.into_result()?;
            "admitted"
        }
        _ => {
            reservation.settle(30).await?.into_result()?;
            "settled"
        }
    };
    Ok(said.to_owned())
}

/// The table in the docs, which this test prints if it is not there.
#[tokio::test]
async fn a_handler_gets_what_the_docs_say_whether_it_is_charged_or_not() {
    let mut table = "| the request is | `Reservation` covers | `Decision` | `Option<Decision>` | `Limiter::check` of another policy, over its limit \
                     | `Limiter::charge_more` | `Reservation::settle` |\n|---|---|---|---|---|---|---|\n"
        .to_owned();
    for row in rows() {
        let mut cells = vec![row.name.to_owned()];
        for asked in ["Reservation", "Decision", "Option<Decision>", "check"] {
            cells.push(row.ask(asked).await.0);
        }
        let (_, more) = row.ask("charge_more").await;
        cells.push(if more > ESTIMATE { "charges" } else { "admits, charges nothing" }.to_owned());
        let (_, settled) = row.ask("settle").await;
        cells.push(if settled == 30 { "charges" } else { "charges nothing" }.to_owned());
        assert!([0, ESTIMATE, ESTIMATE + 5].contains(&more) && [0, 30].contains(&settled), "{}", row.name);
        table.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/guide/operations.md");
    assert!(
        fs::read_to_string(docs).unwrap().contains(&table),
        "src/guide/operations.md must have this table:\n{table}"
    );
}

/// As in tonic, whose handlers read the extensions.
#[tokio::test]
async fn the_extensions_have_all_that_a_handler_may_ask_for() {
    for row in rows() {
        let service = row.layer(&row.limiter()).layer(service_fn(|request: Request<String>| async move {
            let extensions = request.extensions();
            let found = [
                Reservation::from_extensions(extensions).is_some(),
                Decision::from_extensions(extensions).is_some(),
                Limiter::from_extensions(extensions).is_some(),
            ];
            Ok::<_, Infallible>(Response::new(format!("{found:?}")))
        }));
        let Ok(response) = service.oneshot(Request::new(String::new())).await;
        let found = text(response).await;
        assert_eq!(found, "[true, true, true]", "{}", row.name);
    }
}

/// A middleware may decide too, in front of the layer or behind it, with a limiter that is not the layer's.
#[tokio::test]
async fn handlers_get_all_that_they_extract_beside_a_decision_that_a_middleware_inserts() {
    for row in rows() {
        for is_outside in [true, false] {
            let limiter = Limiter::new(MemoryStore::new());
            let decides = map_request(move |mut request: Request<Body>| {
                let limiter = limiter.clone();
                async move {
                    let checks = Policy::new("checks", Quota::per_hour(9));
                    let decision = limiter.check(&checks, &Key::new("all"), 1).await.unwrap();
                    request.extensions_mut().insert(decision);
                    request
                }
            });
            let handler = async |decision: Decision, limiter: Limiter, _: Reservation| {
                limiter.charge_more(&decision, 1).await.unwrap();
                let names: Vec<_> =
                    decision.outcomes().iter().map(|one| one.policy().name().to_owned()).collect();
                names.join(", ")
            };
            let (app, layer) = (Router::new().route("/", post(handler)), row.layer(&row.limiter()));
            let app =
                if is_outside { app.layer(layer).layer(decides) } else { app.layer(decides).layer(layer) };
            let response = app.oneshot(Request::post("/").body(Body::empty()).unwrap()).await.unwrap();
            let name = format!("{}, outside: {is_outside}", row.name);
            assert_eq!(response.status(), StatusCode::OK, "{name}");
            let named = text(response).await;
            match row.name {
                "charged" => assert_eq!(named, "tokens", "{name}"),
                "exempt" | "`Off`" => assert_eq!(named, "checks", "{name}"),
                _ => {}
            }
        }
    }
}

/// Layers for two kinds of clients, each of which exempts the others.
#[tokio::test]
async fn a_layer_that_does_not_charge_leaves_what_an_outer_layer_has_reserved() {
    for (name, build) in [
        ("exempt", (|layer| layer.exempt_if(|_| true)) as fn(RateLimitLayer) -> RateLimitLayer),
        ("off", |layer| layer.enforcement(Enforcement::Off)),
        ("over the limit", |layer| layer.enforcement(Enforcement::ReportOnly)),
    ] {
        let outer = Limiter::new(MemoryStore::new());
        let free = Rule::new(tokens(), Key::new("all")).cost(|_| ESTIMATE).reserve();
        let free = RateLimitLayer::with_rules(outer.clone(), free);
        let other = Policy::new("paid", Quota::per_day(1));
        let paid = Rule::new(other, Key::new("all")).cost(|_| 2).reserve();
        let paid = RateLimitLayer::with_rules(MemoryStore::new(), paid);
        let app = Router::new()
            .route(
                "/",
                post(async |reservation: Reservation| {
                    drop(reservation.settle(30).await.unwrap());
                }),
            )
            .layer(build(paid))
            .layer(free);
        app.oneshot(Request::post("/").body(Body::empty()).unwrap()).await.unwrap();
        let left = outer.peek(&tokens(), &Key::new("all"), 0).await.unwrap().remaining();
        assert_eq!(left, Some(LIMIT - 30), "{name}");
    }
}

#[tokio::test]
async fn behind_layers_that_charge_nothing_a_handler_gets_the_limiter_of_the_innermost_one() {
    let [outer, inner] = [(); 2].map(|()| Limiter::new(MemoryStore::new()));
    let exempt = |limiter: &Limiter| {
        RateLimitLayer::new(limiter.clone(), tokens(), Key::new("all")).exempt_if(|_| true)
    };
    let app = Router::new()
        .route(
            "/",
            post(async |limiter: Limiter| {
                drop(limiter.check(&tokens(), &Key::new("all"), 1).await.unwrap());
            }),
        )
        .layer(exempt(&inner))
        .layer(exempt(&outer));
    app.oneshot(Request::post("/").body(Body::empty()).unwrap()).await.unwrap();
    for (name, limiter, left) in [("outer", outer, LIMIT), ("inner", inner, LIMIT - 1)] {
        let remaining = limiter.peek(&tokens(), &Key::new("all"), 0).await.unwrap().remaining();
        assert_eq!(remaining, Some(left), "{name}");
    }
}

#[tokio::test]
async fn a_handler_without_a_reserving_layer_is_answered_with_500() {
    let app = Router::new().route("/", post(async |_: Reservation| ()));
    let layer = RateLimitLayer::new(MemoryStore::new(), tokens(), Key::new("all"));
    for app in [app.clone(), app.layer(layer)] {
        let response = app.oneshot(Request::post("/").body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}

#[tokio::test]
async fn under_report_only_a_failing_store_admits_a_handler_which_learns_its_mistakes() {
    async fn ask(limiter: Limiter) -> Result<String, Rejection> {
        let closed = Policy::new("closed", Quota::per_day(1)).failure_mode(FailureMode::Closed);
        let (key, charge) = (Key::new("all"), |cost| Charge::new(&closed, &Key::new("all"), cost));
        let failed = limiter.check(&closed, &key, 1).await?.into_result()?;
        assert!(failed.failure().is_some());
        let twice = limiter.check_all(&[charge(1), charge(2)]).await.unwrap_err();
        assert_eq!(twice.kind(), ErrorKind::InvalidConfig);
        // An operator sees the truth.
        assert!(limiter.operator().owed(&closed.clone().max_debt(1), &key).await.is_err());
        Ok(String::new())
    }
    let layer = RateLimitLayer::new(Down, tokens(), Key::new("all")).enforcement(Enforcement::ReportOnly);
    let app = Router::new().route("/", post(ask)).layer(layer);
    let response = app.oneshot(Request::post("/").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}
