//! The settings of a layer, shared by all of its services.

use std::{fmt, sync::Arc, time::Duration};

use http::{Extensions, Response, request::Parts};
use tower_ratelimit::response::RejectionBody;

use super::{
    body_bytes::BodyBytes,
    rejection::{BodyRejection, BodyRejectionKind},
    total::Total,
};

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) max_bytes: usize,
    pub(super) timeout: Duration,
    pub(super) total: Total,
    pub(super) rejects_unread: bool,
    /// Each puts what it parses of a body into the extensions of the request, or fails with a text for the
    /// client.
    pub(super) parsers: Vec<Arc<dyn Fn(&BodyBytes, &mut Extensions) -> Result<(), String> + Send + Sync>>,
    pub(super) response: Arc<dyn Fn(&BodyRejection, &Parts) -> Response<RejectionBody> + Send + Sync>,
}

impl Settings {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            timeout: Duration::from_secs(10),
            total: Total::new(max_bytes.max(64 << 20)),
            rejects_unread: false,
            parsers: Vec::new(),
            response: Arc::new(|rejection, _| rejection.to_problem()),
        }
    }

    /// Puts the content of the body, and what is parsed of it, into the extensions of the request.
    pub(super) fn annotate(&self, extensions: &mut Extensions, body: BodyBytes) -> Result<(), BodyRejection> {
        for parse in &self.parsers {
            parse(&body, extensions).map_err(|text| match body.get() {
                Ok(_) => self.rejection(BodyRejectionKind::Invalid).with_text(text),
                Err(reason) => self.rejection(BodyRejectionKind::Unread(reason)),
            })?;
        }
        extensions.insert(body);
        Ok(())
    }

    pub(super) fn rejection(&self, kind: BodyRejectionKind) -> BodyRejection {
        BodyRejection::new(kind, self.max_bytes, self.timeout)
    }

    /// The response to `request`, which is rejected.
    pub(super) fn reject(&self, rejection: &BodyRejection, request: &Parts) -> Response<RejectionBody> {
        log!(debug, kind = ?rejection.kind(), "the body of a request is not buffered");
        rejection.finish((self.response)(rejection, request), request)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferBodyLayer")
            .field("max_bytes", &self.max_bytes)
            .field("timeout", &self.timeout)
            .field("max_total_bytes", &self.total.max)
            .field("buffered_bytes", &self.total.used())
            .field("rejects_unread", &self.rejects_unread)
            .finish_non_exhaustive()
    }
}
