//! What the tests share: a Redis server of one's own, a naive model, and small services.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(unreachable_pub, reason = "a module of several crates")]

pub mod http;
pub mod model;
pub mod redis_server;

pub use redis_server::RedisServer;

use std::time::Duration;

use tower_ratelimit::RedisStore;

/// As long as redis-rs waits: tests count, they do not race a busy machine.
pub const PATIENT: Duration = Duration::from_millis(500);

/// A store on `server` that waits for its decisions.
pub async fn store(server: &RedisServer) -> RedisStore {
    RedisStore::connect(&server.url()).await.unwrap().deadline(PATIENT)
}
