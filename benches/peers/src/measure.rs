//! One measurement: a number of callers in a closed loop, each with one request in flight, for a given time.

use std::{
    convert::Infallible,
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use axum::body::Body;
use http::{HeaderValue, Request, Response, StatusCode};
use tokio::{
    runtime::Builder,
    task::{spawn_blocking, yield_now},
};
use tower::{Service, ServiceExt};

use crate::request::request;

#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) in_flight: usize,
    pub(crate) keys: Arc<[HeaderValue]>,
    pub(crate) time: Duration,
    /// Whether each request is timed too, which costs two reads of the clock.
    pub(crate) timed: bool,
    /// Whether callers send their next request as soon as they have the answer.
    pub(crate) is_eager: bool,
    /// Whether a runtime of one thread runs the caller. A worker of several would wake another one at each yield, or not.
    pub(crate) on_one_thread: bool,
    /// Whether requests have an extension already.
    pub(crate) is_extended: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// From the first request to the end, after which each caller finishes one more.
    pub(crate) elapsed: Duration,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    /// Neither 200 nor 429.
    pub(crate) other: u64,
    /// Admitted after the end. Not in the other counts.
    pub(crate) late: u64,
    /// Nanoseconds of each request, if requests are timed.
    pub(crate) times: Vec<u32>,
}

impl Sample {
    pub(crate) fn requests(&self) -> u64 {
        self.allowed + self.denied + self.other
    }

    fn count(&mut self, status: StatusCode) {
        *match status {
            StatusCode::OK => &mut self.allowed,
            StatusCode::TOO_MANY_REQUESTS => &mut self.denied,
            _ => &mut self.other,
        } += 1;
    }
}

/// Identities of 20 bytes.
pub(crate) fn keys(name: char, count: usize) -> Arc<[HeaderValue]> {
    // A static value is cloned without touching a reference count that all callers share. It is never
    // freed, and there are few of them.
    let leak = |key: String| HeaderValue::from_static(String::leak(key));
    (0..count).map(|n| leak(format!("client-{name}-{n:011}"))).collect()
}

/// One of many callers yields to the scheduler after each request, as a task that reads from a socket does. So the
/// scenario's number of requests are in flight even if a limiter never waits. A single caller rarely yields,
/// because each yield then polls the sockets. Eager callers never yield, as the calls of a handler do not: all that were
/// answered together ask again together.
const SELDOM: u32 = 32;

pub(crate) async fn drive<S, B>(service: S, load: Load) -> Sample
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    let over = Arc::new(AtomicBool::new(false));
    let started = Instant::now();
    let callers: Vec<_> = (0..load.in_flight)
        .map(|caller| {
            let calls = call(service.clone(), load.clone(), caller as u64, over.clone());
            if load.on_one_thread {
                spawn_blocking(|| {
                    Builder::new_current_thread()
                        .build()
                        .map(|runtime| runtime.block_on(calls))
                        .unwrap_or_default()
                })
            } else {
                tokio::spawn(calls)
            }
        })
        .collect();
    // A thread keeps the time, because timers of the runtime are late while its workers are busy.
    let clock = spawn_blocking(move || {
        sleep(load.time);
        over.store(true, Ordering::Relaxed);
        started.elapsed()
    });
    let mut sum = Sample { elapsed: clock.await.unwrap_or(load.time), ..Sample::default() };
    for caller in callers {
        // A caller that panicked shows as a caller without requests.
        let sample = caller.await.unwrap_or_default();
        sum.allowed += sample.allowed;
        sum.denied += sample.denied;
        sum.other += sample.other;
        sum.late += sample.late;
        sum.times.extend(sample.times);
    }
    sum
}

/// How many requests [`visit`] has in flight.
const VISITORS: usize = 256;

/// One request of each key. Returns how many were admitted.
pub(crate) async fn visit<S, B>(service: S, keys: Arc<[HeaderValue]>) -> u64
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    let visitors: Vec<_> = (0..VISITORS)
        .map(|visitor| {
            let (mut service, keys) = (service.clone(), keys.clone());
            tokio::spawn(async move {
                let mut admitted = 0;
                for key in keys.iter().skip(visitor).step_by(VISITORS) {
                    let Ok(service) = service.ready().await;
                    let Ok(response) = service.call(request(key.clone(), true)).await;
                    admitted += u64::from(response.status() == StatusCode::OK);
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for visitor in visitors {
        admitted += visitor.await.unwrap_or(0);
    }
    admitted
}

async fn call<S, B>(mut service: S, load: Load, caller: u64, over: Arc<AtomicBool>) -> Sample
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
{
    let mut sample = Sample::default();
    let turn = match load.in_flight {
        _ if load.is_eager => u32::MAX,
        1 => SELDOM,
        _ => 1,
    };
    let keys = load.keys;
    let mut random = caller.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    loop {
        for _ in 0..turn {
            // Marsaglia's xorshift.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let key = keys[(random % keys.len() as u64) as usize].clone();
            let request = black_box(request(key, load.is_extended));
            let started = load.timed.then(Instant::now);
            let Ok(service) = service.ready().await;
            let Ok(response) = service.call(request).await;
            let took = started.map(|started| started.elapsed().as_nanos() as u32);
            let status = response.status();
            drop(black_box(response));
            if over.load(Ordering::Relaxed) {
                sample.late = u64::from(status == StatusCode::OK);
                return sample;
            }
            sample.count(status);
            sample.times.extend(took);
        }
        yield_now().await;
    }
}
