//! The service of a layer, as a state machine.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response, request::Parts};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    admit::{Admission, Admit, Waiting},
    body::ResponseBody,
    config::Config,
    context::RequestContext,
    delayed::{DelayedService, unready},
    settle::{Settling, Unsettled, reservation},
};
use crate::{
    decision::{Decision, Permit},
    limiter::Refund,
    policy::Enforcement,
    response::{Rejection, note_refund},
};

/// A service behind a rate limit, made by [`RateLimitLayer`](crate::RateLimitLayer).
///
/// It is ready when the inner service is. The decision is requested when the response future is polled.
///
/// See [`RateLimitLayer`](crate::RateLimitLayer) and the [crate docs](crate) for examples.
///
/// # Example
///
/// A function that names the type of the service:
///
/// ```
/// use http::{Request, Response};
/// use tower::{Layer, Service, ServiceExt};
/// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, layer::RateLimit};
///
/// fn limited<S>(inner: S) -> RateLimit<S> {
///     let policy = Policy::new("api", Quota::per_hour(1));
///     RateLimitLayer::new(MemoryStore::new(), policy, Key::new("all")).layer(inner)
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut service = limited(tower::service_fn(|_: Request<String>| async {
///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
/// }));
/// assert_eq!(service.ready().await?.call(Request::new(String::new())).await?.status(), 200);
/// assert_eq!(service.ready().await?.call(Request::new(String::new())).await?.status(), 429);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    config: Arc<Config>,
}

impl<S> RateLimit<S> {
    pub(super) const fn new(inner: S, config: Arc<Config>) -> Self {
        Self { inner, config }
    }

    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, to change it.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service, without the rate limit.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for RateLimit<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        // Call the service that is ready. Its clone, which may not be ready, stays behind.
        let clone = self.inner.clone();
        let mut ready = mem::replace(&mut self.inner, clone);
        let context = RequestContext::new(self.config.of_thread().clone(), request.extensions());
        let state = if context.enforcement == Enforcement::Off {
            context.annotate_uncharged(request.extensions_mut(), reservation(&context, None));
            ResponseState::Respond {
                future: ready.call(request),
                decision: None,
                permit: None,
                unsettled: None,
            }
        } else {
            let (request, body) = request.into_parts();
            ResponseState::Wait {
                waiting: Waiting::Start,
                call: Some(Call { service: ready, request, body }),
            }
        };
        ResponseFuture { state, context }
    }
}

pin_project! {
    /// The response future of [`RateLimit`](crate::layer::RateLimit). It resolves to the inner service's
    /// response, or to a rejection.
    ///
    /// See [`RateLimitLayer`](crate::RateLimitLayer) for an example. If the future is dropped before the
    /// decision, the request stays charged if it was already sent to Redis, unless the layer [refunds
    /// it](crate::RateLimitLayer::refund_cancelled), and is not charged otherwise.
    pub struct ResponseFuture<S, ReqBody>
    where
        S: Service<Request<ReqBody>>,
    {
        #[pin]
        state: ResponseState<S, ReqBody, S::Future, S::Response>,
        context: RequestContext,
    }
}

pin_project! {
    // Rare states are boxed, because the future is moved more than once.
    #[project = ResponseStateProj]
    enum ResponseState<S, ReqBody, F, R> {
        // Waiting to be admitted or rejected. The service is ready and not called yet. The call is not boxed:
        // the inner service's future has the request too, so the state is as large as this anyway.
        Wait {
            waiting: Waiting,
            call: Option<Call<S, ReqBody>>,
        },
        // Admitted and charged; waiting for the delay. The service is not ready.
        Delay {
            call: Option<Box<Call<DelayedService<S>, ReqBody>>>,
            decision: Option<Decision>,
            unsettled: Option<Box<Unsettled>>,
        },
        // Waiting for the inner service. There is no decision if the request is exempt.
        Respond {
            #[pin]
            future: F,
            decision: Option<Decision>,
            // Held until the response's body ends.
            permit: Option<Permit>,
            // `None` if the charge always stays.
            unsettled: Option<Box<Unsettled>>,
        },
        // Waiting for the refund of a response that does not count.
        Refund {
            refund: Refund,
            responded: Option<Box<Responded<R>>>,
        },
    }
}

/// A call of the service that is not made yet.
struct Call<S, ReqBody> {
    service: S,
    request: Parts,
    body: ReqBody,
}

/// A response of the service.
struct Responded<R> {
    response: R,
    decision: Option<Decision>,
    permits: [Option<Permit>; 2],
    settling: Option<Box<Settling>>,
}

impl<S, ReqBody> Call<S, ReqBody> {
    /// Makes `call`, whose request is admitted.
    // Inlined because a call would copy the head of the request once more, as would a change of it outside
    // its place.
    #[inline(always)]
    fn serve<F, R>(
        call: &mut Option<Self>,
        mut decision: Option<Decision>,
        unsettled: Option<Box<Unsettled>>,
        context: &mut RequestContext,
    ) -> ResponseState<S, ReqBody, F, R>
    where
        S: Service<Request<ReqBody>, Future = F, Response = R>,
    {
        let Some(Self { request, .. }) = call else { unreachable!("{MOVED}") };
        // The extensions get no permit, because they may outlive the response.
        let permit = decision.as_mut().and_then(Decision::take_permit);
        context.keep(request);
        context.annotate(request, decision.as_ref(), reservation(context, unsettled.as_deref()));
        let Self { mut service, request, body } = take(call);
        let future = service.call(Request::from_parts(request, body));
        ResponseState::Respond { future, decision, permit, unsettled }
    }
}

impl<S, ReqBody, ResBody> Future for ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
{
    type Output = Result<Response<ResponseBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let context = this.context;
        loop {
            let next = match this.state.as_mut().project() {
                ResponseStateProj::Wait { waiting, call } => {
                    let Some(Call { request, .. }) = call else {
                        panic!("ResponseFuture polled after completion")
                    };
                    match ready!(Admit { context: &*context, request: &*request }.poll(waiting, cx)) {
                        Admission::Admitted(decision) => {
                            // Before the delay, during which the request may be cancelled.
                            let unsettled = decision
                                .as_ref()
                                .and_then(|decision| Unsettled::new(context, request, decision));
                            if let Some(delay) = decision.as_ref().and_then(Decision::delay) {
                                let Call { service, request, body } = take(call);
                                let service = DelayedService::after(delay, unready(service));
                                let call = Some(Box::new(Call { service, request, body }));
                                ResponseState::Delay { call, decision, unsettled }
                            } else {
                                Call::serve(call, decision, unsettled, context)
                            }
                        }
                        Admission::Rejected(rejection, charged) => {
                            let response = context.reject(&rejection, charged, request);
                            *call = None;
                            return Poll::Ready(Ok(response.map(ResponseBody::rejection)));
                        }
                    }
                }
                ResponseStateProj::Delay { call, decision, unsettled } => {
                    let Some(delayed) = call else { unreachable!("{MOVED}") };
                    if let Err(error) = ready!(delayed.service.poll(cx)) {
                        Unsettled::failed(unsettled);
                        return Poll::Ready(Err(error));
                    }
                    let Call { service, request, body } = *take(call);
                    let mut call = Some(Call { service: service.into_service(), request, body });
                    let decision = decision.take().map(Decision::after_delay);
                    Call::serve(&mut call, decision, unsettled.take(), context)
                }
                ResponseStateProj::Respond { future, decision, permit, unsettled } => {
                    Unsettled::set_running(unsettled, true);
                    let polled = future.poll(cx);
                    Unsettled::set_running(unsettled, false);
                    let mut response = match ready!(polled) {
                        Ok(response) => response,
                        Err(error) => {
                            Unsettled::failed(unsettled);
                            return Poll::Ready(Err(error));
                        }
                    };
                    // A layer that is off has kept nothing, and leaves the rejection to the layer around it.
                    if let Some(kept) = context.take_kept()
                        && let Some(rejection) = response.extensions_mut().remove::<Rejection>()
                    {
                        *permit = None;
                        // The request stays charged: the service rejected it itself.
                        if let Some(unsettled) = unsettled.take() {
                            unsettled.keep();
                        }
                        let returned = response.into_parts().0;
                        let response = context.replace(rejection, kept, returned, decision.take());
                        return Poll::Ready(Ok(response.map(ResponseBody::rejection)));
                    }
                    // The body holds the permit, because the extensions may be dropped before it ends.
                    let handler_permit = response.extensions_mut().get_mut().and_then(Decision::take_permit);
                    let permits = [permit.take(), handler_permit];
                    let Some(unsettled) = unsettled.take() else {
                        // `Responded` would move the response once more, which takes time.
                        if let Some(decision) = decision.take() {
                            context.decorate(&mut response, decision);
                        }
                        return Poll::Ready(Ok(
                            response.map(|body| ResponseBody::service(body, permits, None))
                        ));
                    };
                    let (response, refund, settling) = unsettled.responded(response);
                    let responded = Responded { response, decision: decision.take(), permits, settling };
                    let Some(refund) = refund else {
                        return Poll::Ready(Ok(responded.into_response(context)));
                    };
                    ResponseState::Refund { refund, responded: Some(Box::new(responded)) }
                }
                ResponseStateProj::Refund { refund, responded } => {
                    let refunded = ready!(Pin::new(refund).poll(cx));
                    let mut responded = take(responded);
                    if let (Some(decision), Some(refunded)) = (&mut responded.decision, refunded) {
                        *decision = decision.updated(&refunded);
                        // The handler's decision is older than the refund.
                        note_refund(responded.response.extensions_mut(), &refunded);
                    }
                    return Poll::Ready(Ok(responded.into_response(context)));
                }
            };
            this.state.set(next);
        }
    }
}

impl<B> Responded<Response<B>> {
    /// The response with its headers.
    fn into_response(self, context: &RequestContext) -> Response<ResponseBody<B>> {
        let Self { mut response, decision, permits, settling } = self;
        if let Some(decision) = decision {
            context.decorate(&mut response, decision);
        }
        response.map(|body| ResponseBody::service(body, permits, settling))
    }
}

/// Moves a value out of a state that is about to be replaced.
fn take<T>(value: &mut Option<T>) -> T {
    match value.take() {
        Some(value) => value,
        None => unreachable!("{MOVED}"),
    }
}

const MOVED: &str = "a state is replaced as soon as its value is moved out";

impl<S, ReqBody> fmt::Debug for ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService> tonic::server::NamedService for RateLimit<S> {
    const NAME: &'static str = S::NAME;
}
