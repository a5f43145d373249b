//! Tiers from a database: an account's plan decides its limit, and its API keys share it.
//!
//! Run with
//!
//! ```text
//! cargo run -p tower-ratelimit-extra --example tiers --features lookup
//! ```
//!
//! and, in another terminal, run the lines right after each other. `k-ann-1` and `k-ann-2` are API keys of
//! one account on the free plan, which may send two requests a minute. `k-ops` belongs to an account without
//! a limit. No account has `k-stolen`. Requests without an API key are limited by address.
//!
//! All requests of an address are limited too, even those with an unknown API key. So guesses of API keys are
//! limited, and guesses over the limit cause no query.
//!
//! ```text
//! curl -i -H 'x-api-key: k-ann-1' http://127.0.0.1:3000/
//!     200
//!     ratelimit: "per-ip";r=5;t=50, "free";r=1;t=30
//!     hello
//! curl -i -H 'x-api-key: k-ann-1' http://127.0.0.1:3000/
//!     200
//!     ratelimit: "per-ip";r=4;t=40, "free";r=0;t=30
//!     hello
//! curl -i -H 'x-api-key: k-ann-2' http://127.0.0.1:3000/
//!     429
//!     retry-after: 30
//! curl -i -H 'x-api-key: k-stolen' http://127.0.0.1:3000/
//!     401
//!     www-authenticate: ApiKey realm="example"
//!     ratelimit: "per-ip";r=3;t=30
//!     {"type":"about:blank","title":"Unauthorized","status":401,"detail":"no account has this API key"}
//! curl -i -H 'x-api-key: k-ops' http://127.0.0.1:3000/
//!     200
//!     ratelimit: "per-ip";r=2;t=20
//!     hello
//! curl -i http://127.0.0.1:3000/
//!     200
//!     ratelimit: "per-ip";r=1;t=10, "anonymous";r=0;t=60
//!     hello
//! curl -i http://127.0.0.1:3000/
//!     429
//!     retry-after: 60
//! curl -i http://127.0.0.1:3000/queries
//!     200
//!     4 queries of the database
//! curl -i -H 'x-api-key: k-guess' http://127.0.0.1:3000/
//!     429
//!     retry-after: 10
//! ```
//!
//! The database gets at most one query per minute for each API key. While it is down, known clients keep
//! their tiers for an hour, and others are rejected with 500, because they cannot be identified.
//!
//! `PORT` (3000) is the port, 0 for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{
    collections::HashMap,
    env,
    error::Error as StdError,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, routing::get};
use http::{HeaderValue, Response, StatusCode, header::WWW_AUTHENTICATE, request::Parts};
use tokio::net::TcpListener;
use tower_ratelimit::{
    Error, ErrorKind, Header, Key, KeyExtractor as _, Limiter, MemoryStore, PeerIp, Policy, PolicySource,
    Quota, RateLimitLayer, Rejection, Rule,
    layer::Rules,
    response::{ProblemDetails, RejectionBody, ResponseMapper as _},
};
use tower_ratelimit_extra::lookup::Lookup;

#[derive(Clone, Copy)]
struct Account {
    plan: &'static str,
    id: u64,
}

/// The accounts by their API keys. In a service, this is a database.
#[derive(Clone)]
struct Accounts {
    by_key: Arc<HashMap<&'static str, Account>>,
    queries: Arc<AtomicUsize>,
}

impl Accounts {
    fn new() -> Self {
        let ann = Account { plan: "free", id: 1 };
        let acme = Account { plan: "paid", id: 2 };
        let operators = Account { plan: "unlimited", id: 3 };
        let by_key = [("k-ann-1", ann), ("k-ann-2", ann), ("k-acme", acme), ("k-ops", operators)];
        Self { by_key: Arc::new(HashMap::from(by_key)), queries: Arc::default() }
    }

    /// The lookup caches the error of an unknown API key, too.
    async fn find(&self, api_key: &str) -> Result<Account, Error> {
        self.queries.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(1)).await;
        let unknown = || Error::new(ErrorKind::UnknownIdentity, "no account has this API key");
        self.by_key.get(api_key).copied().ok_or_else(unknown)
    }
}

const API_KEY: &str = "x-api-key";

pub(crate) fn app(limiter: impl Into<Limiter>) -> Router {
    let accounts = Accounts::new();
    let queries = accounts.queries.clone();
    let accounts = Lookup::new(move |api_key: String| {
        let accounts = accounts.clone();
        async move { accounts.find(&api_key).await }
    });

    // The API keys of an account share its limit. The key has the plan too, so the account is looked up once.
    // The parts of an identity are joined by U+001F.
    let account = Header::new(API_KEY)
        .map(move |api_key| accounts.get(api_key).map(|account| Key::new((account.plan, account.id))));

    let free = Policy::new("free", Quota::per_minute(2));
    let paid = Policy::new("paid", Quota::per_minute(100));
    let anonymous = Policy::new("anonymous", Quota::per_minute(1));
    let tier = PolicySource::per_request(move |_: &Parts, account: &Key| {
        let account = account.identity().unwrap_or_default();
        match account.split_once('\u{1f}') {
            Some(("unlimited", _)) => None,
            Some(("paid", _)) => Some(paid.clone()),
            Some(_) => Some(free.clone()),
            None => Some(anonymous.clone()),
        }
    });

    // A request whose API key is unknown is charged under this one.
    let per_ip = Rule::new(Policy::new("per-ip", Quota::per_minute(6)), PeerIp::new());
    let rules = Rules::new().always(per_ip).route("/", Rule::new(tier, account.or(PeerIp::new())));
    Router::new()
        .route("/", get(async || "hello\n"))
        .route(
            "/queries",
            get(async move || format!("{} queries of the database\n", queries.load(Ordering::Relaxed))),
        )
        .layer(RateLimitLayer::with_rules(limiter, rules).response(rejected))
}

/// HTTP wants a challenge on a 401, and only the service knows the scheme.
fn rejected(rejection: &Rejection, request: &Parts) -> Response<RejectionBody> {
    let mut response = ProblemDetails::default().response(rejection, request);
    if response.status() == StatusCode::UNAUTHORIZED {
        let challenge = HeaderValue::from_static("ApiKey realm=\"example\"");
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    response
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn StdError>> {
    tracing_subscriber::fmt().init();
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app(MemoryStore::new()).into_make_service_with_connect_info::<SocketAddr>())
        .await?;
    Ok(())
}
