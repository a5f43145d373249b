use std::{
    error::Error as StdError,
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::time::sleep;
use tower_service::Service;

use crate::{
    base::{Answer, DelayedService, Error, unready},
    decision::{Charge, Decision, Verdict},
    limiter::{Limiter, WaitState},
    response::Rejection,
};

type BoxError = Box<dyn StdError + Send + Sync>;

/// A service behind a rate limit, made by [`KeyedRateLimitLayer`](super::KeyedRateLimitLayer), which has an example.
pub struct KeyedRateLimit<S, R> {
    pub(super) inner: S,
    pub(super) limiter: Limiter,
    pub(super) charges: Charges<R>,
    pub(super) patience: Duration,
}

/// Returns the charges of a request.
pub(super) type Charges<R> = Arc<dyn Fn(&R) -> Answer<Vec<Charge>> + Send + Sync>;

impl<S, R> Service<R> for KeyedRateLimit<S, R>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = KeyedResponseFuture<S, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        // Call the service that is ready. Its clone, which may not be ready, stays behind.
        let clone = self.inner.clone();
        let service = mem::replace(&mut self.inner, clone);
        let (limiter, patience) = (self.limiter.clone(), self.patience);
        let state = match (self.charges)(&request).now() {
            Ok(Ok(charges)) => State::decide(&limiter, patience, charges, (service, request)),
            // `poll` returns the error.
            Ok(error) => State::Charge { charges: Answer::ready(error), call: Some((service, request)) },
            Err(charges) => State::Charge { charges, call: Some((service, request)) },
        };
        KeyedResponseFuture { state, limiter, patience }
    }
}

pin_project! {
    /// The response future of [`KeyedRateLimit`]. It resolves to the inner service's response, or to a rejection. If it is
    /// dropped before the decision, the request may still be charged.
    pub struct KeyedResponseFuture<S, R>
    where
        S: Service<R>,
    {
        #[pin]
        state: State<S, R, S::Future>,
        limiter: Limiter,
        patience: Duration,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, R, F> {
        // Waiting for the keys and policies. The service is ready and not called yet.
        Charge {
            charges: Answer<Vec<Charge>>,
            call: Option<(S, R)>,
        },
        // Waiting for the store. After a denial, the request may wait and try again.
        Decide {
            decision: Answer<Decision>,
            // The first try. The service is ready as long as there was no other.
            first: Option<(Vec<Charge>, WaitState)>,
            call: Option<(S, R)>,
        },
        // Admitted and charged; waiting for the delay, and for the service to be ready again.
        Delay {
            delayed: Option<(DelayedService<S>, R, Decision)>,
        },
        // Waiting for the inner service. The decision holds the permit until then.
        Respond {
            #[pin]
            future: F,
            decision: Option<Decision>,
        },
    }
}

impl<S: Service<R> + Clone, R> State<S, R, S::Future> {
    fn decide(limiter: &Limiter, patience: Duration, charges: Vec<Charge>, call: (S, R)) -> Self {
        let waited = WaitState::new();
        let decision = limiter.check_waiting(&charges, Some(waited), patience);
        Self::Decide { decision, first: Some((charges, waited)), call: Some(call) }
    }
}

/// Waits until `charges` are made, or cannot be within the patience. The first try was denied, so it waits for `wait`.
async fn admit(
    limiter: Limiter,
    charges: Vec<Charge>,
    patience: Duration,
    mut waited: WaitState,
    mut wait: Duration,
) -> Result<Decision, Error> {
    loop {
        sleep(wait).await;
        let decision = limiter.check_waiting(&charges, Some(waited), patience).await?;
        match waited.next(&decision, patience).filter(|_| decision.is_denied()) {
            Some(next) => wait = next,
            None => return Ok(decision),
        }
    }
}

impl<S, R> Future for KeyedResponseFuture<S, R>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
{
    type Output = Result<S::Response, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProj::Charge { charges, call } => {
                    let charges = ready!(Pin::new(charges).poll(cx)).map_err(Rejection::Unidentified)?;
                    State::decide(this.limiter, *this.patience, charges, take(call))
                }
                StateProj::Decide { decision, first, call } => {
                    let decision = ready!(Pin::new(decision).poll(cx)).map_err(Rejection::Unavailable)?;
                    let (mut service, request) = take(call);
                    let is_ready = first.is_some();
                    if let Some((charges, mut waited)) = first.take()
                        && decision.is_denied()
                        && let Some(wait) = waited.next(&decision, *this.patience)
                    {
                        let retry = admit(this.limiter.clone(), charges, *this.patience, waited, wait);
                        let (decision, call) = (Answer::pending(retry), (unready(service), request));
                        this.state.set(State::Decide { decision, first: None, call: Some(call) });
                        continue;
                    }
                    let delay = match decision.verdict() {
                        Verdict::Deny { .. } => return Poll::Ready(Err(Rejection::Denied(decision).into())),
                        Verdict::Delay(delay) => delay,
                        Verdict::Allow => Duration::ZERO,
                    };
                    if delay.is_zero() && is_ready {
                        State::Respond { future: service.call(request), decision: Some(decision) }
                    } else {
                        let service = DelayedService::after(delay, unready(service));
                        State::Delay { delayed: Some((service, request, decision)) }
                    }
                }
                StateProj::Delay { delayed } => {
                    if let Some((service, ..)) = delayed {
                        ready!(service.poll(cx)).map_err(Into::into)?;
                    }
                    let (service, request, decision) = take(delayed);
                    let future = service.into_service().call(request);
                    State::Respond { future, decision: Some(decision) }
                }
                StateProj::Respond { future, decision } => {
                    let response = ready!(future.poll(cx)).map_err(Into::into);
                    *decision = None;
                    return Poll::Ready(response);
                }
            };
            this.state.set(next);
        }
    }
}

/// Moves a value out of a state that is about to be replaced.
fn take<T>(value: &mut Option<T>) -> T {
    match value.take() {
        Some(value) => value,
        None => unreachable!("a state is replaced as soon as its value is moved out"),
    }
}

impl<S: Service<R>, R> fmt::Debug for KeyedResponseFuture<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedResponseFuture").finish_non_exhaustive()
    }
}

// Written out because derives would require the traits of `R`.

impl<S: Clone, R> Clone for KeyedRateLimit<S, R> {
    fn clone(&self) -> Self {
        let Self { inner, limiter, charges, patience } = self;
        let (inner, limiter, charges) = (inner.clone(), limiter.clone(), charges.clone());
        Self { inner, limiter, charges, patience: *patience }
    }
}

impl<S: fmt::Debug, R> fmt::Debug for KeyedRateLimit<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRateLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}
