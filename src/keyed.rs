//! The layer for Tower services whose requests are not HTTP.

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
use tokio::time::{Instant, Sleep, sleep};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    Answer, Charge, Decision, IntoKey, Key, Limiter, Policy, Rejection, Verdict,
    limiter::Check,
    per_thread::{Apart, PerThread},
};

/// Puts a rate limit in front of a Tower service whatever its requests are: messages, jobs, calls to
/// somebody else's API.
///
/// The key comes from a closure over the request. A rejection is an error, a [`Rejection`] in a boxed error as
/// tower's own `load_shed` and `timeout` do it: `error.downcast_ref::<Rejection>()` finds it, with the wait in
/// it. Or, on the calling side of a limit, [`wait`](Self::wait) has requests wait for their turn.
///
/// For HTTP there is [`RateLimitLayer`](crate::RateLimitLayer), which answers instead.
///
/// # Example
///
/// ```
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_ratelimit::{KeyedRateLimitLayer, MemoryStore, Policy, Quota, Rejection};
///
/// #[derive(Clone)]
/// struct Job {
///     tenant: String,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower::BoxError> {
/// let policy = Policy::new("jobs", Quota::per_hour(1));
/// let limit = KeyedRateLimitLayer::new(MemoryStore::new(), policy, |job: &Job| job.tenant.clone());
/// let service = ServiceBuilder::new()
///     .layer(limit)
///     .service_fn(|job: Job| async move { Ok::<_, std::io::Error>(format!("done for {}", job.tenant)) });
///
/// let job = |tenant: &str| Job { tenant: tenant.into() };
/// assert_eq!(service.clone().oneshot(job("acme")).await?, "done for acme");
/// let error = service.clone().oneshot(job("acme")).await.unwrap_err();
/// let rejection = error.downcast_ref::<Rejection>().unwrap();
/// assert_eq!(rejection.retry_after_seconds(), Some(3600));
/// service.oneshot(job("globex")).await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a layer does nothing until it wraps a service"]
pub struct KeyedRateLimitLayer<R> {
    config: Arc<PerThread<Config<R>>>,
}

struct Config<R> {
    limiter: Limiter,
    rules: Vec<KeyedRule<R>>,
    patience: Duration,
}

