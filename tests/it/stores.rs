//! The stores that `each_store` runs on in this program.

use std::{sync::LazyLock, time::Duration};

use support::{RedisServer, settings};
use tower_ratelimit::{Limiter, MemoryStore, store::ManualClock};

/// No test stops it or counts its commands. Each uses its own prefix.
static SERVER: LazyLock<RedisServer> = LazyLock::new(RedisServer::start);

pub(crate) async fn stores(prefix: &str) -> Vec<(&'static str, Limiter)> {
    pairs(prefix).await.into_iter().map(|(name, [limiter, _])| (name, limiter)).collect()
}

/// Two instances on each store.
pub(crate) async fn pairs(prefix: &str) -> Vec<(&'static str, [Limiter; 2])> {
    let memory = Limiter::new(MemoryStore::new());
    let redis = async || Limiter::new(settings().prefix(prefix).connect(&SERVER.url()).await.unwrap());
    vec![("memory", [memory.clone(), memory]), ("redis", [redis().await, redis().await])]
}

/// Makes a store with this clock, and the number of random cases that it is worth.
pub(crate) fn on_a_clock(prefix: &str) -> Vec<(&'static str, u32, Box<dyn Fn(ManualClock) -> Limiter + '_>)> {
    let redis = move |clock| {
        // The deny cache repeats a denial, with what remained then.
        let store = settings().prefix(prefix).manual_clock(clock).deny_cache(Duration::ZERO);
        Limiter::new(store.connect_lazy(SERVER.url()).unwrap())
    };
    vec![
        ("memory", 200, Box::new(|clock| Limiter::new(MemoryStore::with_clock(clock)))),
        ("redis", 60, Box::new(redis)),
    ]
}
