//! Administration: operators find out why a client is denied, lift its limit, refund it, ban it, block
//! networks, and turn enforcement off, on a separate listener and with a token.
//!
//! Run with
//!
//! ```text
//! ADMIN_TOKEN=correct-horse-battery cargo run -p tower-ratelimit-operate --example admin --features admin,live
//! ```
//!
//! and, in another terminal, run the lines right after each other. The service listens on port 3000, and the
//! administration on port 3001 of the loopback interface. A client with an API key has two requests an hour:
//!
//! ```text
//! curl -i -H 'x-api-key: k-ann' http://127.0.0.1:3000/
//!     200
//! curl -i -H 'x-api-key: k-ann' http://127.0.0.1:3000/
//!     200
//! curl -i -H 'x-api-key: k-ann' http://127.0.0.1:3000/
//!     429
//!     retry-after: 1800
//!
//! curl -i http://127.0.0.1:3001/limits/policies
//!     401
//!     www-authenticate: Bearer
//! curl -i -H 'authorization: Bearer guess' http://127.0.0.1:3001/limits/policies
//!     401
//! curl -i -H 'authorization: Bearer correct-horse-battery' http://127.0.0.1:3001/limits/policies
//!     200
//!     {"policies":[{"name":"api","quota":"2/h","algorithm":"gcra","capacity":2,"max_debt":0,"max_lease":0,"has_penalty":true,"quota_unit":"requests","enforced":1.0,"failure_mode":"local"}],"warnings":[],"error":null}
//! curl -i -H 'authorization: Bearer correct-horse-battery' http://127.0.0.1:3001/limits/policies/api/keys/k-ann
//!     200
//!     {"verdict":"denied","retry_after":1800.0,"source":"store","failure":null,"charges":[{"policy":{"name":"api","quota":"2/h","algorithm":"gcra","capacity":2,"max_debt":0,"max_lease":0,"has_penalty":true,"quota_unit":"requests","enforced":1.0,"failure_mode":"local"},"key":"k-ann","identity":"k-ann","key_hash":"02b757a429d88596","stored_as":null,"cost":1,"is_shadow":false,"verdict":"denied","delay":null,"retry_after":1800.0,"banned_for":null,"remaining":0,"reset_after":3600.0,"owed":0}]}
//!
//! curl -i -H 'authorization: Bearer correct-horse-battery' -H 'content-type: application/json' -d '{"units": 1}' http://127.0.0.1:3001/limits/policies/api/keys/k-ann/refund
//!     200
//!     {"remaining":1,"capacity":2,"reset_after":1800.0}
//! curl -i -H 'x-api-key: k-ann' http://127.0.0.1:3000/
//!     200
//! curl -i -H 'x-api-key: k-ann' http://127.0.0.1:3000/
//!     429
//! curl -i -X DELETE -H 'authorization: Bearer correct-horse-battery' http://127.0.0.1:3001/limits/policies/api/keys/k-ann
//!     204
//! curl -i -H 'x-api-key: k-ann' http://127.0.0.1:3000/
//!     200
//!     ratelimit: "api";r=1;t=1800
//!
//! curl -i -H 'authorization: Bearer correct-horse-battery' -H 'content-type: application/json' -d '{"seconds": 600}' http://127.0.0.1:3001/limits/policies/api/keys/k-bad/ban
//!     204
//! curl -i -H 'x-api-key: k-bad' http://127.0.0.1:3000/
//!     429
//!     retry-after: 600
//! curl -i -H 'authorization: Bearer correct-horse-battery' http://127.0.0.1:3001/limits/policies/api/bans
//!     200
//!     {"bans":[{"key":"k-bad","identity":"k-bad","key_hash":"8bd79babb17b90d4","banned_for":600.0}],"is_complete":true}
//! curl -i -X DELETE -H 'authorization: Bearer correct-horse-battery' http://127.0.0.1:3001/limits/policies/api/keys/k-bad/ban
//!     204
//!
//! curl -i -H 'authorization: Bearer correct-horse-battery' http://127.0.0.1:3001/limits/keys/k-bad
//!     200
//! curl -i -H 'authorization: Bearer correct-horse-battery' http://127.0.0.1:3001/limits/denials/top
//!     200
//!     {"denials":[{"policy":"api","key":"k-ann","identity":"k-ann","key_hash":"02b757a429d88596","denials":2,"error":0},{"policy":"api","key":"k-bad","identity":"k-bad","key_hash":"8bd79babb17b90d4","denials":1,"error":0}]}
//!
//! curl -i -X PUT -H 'authorization: Bearer correct-horse-battery' -H 'content-type: application/json' -d '{"reason": "a scraper"}' http://127.0.0.1:3001/limits/blocklist/203.0.113.0/24
//!     204
//! curl -i -H 'authorization: Bearer correct-horse-battery' http://127.0.0.1:3001/limits/blocklist
//!     200
//!     {"networks":[{"network":"203.0.113.0/24","blocked_for":null,"reason":"a scraper","who":null}],"applies_to":"this-instance","error":null}
//! curl -i -X DELETE -H 'authorization: Bearer correct-horse-battery' http://127.0.0.1:3001/limits/blocklist/203.0.113.0/24
//!     204
//!
//! curl -i -X PUT -H 'authorization: Bearer correct-horse-battery' -H 'content-type: application/json' -d '{"enforcement": "off"}' http://127.0.0.1:3001/limits/enforcement
//!     200
//!     {"enforcement":"off","applies_to":"this-instance"}
//! curl -i http://127.0.0.1:3000/
//!     200
//!     hello
//! curl -i -H 'authorization: Bearer correct-horse-battery' http://127.0.0.1:3001/limits/policies/apis/keys/k-ann
//!     404
//!     {"type":"about:blank","title":"Not Found","status":404,"detail":"there is no policy of this name; the policies: `api`"}
//! ```
//!
//! `PORT` (3000) and `ADMIN_PORT` (3001) are the ports, 0 for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{env, error::Error, net::SocketAddr};

