//! The settings of a layer, shared by all of its services.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::{Response, StatusCode, request::Parts, response};

use super::{
    event::DecisionEvent,
    routes::Routes,
    rule::Rule,
    rules::Rules,
    settle::{Settlement, Settlements},
};
use crate::{
    base::{Error, ErrorKind, Outage},
    decision::{Decision, Outcome},
    key::RequestMatcher,
    limiter::Limiter,
    policy::{Enforcement, EnforcementSwitch},
    response::{
        GrpcStatus, HeaderWriter, Headers, Kept, ProblemDetails, Rejection, RejectionBody, ResponseMapper,
        is_grpc, mark_request, reject, replace,
    },
};

// Aligned as the fields of a policy are, because every request changes the reference count.
#[derive(Clone)]
#[repr(align(128))]
pub(super) struct Config {
    pub(super) limiter: Limiter,
    pub(super) rules: Vec<Rule>,
    /// Which rules apply to a request. `None`: all.
    pub(super) routes: Option<Arc<Routes>>,
    pub(super) exempt: Vec<Arc<dyn RequestMatcher>>,
    pub(super) banned: Vec<Arc<dyn RequestMatcher>>,
    pub(super) preflight: Preflight,
    pub(super) enabled: bool,
    pub(super) soft: bool,
    /// `None` if the layer is always enforced as it is built.
    pub(super) switch: Option<EnforcementSwitch>,
    pub(super) headers: HeaderWriter,
    pub(super) mapper: Arc<dyn ResponseMapper>,
    pub(super) grpc: Arc<dyn ResponseMapper>,
    pub(super) on_decision: Option<Arc<dyn Fn(&DecisionEvent<'_>) + Send + Sync>>,
    pub(super) settlements: Settlements,
    /// Whether a set-up error was logged.
    pub(super) setup_error_logged: Arc<AtomicBool>,
    pub(super) checked: Checked,
    /// Whether it was logged that another layer has the same policy.
    pub(super) counted_twice: Arc<AtomicBool>,
    /// The outage of the extractors, if there is one.
    pub(super) outage: Arc<Outage>,
}

/// How a layer limits CORS preflights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preflight {
    /// By a separate budget of the same size for each policy.
    Separate,
    Exempt,
    /// Like any other request.
    Limited,
}

impl Config {
    /// The defaults, with no rule.
    pub(super) fn new(limiter: Limiter) -> Self {
        Self {
            limiter,
            rules: Vec::new(),
            routes: None,
            exempt: Vec::new(),
            banned: Vec::new(),
            preflight: Preflight::Separate,
            enabled: true,
            soft: false,
            switch: None,
            headers: HeaderWriter::new(Headers::default()),
            mapper: Arc::new(ProblemDetails::default()),
            grpc: Arc::new(GrpcStatus::default()),
            on_decision: None,
            settlements: Settlements::default(),
            setup_error_logged: Arc::default(),
            checked: Checked::default(),
            counted_twice: Arc::default(),
            outage: Arc::default(),
        }
    }

    /// Whether the limits are enforced on a request that arrives now.
    pub(super) fn enforcement(&self) -> Enforcement {
        let own = if !self.enabled {
            Enforcement::Off
        } else if self.soft {
            Enforcement::Soft
        } else {
            Enforcement::On
        };
        match (&self.switch, own) {
            (None, own) | (Some(_), own @ Enforcement::Off) => own,
            (Some(switch), own) => match switch.get() {
                Enforcement::On => own,
                switched => switched,
            },
        }
    }