/// How a request of a [`KeyedRateLimitLayer`] becomes a charge: a policy, the key that it limits, and what the request
/// costs. See [`Rule`](crate::Rule) for the same over HTTP.
///
/// # Example
///
/// ```
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_ratelimit::{KeyedRateLimitLayer, KeyedRule, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower::BoxError> {
/// let bytes = KeyedRule::new(Policy::new("bytes", Quota::per_hour(10)), |_: &String| "all")
///     .cost(|message: &String| message.len() as u64);
/// let messages = Policy::new("messages", Quota::per_hour(100));
/// let limit = KeyedRateLimitLayer::new(MemoryStore::new(), messages, |_: &String| "all").and(bytes);
/// let service = ServiceBuilder::new()
///     .layer(limit)
///     .service_fn(|message: String| async move { Ok::<_, std::io::Error>(message.len()) });
///
/// assert_eq!(service.clone().oneshot("12345678".into()).await?, 8);
/// assert!(service.oneshot("12345678".into()).await.is_err());
/// # Ok(())
/// # }
/// ```
#[must_use = "a rule does nothing until a layer has it"]
pub struct KeyedRule<R> {
    policy: Policy,
    key: Arc<dyn Fn(&R) -> Answer<Key> + Send + Sync>,
    cost: Option<Arc<dyn Fn(&R) -> u64 + Send + Sync>>,
}

impl<R: 'static> KeyedRule<R> {
    /// Limits each key that `key` finds in a request to `policy`, at one unit a request.
    pub fn new<K: IntoKey>(policy: Policy, key: impl Fn(&R) -> K + Send + Sync + 'static) -> Self {
        Self { policy, key: Arc::new(move |request: &R| key(request).into_key()), cost: None }
    }

    /// What a request costs, in units. Defaults to 1. A cost of 0 is always admitted and charges nothing; one above
    /// the policy's capacity is always denied.
    pub fn cost(mut self, cost: impl Fn(&R) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }
}

impl<R: 'static> KeyedRateLimitLayer<R> {
    /// Limits each key that `key` finds in a request to `policy`, with the counts in `store`.
    ///
    /// # Panics
    ///
    /// If the store cannot count as the policy wants it to.
    pub fn new<K: IntoKey>(
        store: impl Into<Limiter>,
        policy: Policy,
        key: impl Fn(&R) -> K + Send + Sync + 'static,
    ) -> Self {
        let config = Config { limiter: store.into(), rules: Vec::new(), patience: Duration::ZERO };
        Self { config: Arc::new(PerThread::new(config)) }.and(KeyedRule::new(policy, key))
    }

    /// Limits requests by `rule` as well. All rules are decided in one atomic step: a request that one of their
    /// policies denies is charged to none.
    ///
    /// # Panics
    ///
    /// If the layer has a policy of that name already; and where [`new`](Self::new) panics.
    #[track_caller]
    pub fn and(self, rule: KeyedRule<R>) -> Self {
        let policy = &rule.policy;
        let config = self.config.original();
        if let Err(error) = config.limiter.accept(policy) {
            panic!("{error}");
        }
        assert!(
            !config.rules.iter().any(|other| other.policy.name() == policy.name()),
            "the layer has two policies named {:?}: give each its own name",
            policy.name()
        );
        self.with(|config| config.rules.push(rule))
    }

    /// What a request costs, in units, under the policy that [`new`](Self::new) was given. Defaults to 1. For the
    /// policies of other rules, see [`KeyedRule::cost`].
    pub fn cost(self, cost: impl Fn(&R) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|config| {
            if let Some(first) = config.rules.first_mut() {
                first.cost = Some(Arc::new(cost));
            }
        })
    }

    /// Has a request that is over the limit wait for its turn, asking again when it may be there, for up to
    /// `patience` in all; one whose turn cannot come by then is rejected at once. Defaults to rejecting it at once.
    ///
    /// Units in use, of a [`Concurrency`](crate::Concurrency) policy, come back when whoever has them is done, which
    /// nobody knows beforehand. For these it looks again after 10 milliseconds and then ever later, up to every 250,
    /// until the patience is over.
    ///
    /// A request that waits does not keep the inner service ready: a permit of an inner concurrency limit is free
    /// for others meanwhile. When the request is admitted, it waits for the service to be ready again, which does
    /// not count as patience; an error of the service's `poll_ready` is the request's error.
    pub fn wait(self, patience: Duration) -> Self {
        self.with(|config| config.patience = patience)
    }

    fn with(mut self, change: impl FnOnce(&mut Config<R>)) -> Self {
        change(PerThread::change(&mut self.config));
        self
    }
}

impl<R> Config<R> {
    fn identify(&self, request: &R) -> Result<Vec<Charge>, Identify> {
        let mut keys = self.rules.iter().map(|rule| (rule.key)(request)).collect::<Vec<_>>();
        if keys.iter().all(Answer::is_ready) {
            let keys: Result<Vec<_>, _> = keys.drain(..).filter_map(|key| key.now().ok()).collect();
            return match keys {
                Ok(keys) => Ok(self.charges(keys, request)),
                Err(error) => Err(Answer::ready(Err(error))),
            };
        }
        Err(Answer::pending(async move {
            let mut found = Vec::with_capacity(keys.len());
            for key in keys {
                found.push(key.await?);
            }
            Ok(found)
        }))
    }

    fn charges(&self, keys: Vec<Key>, request: &R) -> Vec<Charge> {
        let charge = |(rule, key): (&KeyedRule<R>, Key)| {
            let cost = rule.cost.as_ref().map_or(1, |cost| cost(request));
            Charge::of(rule.policy.clone(), key.stored(), cost)
        };
        self.rules.iter().zip(keys).map(charge).collect()
    }
}

