//! What an operator learns of requests: the events of `on_decision`, the metric of rejections, and the log.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::{StatusCode, request::Parts};

use crate::{
    base::{
        Error, ErrorKind, OutageWatch,
        panics::{is_first, observe},
    },
    decision::{Decision, Outcome, Verdict},
    policy::Enforcement,
    response::Rejection,
};

/// What a layer decided about a request, for
/// [`RateLimitLayer::on_decision`](crate::RateLimitLayer::on_decision).
///
/// `Debug` shows neither the identity nor the request.
///
/// # Example
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{
///     Key, MemoryStore, Policy, Quota, RateLimitLayer, layer::{DecisionEvent, DecisionKind},
///     store::ManualClock,
/// };
///
/// /// A line for each denial, without the client's identity.
/// fn line(event: &DecisionEvent<'_>) -> Option<String> {
///     if event.kind != DecisionKind::Denied || !event.is_rejected {
///         return None;
///     }
///     let (policy, path, client) = (event.policy()?, event.request?.uri.path(), event.key_hash()?);
///     Some(format!("{policy} denied {path} to {client}, wait {:?}", event.decision?.retry_after()?))
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let lines = Arc::new(Mutex::new(Vec::new()));
/// let log = lines.clone();
/// let store = MemoryStore::with_clock(ManualClock::new());
/// let layer = RateLimitLayer::new(store, Policy::new("api", Quota::per_hour(1)), Key::new("alice"))
///     .on_decision(move |event| log.lock().unwrap().extend(line(event)));
/// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
/// }));
///
/// for _ in 0..2 {
///     service.clone().oneshot(Request::get("/export").body(String::new())?).await?;
/// }
/// assert_eq!(*lines.lock().unwrap(), ["api denied /export to 2bd806c97f0e00af, wait 3600s"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct DecisionEvent<'a> {
    /// What was decided.
    pub kind: DecisionKind,
    /// Whether the client gets a rejection. `false` for a request that is denied while the layer
    /// [only reports](crate::policy::Enforcement::ReportOnly).
    pub is_rejected: bool,
    /// The decision of the policies. `None` if none was made: the request is blocked or exempt, no rule
    /// identified its client, the server failed to identify it (500), or the store is unavailable and a
    /// policy is [`Closed`](crate::FailureMode::Closed). For a [rejection by the
    /// service](DecisionKind::RejectedByService), the rejection's decision.
    pub decision: Option<&'a Decision>,
    /// Why the client is unidentified or the store gave no decision. Also for a request that is admitted
    /// without the store's decision; for a denial without it, see [`Decision::failure`].
    pub error: Option<&'a Error>,
    /// The request's head. `None` for a [rejection by the service](DecisionKind::RejectedByService), because
    /// the service owns the request by then.
    ///
    /// Paths, headers and addresses can identify a client, and a client can invent any number of them. For
    /// the labels of a metric, use the method and the matched route.
    pub request: Option<&'a Parts>,
}

/// The kind of a [`DecisionEvent`]. It does not depend on whether the layer enforces or [only
/// reports](crate::policy::Enforcement::ReportOnly).
///
/// # Example
///
/// ```
/// use tower_ratelimit::layer::DecisionKind;
///
/// assert_eq!(DecisionKind::Denied.as_str(), "denied");
/// assert_eq!(DecisionKind::RejectedByService.to_string(), "rejected_by_service");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecisionKind {
    /// Every policy admits the request; or the store failed and the [`FailureMode`](crate::FailureMode)s
    /// admit it, in which case [`DecisionEvent::error`] is set.
    Admitted,
    /// Admitted after a delay. The service is called later.
    Delayed,
    /// A policy denies the request.
    Denied,
    /// A policy denies the request because it [bans](crate::Policy::penalty) the key.
    Banned,
    /// The layer [blocks](crate::RateLimitLayer::block_if) the request.
    Blocked,
    /// The layer [exempts](crate::RateLimitLayer::exempt_if) the request, or no rule limits it.
    Exempt,
    /// The client could not be identified: see [`Rejection::Unidentified`].
    Unidentified,
    /// The store gave no decision, and a policy is [`Closed`](crate::FailureMode::Closed): see
    /// [`Rejection::Unavailable`].
    Unavailable,
    /// The service itself returned a [`Rejection`], which the layer answered. The layer admitted or exempted
    /// the request before, and reported that as a separate event.
    RejectedByService,
}

impl DecisionKind {
    /// The name in lower case with underscores, for labels and logs, such as `admitted` or
    /// `rejected_by_service`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Delayed => "delayed",
            Self::Denied => "denied",
            Self::Banned => "banned",
            Self::Blocked => "blocked",
            Self::Exempt => "exempt",
            Self::Unidentified => "unidentified",
            Self::Unavailable => "unavailable",
            Self::RejectedByService => "rejected_by_service",
        }
    }
}

