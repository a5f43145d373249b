//! What a layer does to one request and its response.

use std::{borrow::Cow, sync::Arc};

use http::{Extensions, Response, request::Parts, response};

use super::{
    config::{Config, Mapper},
    degraded::Degraded,
    observe::DecisionEvent,
    rule::Rule,
};
use crate::{
    base::{Error, random::random_time},
    decision::Decision,
    limiter::{Limited, Limiter, Reservation},
    policy::Enforcement,
    response::{
        Rejection, RejectionBody, RequestHead, is_grpc, is_read, mark_degraded, mark_request, mark_response,
        reject, replace,
    },
};

/// What is fixed for a request when it arrives.
pub(super) struct RequestContext {
    pub(super) config: Arc<Config>,
    /// A switch may change it for later requests.
    pub(super) enforcement: Enforcement,
    /// Whether an outer layer or a middleware reads the decision in the extensions of the response.
    is_read: bool,
    /// What a mapper reads of the request if the service rejects it. `None` before the service is called, and if the layer
    /// is off.
    // Here and not in the state of the future, which is moved right after it is made.
    kept: Option<RequestHead>,
}

impl RequestContext {
    /// The context of a request with these `extensions`.
    #[inline]
    pub(super) fn new(config: Arc<Config>, extensions: &Extensions) -> Self {
        let (enforcement, is_read) = (config.enforcement.get(), is_read(extensions));
        Self { config, enforcement, is_read, kept: None }
    }

    /// Whether the layer only reports, so it admits every request that is not blocked.
    #[inline]
    pub(super) fn only_reports(&self) -> bool {
        self.enforcement == Enforcement::ReportOnly
    }

    /// Counts, reports and logs a rejection.
    pub(super) fn rejected(
        &self,
        event: &DecisionEvent<'_>,
        rejection: &Rejection,
        enforcement: Enforcement,
    ) {
        self.config.observer.rejected(event, rejection, enforcement, |at| self.config.policy_name(at));
    }

    /// The rule with this number.
    pub(super) fn rule(&self, at: usize) -> Option<&Rule> {
        self.config.rules.rules.get(at).map(|(_, rule)| rule)
    }

    /// The numbers of the rules that apply to the request.
    ///
    /// # Errors
    ///
    /// The path has too many readings.
    pub(super) fn applicable(&self, request: &Parts) -> Result<Vec<usize>, Error> {
        match &self.config.routes {
            Some(routes) => routes.of(request).map(Cow::into_owned),
            None => Ok((0..self.config.rules.rules.len()).collect()),
        }
    }

    /// The limiter for the request's handler, with the request's enforcement.
    #[inline]
    pub(super) fn limiter(&self) -> Arc<Limiter> {
        match self.enforcement {
            Enforcement::On => self.config.limiter.clone(),
            other => Arc::new(self.config.limiter.under(other)),
        }
    }

    /// Inserts what the handler of an admitted request may extract. If the layer only reports, also marks a
    /// request over the limit with a header.
    pub(super) fn annotate(
        &self,
        request: &mut Parts,
        decision: Option<&Decision>,
        reservation: Option<Box<Reservation>>,
    ) {
        if self.only_reports() {
            mark_request(request, decision);
        }
        let Some(decision) = decision else {
            return self.annotate_uncharged(&mut request.extensions, reservation);
        };
        if decision.may_have_denials() && !self.only_reports() {
            Degraded::insert(&mut request.extensions, decision);
        }
        let limited = Limited { decision: decision.clone(), limiter: self.limiter(), reservation };
        if let Some(outer) = request.extensions.insert(limited) {
            self.config.observer.charged_twice(&outer.decision, decision);
            if let Some(limited) = request.extensions.get_mut::<Limited>() {
                limited.reservation = both(outer.reservation, limited.reservation.take());
            }
        }
    }

