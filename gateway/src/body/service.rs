//! The service of a layer, as a state machine.

use std::{
    error::Error as StdError,
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};
use tower_ratelimit::response::RejectionBody;
use tower_service::Service;

use super::{
    body_bytes::BodyBytes,
    collect::Collector,
    head::{announced, unread},
    rejection::{BodyRejection, BodyRejectionKind},
    request_body::RequestBody,
    response::MaybeRejected,
    settings::Settings,
};

/// A service whose requests are read into memory first, made by
/// [`BufferBodyLayer`](super::BufferBodyLayer), which has the rules.
///
/// It is ready when the inner service is. If a body has to be waited for, the inner service is made ready
/// again afterwards: a ready service may hold what other requests need, such as a permit of an inner
/// concurrency limit, and a slow client must not keep it.
#[derive(Clone, Debug)]
pub struct BufferBody<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> BufferBody<S> {
    pub(super) const fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }

    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, to change it.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service, without the buffer.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, ResBody> Service<Request<B>> for BufferBody<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<ResBody>> + Clone,
    B: Body,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Response = Response<MaybeRejected<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // Call the service that is ready. Its clone, which may not be ready, stays behind.
        let clone = self.inner.clone();
        let service = mem::replace(&mut self.inner, clone);
        ResponseFuture { state: State::begin(service, request, &self.settings) }
    }
}

#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService> tonic::server::NamedService for BufferBody<S> {
    const NAME: &'static str = S::NAME;
}

pin_project! {
    /// The response future of [`BufferBody`]. It resolves to the inner service's response, or to a rejection.
    /// If it is dropped, the buffer is too.
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<RequestBody<B>>>,
    {
        #[pin]
        state: State<S, B, S::Future>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, B, F> {
        // Reading the body.
        Read {
            #[pin]
            body: B,
            reading: Option<Box<Reading<S>>>,
        },
        // The body is read, and the service was not kept ready. Waiting for it.
        Ready {
            call: Option<Box<Call<S, B>>>,
        },
        // Waiting for the inner service.
        Respond {
            #[pin]
            future: F,
        },
        Reject {
            response: Option<Box<Response<RejectionBody>>>,
        },
    }
}

/// A request whose body is being read.
struct Reading<S> {
    service: S,
    /// Whether the service is ready. It is not once the body had to be waited for.
    is_ready: bool,
    request: Parts,
    collector: Collector,
    /// Created when the body has to be waited for, because most bodies are there already.
    timer: Option<Pin<Box<Sleep>>>,
    settings: Arc<Settings>,
}

/// A call of the service that is not made yet.
struct Call<S, B> {
    service: S,
    request: Request<RequestBody<B>>,
}

impl<S, B> State<S, B, S::Future>
where
    S: Service<Request<RequestBody<B>>>,
    B: Body,
{
    /// Decides by the head of the request what to do with its body. `service` is ready.
    fn begin(mut service: S, request: Request<B>, settings: &Arc<Settings>) -> Self {
        let (mut request, body) = request.into_parts();
        let content = match unread(&request) {
            _ if body.is_end_stream() => Ok(Bytes::new()),
            Some(reason) if settings.rejects_unread => {
                let rejection = settings.rejection(BodyRejectionKind::Unread(reason));
                return Self::reject(settings, &rejection, &request);
            }
            Some(reason) => Err(reason),
            None => {
                let announced = announced(&request, &body);
                if announced.is_some_and(|bytes| bytes > settings.max_bytes as u64) {
                    return Self::reject(
                        settings,
                        &settings.rejection(BodyRejectionKind::TooLarge),
                        &request,
                    );
                }
                let collector = Collector::new(settings.total.share(), settings.max_bytes, announced);
                let settings = settings.clone();
                let reading = Reading { service, is_ready: true, request, collector, timer: None, settings };
                return Self::Read { body, reading: Some(Box::new(reading)) };
            }
        };
        if let Err(rejection) = settings.annotate(&mut request.extensions, BodyBytes::new(content)) {
            return Self::reject(settings, &rejection, &request);
        }
        let request = Request::from_parts(request, RequestBody::unread(body));
        Self::Respond { future: service.call(request) }
    }

    fn reject(settings: &Settings, rejection: &BodyRejection, request: &Parts) -> Self {
        Self::Reject { response: Some(Box::new(settings.reject(rejection, request))) }
    }
}

/// The frames that are read before other tasks run, and before the timer is looked at.
const FRAMES_AT_A_TIME: usize = 128;

impl<S: Clone> Reading<S> {
    /// Ready when `body` is complete, or the request is to be rejected.
    fn poll<B>(&mut self, mut body: Pin<&mut B>, cx: &mut Context<'_>) -> Poll<Result<(), BodyRejection>>
    where
        B: Body,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let rejected = |kind| self.settings.rejection(kind);
        for _ in 0..FRAMES_AT_A_TIME {
            let Poll::Ready(frame) = body.as_mut().poll_frame(cx) else {
                return self.poll_timer(cx);
            };
            let frame = match frame {
                None => return Poll::Ready(Ok(())),
                Some(Err(error)) => {
                    return Poll::Ready(Err(rejected(BodyRejectionKind::Failed).with_source(error.into())));
                }
                Some(Ok(frame)) => frame,
            };
            match frame.into_data().map_err(http_body::Frame::into_trailers) {
                Ok(data) => self.collector.push(data).map_err(rejected)?,
                Err(Ok(trailers)) => {
                    return Poll::Ready(self.collector.end_with(trailers).map_err(rejected));
                }
                Err(Err(_)) => {}
            }
        }
        cx.waker().wake_by_ref();
        self.poll_timer(cx)
    }

    /// Ready when the time is over. Until then, the service does not stay ready.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyRejection>> {
        if mem::take(&mut self.is_ready) {
            // A clone of a ready service is not ready, and the ready one is dropped.
            self.service = self.service.clone();
        }
        let timeout = self.settings.timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(self.settings.rejection(BodyRejectionKind::TimedOut)))
    }

    /// The next state, once the body is complete.
    fn complete<B>(self) -> State<S, B, S::Future>
    where
        S: Service<Request<RequestBody<B>>>,
        B: Body,
    {
        let Self { mut service, is_ready, mut request, collector, settings, .. } = self;
        let (bytes, trailers) = collector.finish();
        if let Err(rejection) = settings.annotate(&mut request.extensions, BodyBytes::new(Ok(bytes.clone())))
        {
            return State::reject(&settings, &rejection, &request);
        }
        let request = Request::from_parts(request, RequestBody::read(bytes, trailers));
        match is_ready {
            true => State::Respond { future: service.call(request) },
            false => State::Ready { call: Some(Box::new(Call { service, request })) },
        }
    }
}