/// [`as_str`](Self::as_str).
impl fmt::Display for DecisionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<'a> DecisionEvent<'a> {
    /// A request that the policies admit.
    pub(super) fn admitted(decision: &'a Decision, request: &'a Parts) -> Self {
        let kind = match decision.verdict() {
            Verdict::Delay(_) => DecisionKind::Delayed,
            _ => DecisionKind::Admitted,
        };
        Self {
            kind,
            is_rejected: false,
            decision: Some(decision),
            error: decision.failure(),
            request: Some(request),
        }
    }

    /// A request that the layer exempts, or that no rule limits.
    pub(super) const fn exempt(request: &'a Parts) -> Self {
        let request = Some(request);
        Self { kind: DecisionKind::Exempt, is_rejected: false, decision: None, error: None, request }
    }

    /// A request that a layer with this `enforcement` rejects, or would if it did not only report.
    pub(super) fn rejected(
        rejection: &'a Rejection,
        request: Option<&'a Parts>,
        enforcement: Enforcement,
    ) -> Self {
        let (kind, decision, error) = match rejection {
            Rejection::Denied(decision) if decision.is_banned() => {
                (DecisionKind::Banned, Some(decision), None)
            }
            Rejection::Denied(decision) => (DecisionKind::Denied, Some(decision), None),
            Rejection::Blocked => (DecisionKind::Blocked, None, None),
            Rejection::Unidentified(error) => (DecisionKind::Unidentified, None, Some(error)),
            Rejection::Unavailable(error) => (DecisionKind::Unavailable, None, Some(error)),
        };
        let is_rejected = enforcement == Enforcement::On;
        Self { kind, is_rejected, decision, error, request }
    }

    /// A request that the service has rejected.
    pub(super) fn rejected_by_service(rejection: &'a Rejection) -> Self {
        Self { kind: DecisionKind::RejectedByService, ..Self::rejected(rejection, None, Enforcement::On) }
    }

    /// The name of the [binding](Decision::binding) policy: the denying policy, or otherwise the one with the
    /// smallest share left. `None` without a [decision](Self::decision), and if the store
    /// [failed](Decision::failure) and no policy was counted in this process.
    #[must_use]
    pub fn policy(&self) -> Option<&'a str> {
        self.decision.and_then(Decision::binding).map(|outcome: &Outcome| outcome.policy().name())
    }

    /// 64 bits of the SHA-256 of the key that was charged under the [policy](Self::policy), as 16 hex digits:
    /// the `key_hash` in the log and in the output of `ratelimit-admin`. `None` without a policy.
    ///
    /// Each client has a different one, so use it in logs, but not as a label of a metric.
    #[must_use]
    pub fn key_hash(&self) -> Option<String> {
        self.decision.and_then(Decision::binding).map(|outcome| outcome.key().digest())
    }
}

impl fmt::Debug for DecisionEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecisionEvent")
            .field("kind", &self.kind)
            .field("is_rejected", &self.is_rejected)
            .field("decision", &self.decision)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

/// Whom a layer tells about its requests: the function of `on_decision`, the metrics, and the log.
#[derive(Clone, Default)]
pub(super) struct Observer {
    pub(super) on_decision: Option<Arc<dyn Fn(&DecisionEvent<'_>) + Send + Sync>>,
    notices: Arc<Notices>,
}

impl Observer {
    /// An observer with the same function, for a layer that logs its own mistakes and outages.
    pub(super) fn of_other_layer(&self) -> Self {
        Self { on_decision: self.on_decision.clone(), notices: Arc::default() }
    }

    /// Calls the function of `on_decision`.
    pub(super) fn report<'a>(&self, event: impl FnOnce() -> DecisionEvent<'a>) {
        if let Some(on_decision) = &self.on_decision {
            let call = || on_decision(&event());
            observe(&self.notices.on_decision, "the function of `on_decision`", call);
        }
    }

    /// Counts, reports and logs a rejection of a request with this `enforcement`.
    pub(super) fn rejected(
        &self,
        event: &DecisionEvent<'_>,
        rejection: &Rejection,
        enforcement: Enforcement,
        policy_of: impl Fn(usize) -> Option<String>,
    ) {
        #[cfg(feature = "metrics")]
        if event.is_rejected {
            metric!(rejected(event.kind.as_str()));
        }
        self.report(|| *event);
        self.notices.rejected(rejection, enforcement, policy_of);
    }

    /// Logs once that two layers charge a request under one policy: `outer` is the decision of the outer one.
    pub(super) fn charged_twice(&self, outer: &Decision, decision: &Decision) {
        self.notices.charged_twice(outer, decision);
    }

