//! Checks whether the server evicts exhausted limits when its memory is full.

use std::time::Duration;

use bb8_redis::{RedisConnectionManager, bb8::Pool};
use tokio::time::timeout;

const INFO_TIMEOUT: Duration = Duration::from_millis(500);

/// Logs a warning if the server would evict the counts of exhausted keys. Does nothing if the user may not run INFO.
pub(super) async fn warn_of_eviction(pool: &Pool<RedisConnectionManager>) {
    let query = async {
        let mut connection = pool.get().await.ok()?;
        let info: String = redis::cmd("INFO").arg("memory").query_async(&mut *connection).await.ok()?;
        Some(info)
    };
    let Ok(Some(info)) = timeout(INFO_TIMEOUT, query).await else { return };
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.trim().to_owned())
    };
    let (maxmemory, policy) = (field("maxmemory"), field("maxmemory_policy"));
    if maxmemory.is_none_or(|bytes| bytes == "0") {
        return;
    }
    const HARMFUL: [&str; 6] =
        ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random"];
    if let Some(policy) = HARMFUL.iter().find(|known| policy.as_deref() == Some(**known)) {
        log!(
            warn,
            maxmemory_policy = %policy,
            "Redis evicts exhausted limits when its memory is full, and then admits their clients again; set \
             maxmemory-policy to volatile-ttl, and use a separate Redis for the limits"
        );
        let _ = policy;
    }
}
