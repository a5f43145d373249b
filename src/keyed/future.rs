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
use tokio::time::{Sleep, sleep};
use tower_service::Service;

use super::rule::Config;
use crate::{
    base::{Answer, DelayedService, Error, unready},
    decision::{Charge, Decision, Verdict},
    key::Keys,
    limiter::WaitState,
    response::Rejection,
};

pub(super) type BoxError = Box<dyn StdError + Send + Sync>;

pin_project! {
    /// The response future of [`KeyedRateLimit`](super::KeyedRateLimit). It resolves to the inner service's response,
    /// or to a rejection. If it is dropped before the decision, the request may still be charged.
    pub struct KeyedResponseFuture<S, R>
    where
        S: Service<R>,
    {
        #[pin]
        state: State<S, R, S::Future>,
        config: Arc<Config<R>>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, R, F> {
        // Waiting for the key. The service is ready and not called yet.
        Identify {
            keys: Answer<Keys>,
            call: Option<(S, R)>,
        },
        // Waiting for the policies. The service is ready and not called yet.
        Charge {
            charges: Answer<Vec<Charge>>,
            call: Option<(S, R)>,
        },
        // Waiting for the store, for the first time or after a wait. The service is ready if `waited` is `None`.
        Decide {
            decision: Answer<Decision>,
            charges: Vec<Charge>,
            waited: Option<WaitState>,
            call: Option<(S, R)>,
        },
        // Denied, and waiting to try again. The service is not ready.
        Wait {
            #[pin]
            sleep: Sleep,
            charges: Vec<Charge>,
            waited: WaitState,
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

impl<S, R> KeyedResponseFuture<S, R>
where
    S: Service<R> + Clone,
{
    pub(super) fn new(service: S, request: R, config: Arc<Config<R>>) -> Self {
        let keys = config.identify(&request);
        let call = (service, request);
        let state = match keys.now() {
            Ok(Ok(keys)) => State::charge(&config, keys, call),
            // `poll` returns the error.
            Ok(Err(error)) => State::Identify { keys: Answer::ready(Err(error)), call: Some(call) },
            Err(keys) => State::Identify { keys, call: Some(call) },
        };
        Self { state, config }
    }
}

impl<S: Service<R>, R> State<S, R, S::Future> {
    fn charge(config: &Config<R>, keys: Keys, call: (S, R)) -> Self {
        match config.charges(keys, &call.1).now() {
            Ok(Ok(charges)) => Self::decide(config, charges, call),
            Ok(Err(error)) => Self::Charge { charges: Answer::ready(Err(error)), call: Some(call) },
            Err(charges) => Self::Charge { charges, call: Some(call) },
        }
    }

    fn decide(config: &Config<R>, charges: Vec<Charge>, call: (S, R)) -> Self {
        let decision = config.limiter.check_waiting(&charges, None, config.patience);
        Self::Decide { decision, charges, waited: None, call: Some(call) }
    }

    fn delay((service, request): (S, R), delay: Duration, decision: Decision) -> Self {
        Self::Delay { delayed: Some((DelayedService::after(delay, service), request, decision)) }
    }

    fn respond(mut service: S, request: R, decision: Decision) -> Self {
        Self::Respond { future: service.call(request), decision: Some(decision) }
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
                StateProj::Identify { keys, call } => {
                    let keys: Result<Keys, Error> = ready!(Pin::new(keys).poll(cx));
                    State::charge(this.config, keys.map_err(Rejection::Unidentified)?, take(call))
                }
                StateProj::Charge { charges, call } => {
                    let charges = ready!(Pin::new(charges).poll(cx));
                    State::decide(this.config, charges.map_err(Rejection::Unidentified)?, take(call))
                }
                StateProj::Decide { decision, charges, waited, call } => {
                    let decision = ready!(Pin::new(decision).poll(cx)).map_err(Rejection::Unavailable)?;
                    let call = take(call);
                    match decision.verdict() {
                        // The service is no longer ready.
                        Verdict::Allow if waited.is_some() => State::delay(call, Duration::ZERO, decision),
                        Verdict::Allow => State::respond(call.0, call.1, decision),
                        Verdict::Delay(delay) => State::delay(without_readiness(call), delay, decision),
                        Verdict::Deny { .. } => {
                            let mut waited = waited.take().unwrap_or_else(WaitState::new);
                            let Some(wait) = waited.next(&decision, this.config.patience) else {
                                return Poll::Ready(Err(Rejection::Denied(decision).into()));
                            };
                            let (charges, call) = (mem::take(charges), Some(without_readiness(call)));
                            State::Wait { sleep: sleep(wait), charges, waited, call }
                        }
                    }
                }
                StateProj::Wait { sleep, charges, waited, call } => {
                    ready!(sleep.poll(cx));
                    State::Decide {
                        decision: this.config.limiter.check_waiting(
                            charges,
                            Some(*waited),
                            this.config.patience,
                        ),
                        charges: mem::take(charges),
                        waited: Some(*waited),
                        call: call.take(),
                    }
                }
                StateProj::Delay { delayed } => {
                    if let Some((turn, ..)) = delayed {
                        ready!(turn.poll(cx)).map_err(Into::into)?;
                    }
                    let (turn, request, decision) = take(delayed);
                    State::respond(turn.into_service(), request, decision)
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

fn without_readiness<S: Clone, R>((service, request): (S, R)) -> (S, R) {
    (unready(service), request)
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
