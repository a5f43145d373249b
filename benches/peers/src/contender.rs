//! What is measured: a Tower service around an empty handler, whatever limits it.

use std::{
    convert::Infallible,
    error::Error,
    future::{Ready, ready},
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use tower::{Service, ServiceExt};

use crate::measure::{self, Load, Sample};

/// All contenders tell clients apart by this header.
pub(crate) const KEY: HeaderName = HeaderName::from_static("x-api-key");

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

/// Makes the service with a limit, or says why not. Asked again, it makes what another instance of a service
/// would make: over the same server, with the same keys.
pub(crate) type Make = Box<dyn Fn(Setup) -> BoxFuture<Result<Box<dyn Subject>, Box<dyn Error>>>>;

/// What the targets say of a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    NoLimiter,
    /// A script in Redis.
    ScriptPeer,
    /// A native module in Redis.
    ModulePeer,
    MemoryPeer,
    /// The peer in process that the targets name.
    Governor,
    /// Ours with the settings that a user gets.
    OurRedis,
    /// Ours with leases on.
    OurLeased,
    OurMemory,
    /// Ours with other settings, for comparison only.
    OurOther,
}

impl Role {
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::OurRedis | Self::OurLeased | Self::OurMemory | Self::OurOther)
    }
}

/// Where the counts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Nowhere,
    Process,
    Redis,
    /// The server with the module redis-cell.
    RedisCell,
}

/// What a service is made with.
#[derive(Clone)]
pub(crate) struct Setup {
    /// The server for this contender's place; empty where there is none.
    pub(crate) url: String,
    pub(crate) limit: Limit,
    /// Keeps the keys of this service apart from those of all others.
    pub(crate) prefix: String,
}

/// So many at once, and so many in a period.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) count: u32,
    pub(crate) period: Duration,
}

const DAY: u64 = 24 * 60 * 60;

impl Limit {
    /// Never reached. The rate, not the burst, is small, one unit in three seconds: so a key that is asked
    /// for more often than that stays in Redis, as in a service under load, and is not made anew each time.
    pub(crate) const PLENTY: Self = Self { count: 10_000_000, period: Duration::from_secs(365 * DAY) };

    /// `count`, and no more for the rest of the run.
    pub(crate) const fn few(count: u32) -> Self {
        Self { count, period: Duration::from_secs(30 * DAY) }
    }

    /// The time in which one unit comes back.
    pub(crate) fn interval(self) -> Duration {
        self.period / self.count
    }
}

/// A service whose type is forgotten, once for a measurement, not once for a request.
pub(crate) trait Subject {
    fn drive(&self, load: Load) -> BoxFuture<Sample>;

    /// What one request is answered.
    fn ask(&self, key: HeaderValue) -> BoxFuture<StatusCode>;
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

    fn ask(&self, key: HeaderValue) -> BoxFuture<StatusCode> {
        let service = self.0.clone();
        Box::pin(async move {
            let Ok(response) = service.oneshot(request(key)).await;
            response.status()
        })
    }
}

pub(crate) fn request(key: HeaderValue) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    request.headers_mut().insert(KEY, key);
    request
}

/// The key of a request, for the peers that want a function to read it.
pub(crate) fn key_of<B>(request: &Request<B>) -> Option<&str> {
    request.headers().get(KEY)?.to_str().ok()
}

/// Answers 200 with nothing in it.
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
