//! Connects to Redis as the options say.

use tower_ratelimit::RedisStore;

use crate::{failure::Failure, options::Options};

/// A store. With `lazily`, no server is contacted.
pub(crate) async fn connect(options: &Options, lazily: bool) -> Result<RedisStore, Failure> {
    let servers = options.redis.servers()?;
    let settings = options.redis.settings(RedisStore::builder().deadline(options.deadline).pool_size(2))?;
    let store = if lazily { settings.connect_lazy(servers) } else { settings.connect(servers).await };
    Ok(store?)
}