    /// Whether this is the first look at the layer's settings.
    pub(super) fn is_first_look(&self) -> bool {
        is_first(&self.notices.settings)
    }
}

/// What was logged already, because a layer logs it once.
#[derive(Default)]
struct Notices {
    /// Whether the function of `on_decision` has panicked.
    on_decision: AtomicBool,
    /// Whether the settings were looked at.
    settings: AtomicBool,
    setup_error: AtomicBool,
    cost: AtomicBool,
    charged_twice: AtomicBool,
    /// The outage of the extractors, if there is one.
    outage: OutageWatch,
}

/// Logs which rule cannot identify the client. The client's text names neither the rule nor its policy, which is
/// `policy_of` its place in the layer.
pub(super) fn log_unidentified(rejection: &Rejection, policy_of: impl Fn(usize) -> Option<String>) {
    if let Rejection::Unidentified(error) = rejection {
        log!(
            debug,
            status = rejection.status().as_u16(),
            rule = number(error),
            policy = error.rule().and_then(policy_of),
            error = %error,
            "the client cannot be identified"
        );
    }
}

/// The number of the rule that met `error`. The first rule of a layer is 1.
fn number(error: &Error) -> Option<usize> {
    error.rule().map(|at| at + 1)
}

impl Notices {
    fn rejected(
        &self,
        rejection: &Rejection,
        enforcement: Enforcement,
        policy_of: impl Fn(usize) -> Option<String>,
    ) {
        match rejection {
            Rejection::Unidentified(error) | Rejection::Unavailable(error)
                if matches!(error.kind(), ErrorKind::MissingSetup | ErrorKind::InvalidConfig) =>
            {
                // Logged once, because every request meets the same error.
                if is_first(&self.setup_error) {
                    log!(
                        error,
                        rule = number(error),
                        policy = error.rule().and_then(&policy_of),
                        error = %error,
                        "the rate limit is misconfigured; requests are rejected with 500"
                    );
                }
            }
            Rejection::Unidentified(error)
                if rejection.status() == StatusCode::INTERNAL_SERVER_ERROR && self.outage.failed() =>
            {
                log!(
                    warn,
                    rule = number(error),
                    policy = error.rule().and_then(&policy_of),
                    error = %error,
                    "outage of client identification; requests are rejected with 500"
                );
            }
            Rejection::Unidentified(_) => log_unidentified(rejection, policy_of),
            _ => {
                if let Some(decision) = rejection.decision() {
                    self.cost(decision);
                }
                // The closure runs only if the line is logged.
                let binding = || rejection.decision().and_then(Decision::binding);
                log!(
                    debug,
                    status = rejection.status().as_u16(),
                    policy = binding().map(|outcome| outcome.policy().name()),
                    key_hash = binding().map(|outcome| outcome.key().digest()),
                    report_only = enforcement == Enforcement::ReportOnly,
                    "denied"
                );
            }
        }
    }

    fn charged_twice(&self, outer: &Decision, decision: &Decision) {
        let charged = !outer.is_denied() && !decision.is_denied();
        if !charged || self.charged_twice.load(Ordering::Relaxed) {
            return;
        }
        let is_same = |one: &&Outcome| {
            let same = |other: &Outcome| other.granted() > 0 && other.charge().is_of_same_count(one.charge());
            one.granted() > 0 && outer.all_outcomes().iter().any(same)
        };
        let twice = decision.all_outcomes().iter().find(is_same);
        if let Some(outcome) = twice
            && is_first(&self.charged_twice)
        {
            log!(
                warn,
                policy = outcome.policy().name(),
                "two rate limit layers count a request under the policy {:?}, so it is charged twice; remove one of the \
                 layers, or give each policy its own name",
                outcome.policy().name()
            );
        }
    }

    /// Logs once that a request costs more than a policy ever admits.
    fn cost(&self, decision: &Decision) {
        let is_too_much = |outcome: &&Outcome| outcome.charge().cost() > outcome.policy().capacity();
        if matches!(decision.verdict(), Verdict::Deny { retry_after: None, .. })
            // If the store failed, another capacity may have denied the request.
            && decision.failure().is_none()
            && let Some(outcome) = decision.binding().filter(is_too_much)
            && is_first(&self.cost)
        {
            log!(
                warn,
                policy = outcome.policy().name(),
                cost = outcome.charge().cost(),
                "a request costs more than the policy {:?} admits in one step: {} of {}, so it is always denied: \
                 lower its cost, or raise the burst, or the limit if the quota has no burst",
                outcome.policy().name(),
                outcome.charge().cost(),
                outcome.policy().capacity()
            );
        }
    }
}
