//! Limits in a file that is edited while the service runs. With Redis, `LivePolicies::redis` does the same
//! for all instances.
//!
//! Run with
//!
//! ```text
//! cargo run -p tower-ratelimit-operate --example reload --features live -- /tmp/limits.toml
//! ```
//!
//! which writes the file if it does not exist. In another terminal, run the lines right after each other;
//! after an edit, wait for a second.
//!
//! ```text
//! curl -i http://127.0.0.1:3000/
//!     200
//!     ratelimit: "hello";r=1;t=30
//!     hello
//! curl -i http://127.0.0.1:3000/
//!     200
//! curl -i http://127.0.0.1:3000/
//!     429
//!     retry-after: 30
//!
//! sed -i 's|2/min|3/min|' /tmp/limits.toml
//!
//! curl -i http://127.0.0.1:3000/limits
//!     200
//!     version 1: hello 3/min
//! curl -i http://127.0.0.1:3000/
//!     200
//!     ratelimit: "hello";r=0;t=20
//! curl -i http://127.0.0.1:3000/
//!     429
//!     retry-after: 20
//!
//! sed -i 's|3/min|many|' /tmp/limits.toml
//!
//! curl -i http://127.0.0.1:3000/limits
//!     500
//!     version 1: hello 3/min; /tmp/limits.toml, line 5: policy `hello`: entry `quota`: invalid quota `many`: write it as `<limit>/<period>`, such as `100/min`, `5/90s`, `10/s burst 20` or `100000/month`
//! curl -i http://127.0.0.1:3000/
//!     429
//!
//! sed -i 's|many|3/min|; s|"on"|"off"|' /tmp/limits.toml
//!
//! curl -i http://127.0.0.1:3000/
//!     200
//!     hello
//! ```
//!
//! `PORT` (3000) is the port, 0 for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{
    env,
    error::Error,
    fs::{self, File},
    io::ErrorKind,
    net::SocketAddr,
    path::Path,
};

use axum::{Router, http::StatusCode, routing::get};
use tokio::net::TcpListener;
use tower_ratelimit::{Limiter, MemoryStore, PeerIp, RateLimitLayer};
use tower_ratelimit_operate::live::LivePolicies;

pub(crate) const FIRST: &str = r#"enforcement = "on"

[[policies]]
name = "hello"
quota = "2/min"
"#;

pub(crate) fn app(limiter: impl Into<Limiter>, live: LivePolicies) -> Result<Router, tower_ratelimit::Error> {
    // The layer keeps the source, which follows every change.
    let limit =
        RateLimitLayer::new(limiter, live.get("hello")?, PeerIp::new()).enforcement(live.enforcement());
    let limits = get(async move || limits(&live));
    Ok(Router::new().route("/", get(async || "hello\n")).layer(limit).route("/limits", limits))
}

/// For a health check: the active policies, and why a change is not.
fn limits(live: &LivePolicies) -> (StatusCode, String) {
    let policies = live.current().into_iter().map(|policy| format!("{} {}", policy.name(), policy.quota()));
    let text = format!("version {}: {}", live.version(), policies.collect::<Vec<_>>().join(", "));
    match live.last_error() {
        None => (StatusCode::OK, text + "\n"),
        Some(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{text}; {error}\n")),
    }
}

/// Writes the first limits, unless the file is there.
fn write_first(path: &Path) -> std::io::Result<()> {
    match File::create_new(path) {
        Ok(_) => fs::write(path, FIRST),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let path = env::args().nth(1).ok_or("name the file: cargo run .. -- /tmp/limits.toml")?;
    write_first(path.as_ref())?;
    let app = app(MemoryStore::new(), LivePolicies::file(path)?)?;
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
