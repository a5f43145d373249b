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
    identify::Identity,
    turn::{Turn, unready},
};
use crate::{
    answer::Answer,
    decision::{Decision, Permit, Verdict},
    error::Error,
    limiter::Limiter,
    response::{Kept, Rejection, Returned},
};

pin_project! {
    /// The response future of [`RateLimit`](crate::layer::RateLimit). It resolves to the inner service's response, or
    /// to a rejection.
    ///
    /// See [`RateLimitLayer`](crate::RateLimitLayer) for an example. If the future is dropped before the decision, the
    /// request may still be charged.
    pub struct ResponseFuture<S, ReqBody>
    where
        S: Service<Request<ReqBody>>,
    {
        #[pin]
        state: State<S, ReqBody, S::Future>,
        config: Arc<Config>,
    }
}

pin_project! {
    // Rare states are boxed, because the future is moved more than once.
    #[project = StateProj]
    enum State<S, ReqBody, F> {
        // Waiting for the client's identity. The service is ready and not called yet.
        Identify {
            identity: Answer<Identity>,
            call: Option<Box<Call<S, ReqBody>>>,
        },
        // Waiting for the store. The service is ready and not called yet.
        Decide {
            decision: Answer<Decision>,
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
        },
        // Rejected.
        Reject {
            rejection: Rejection,
            request: Box<Parts>,
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
    turn: Turn<S>,
    request: Parts,
    body: ReqBody,
    decision: Decision,
}

impl<S, ReqBody> Call<S, ReqBody> {
    /// Continues when the client is identified.
    fn identified<F>(self, identity: Result<Identity, Error>, config: &Config) -> State<S, ReqBody, F>
    where
        S: Service<Request<ReqBody>, Future = F> + Clone,
    {
        match identity {
            Ok(Identity::Known(keys)) => match config.decide(keys, &self.request).map(Answer::now) {
                // A store in memory has decided, so the service is called without waiting.
                Ok(Ok(decided)) => self.decided(decided, config),
                Ok(Err(decision)) => State::Decide { decision, call: Some(Box::new(self)) },
                Err(error) => self.reject_unless_soft(error.into(), config),
            },
            Ok(Identity::Ignored) => self.bypass(config),
            Ok(Identity::Exempt) => self.make(None, config),
            Ok(Identity::Rejected(rejection)) => self.reject(*rejection, config),
            Err(error) => self.reject_unless_soft(Rejection::Unidentified(error), config),
        }
    }

    /// Continues when the store has decided.
    fn decided<F>(self, decided: Result<Decision, Error>, config: &Config) -> State<S, ReqBody, F>
    where
        S: Service<Request<ReqBody>, Future = F> + Clone,
    {
        match decided {
            Ok(decision) => match decision.verdict() {
                Verdict::Allow => self.make(Some(decision), config),
                Verdict::Delay(delay) => {
                    let Self { service, request, body } = self;
                    let turn = Turn::after(delay, unready(service));
                    State::Delay { delayed: Some(Box::new(Delayed { turn, request, body, decision })) }
                }
                Verdict::Deny { .. } => self.reject_unless_soft(Rejection::Denied(decision), config),
            },
            // Whatever its kind: clients must not see the text of a store.
            Err(error) => self.reject_unless_soft(Rejection::Unavailable(error), config),
        }
    }

    /// Calls the service.
    fn make<F>(mut self, mut decision: Option<Decision>, config: &Config) -> State<S, ReqBody, F>
    where
        S: Service<Request<ReqBody>, Future = F>,
    {
        // The extensions get no permit, because they may outlive the response.
        let permit = decision.as_mut().and_then(Decision::take_permit);
        let kept = Some(config.keep(&self.request));
        config.annotate(&mut self.request, decision.as_ref());
        let future = self.service.call(Request::from_parts(self.request, self.body));
        State::Respond { future, decision, permit, kept }
    }

    /// Calls the service as if there were no layer, except for the limiter, without which a handler that takes one fails.
    fn bypass<F>(mut self, config: &Config) -> State<S, ReqBody, F>
    where
        S: Service<Request<ReqBody>, Future = F>,
    {
        if self.request.extensions.get::<Limiter>().is_none() {
            self.request.extensions.insert(config.limiter.clone());
        }
        let future = self.service.call(Request::from_parts(self.request, self.body));
        State::Respond { future, decision: None, permit: None, kept: None }
    }

    /// Rejects the request, except in soft mode.
    fn reject_unless_soft<F>(self, rejection: Rejection, config: &Config) -> State<S, ReqBody, F>
    where
        S: Service<Request<ReqBody>, Future = F>,
    {
        if config.soft {
            config.log(&rejection);
            return self.make(rejection.into_decision(), config);
        }
        self.reject(rejection, config)
    }

    /// Rejects the request, in soft mode too.
    fn reject<F>(self, rejection: Rejection, config: &Config) -> State<S, ReqBody, F> {
        config.log(&rejection);
        State::Reject { rejection: config.jitter(rejection), request: Box::new(self.request) }
    }
}

impl<S, ReqBody> ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>> + Clone,
{
    pub(super) fn new(service: S, request: Request<ReqBody>, config: Arc<Config>) -> Self {
        let (request, body) = request.into_parts();
        let call = Call { service, request, body };
        let state = match config.identify(&call.request).now() {
            Ok(identity) => call.identified(identity, &config),
            Err(identity) => State::Identify { identity, call: Some(Box::new(call)) },
        };
        Self { state, config }
    }
}

impl<S, ReqBody, ResBody> Future for ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
{
    type Output = Result<Response<ResponseBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProj::Identify { identity, call } => {
                    let identity = ready!(Pin::new(identity).poll(cx));
                    take(call).identified(identity, this.config)
                }
                StateProj::Decide { decision, call } => {
                    let decided = ready!(Pin::new(decision).poll(cx));
                    take(call).decided(decided, this.config)
                }
                StateProj::Delay { delayed } => {
                    if let Some(delayed) = delayed {
                        ready!(delayed.turn.poll(cx))?;
                    }
                    let Delayed { turn, request, body, decision } = take(delayed);
                    Call { service: turn.into_service(), request, body }.make(Some(decision), this.config)
                }
                StateProj::Respond { future, decision, permit, kept } => {
                    let mut response = ready!(future.poll(cx))?;
                    // A layer that is disabled leaves it to the one around it.
                    if let Some(kept) = kept.take()
                        && let Some(rejection) = Returned::take(&mut response)
                    {
                        *permit = None;
                        let returned = response.into_parts().0;
                        let response =
                            this.config.answer_returned(rejection, kept, returned, decision.take());
                        return Poll::Ready(Ok(response.map(ResponseBody::rejection)));
                    }
                    // Moved to the body: the extensions may be dropped before it ends.
                    let handler_permit = response.extensions_mut().get_mut().and_then(Decision::take_permit);
                    let permits = [permit.take(), handler_permit];
                    if let Some(decision) = decision.take() {
                        this.config.decorate(&mut response, decision);
                    }
                    return Poll::Ready(Ok(response.map(|body| ResponseBody::service(body, permits))));
                }
                StateProj::Reject { rejection, request } => {
                    let response = this.config.response(rejection, request);
                    return Poll::Ready(Ok(response.map(ResponseBody::rejection)));
                }
            };
            this.state.set(next);
        }
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
