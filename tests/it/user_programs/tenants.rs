//! Tenants from the claims of a token, an extractor and a mapper of the user's own.

use axum::{Json, Router, middleware, routing::get};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use serde_json::json;
use tower::ServiceExt as _;
use tower_ratelimit::{
    Answer, Error, ErrorKind, Key, KeyExtractor, Limiter, MemoryStore, Policy, PolicySource, Quota,
    RateLimitLayer, Rejection, Rule, key::from_extension,
};

/// What a checked token says.
#[derive(Clone)]
struct Claims {
    tenant: String,
    per_hour: u64,
}

/// The user of a request, from the path.
struct User;

impl KeyExtractor for User {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        let user = request.uri.path().strip_prefix("/users/").map(Key::new);
        user.ok_or_else(|| Error::new(ErrorKind::MissingIdentity, "the path has no user")).into()
    }
}

fn app(limiter: impl Into<Limiter>) -> Router {
    let plan = PolicySource::from_extension(|claims: &Claims| {
        Policy::new("tenant", Quota::per_hour(claims.per_hour))
    });
    let tenant = Rule::new(plan, from_extension(|claims: &Claims| claims.tenant.clone()));
    let limit = RateLimitLayer::with_rules(limiter, tenant)
        .rule(Rule::new(Policy::new("user", Quota::per_hour(2)), User))
        .response(|rejection: &Rejection, request: &Parts| {
            Json(json!({ "path": request.uri.path(), "status": rejection.status().as_u16() }))
        });
    Router::new()
        .route("/users/{user}", get(async || "hello"))
        .layer(limit)
        .layer(middleware::map_request(claims))
}

/// Stands for a check of a JWT.
async fn claims<B>(mut request: Request<B>) -> Result<Request<B>, StatusCode> {
    let token = request.headers().get("authorization").and_then(|token| token.to_str().ok());
    let (tenant, per_hour) = match token {
        Some("acme") => ("acme", 3),
        Some("globex") => ("globex", 1),
        _ => return Err(StatusCode::UNAUTHORIZED),
    };
    request.extensions_mut().insert(Claims { tenant: tenant.to_owned(), per_hour });
    Ok(request)
}

#[tokio::test]
async fn each_tenant_has_its_limit_and_each_user_one_more() {
    let app = app(MemoryStore::new());
    let ask = async |token: &str, user: &str| {
        let request = Request::get(format!("/users/{user}")).header("authorization", token);
        let response: Response<_> =
            app.clone().oneshot(request.body(axum::body::Body::empty()).unwrap()).await.unwrap();
        response.status().as_u16()
    };
    assert_eq!(
        [ask("acme", "ann").await, ask("acme", "ann").await, ask("acme", "ann").await],
        [200, 200, 429]
    );
    assert_eq!([ask("acme", "bob").await, ask("acme", "cem").await], [200, 429]);
    assert_eq!([ask("globex", "dan").await, ask("globex", "eve").await], [200, 429]);
    assert_eq!(ask("none", "ann").await, 401);
}
