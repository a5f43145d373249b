//! Workers that call a remote service, together at most 20 times a second: as a layer, and with a limiter alone.

use std::time::Duration;

use tokio::time::Instant;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _, service_fn};
use tower_ratelimit::{
    Error, Key, Limiter, MemoryStore, Policy, Quota, algorithm::LeakyBucket, keyed::KeyedRateLimitLayer,
};

const PATIENCE: Duration = Duration::from_secs(30);

fn calls() -> Policy {
    Policy::new("partner", Quota::per_second(20)).algorithm(LeakyBucket::queue(PATIENCE))
}

fn client<S>(
    limiter: Limiter,
    remote: S,
) -> impl Service<u32, Response = S::Response, Error = BoxError> + Clone
where
    S: Service<u32, Future: Send, Error: Into<BoxError>> + Clone + Send + 'static,
{
    let limit = KeyedRateLimitLayer::new(limiter, calls(), |_: &u32| "all").wait(PATIENCE);
    ServiceBuilder::new().layer(limit).service(remote)
}

async fn without_a_service(limiter: &Limiter) -> Result<bool, Error> {
    Ok(limiter.wait(&calls(), &Key::new("all"), 1, PATIENCE).await?.is_admitted())
}

#[tokio::test(start_paused = true)]
async fn calls_go_out_one_by_one_at_the_rate() {
    let limiter = Limiter::new(MemoryStore::new());
    let started = Instant::now();
    let client = client(limiter.clone(), service_fn(async |_: u32| Ok::<_, BoxError>(Instant::now())));
    let sent = (0..30).map(|call| client.clone().oneshot(call));
    let mut sent = futures_util::future::try_join_all(sent).await.unwrap();
    sent.sort();
    for (number, at) in (0..).zip(&sent) {
        let due = started + Duration::from_millis(50) * number;
        assert!(*at >= due && *at < due + Duration::from_millis(5), "{number} after {:?}", *at - started);
    }
    for _ in 0..10 {
        assert!(without_a_service(&limiter).await.unwrap());
    }
    assert!(started.elapsed() >= Duration::from_millis(39 * 50));
}