impl<S, B, ResBody> Future for ResponseFuture<S, B>
where
    S: Service<Request<RequestBody<B>>, Response = Response<ResBody>> + Clone,
    B: Body,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Output = Result<Response<MaybeRejected<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Read { body, reading } => {
                    let Some(read) = reading else { panic!("{COMPLETED}") };
                    match ready!(read.poll(body, cx)) {
                        Err(rejection) => State::reject(&read.settings, &rejection, &read.request),
                        Ok(()) => {
                            let Some(read) = reading.take() else { panic!("{COMPLETED}") };
                            read.complete()
                        }
                    }
                }
                StateProj::Ready { call } => {
                    let Some(waiting) = call else { panic!("{COMPLETED}") };
                    ready!(waiting.service.poll_ready(cx))?;
                    let Some(mut call) = call.take() else { panic!("{COMPLETED}") };
                    State::Respond { future: call.service.call(call.request) }
                }
                StateProj::Respond { future } => {
                    let response = ready!(future.poll(cx))?;
                    return Poll::Ready(Ok(response.map(MaybeRejected::service)));
                }
                StateProj::Reject { response } => {
                    let Some(response) = response.take() else { panic!("{COMPLETED}") };
                    return Poll::Ready(Ok(response.map(MaybeRejected::rejection)));
                }
            };
            // The body that was read, and what is left of it, is dropped here.
            state.set(next);
        }
    }
}

const COMPLETED: &str = "ResponseFuture polled after completion";

impl<S, B> fmt::Debug for ResponseFuture<S, B>
where
    S: Service<Request<RequestBody<B>>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
