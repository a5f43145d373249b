//! What the clients of a layer see: the response to a rejected request, and the headers of the others.

use std::{sync::Arc, time::Duration};

use http::{Response, request::Parts, response};

use crate::{
    base::random::random_time,
    decision::Decision,
    response::{
        GrpcStatus, HeaderWriter, Headers, ProblemDetails, Rejection, RejectionBody, RequestHead,
        ResponseMapper, is_grpc, is_read, reject, replace,
    },
};

#[derive(Clone)]
pub(super) struct Responder {
    pub(super) headers: HeaderWriter,
    pub(super) mapper: Arc<dyn ResponseMapper>,
    pub(super) grpc: Arc<dyn ResponseMapper>,
    /// The longest random time that is added to a wait.
    pub(super) jitter: Duration,
}

impl Default for Responder {
    fn default() -> Self {
        Self {
            headers: HeaderWriter::new(Headers::default()),
            mapper: Arc::new(ProblemDetails::default()),
            grpc: Arc::new(GrpcStatus::default()),
            jitter: Duration::ZERO,
        }
    }
}

impl Responder {
    /// Adds the jitter to the wait of a denial.
    pub(super) fn jitter(&self, rejection: Rejection) -> Rejection {
        match rejection {
            Rejection::Denied(decision) if !self.jitter.is_zero() => {
                Rejection::Denied(decision.with_jitter(random_time(self.jitter)))
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
            self.headers.decorate(&mut response, *decision, false, is_read(request));
        }
        response
    }

    /// The response to a request that the service has rejected with the response `returned`. `marks` is whether it carries
    /// the mark of a denial by `decision`, `is_read` whether an outer layer reads the decision in its extensions.
    pub(super) fn replaced(
        &self,
        rejection: Rejection,
        kept: RequestHead,
        returned: response::Parts,
        decision: Option<Decision>,
        marks: bool,
        is_read: bool,
    ) -> Response<RejectionBody> {
        let (rejection, request) = (self.jitter(rejection), kept.into_parts());
        let mut response = replace(self.mapper(is_grpc(&request)), &rejection, &request, returned);
        // An exempt request has no decision but the service's.
        let marks = marks && decision.is_some();
        if let Some(decision) = decision.or_else(|| rejection.into_decision()) {
            self.headers.decorate(&mut response, decision, marks, is_read);
        }
        response
    }

    /// What must be kept of a request that is with the service, in case the service rejects it.
    #[inline]
    pub(super) fn keep(&self, request: &Parts) -> RequestHead {
        let is_call = is_grpc(request);
        RequestHead::of(request, is_call, self.mapper(is_call))
    }

    fn mapper(&self, is_call: bool) -> &dyn ResponseMapper {
        if is_call { &*self.grpc } else { &*self.mapper }
    }
}
