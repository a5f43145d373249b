use std::{
    any::Any,
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response, request::Parts};
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tower_service::Service;

use crate::{
    Answer, Charge, Decision, Error, Rejection, Verdict,
    body::ResponseBody,
    config::{Config, Identity, Start},
    limiter::{Asked, Check},
};

pin_project! {
    /// The response of [`RateLimit`](crate::RateLimit): the inner service's, or a rejection.
    ///
    /// See [`RateLimitLayer`](crate::RateLimitLayer) for an example. Dropping it while the decision is under way leaves nothing behind but, perhaps, the charge.
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
    // Of what most requests never come to, the large parts stand in boxes: the future is moved more than once.
    #[project = StateProj]
    enum State<S, ReqBody, F> {
        // Waiting to know whose request it is. The service is ready and not called yet.
        Identify {
            identity: Answer<Identity>,
            // Of the rules whose keys are known.
            charges: Vec<Charge>,
            call: Option<Box<Call<S, ReqBody>>>,
        },
        // Waiting for the store. The service is ready and not called yet.
        Decide {
            check: Check,
            call: Option<Box<Call<S, ReqBody>>>,
        },
        // Admitted and charged; waiting for the request's turn, from the first poll on: the service may be
        // called where there is no runtime yet. The service is not ready.
        Delay {
            wait: Duration,
            sleep: Option<Pin<Box<Sleep>>>,
            decision: Option<Decision>,
            call: Option<Box<Call<S, ReqBody>>>,
        },
        // The request's turn has come; waiting for the service to be ready again.
        Ready {
            decision: Option<Decision>,
            call: Option<Box<Call<S, ReqBody>>>,
        },
        // Waiting for the inner service. No decision where the request was exempt.
        Respond {
            #[pin]
            future: F,
            decision: Option<Decision>,
            // Units that are in use until the response has gone out.
            permit: Option<Permit>,
        },
        // Rejected.
        Reject {
            rejection: Rejection,
            request: Box<Parts>,
        },
    }
}

/// What it takes to call the service.
struct Call<S, ReqBody> {
    service: S,
    request: Parts,
    body: ReqBody,
}

impl<S, ReqBody> Call<S, ReqBody> {
    fn make<F>(mut self, mut decision: Option<Decision>, config: &Config) -> State<S, ReqBody, F>
    where
        S: Service<Request<ReqBody>, Future = F>,
    {
        // Not held by the extensions, which may outlive the response.
        let permit = decision.as_mut().and_then(Decision::take_permit);
        config.mark(&mut self.request, decision.as_ref());
        let future = self.service.call(Request::from_parts(self.request, self.body));
        State::Respond { future, decision, permit }
    }

    /// Does what was decided.
    fn carry_on<F>(self, decided: Result<Decision, Error>, config: &Config) -> State<S, ReqBody, F>
    where
        S: Service<Request<ReqBody>, Future = F> + Clone,
    {
        match decided {
            Ok(decision) => match decision.verdict() {
                Verdict::Allow => self.make(Some(decision), config),
                Verdict::Delay(wait) => {
                    let call = Some(Box::new(self.unready()));
                    State::Delay { wait, sleep: None, decision: Some(decision), call }
                }
                Verdict::Deny { .. } => self.reject_unless_soft(Rejection::Limited(decision), config),
            },
            Err(error) => self.reject_unless_soft(Rejection::Unavailable(error), config),
        }
    }

    /// The same call on a clone of the service. A ready service may hold what others need, such as a permit of
    /// a concurrency limit, which must not be held during a delay.
    fn unready(self) -> Self
    where
        S: Clone,
    {
        Self { service: self.service.clone(), ..self }
    }

    /// Rejected, unless the layer only marks what it would reject.
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

    /// Rejected, in soft mode too.
    fn reject<F>(self, rejection: Rejection, config: &Config) -> State<S, ReqBody, F> {
        config.log(&rejection);
        State::Reject { rejection: config.postpone(rejection), request: Box::new(self.request) }
    }
}

impl<S, ReqBody> ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>> + Clone,
{
    pub(crate) fn new(service: S, request: Request<ReqBody>, config: Arc<Config>) -> Self {
        let (request, body) = request.into_parts();
        let call = Call { service, request, body };
        let state = match config.start(&call.request) {
            // The service is called here and now.
            Ok(Start::Asked(Asked::Decided(decided))) => call.carry_on(decided, &config),
            Ok(Start::Asked(Asked::Waits(check))) => State::Decide { check, call: Some(Box::new(call)) },
            Ok(Start::Identify(identity, charges)) => {
                State::Identify { identity, charges, call: Some(Box::new(call)) }
            }
            Ok(Start::Exempt) => call.make(None, &config),
            Ok(Start::Barred(rejection)) => call.reject(rejection, &config),
            Err(rejection) => call.reject_unless_soft(rejection, &config),
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
                StateProj::Identify { identity, charges, call } => {
                    let identified = ready!(Pin::new(identity).poll(cx));
                    let call = take(call);
                    match identified {
                        Ok(Identity::Keys(keys)) => {
                            let charges = mem::take(charges);
                            let check = this.config.check(charges, keys, &call.request);
                            State::Decide { check, call: Some(Box::new(call)) }
                        }
                        Ok(Identity::Exempt) => call.make(None, this.config),
                        Ok(Identity::Barred(rejection)) => call.reject(rejection, this.config),
                        Err(error) => call.reject_unless_soft(Rejection::Unidentified(error), this.config),
                    }
                }
                StateProj::Decide { check, call } => {
                    let decided = ready!(Pin::new(check).poll(cx));
                    take(call).carry_on(decided, this.config)
                }
                StateProj::Delay { wait, sleep, decision, call } => {
                    let sleep = sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(*wait)));
                    ready!(sleep.as_mut().poll(cx));
                    State::Ready { decision: decision.take(), call: call.take() }
                }
                StateProj::Ready { decision, call } => {
                    if let Some(call) = call {
                        ready!(call.service.poll_ready(cx))?;
                    }
                    take(call).make(decision.take(), this.config)
                }
                StateProj::Respond { future, decision, permit } => {
                    let mut response = ready!(future.poll(cx))?;
                    // In the extensions, what the handler took would end with the head of the response.
                    let taken = response.extensions_mut().get_mut().and_then(Decision::take_permit);
                    let permit = both(permit.take(), taken);
                    if let Some(decision) = decision.take() {
                        this.config.decorate(&mut response, decision);
                    }
                    return Poll::Ready(Ok(response.map(|body| ResponseBody::service(body, permit))));
                }
                StateProj::Reject { rejection, request } => {
                    let response = this.config.response(rejection, request);
                    return Poll::Ready(Ok(response.map(ResponseBody::refusal)));
                }
            };
            this.state.set(next);
        }
    }
}

type Permit = Arc<dyn Any + Send + Sync>;

fn both(one: Option<Permit>, other: Option<Permit>) -> Option<Permit> {
    match (one, other) {
        (Some(one), Some(other)) => Some(Arc::new((one, other))),
        (one, other) => one.or(other),
    }
}

/// A state's call, which is there until the state is left.
fn take<S, ReqBody>(call: &mut Option<Box<Call<S, ReqBody>>>) -> Call<S, ReqBody> {
    match call.take() {
        Some(call) => *call,
        None => unreachable!("the state is replaced as soon as its call is taken"),
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