    /// These settings for layers with `rules`, which log their own mistakes and outages.
    ///
    /// # Errors
    ///
    /// The rules do not fit together, or the store does not support the algorithm of a policy.
    pub(super) fn with_rules(&self, rules: Rules) -> Result<Self, Error> {
        rules.check()?;
        let (rules, routes) = rules.into_parts();
        for policy in rules.iter().filter_map(|rule| rule.policy.known()) {
            self.limiter.accept(&policy)?;
        }
        let logged = Self::new(self.limiter.clone());
        Ok(Self {
            rules,
            routes: routes.map(Arc::new),
            setup_error_logged: logged.setup_error_logged,
            checked: logged.checked,
            counted_twice: logged.counted_twice,
            outage: logged.outage,
            ..self.clone()
        })
    }

    /// Inserts the decision and the limiter into the request's extensions. In soft mode, also marks a request over the
    /// limit with a header.
    pub(super) fn annotate(&self, request: &mut Parts, decision: Option<&Decision>, soft: bool) {
        let limiter = if soft {
            mark_request(request, decision);
            self.limiter.under(Enforcement::Soft)
        } else {
            self.limiter.clone()
        };
        let Some(decision) = decision else {
            return self.annotate_uncharged(request, limiter);
        };
        self.warn_of_redundant(decision);
        if let Some(outer) = request.extensions.insert(decision.clone()) {
            self.warn_of_twice(&outer, decision);
        }
        request.extensions.insert(limiter);
    }

    /// Inserts what the handler of a request may extract that this layer does not charge, unless an outer layer does.
    fn annotate_uncharged(&self, request: &mut Parts, limiter: Limiter) {
        let extensions = &mut request.extensions;
        self.settlements.cover_nothing(&self.limiter, extensions);
        // The handler charges more to the decision of an outer layer, so it needs the limiter of that layer.
        if !extensions.get::<Decision>().is_some_and(Decision::is_limited) {
            extensions.insert(Decision::not_limited());
            extensions.insert(limiter);
        }
    }

    /// What becomes of a charge once the response is known. `None` if it stays whatever happens.
    #[inline]
    pub(super) fn settle(&self, request: &mut Parts, decision: &Decision) -> Option<Box<Settlement>> {
        if self.settlements.is_none() {
            return None;
        }
        self.settlements.start(&self.limiter, decision, &mut request.extensions)
    }

    /// [`annotate`](Self::annotate) for a layer that is disabled.
    pub(super) fn annotate_ignored(&self, request: &mut Parts) {
        self.annotate_uncharged(request, self.limiter.under(Enforcement::Off));
    }

    /// Logs once that two layers charge a request under one policy: `outer` is the decision of the outer one.
    fn warn_of_twice(&self, outer: &Decision, decision: &Decision) {
        if outer.is_denied() || decision.is_denied() || self.counted_twice.load(Ordering::Relaxed) {
            return;
        }
        let is_same = |one: &&Outcome| {
            let same = |other: &Outcome| {
                let both = one.granted() > 0 && other.granted() > 0;
                both && one.policy().name() == other.policy().name() && one.key() == other.key()
            };
            outer.outcomes().iter().any(same)
        };
        let twice = decision.outcomes().iter().find(is_same);
        if let Some(outcome) = twice
            && !self.counted_twice.swap(true, Ordering::Relaxed)
        {
            log!(
                warn,
                policy = outcome.policy().name(),
                "two rate limit layers count a request under the policy {:?}, so it is charged twice; remove one of the \
                 layers, or give each policy its own name",
                outcome.policy().name()
            );
            let _ = outcome;
        }
    }

    /// Adds the random wait of the headers to a denial.
    pub(super) fn jitter(&self, rejection: Rejection) -> Rejection {
        match rejection {
            Rejection::Denied(decision) => {
                Rejection::Denied(decision.with_jitter(self.headers.headers().random_wait()))
            }
            other => other,
        }
    }

    /// The response to a rejected request, with the headers of the decision that has charged it, if there is one.
    pub(super) fn response(
        &self,
        rejection: &Rejection,
        charged: Option<Box<Decision>>,
        request: &Parts,
    ) -> Response<RejectionBody> {
        let mut response = reject(self.mapper(is_grpc(request)), rejection, request, &self.headers);
        if let Some(decision) = charged {
            self.headers.decorate(&mut response, *decision, false);
        }
        response
    }