use axum::{
    Router,
    extract::{Request, State},
    http::{
        HeaderValue, StatusCode,
        header::{AUTHORIZATION, WWW_AUTHENTICATE},
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tokio::net::TcpListener;
use tower_ratelimit::{
    Header, Limiter, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer,
    policy::{EnforcementSwitch, Penalty},
};
use tower_ratelimit_operate::{admin::Admin, live::Blocklist};

/// The service, and its administration.
pub(crate) fn apps(limiter: impl Into<Limiter>, token: &str) -> (Router, Router) {
    let (limiter, switch) = (limiter.into(), EnforcementSwitch::default());
    // Operators may ban its keys.
    let api = Policy::new("api", Quota::per_hour(2)).penalty(Penalty::manual());
    // `Blocklist::redis` shares it between all instances.
    let blocklist = Blocklist::new();
    let limit = RateLimitLayer::new(limiter.clone(), api.clone(), Header::new("x-api-key"))
        .block_if(PeerIp::new().matching(blocklist.matcher()))
        .enforcement(&switch);
    let limits = Admin::new(limiter, [api])
        .keys_of("api", Header::new("x-api-key"))
        .layer(&limit)
        .blocklist(&blocklist)
        .enforcement(&switch);
    let service = Router::new().route("/", get(async || "hello\n")).layer(limit);

    let admin = Router::new()
        .nest("/limits", limits.router())
        .layer(middleware::from_fn_with_state(Token::new(token), authenticate));
    (service, admin)
}

/// The token of the operators, as the key of a MAC.
#[derive(Clone)]
struct Token(Hmac<Sha256>);

impl Token {
    fn new(token: &str) -> Self {
        Self(Hmac::new_from_slice(token.as_bytes()).unwrap_or_else(|_| unreachable!("any length is right")))
    }

    /// Whether `given` is the token: whether a text has the same MAC under both. MACs are compared in
    /// constant time.
    fn is(&self, given: &[u8]) -> bool {
        let Ok(given) = Hmac::<Sha256>::new_from_slice(given) else { return false };
        let mac = given.chain_update(b"token").finalize().into_bytes();
        self.0.clone().chain_update(b"token").verify_slice(&mac).is_ok()
    }
}

async fn authenticate(State(token): State<Token>, request: Request, next: Next) -> Response {
    let given =
        request.headers().get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    if given.is_some_and(|given| token.is(given)) {
        return next.run(request).await;
    }
    let challenge = [(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))];
    (StatusCode::UNAUTHORIZED, challenge).into_response()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let port = |name: &str, default| env::var(name).map_or(Ok(default), |port| port.parse::<u16>());
    let token = env::var("ADMIN_TOKEN").ok().filter(|token| token.len() >= 16);
    let token = token.ok_or("set ADMIN_TOKEN to a secret of at least 16 characters")?;
    let (service, admin) = apps(MemoryStore::new(), &token);
    let public = TcpListener::bind(("127.0.0.1", port("PORT", 3000)?)).await?;
    // Not reachable from other machines.
    let local = TcpListener::bind(("127.0.0.1", port("ADMIN_PORT", 3001)?)).await?;
    println!(
        "listening on http://{}, administration on http://{}",
        public.local_addr()?,
        local.local_addr()?
    );
    let service = service.into_make_service_with_connect_info::<SocketAddr>();
    tokio::try_join!(axum::serve(public, service), axum::serve(local, admin))?;
    Ok(())
}
