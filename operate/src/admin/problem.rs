//! Errors as problem details (RFC 9457).

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;
use tower_ratelimit::{Error, ErrorKind, Policy};

use crate::reply::reply;

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

    /// A failure of the store to read, which changed nothing.
    pub(super) fn of_read(error: &Error) -> Self {
        Self::of(error, error.to_string())
    }

    /// The store has not made the decision: `error` has the text `failure`.
    pub(super) fn undecided(policy: &Policy, error: &Error, failure: String) -> Self {
        if error.kind() == ErrorKind::ForeignValue {
            return Self::of(error, failure);
        }
        let mode = policy.settings().failure_mode;
        let detail = format!(
            "the store has not answered, and the failure mode `{mode}` decides until then: {failure}"
        );
        Self::of(error, detail)
    }

    fn of(error: &Error, text: String) -> Self {
        let detail = match error.kind() {
            ErrorKind::ForeignValue => format!("reset the key, or end its ban, to remove its value: {text}"),
            _ => text,
        };
        Self::new(status(error.kind()), detail)
    }

    /// What went wrong, and what to do about it.
    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    /// Whether the request is wrong: the same one would fail again.
    pub(super) fn is_of_request(&self) -> bool {
        self.status == StatusCode::BAD_REQUEST
    }

    /// The request is wrong.
    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }
}

/// An invalid key, or a failure of the store to make a change.
impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        if error.kind().may_have_charged() {
            log!(warn, error = %error, "an operator's change failed, and may have been made");
        }
        Self::of(&error, of_change(&error))
    }
}

/// The error of a change, and whether the change may have been made.
pub(super) fn of_change(error: &Error) -> String {
    let may_be_made = if error.kind().may_have_charged() { "; the change may have been made" } else { "" };
    format!("{error}{may_be_made}")
}

const fn status(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::MissingIdentity | ErrorKind::InvalidIdentity | ErrorKind::UnknownIdentity => {
            StatusCode::BAD_REQUEST
        }
        ErrorKind::ForeignValue => StatusCode::CONFLICT,
        ErrorKind::IdentityUnavailable
        | ErrorKind::StoreTimeout
        | ErrorKind::StoreBusy
        | ErrorKind::StoreSuspended
        | ErrorKind::StoreUnreachable
        | ErrorKind::StoreDisconnected
        | ErrorKind::StoreFailed
        | ErrorKind::StoreReply => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
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
