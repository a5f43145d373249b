use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response, request::Parts};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    body::ResponseBody,
    config::Config,
    identify::{Gathered, Identity},
    settle::{Refund, Settlement, Settling},
    step::Step,
};
use crate::{
    base::{Answer, DelayedService, Error, unready},
    decision::{Charge, Decision, Permit},
    policy::Enforcement,
    response::{Kept, RejectionBody, Returned},
};

pin_project! {
    /// The response future of [`RateLimit`](crate::layer::RateLimit). It resolves to the inner service's response, or
    /// to a rejection.
    ///
    /// See [`RateLimitLayer`](crate::RateLimitLayer) for an example. If the future is dropped before the decision, the
    /// request stays charged if it was already sent to Redis, and is not charged otherwise.
    pub struct ResponseFuture<S, ReqBody>
    where
        S: Service<Request<ReqBody>>,
    {
        #[pin]
        state: State<S, ReqBody, S::Future, S::Response>,
        config: Arc<Config>,
        // Whether the request is admitted in any case. A switch may change it for later requests.
        soft: bool,
    }
}

pin_project! {
    // Rare states are boxed, because the future is moved more than once.
    #[project = StateProj]
    enum State<S, ReqBody, F, R> {
        // Waiting for the client's identity. The service is ready and not called yet.
        Identify {
            identity: Answer<Identity>,
            call: Option<Box<Call<S, ReqBody>>>,
        },
        // Waiting for the policies. The service is ready and not called yet.
        Charge {
            charges: Answer<Gathered<Charge>>,
            call: Option<Box<Call<S, ReqBody>>>,
        },
        // Waiting for the store. The service is ready and not called yet.
        Decide {
            decision: Answer<Decision>,
            // Why a rule cannot identify the client, if the others have charged the request.
            unidentified: Option<Box<Error>>,
            call: Option<Box<Call<S, ReqBody>>>,
        },
        // Admitted and charged; waiting for the delay. The service is not ready.
        Delay {
            delayed: Option<Box<Delayed<S, ReqBody>>>,
        },
        // Waiting for the inner service. There is no decision if the request is exempt.
        Respond {
            #[pin]
            future: F,
            decision: Option<Decision>,
            // Kept until the response's body ends.
            permit: Option<Permit>,
            // What a mapper reads of the request if the service rejects it.
            kept: Option<Kept>,
            // `None` if the charge stays whatever happens.
            settlement: Option<Box<Settlement>>,
        },
        // Waiting for the refund of a response that does not count.
        Refund {
            refund: Refund,
            responded: Option<Box<Responded<R>>>,
        },
        // Rejected. `None` after the future was polled.
        Reject {
            response: Option<Response<RejectionBody>>,
        },
    }
}

/// A call of the service that is not made yet.
struct Call<S, ReqBody> {
    service: S,
    request: Parts,
    body: ReqBody,
}

/// An admitted call that waits for its delay.
struct Delayed<S, ReqBody> {
    service: DelayedService<S>,
    request: Parts,
    body: ReqBody,
    decision: Decision,
    settlement: Option<Box<Settlement>>,
}

/// A response of the service.
struct Responded<R> {
    response: R,
    decision: Option<Decision>,
    permits: [Option<Permit>; 2],
    settling: Option<Box<Settling>>,
}

impl<S, ReqBody> Call<S, ReqBody> {
    /// Takes `step`.
    fn enter<F, R>(mut self, step: Step, config: &Config, soft: bool) -> State<S, ReqBody, F, R>
    where
        S: Service<Request<ReqBody>, Future = F, Response = R> + Clone,
    {
        match step {
            Step::Serve(decision) => {
                let settlement =
                    decision.as_ref().and_then(|decision| config.settle(&mut self.request, decision));
                self.serve(decision, settlement, config, soft)
            }
            Step::Bypass => {
                config.annotate_ignored(&mut self.request);
                let future = self.call();
                State::Respond { future, decision: None, permit: None, kept: None, settlement: None }
            }
            Step::Charge(charges) => State::Charge { charges, call: Some(Box::new(self)) },
            Step::Decide(decision, unidentified) => {
                State::Decide { decision, unidentified, call: Some(Box::new(self)) }
            }
            Step::Delay(delay, decision) => {
                // The request may be cancelled during the delay.
                let settlement = config.settle(&mut self.request, &decision);
                let Self { service, request, body } = self;
                let service = DelayedService::after(delay, unready(service));
                State::Delay {
                    delayed: Some(Box::new(Delayed { service, request, body, decision, settlement })),
                }
            }
            Step::Reject(rejection, charged) => {
                State::Reject { response: Some(config.response(&rejection, charged, &self.request)) }
            }
        }
    }

    /// Calls the service with an admitted request.
    // A call of it would copy the head of the request once more.
    #[inline(always)]
    fn serve<F, R>(
        mut self,
        mut decision: Option<Decision>,
        settlement: Option<Box<Settlement>>,
        config: &Config,
        soft: bool,
    ) -> State<S, ReqBody, F, R>
    where
        S: Service<Request<ReqBody>, Future = F, Response = R>,
    {
        // The extensions get no permit, because they may outlive the response.
        let permit = decision.as_mut().and_then(Decision::take_permit);
        let kept = Some(config.keep(&self.request));
        config.annotate(&mut self.request, decision.as_ref(), soft);
        State::Respond { future: self.call(), decision, permit, kept, settlement }
    }

