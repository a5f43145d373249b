//! Requests at a steady rate, regardless of how long the answers take.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use http::{Request, Response};
use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval, sleep},
};
use tower::{Layer as _, ServiceExt as _, service_fn, util::BoxCloneService};
use tower_ratelimit::{Decision, Header, Limiter, Policy, RateLimitLayer};

/// One request.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) key: u64,
    /// Since the start of the load.
    pub(crate) at: Duration,
    /// From the call of the layer to the response.
    pub(crate) took: Duration,
    /// Whether the store did not decide.
    pub(crate) failed: bool,
}

/// Requests that are sent until it is stopped.
pub(crate) struct Load {
    started: Instant,
    samples: Arc<Mutex<Vec<Sample>>>,
    sending: JoinHandle<()>,
}

const KEY: &str = "x-key";

/// Layers that are passed one after the other.
pub(crate) fn layers(limiters: &[Limiter], policy: &Policy) -> Vec<RateLimitLayer> {
    limiters
        .iter()
        .map(|limiter| RateLimitLayer::new(limiter.clone(), policy.clone(), Header::new(KEY)))
        .collect()
}

impl Load {
    /// Sends `rate` requests a second through all `layers`, from `keys` clients in turn.
    pub(crate) fn start(layers: Vec<RateLimitLayer>, rate: u32, keys: u64) -> Self {
        let (started, samples) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let kept = samples.clone();
        let service = stack(layers);
        let sending = tokio::spawn(async move {
            let mut tick = interval(Duration::from_secs(1) / rate);
            tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
            for request in 0_u64.. {
                tick.tick().await;
                let (service, samples) = (service.clone(), samples.clone());
                tokio::spawn(async move {
                    let (key, asked) = (request % keys, Instant::now());
                    let request = Request::builder()
                        .header(KEY, key.to_string())
                        // Every layer inserts its decision into the extensions of the response.
                        .extension(Decision::new([]))
                        .body(String::new())
                        .unwrap();
                    let Ok(response) = service.oneshot(request).await;
                    let failed = response.extensions().get::<Failed>().is_some();
                    let sample = Sample { key, at: asked - started, took: asked.elapsed(), failed };
                    samples.lock().unwrap().push(sample);
                });
            }
        });
        Self { started, samples: kept, sending }
    }

    /// The time since the start.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Stops sending. Returns all requests in the order in which they were sent.
    pub(crate) async fn stop(self) -> Vec<Sample> {
        self.sending.abort();
        // The requests under way end at their deadlines.
        sleep(Duration::from_millis(500)).await;
        let mut samples = std::mem::take(&mut *self.samples.lock().unwrap());
        samples.sort_by_key(|sample| sample.at);
        samples
    }
}

type Stack = BoxCloneService<Request<String>, Response<String>, Infallible>;

/// Marks a response for which a store did not decide.
#[derive(Clone)]
struct Failed;

/// A handler behind `layers`.
fn stack(layers: Vec<RateLimitLayer>) -> Stack {
    let handler = service_fn(async |_: Request<String>| Ok(Response::new(String::new())));
    layers.into_iter().fold(BoxCloneService::new(handler), |inner, layer| {
        BoxCloneService::new(layer.layer(inner).map_response(|response| {
            let decision = response.extensions().get::<Decision>();
            // A request that is rejected because the store failed has no decision.
            let failed =
                decision.map_or_else(|| response.status() == 503, |decision| decision.failure().is_some());
            let mut response = response.map(|_| String::new());
            if failed {
                response.extensions_mut().insert(Failed);
            }
            response
        }))
    })
}

/// The time that `share` of the requests did not exceed.
pub(crate) fn quantile(samples: &[Sample], share: f64) -> Duration {
    let mut times: Vec<_> = samples.iter().map(|sample| sample.took).collect();
    times.sort_unstable();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let place = (share * times.len() as f64).ceil() as usize;
    times.get(place.saturating_sub(1)).copied().unwrap_or_default()
}

pub(crate) fn millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}