type Identify = Answer<Vec<Key>>;
type BoxError = Box<dyn StdError + Send + Sync>;

impl<S, R> Layer<S> for KeyedRateLimitLayer<R> {
    type Service = KeyedRateLimit<S, R>;

    fn layer(&self, inner: S) -> Self::Service {
        KeyedRateLimit { inner, config: self.config.clone() }
    }
}

/// A service behind a rate limit. Made by [`KeyedRateLimitLayer`], which has an example.
pub struct KeyedRateLimit<S, R> {
    inner: S,
    config: Arc<PerThread<Config<R>>>,
}

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
        // The service that was driven to readiness is the one to call.
        let clone = self.inner.clone();
        let service = mem::replace(&mut self.inner, clone);
        let config = self.config.here();
        let identified = config.identify(&request);
        let call = Some((service, request));
        let state = match identified {
            Ok(charges) => {
                let check = config.limiter.check_all(&charges);
                State::Decide { check, charges, waited: None, call }
            }
            Err(identity) => State::Identify { identity, call },
        };
        KeyedResponseFuture { state, config: config.clone() }
    }
}

pin_project! {
    /// The response of [`KeyedRateLimit`]: the inner service's, or a rejection. Dropping it while the decision is
    /// under way leaves nothing behind but, perhaps, the charge.
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
        // Waiting to know whose request it is. The service is ready and not called yet.
        Identify {
            identity: Identify,
            call: Option<(S, R)>,
        },
        // Waiting for the store, for the first time or, after a wait, again. The service is ready if `waited` is
        // `None`.
        Decide {
            check: Check,
            charges: Vec<Charge>,
            waited: Option<Waited>,
            call: Option<(S, R)>,
        },
        // Denied, and waiting to ask again. The service is not ready.
        Wait {
            #[pin]
            sleep: Sleep,
            charges: Vec<Charge>,
            waited: Waited,
            call: Option<(S, R)>,
        },
        // Admitted and charged; waiting for the request's turn. The service is not ready.
        Delay {
            #[pin]
            sleep: Sleep,
            decision: Option<Decision>,
            call: Option<(S, R)>,
        },
        // The request's turn has come; waiting for the service to be ready again.
        Ready {
            decision: Option<Decision>,
            call: Option<(S, R)>,
        },
        // Waiting for the inner service. The decision holds what is in use until then.
        Respond {
            #[pin]
            future: F,
            decision: Option<Decision>,
        },
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
                StateProj::Identify { identity, call } => {
                    let keys = ready!(Pin::new(identity).poll(cx)).map_err(Rejection::Unidentified)?;
                    let call = call.take();
                    let charges = call
                        .as_ref()
                        .map(|(_, request)| this.config.charges(keys, request))
                        .unwrap_or_default();
                    let check = this.config.limiter.check_all(&charges);
                    State::Decide { check, charges, waited: None, call }
                }
                StateProj::Decide { check, charges, waited, call } => {
                    let decision = ready!(Pin::new(check).poll(cx)).map_err(Rejection::Unavailable)?;
                    match decision.verdict() {
                        Verdict::Allow if waited.is_some() => {
                            State::Ready { decision: Some(decision), call: call.take() }
                        }
                        Verdict::Allow => respond(call.take(), decision),
                        Verdict::Delay(wait) => State::Delay {
                            sleep: sleep(wait),
                            decision: Some(decision),
                            call: call.take().map(unready),
                        },
                        Verdict::Deny { .. } => {
                            let mut waited = waited.take().unwrap_or_else(Waited::new);
                            match waited.next(&decision, this.config.patience) {
                                Some(wait) => State::Wait {
                                    sleep: sleep(wait),
                                    charges: mem::take(charges),
                                    waited,
                                    call: call.take().map(unready),
                                },
                                None => return Poll::Ready(Err(Rejection::Limited(decision).into())),
                            }
                        }
                    }
                }
                StateProj::Wait { sleep, charges, waited, call } => {
                    ready!(sleep.poll(cx));
                    State::Decide {
                        check: this.config.limiter.check_all(charges),
                        charges: mem::take(charges),
                        waited: Some(*waited),
                        call: call.take(),
                    }
                }
                StateProj::Delay { sleep, decision, call } => {
                    ready!(sleep.poll(cx));
                    State::Ready { decision: decision.take(), call: call.take() }
                }
                StateProj::Ready { decision, call } => {
                    if let Some((service, _)) = call {
                        ready!(service.poll_ready(cx)).map_err(Into::into)?;
                    }
                    match decision.take() {
                        Some(decision) => respond(call.take(), decision),
                        None => unreachable!("the state is replaced as soon as its decision is taken"),
                    }
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

/// How a request has waited for its turn.
#[derive(Clone, Copy)]
struct Waited {
    since: Instant,
    /// How long it would wait for units in use.
    pause: Duration,
}

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

impl Waited {
    fn new() -> Self {
        Self { since: Instant::now(), pause: FIRST_PAUSE }
    }

    /// How long it waits now that `decision` denies it; `None` where its turn cannot come in time.
    fn next(&mut self, decision: &Decision, patience: Duration) -> Option<Duration> {
        let left = patience.saturating_sub(self.since.elapsed());
        let mut wait = Duration::ZERO;
        let mut in_use = false;
        for outcome in decision.outcomes().iter().filter(|outcome| !outcome.is_allowed()) {
            let named = outcome.retry_after()?;
            if outcome.policy().is_held() {
                // It names the end of a lease, which is when units come back of somebody who died.
                in_use = true;
            } else {
                wait = wait.max(named);
            }
        }
        if left.is_zero() || wait > left {
            return None;
        }
        if in_use {
            wait = wait.max(self.pause).min(left);
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        Some(wait)
    }
}

/// The same call on a clone of the service. A ready service may hold what others need, such as a permit of a
/// concurrency limit, which must not be held during a wait.
#[expect(clippy::redundant_clone, reason = "a clone of a ready service is not ready")]
fn unready<S: Clone, R>((service, request): (S, R)) -> (S, R) {
    (service.clone(), request)
}

fn respond<S: Service<R>, R>(call: Option<(S, R)>, decision: Decision) -> State<S, R, S::Future> {
    match call {
        Some((mut service, request)) => {
            State::Respond { future: service.call(request), decision: Some(decision) }
        }
        None => unreachable!("the state is replaced as soon as its call is taken"),
    }
}

// Written out, because derived ones would ask the same of `R`.

impl<R> Clone for KeyedRateLimitLayer<R> {
    fn clone(&self) -> Self {
        Self { config: self.config.clone() }
    }
}

impl<S: Clone, R> Clone for KeyedRateLimit<S, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), config: self.config.clone() }
    }
}

impl<R> Clone for Config<R> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), rules: self.rules.clone(), patience: self.patience }
    }
}

impl<R> Apart for Config<R> {
    fn apart(&self) -> Self {
        let rules = self.rules.iter().map(|rule| KeyedRule { policy: rule.policy.apart(), ..rule.clone() });
        Self { rules: rules.collect(), ..self.clone() }
    }
}

impl<R> Clone for KeyedRule<R> {
    fn clone(&self) -> Self {
        Self { policy: self.policy.clone(), key: self.key.clone(), cost: self.cost.clone() }
    }
}

impl<R> fmt::Debug for KeyedRule<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRule").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl<R> fmt::Debug for Config<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("policies", &self.rules.iter().map(|rule| &rule.policy).collect::<Vec<_>>())
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl<R> fmt::Debug for KeyedRateLimitLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRateLimitLayer").field("config", &self.config).finish()
    }
}

impl<S: fmt::Debug, R> fmt::Debug for KeyedRateLimit<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRateLimit").field("inner", &self.inner).field("config", &self.config).finish()
    }
}

impl<S: Service<R>, R> fmt::Debug for KeyedResponseFuture<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedResponseFuture").finish_non_exhaustive()
    }
}