    /// The response to a request that the service has rejected with the response `returned`.
    pub(super) fn answer_returned(
        &self,
        rejection: Rejection,
        kept: Kept,
        returned: response::Parts,
        decision: Option<Decision>,
        soft: bool,
    ) -> Response<RejectionBody> {
        self.report(&DecisionEvent::rejected_by_service(&rejection));
        self.log(&rejection, soft);
        let (rejection, request) = (self.jitter(rejection), kept.into_parts());
        let mut response = replace(self.mapper(is_grpc(&request)), &rejection, &request, returned);
        // An exempt request has no decision but the service's.
        let soft = soft && decision.is_some();
        if let Some(decision) = decision.or_else(|| rejection.into_decision()) {
            self.headers.decorate(&mut response, decision, soft);
        }
        response
    }

    /// What must be kept of a request that is with the service, in case the service rejects it.
    pub(super) fn keep(&self, request: &Parts) -> Kept {
        let is_call = is_grpc(request);
        Kept::of(request, is_call, self.mapper(is_call))
    }

    fn mapper(&self, is_call: bool) -> &dyn ResponseMapper {
        if is_call { &*self.grpc } else { &*self.mapper }
    }

    /// Calls the function of `on_decision`, and counts a rejection.
    pub(super) fn report(&self, event: &DecisionEvent<'_>) {
        #[cfg(feature = "metrics")]
        if event.is_rejected() {
            metric!(rejected(event.kind().as_str()));
        }
        if let Some(on_decision) = &self.on_decision {
            on_decision(event);
        }
    }

    pub(super) fn log(&self, rejection: &Rejection, soft: bool) {
        match rejection {
            Rejection::Unidentified(error) | Rejection::Unavailable(error)
                if matches!(error.kind(), ErrorKind::MissingSetup | ErrorKind::InvalidConfig) =>
            {
                // Logged once, because every request meets the same error.
                if !self.setup_error_logged.swap(true, Ordering::Relaxed) {
                    log!(error, error = %error, "invalid set-up of the rate limit; requests are rejected with 500");
                }
                let _ = error;
            }
            Rejection::Unidentified(error) if rejection.status() == StatusCode::INTERNAL_SERVER_ERROR => {
                if self.outage.failed() {
                    log!(warn, error = %error, "outage of client identification; requests are rejected with 500");
                } else {
                    log!(debug, error = %error, "the client cannot be identified");
                }
                let _ = error;
            }
            _ => {
                if let Some(decision) = rejection.decision() {
                    self.warn_of_cost(decision);
                }
                // Called only if the line is logged.
                let binding = || rejection.decision().and_then(Decision::binding);
                log!(
                    debug,
                    status = rejection.status().as_u16(),
                    policy = binding().map(|outcome| outcome.policy().name()),
                    key_hash = binding().map(|outcome| outcome.key().digest()),
                    soft,
                    "denied"
                );
                let _ = (&binding, soft);
            }
        }
    }

    /// Adds the headers to the inner service's response.
    pub(super) fn decorate<B>(&self, response: &mut Response<B>, decision: Decision, soft: bool) {
        log!(trace, policy = decision.binding().map(|outcome| outcome.policy().name()), "admitted");
        self.headers.decorate(response, decision, soft);
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("policies", &self.rules.iter().map(|rule| &rule.policy).collect::<Vec<_>>())
            .field("preflight", &self.preflight)
            .field("enforcement", &self.enforcement())
            .field("headers", self.headers.headers())
            .finish_non_exhaustive()
    }
}

/// The warnings that a layer has looked for, each once.
#[derive(Clone, Default)]
pub(super) struct Checked {
    pub(super) settings: Arc<AtomicBool>,
    pub(super) policies_of_a_key: Arc<AtomicBool>,
    pub(super) cost: Arc<AtomicBool>,
}
