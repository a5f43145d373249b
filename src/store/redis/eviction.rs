//! Whether the server forgets exhausted limits when its memory is full.

use std::time::Duration;

use bb8_redis::{RedisConnectionManager, bb8::Pool};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_millis(500);

/// Logs a warning if the server would evict the counts of exhausted keys, and the user may read that.
pub(super) async fn warn_of_eviction(pool: &Pool<RedisConnectionManager>) {
    let asked = async {
        let mut connection = pool.get().await.ok()?;
        let info: String = redis::cmd("INFO").arg("memory").query_async(&mut *connection).await.ok()?;
        Some(info)
    };
    let Ok(Some(info)) = timeout(PATIENCE, asked).await else { return };
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.trim().to_owned())
    };
    let (limited, policy) = (field("maxmemory"), field("maxmemory_policy"));
    if limited.is_none_or(|bytes| bytes == "0") {
        return;
    }
    const FORGETTING: [&str; 6] =
        ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random"];
    if let Some(policy) = FORGETTING.iter().find(|known| policy.as_deref() == Some(**known)) {
        log!(
            warn,
            maxmemory_policy = %policy,
            "Redis evicts keys in an order that forgets exhausted limits when its memory is full; set maxmemory-policy to \
             volatile-ttl, and give the limits a Redis of their own"
        );
        let _ = policy;
    }
}