    /// Inserts what the handler of a request may extract that this layer does not charge, unless an outer
    /// layer does.
    pub(super) fn annotate_uncharged(
        &self,
        extensions: &mut Extensions,
        reservation: Option<Box<Reservation>>,
    ) {
        let mut outer = extensions.get_mut::<Limited>();
        let reserved = outer.as_mut().and_then(|outer| outer.reservation.take());
        let reservation = both(reserved, reservation);
        match outer {
            // The handler charges more to the decision of an outer layer, so it needs the limiter of that
            // layer.
            Some(outer) if outer.decision.is_limited() => outer.reservation = reservation,
            _ => {
                let decision = Decision::not_limited();
                extensions.insert(Limited { decision, limiter: self.limiter(), reservation });
            }
        }
    }

    /// Adds the jitter to the wait of a denial.
    pub(super) fn jitter(&self, rejection: Rejection) -> Rejection {
        let longest = self.config.jitter;
        match rejection {
            Rejection::Denied(decision) if !longest.is_zero() => {
                Rejection::Denied(decision.with_jitter(random_time(longest)))
            }
            other => other,
        }
    }

    /// The response to a rejected request, with the headers of the decision that has charged it, if there is
    /// one.
    pub(super) fn reject(
        &self,
        rejection: &Rejection,
        charged: Option<Box<Decision>>,
        request: &Parts,
    ) -> Response<RejectionBody> {
        let headers = &self.config.headers;
        let mut response = reject(&*self.mapper(is_grpc(request)).maps, rejection, request, headers);
        if let Some(decision) = charged {
            headers.decorate(&mut response, *decision, self.is_read);
        }
        response
    }

    /// Keeps what is needed of a request that goes to the service, in case the service rejects it.
    #[inline]
    pub(super) fn keep(&mut self, request: &Parts) {
        let is_grpc_call = is_grpc(request);
        self.kept = Some(if self.mapper(is_grpc_call).reads_request {
            RequestHead::whole(request)
        } else {
            RequestHead::kind(request, is_grpc_call)
        });
    }

    /// What was kept of the request. `None` without a call of [`keep`](Self::keep).
    #[inline]
    pub(super) fn take_kept(&mut self) -> Option<RequestHead> {
        self.kept.take()
    }

    /// The response to a request that the service has rejected with the response `returned`.
    pub(super) fn replace(
        &self,
        rejection: Rejection,
        kept: RequestHead,
        returned: response::Parts,
        decision: Option<Decision>,
    ) -> Response<RejectionBody> {
        let event = DecisionEvent::rejected_by_service(&rejection);
        self.rejected(&event, &rejection, self.enforcement);
        let (rejection, request) = (self.jitter(rejection), kept.into_parts());
        let (mapper, headers) = (&*self.mapper(is_grpc(&request)).maps, &self.config.headers);
        let mut response = replace(mapper, &rejection, &request, returned, headers.headers().millis());
        // An exempt request has no decision but the service's.
        if let Some(decision) = decision {
            self.add_headers(&mut response, decision);
        } else if let Some(decision) = rejection.decision() {
            headers.decorate(&mut response, decision.clone(), self.is_read);
        }
        response
    }

    /// Adds the headers to the inner service's response.
    // Inlined because it mostly passes its arguments on.
    #[inline(always)]
    pub(super) fn decorate<B>(&self, response: &mut Response<B>, decision: Decision) {
        log!(trace, policy = decision.binding().map(|outcome| outcome.policy().name()), "admitted");
        self.add_headers(response, decision);
    }

    #[inline(always)]
    fn add_headers<B>(&self, response: &mut Response<B>, decision: Decision) {
        if self.only_reports() {
            mark_response(response.headers_mut(), &decision);
        } else if decision.may_have_denials() {
            mark_degraded(response.headers_mut(), &decision);
        }
        self.config.headers.decorate(response, decision, self.is_read);
    }

    fn mapper(&self, is_grpc_call: bool) -> &Mapper {
        if is_grpc_call { &self.config.grpc } else { &self.config.mapper }
    }
}

/// The reservation of the rules of two layers.
fn both(outer: Option<Box<Reservation>>, inner: Option<Box<Reservation>>) -> Option<Box<Reservation>> {
    match (outer, inner) {
        (Some(outer), Some(inner)) => Some(Box::new(outer.and(*inner))),
        (outer, inner) => outer.or(inner),
    }
}
