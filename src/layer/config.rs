//! The settings of a layer, shared by all of its services.

use std::{fmt, sync::Arc};

use http::{Response, request::Parts, response};

use super::{
    event::DecisionEvent, gate::Gate, notices::Notices, responder::Responder, rules::Rules,
    settle::Unsettled, settlement::Settlement, table::Table,
};
use crate::{
    base::Error,
    decision::Decision,
    limiter::Limiter,
    policy::Enforcement,
    response::{Rejection, RejectionBody, RequestHead, mark_request},
};

// Aligned as the fields of a policy are, because every request changes the reference count.
#[derive(Clone)]
#[repr(align(128))]
pub(super) struct Config {
    pub(super) limiter: Limiter,
    pub(super) rules: Table,
    pub(super) gate: Gate,
    pub(super) responder: Responder,
    pub(super) settlement: Settlement,
    pub(super) on_decision: Option<Arc<dyn Fn(&DecisionEvent<'_>) + Send + Sync>>,
    pub(super) notices: Arc<Notices>,
}

impl Config {
    /// The defaults, with `rules`.
    ///
    /// # Errors
    ///
    /// See [`Table::new`].
    pub(super) fn new(limiter: &Limiter, rules: Rules) -> Result<Self, Error> {
        Ok(Self {
            rules: Table::new(rules, limiter)?,
            gate: Gate::under(limiter.enforcement()),
            limiter: limiter.under(Enforcement::On),
            responder: Responder::default(),
            settlement: Settlement::default(),
            on_decision: None,
            notices: Arc::default(),
        })
    }

    /// These settings for a layer with `rules`, which logs its own mistakes and outages.
    ///
    /// # Errors
    ///
    /// See [`Table::new`].
    pub(super) fn with_rules(&self, rules: Rules) -> Result<Self, Error> {
        Ok(Self {
            rules: Table::new(rules, &self.limiter)?,
            settlement: Settlement::default(),
            notices: Arc::default(),
            ..self.clone()
        })
    }

    /// Inserts the decision and the limiter into the request's extensions. If the layer only reports, also marks a request
    /// over the limit with a header.
    pub(super) fn annotate(&self, request: &mut Parts, decision: Option<&Decision>, report_only: bool) {
        if report_only {
            mark_request(request, decision);
        }
        let limiter = self.limiter(report_only);
        let Some(decision) = decision else {
            return self.annotate_uncharged(request, limiter);
        };
        self.notices.redundant_policy(self.rules.as_slice(), decision);
        if let Some(outer) = request.extensions.insert(decision.clone()) {
            self.notices.charged_twice(&outer, decision);
        }
        request.extensions.insert(limiter);
    }

    /// Inserts what the handler of a request may extract that this layer does not charge, unless an outer layer does.
    fn annotate_uncharged(&self, request: &mut Parts, limiter: Limiter) {
        let extensions = &mut request.extensions;
        self.settlement.cover_nothing(&self.limiter, extensions);
        // The handler charges more to the decision of an outer layer, so it needs the limiter of that layer.
        if !extensions.get::<Decision>().is_some_and(Decision::is_limited) {
            extensions.insert(Decision::not_limited());
            extensions.insert(limiter);
        }
    }

    /// [`annotate`](Self::annotate) for a layer that is off.
    pub(super) fn annotate_ignored(&self, request: &mut Parts) {
        self.annotate_uncharged(request, self.limiter.under(Enforcement::Off));
    }

    /// What becomes of a charge once the response is known. `None` if it always stays.
    #[inline]
    pub(super) fn settle(
        &self,
        request: &mut Parts,
        decision: &Decision,
        report_only: bool,
    ) -> Option<Box<Unsettled>> {
        if self.settlement.is_none() && !self.rules.counts_some() {
            return None;
        }
        let counted = self.rules.counted(request, decision);
        self.settlement.start(&self.limiter(report_only), decision, counted, &mut request.extensions)
    }

    /// The limiter of a request.
    fn limiter(&self, report_only: bool) -> Limiter {
        if report_only { self.limiter.under(Enforcement::ReportOnly) } else { self.limiter.clone() }
    }

    /// The response to a request that the service has rejected with the response `returned`.
    pub(super) fn answer_returned(
        &self,
        rejection: Rejection,
        kept: RequestHead,
        returned: response::Parts,
        decision: Option<Decision>,
        report_only: bool,
        is_read: bool,
    ) -> Response<RejectionBody> {
        self.report_rejection(&DecisionEvent::rejected_by_service(&rejection));
        self.log(&rejection, report_only);
        self.responder.replaced(rejection, kept, returned, decision, report_only, is_read)
    }

    /// Calls the function of `on_decision`.
    pub(super) fn report<'a>(&self, event: impl FnOnce() -> DecisionEvent<'a>) {
        if let Some(on_decision) = &self.on_decision {
            on_decision(&event());
        }
    }

    /// [`report`](Self::report) for a rejection, which is also counted.
    pub(super) fn report_rejection(&self, event: &DecisionEvent<'_>) {
        #[cfg(feature = "metrics")]
        if event.is_rejected() {
            metric!(rejected(event.kind().as_str()));
        }
        self.report(|| *event);
    }

    pub(super) fn log(&self, rejection: &Rejection, report_only: bool) {
        self.notices.rejected(self.rules.as_slice(), rejection, report_only);
    }

    /// Adds the headers to the inner service's response. `is_read` is whether an outer layer reads the decision in its
    /// extensions.
    pub(super) fn decorate<B>(
        &self,
        response: &mut Response<B>,
        decision: Decision,
        report_only: bool,
        is_read: bool,
    ) {
        log!(trace, policy = decision.binding().map(|outcome| outcome.policy().name()), "admitted");
        self.responder.headers.decorate(response, decision, report_only, is_read);
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = self.rules.as_slice();
        f.debug_struct("Config")
            .field("policies", &rules.iter().map(|rule| &rule.policy).collect::<Vec<_>>())
            .field("preflight", &self.gate.preflight)
            .field("enforcement", &self.gate.enforcement.get())
            .field("headers", self.responder.headers.headers())
            .finish_non_exhaustive()
    }
}
