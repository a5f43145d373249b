//! A limit per user, found by an axum extractor, and a handler that charges more for more work.
//!
//! Run with
//!
//! ```text
//! cargo run --example axum_extractor_key
//! ```
//!
//! and, in another terminal, run the lines one after the other. The limit is six units a minute. A request
//! costs one unit, and one more for each word in its body.
//!
//! ```text
//! curl -i -H 'authorization: Bearer t0k3n' -d 'one two three' http://127.0.0.1:3000/translate
//!     200
//!     ratelimit: "words";r=2;t=20
//!     3 words
//! curl -i -H 'authorization: Bearer t0k3n' -d 'one two three' http://127.0.0.1:3000/translate
//!     429
//!     retry-after: 20
//!     ratelimit: "words";r=1
//! curl -i -d 'one' http://127.0.0.1:3000/translate
//!     200
//!     ratelimit: "words";r=4;t=40
//!     1 words
//! ```
//!
//! The layer admits the second request, and the handler denies its words: the unit for the request stays
//! charged. Requests without a token are limited by address.
//!
//! With `SECRET`, the store has only hashes of the user names. All instances need the same secret. `PORT`
//! (3000) is the port, 0 for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{collections::HashMap, env, error::Error, net::SocketAddr, sync::Arc};

use axum::{Router, extract::FromRequestParts, response::IntoResponse, routing::post};
use http::{StatusCode, header::AUTHORIZATION, request::Parts};
use tokio::net::TcpListener;
use tower_ratelimit::{
    Decision, KeyExtractor as _, Limiter, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer, Rejection,
    key::from_extractor,
};

/// The users by their tokens. In a service, this is a database.
#[derive(Clone)]
struct Users(Arc<HashMap<&'static str, &'static str>>);

impl Users {
    async fn find(&self, token: &str) -> Option<&'static str> {
        tokio::task::yield_now().await;
        self.0.get(token).copied()
    }
}

/// The user that the bearer token belongs to.
struct User(&'static str);

impl FromRequestParts<Users> for User {
    type Rejection = StatusCode;

    async fn from_request_parts(request: &mut Parts, users: &Users) -> Result<Self, StatusCode> {
        let header = request.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer ")).ok_or(StatusCode::UNAUTHORIZED)?;
        users.find(token).await.map(Self).ok_or(StatusCode::UNAUTHORIZED)
    }
}

/// The layer has charged one unit for the request. Each word costs one more, and only the handler knows their
/// number.
async fn translate(
    decision: Decision,
    limiter: Limiter,
    text: String,
) -> Result<impl IntoResponse, Rejection> {
    let words = text.split_whitespace().count() as u64;
    let decision = limiter.charge_more(&decision, words).await?.into_result()?;
    // With the newer decision in its extensions, the response reports the current number of remaining units.
    Ok((decision, format!("{words} words\n")))
}

pub(crate) fn app(limiter: impl Into<Limiter>, secret: &str) -> Router {
    let users = Users(Arc::new(HashMap::from([("t0k3n", "alice")])));
    let user = from_extractor(users.clone(), |User(name)| name);
    let key = user.or(PeerIp::new()).hashed(secret);
    let policy = Policy::new("words", Quota::per_minute(6));
    Router::new()
        .route("/translate", post(translate))
        .layer(RateLimitLayer::new(limiter, policy, key))
        .with_state(users)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let secret = env::var("SECRET").unwrap_or_else(|_| "for trying it out only".into());
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(
        listener,
        app(MemoryStore::new(), &secret).into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?;
    Ok(())
}
