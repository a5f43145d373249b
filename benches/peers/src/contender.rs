//! A contender: a Tower service around an empty handler, with any limiter.

use std::{
    convert::Infallible,
    error::Error,
    future::{Ready, ready},
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use http::{HeaderValue, Request, Response, StatusCode};
use serde::Serialize;
use tower::{Service, ServiceExt};

use crate::{
    measure::{self, Load, Sample},
    request::{KEY, request},
};

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// One row of the tables.
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) place: Place,
    /// Packages whose versions the document names, with the beginning of the version where several are linked.
    pub(crate) packages: &'static [&'static str],
    pub(crate) make: Make,
}

/// Makes the service with a limit, or returns the reason why it cannot. Each further call makes another instance of
/// the service: over the same server, with the same keys.
pub(crate) type Make = Box<dyn Fn(Setup) -> BoxFuture<Result<Box<dyn Subject>, Box<dyn Error>>>>;

/// The role of a contender in the targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    NoLimiter,
    /// A script in Redis.
    ScriptPeer,
    /// A native module in Redis. The targets name the better one.
    ModulePeer,
    /// A native module in Redis that decides this many policies of a request in one pipeline.
    ModuleSeveral(usize),
    MemoryPeer,
    /// The peer in process that the targets name.
    Governor,
    /// Ours with the default settings.
    OurRedis,
    /// Ours with leases of this many units.
    OurLeased(u64),
    OurMemory,
    /// Ours with this many policies for a request.
    OurSeveral(usize),
    /// Ours with a penalty.
    OurPenalty,
    /// Ours with other settings, for comparison only.
    OurOther,
}

impl Role {
    pub(crate) fn is_ours(self) -> bool {
        matches!(
            self,
            Self::OurRedis
                | Self::OurLeased(_)
                | Self::OurMemory
                | Self::OurSeveral(_)
                | Self::OurPenalty
                | Self::OurOther
        )
    }
}

/// Where the counts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Place {
    Nowhere,
    Process,
    Redis,
    /// The server with the module redis-cell.
    RedisCell,
}

/// The settings of a service.
#[derive(Clone)]
pub(crate) struct Setup {
    /// The URL of the server for this contender's place; empty if it needs none.
    pub(crate) url: String,
    pub(crate) limit: Limit,
    /// Keeps the keys of this service apart from the keys of all others.
    pub(crate) prefix: String,
}

/// A burst, and the units in a period.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) count: u32,
    pub(crate) period: Duration,
}

const DAY: u64 = 24 * 60 * 60;

impl Limit {
    /// Not reached by one of many keys. One unit takes nine seconds, so a key that was charged stays in the store until
    /// its next request, as that of a client who is worth a limit.
    pub(crate) const STORED: Self = Self { count: 10_000, period: Duration::from_secs(DAY) };

    /// Never reached. The quota is full again before the next request, so the store has no state of the key then.
    pub(crate) const IDLE: Self = Self { count: 1_000, period: Duration::from_secs(1) };

    /// Never reached, by one key either, and stored as [`STORED`](Self::STORED).
    pub(crate) const PLENTY: Self = Self { count: 10_000_000, period: Duration::from_secs(365 * DAY) };

    /// `count`, and no more for the rest of the run.
    pub(crate) const fn few(count: u32) -> Self {
        Self { count, period: Duration::from_secs(30 * DAY) }
    }

    /// The time in which one unit is replenished.
    pub(crate) fn interval(self) -> Duration {
        self.period / self.count
    }
}

/// A type-erased service. The dynamic call is once per measurement, not once per request.
pub(crate) trait Subject {
    fn drive(&self, load: Load) -> BoxFuture<Sample>;

    /// One request of each key: how many were admitted.
    fn visit(&self, keys: Arc<[HeaderValue]>) -> BoxFuture<u64>;

    /// The response to one request.
    fn ask(&self, key: HeaderValue) -> BoxFuture<Asked>;
}

/// What the verification wants to know of a response.
pub(crate) struct Asked {
    pub(crate) status: StatusCode,
    /// The names of its headers, sorted.
    pub(crate) headers: Vec<String>,
}

/// The service for [`Make`].
pub(crate) fn subject<S, B>(service: S) -> Box<dyn Subject>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    Box::new(Over(service, PhantomData))
}

struct Over<S, B>(S, PhantomData<fn() -> B>);

impl<S, B> Subject for Over<S, B>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    fn drive(&self, load: Load) -> BoxFuture<Sample> {
        Box::pin(measure::drive(self.0.clone(), load))
    }

    fn visit(&self, keys: Arc<[HeaderValue]>) -> BoxFuture<u64> {
        Box::pin(measure::visit(self.0.clone(), keys))
    }

    fn ask(&self, key: HeaderValue) -> BoxFuture<Asked> {
        let service = self.0.clone();
        Box::pin(async move {
            let Ok(response) = service.oneshot(request(key, false)).await;
            let mut headers: Vec<_> = response.headers().keys().map(ToString::to_string).collect();
            headers.sort();
            Asked { status: response.status(), headers }
        })
    }
}

/// The key of a request, for the peers that want a function to read it.
pub(crate) fn key_of<B>(request: &Request<B>) -> Option<&str> {
    request.headers().get(KEY)?.to_str().ok()
}

/// Answers 200 with an empty body.
#[derive(Clone)]
pub(crate) struct Handler;

impl Service<Request<Body>> for Handler {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        drop(request);
        ready(Ok(Response::new(Body::empty())))
    }
}
