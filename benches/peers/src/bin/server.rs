//! The server of the second part: `server none|memory|redis REDIS_URL`. Prints its address and serves until its
//! standard input closes, so that it never outlives its parent process.

use std::{env, error::Error, io::Read, process, thread, time::Duration};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_ratelimit::{FailureMode, Header, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, RedisStore};

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [kind, redis] = &arguments[..] else {
        return Err("server none|memory|redis REDIS_URL".into());
    };
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        process::exit(0);
    });

    let mut app = Router::new().route("/", get(async || ""));
    match kind.as_str() {
        "none" => {}
        "memory" => app = app.layer(limit(MemoryStore::new())?),
        "redis" => {
            // As in the first part, saturation must show as throughput, not as timeouts.
            let store = RedisStore::builder()
                .prefix("server")
                .deadline(Duration::from_secs(10))
                .connect(redis)
                .await?;
            app = app.layer(limit(store)?);
        }
        other => return Err(format!("no such kind of server: {other}").into()),
    }
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("http://{}/", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

/// A limit that is never reached.
fn limit(store: impl Into<Limiter>) -> Result<RateLimitLayer, Box<dyn Error>> {
    let quota = Quota::try_new(10_000_000, Duration::from_secs(365 * 24 * 60 * 60))?;
    // A store that fails must show as answers other than 2xx.
    let policy = Policy::new("p", quota).failure_mode(FailureMode::Closed);
    Ok(RateLimitLayer::new(store, policy, Header::new("x-api-key")))
}