    fn call(self) -> S::Future
    where
        S: Service<Request<ReqBody>>,
    {
        let Self { mut service, request, body } = self;
        service.call(Request::from_parts(request, body))
    }
}

impl<S, ReqBody> ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>> + Clone,
{
    pub(super) fn new(service: S, request: Request<ReqBody>, config: Arc<Config>) -> Self {
        let (request, body) = request.into_parts();
        let enforcement = config.enforcement();
        let soft = enforcement == Enforcement::Soft;
        let state = match config.identify(&request, enforcement, true).now() {
            Ok(identity) => {
                let step = config.identified(identity, &request, soft);
                Call { service, request, body }.enter(step, &config, soft)
            }
            Err(identity) => {
                State::Identify { identity, call: Some(Box::new(Call { service, request, body })) }
            }
        };
        Self { state, config, soft }
    }
}

impl<S, ReqBody, ResBody> Future for ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
{
    type Output = Result<Response<ResponseBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let soft = *this.soft;
        loop {
            let (call, step) = match this.state.as_mut().project() {
                StateProj::Identify { identity, call } => {
                    let identity = ready!(Pin::new(identity).poll(cx));
                    let call = take(call);
                    let step = this.config.identified(identity, &call.request, soft);
                    (call, step)
                }
                StateProj::Charge { charges, call } => {
                    let charges = ready!(Pin::new(charges).poll(cx));
                    let call = take(call);
                    let step = this.config.charged(charges, &call.request, soft);
                    (call, step)
                }
                StateProj::Decide { decision, unidentified, call } => {
                    let decided = ready!(Pin::new(decision).poll(cx));
                    let call = take(call);
                    let step = this.config.decided(decided, unidentified.take(), &call.request, soft);
                    (call, step)
                }
                StateProj::Delay { delayed } => {
                    if let Some(waiting) = delayed
                        && let Err(error) = ready!(waiting.service.poll(cx))
                    {
                        if let Some(settlement) = waiting.settlement.take() {
                            settlement.failed();
                        }
                        return Poll::Ready(Err(error));
                    }
                    let Delayed { service, request, body, decision, settlement } = take(delayed);
                    let call = Call { service: service.into_service(), request, body };
                    let next = call.serve(Some(decision.after_delay()), settlement, this.config, soft);
                    this.state.set(next);
                    continue;
                }
                StateProj::Respond { future, decision, permit, kept, settlement } => {
                    let polled = Settlement::watch(settlement, || future.poll(cx));
                    let mut response = match ready!(polled) {
                        Ok(response) => response,
                        Err(error) => {
                            if let Some(settlement) = settlement.take() {
                                settlement.failed();
                            }
                            return Poll::Ready(Err(error));
                        }
                    };
                    // A layer that is disabled leaves it to the one around it.
                    if let Some(kept) = kept.take()
                        && let Some(rejection) = Returned::take(&mut response)
                    {
                        *permit = None;
                        // It counts.
                        if let Some(settlement) = settlement.take() {
                            settlement.keep();
                        }
                        let returned = response.into_parts().0;
                        let response =
                            this.config.answer_returned(rejection, kept, returned, decision.take(), soft);
                        return Poll::Ready(Ok(response.map(ResponseBody::rejection)));
                    }
                    // Moved to the body: the extensions may be dropped before it ends.
                    let handler_permit = response.extensions_mut().get_mut().and_then(Decision::take_permit);
                    let permits = [permit.take(), handler_permit];
                    if let Some(settlement) = settlement.take() {
                        let (response, refund, settling) = settlement.responded(response);
                        let decision = decision.take();
                        let responded = Responded { response, decision, permits, settling };
                        let Some(refund) = refund else {
                            return Poll::Ready(Ok(responded.finish(this.config, soft)));
                        };
                        this.state.set(State::Refund { refund, responded: Some(Box::new(responded)) });
                        continue;
                    }
                    // Not through `Responded`, because moving a response takes time.
                    if let Some(decision) = decision.take() {
                        this.config.decorate(&mut response, decision, soft);
                    }
                    return Poll::Ready(Ok(response.map(|body| ResponseBody::service(body, permits, None))));
                }
                StateProj::Refund { refund, responded } => {
                    let refunded = ready!(refund.poll(cx));
                    let mut responded = take(responded);
                    if let (Some(decision), Some(refunded)) = (&mut responded.decision, refunded) {
                        *decision = decision.updated(&refunded);
                    }
                    return Poll::Ready(Ok(responded.finish(this.config, soft)));
                }
                StateProj::Reject { response } => match response.take() {
                    Some(response) => return Poll::Ready(Ok(response.map(ResponseBody::rejection))),
                    None => panic!("ResponseFuture polled after completion"),
                },
            };
            let next = call.enter(step, this.config, soft);
            this.state.set(next);
        }
    }
}

impl<B> Responded<Response<B>> {
    /// The response with its headers.
    fn finish(self, config: &Config, soft: bool) -> Response<ResponseBody<B>> {
        let Self { mut response, decision, permits, settling } = self;
        if let Some(decision) = decision {
            config.decorate(&mut response, decision, soft);
        }
        response.map(|body| ResponseBody::service(body, permits, settling))
    }
}

/// Moves a value out of a state that is about to be replaced.
fn take<T>(value: &mut Option<Box<T>>) -> T {
    match value.take() {
        Some(value) => *value,
        None => unreachable!("a state is replaced as soon as its value is moved out"),
    }
}

impl<S, ReqBody> fmt::Debug for ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
