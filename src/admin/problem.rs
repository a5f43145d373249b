//! Errors as problem details (RFC 9457).

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;

use super::reply::reply;
use crate::error::{Error, ErrorKind};

/// A request that was not carried out, and what to do about it.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    /// The request is wrong.
    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::MissingIdentity | ErrorKind::InvalidIdentity | ErrorKind::UnknownIdentity => {
                StatusCode::BAD_REQUEST
            }
            ErrorKind::StoreTimeout
            | ErrorKind::StoreBusy
            | ErrorKind::StoreSuspended
            | ErrorKind::StoreUnreachable
            | ErrorKind::StoreDisconnected
            | ErrorKind::StoreFailed
            | ErrorKind::StoreReply => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Members<'a> {
            r#type: &'static str,
            title: &'a str,
            status: u16,
            detail: &'a str,
        }
        let title = self.status.canonical_reason().unwrap_or_default();
        let members =
            Members { r#type: "about:blank", title, status: self.status.as_u16(), detail: &self.detail };
        reply(self.status, "application/problem+json", &members)
    }
}
