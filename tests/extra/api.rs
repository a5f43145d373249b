//! An API behind a proxy: a limit for each address, plans by API key from a database, logins with bans, CORS, and one JSON
//! error format.

use std::time::Duration;

use axum::{
    Json, Router,
    response::IntoResponse,
    routing::{get, post},
};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use support::{RedisServer, http as server};
use tower_http::cors::CorsLayer;
use tower_ratelimit::{
    ClientIp, Error, ErrorKind, Header, Key, KeyExtractor as _, Limiter, MemoryStore, Policy, PolicySource,
    Quota, RateLimitHeaders, RateLimitLayer, Rejection, Rule, algorithm::SlidingLog, key::TrustedProxies,
    layer::Rules, policy::Penalty, store::ManualClock,
};
use tower_ratelimit_extra::lookup::Lookup;

/// The plan and the account of an API key, from a database.
async fn account(api_key: String) -> Result<(&'static str, u64), Error> {
    match &*api_key {
        "k-ann" | "k-ann-2" => Ok(("free", 1)),
        "k-acme" => Ok(("paid", 2)),
        _ => Err(Error::new(ErrorKind::UnknownIdentity, "no account has this API key")),
    }
}

fn app(limiter: impl Into<Limiter>) -> Result<Router, Error> {
    let ip = ClientIp::behind(TrustedProxies::cidrs(["127.0.0.0/8"])?);
    let per_ip = Rule::new(Policy::new("per-ip", Quota::per_minute(30).burst(30)), ip.clone());

    let failed = Policy::new("login", Quota::per_minute(5))
        .algorithm(SlidingLog::new())
        .penalty(Penalty::after(3, Duration::from_secs(600)).ban(Duration::from_secs(900)));
    let failed = Rule::new(failed, ip).count_if(|response| response.status == StatusCode::UNAUTHORIZED);

    let accounts = Lookup::new(account);
    let account = Header::new("x-api-key").map(move |api_key| accounts.get(api_key).map(Key::new));
    let (free, paid) =
        (Policy::new("free", Quota::per_minute(5)), Policy::new("paid", Quota::per_minute(100)));
    let plan = PolicySource::per_request(move |_: &Parts, account: &Key| {
        if account.identity().is_some_and(|plan| plan.starts_with("paid")) {
            paid.clone()
        } else {
            free.clone()
        }
    });

    let rules = Rules::new()
        .always(per_ip)
        .route("POST /login", failed)
        .route("/api/{*rest}", Rule::new(plan, account));
    let limit = RateLimitLayer::with_rules(limiter, rules).response(error_format);
    let cors = CorsLayer::new()
        .allow_origin(tower_http::cors::Any)
        .expose_headers(RateLimitHeaders::default().names());
    Ok(Router::new()
        .route("/api/orders", get(async || "orders"))
        .route("/login", post(log_in))
        .layer(limit)
        .route("/health", get(async || "ok"))
        .layer(cors))
}

fn error_format(rejection: &Rejection, _: &Parts) -> impl IntoResponse + use<> {
    Json(json!({ "error": rejection.to_string(), "retryAfter": rejection.retry_after_seconds() }))
}

async fn log_in(password: String) -> StatusCode {
    if password == "secret" { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
}

/// The status of a request to `app` as it would come through the proxy from `client`, its `Retry-After` and its body.
async fn ask(
    (client, address): (&server::Client, &str),
    from: &str,
    request: http::request::Builder,
    body: &str,
) -> (u16, Option<String>, Value) {
    let path = request.uri_ref().unwrap().clone();
    let request = request.uri(format!("http://{address}{path}")).header("x-forwarded-for", from);
    let response: Response<String> = client.send(request.body(body.to_owned()).unwrap()).await;
    let wait = response.headers().get("retry-after").map(|wait| wait.to_str().unwrap().to_owned());
    (response.status().as_u16(), wait, serde_json::from_str(response.body()).unwrap_or(Value::Null))
}

/// The program on memory with a clock, and on Redis.
async fn programs() -> Vec<(Limiter, ManualClock, Option<RedisServer>)> {
    let (clock, redis) = (ManualClock::new(), RedisServer::start());
    let shared = support::settings().manual_clock(clock.clone()).connect(redis.url()).await.unwrap();
    let memory = Limiter::new(MemoryStore::with_clock(clock.clone()));
    vec![(memory, clock.clone(), None), (Limiter::new(shared), clock, Some(redis))]
}

#[tokio::test]
async fn keys_are_not_guessed_without_limit_and_plans_come_from_the_accounts() {
    for (limiter, clock, _redis) in programs().await {
        let address = server::serve(app(limiter).unwrap()).await.to_string();
        let on = (&server::Client::new(), &*address);
        let orders = |key: &str| Request::get("/api/orders").header("x-api-key", key);

        // Two keys of one account share its limit. What the client writes in front of its address does not count.
        for key in ["k-ann", "k-ann-2", "k-ann", "k-ann-2", "k-ann"] {
            assert_eq!(ask(on, "203.0.113.7", orders(key), "").await.0, 200);
        }
        let (status, wait, body) = ask(on, "1.2.3.4, 203.0.113.7", orders("k-ann"), "").await;
        assert_eq!((status, wait.as_deref(), &body["retryAfter"]), (429, Some("12"), &json!(12)));
        assert_eq!(ask(on, "203.0.113.7", orders("k-acme"), "").await.0, 200);

        let mut guesses = Vec::new();
        for guess in 0..100 {
            guesses.push(ask(on, "198.51.100.1", orders(&format!("guess-{guess}")), "").await.0);
        }
        assert_eq!(guesses.iter().filter(|status| **status == 401).count(), 30);
        assert_eq!(guesses.iter().filter(|status| **status == 429).count(), 70);

        // Health checks are not counted, nor kept from clients that are over the limit.
        assert_eq!(ask(on, "198.51.100.1", Request::get("/health"), "").await.0, 200);
        let preflight = Request::builder().method(Method::OPTIONS).uri("/api/orders");
        let preflight =
            preflight.header("origin", "https://a.test").header("access-control-request-method", "GET");
        assert_eq!(ask(on, "198.51.100.1", preflight, "").await.0, 200);
        clock.advance(Duration::from_secs(60));
    }
}

#[tokio::test]
async fn only_failed_logins_count_and_guessing_on_is_banned() {
    for (limiter, _clock, _redis) in programs().await {
        let address = server::serve(app(limiter).unwrap()).await.to_string();
        let on = (&server::Client::new(), &*address);
        let log_in = async |password| {
            let (status, wait, _) = ask(on, "203.0.113.7", Request::post("/login"), password).await;
            (status, wait)
        };
        for _ in 0..6 {
            assert_eq!(log_in("secret").await.0, 200);
        }
        for _ in 0..5 {
            assert_eq!(log_in("guess").await.0, 401);
        }
        for _ in 0..2 {
            assert_eq!(log_in("guess").await, (429, Some("60".into())));
        }
        assert_eq!(log_in("guess").await, (429, Some("900".into())));
        assert_eq!(log_in("secret").await, (429, Some("900".into())));
    }
}
