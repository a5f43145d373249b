//! Requests whose body is not buffered, and the response to them.

use std::{error::Error as StdError, fmt, time::Duration};

use http::{
    HeaderValue, Response, StatusCode, Version,
    header::{ACCEPT_ENCODING, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER},
    request::Parts,
};
use serde::Serialize;
use tower_ratelimit::response::RejectionBody;

use super::body_bytes::Unread;

/// The longest time that an overloaded layer asks clients to wait, in seconds. The time is random, so that
/// they do not return together.
const MAX_WAIT: u64 = 5;

/// A request that a [`BufferBodyLayer`](super::BufferBodyLayer) rejects.
///
/// `Display` is a text for the client. The cause of a body that failed, for logs, is the
/// [`source`](StdError::source).
///
/// # Example
///
/// A response of the program for bodies that are too large, and the default for the rest:
///
/// ```
/// use axum::{Router, body::Body, routing::post};
/// use http::{Request, request::Parts};
/// use tower::ServiceExt;
/// use tower_ratelimit::response::RejectionBody;
/// use tower_ratelimit_gateway::body::{BodyRejection, BodyRejectionKind, BufferBodyLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let buffer = BufferBodyLayer::new(5).response(|rejection: &BodyRejection, _: &Parts| {
///     let mut response = rejection.to_problem();
///     if rejection.kind() == BodyRejectionKind::TooLarge {
///         *response.body_mut() = RejectionBody::new(String::from("upload it in parts"));
///     }
///     response
/// });
/// let app = Router::new().route("/", post(async || "saved")).layer(buffer);
/// let response = app.oneshot(Request::post("/").body(Body::from("too large"))?).await?;
/// assert_eq!(response.status(), 413);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BodyRejection {
    kind: BodyRejectionKind,
    /// The bound that the request exceeds.
    max_bytes: usize,
    timeout: Duration,
    wait: Option<u64>,
    /// What is wrong with an invalid body.
    text: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Why a [`BufferBodyLayer`](super::BufferBodyLayer) rejects a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BodyRejectionKind {
    /// The body is larger than the layer buffers, or announces it: 413.
    TooLarge,
    /// The body was not complete in time: 408.
    TimedOut,
    /// All buffers together are as large as they may be: 503, with `Retry-After`.
    Overloaded,
    /// The body is not read for this reason, and the layer [rejects](super::BufferBodyLayer::reject_unread)
    /// such requests, or a function of [`parse_with`](super::BufferBodyLayer::parse_with) does: 415, with
    /// `Accept-Encoding: identity` if it is compressed.
    Unread(Unread),
    /// The body failed while it was read: 400.
    Failed,
    /// A function of [`parse_with`](super::BufferBodyLayer::parse_with) has failed on a body that was read:
    /// 400.
    Invalid,
}

impl BodyRejection {
    pub(super) fn new(kind: BodyRejectionKind, max_bytes: usize, timeout: Duration) -> Self {
        let wait = (kind == BodyRejectionKind::Overloaded).then(|| fastrand::u64(1..=MAX_WAIT));
        Self { kind, max_bytes, timeout, wait, text: String::new(), source: None }
    }

    pub(super) fn with_source(mut self, source: Box<dyn StdError + Send + Sync>) -> Self {
        self.source = Some(source);
        self
    }

    pub(super) fn with_text(mut self, text: String) -> Self {
        self.text = text;
        self
    }

    /// The reason.
    #[must_use]
    pub const fn kind(&self) -> BodyRejectionKind {
        self.kind
    }

    /// The status of the default response.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self.kind {
            BodyRejectionKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            BodyRejectionKind::TimedOut => StatusCode::REQUEST_TIMEOUT,
            BodyRejectionKind::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            BodyRejectionKind::Unread(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            BodyRejectionKind::Failed | BodyRejectionKind::Invalid => StatusCode::BAD_REQUEST,
        }
    }

    /// The wait before a retry in whole seconds: the value of `Retry-After`. A random time of at most 5
    /// seconds if the layer is [overloaded](BodyRejectionKind::Overloaded), and `None` otherwise.
    #[must_use]
    pub const fn retry_after_seconds(&self) -> Option<u64> {
        self.wait
    }

    /// The default response: `application/problem+json` (RFC 9457).
    #[must_use]
    pub fn to_problem(&self) -> Response<RejectionBody> {
        let status = self.status();
        let (kind, title) = match self.kind {
            BodyRejectionKind::Overloaded => (
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                "Request cannot be satisfied due to temporary server capacity constraints",
            ),
            _ => ("about:blank", status.canonical_reason().unwrap_or_default()),
        };
        let members =
            Members { r#type: kind, title, status: status.as_u16(), detail: sentence(&self.to_string()) };
        // Texts and a number, which cannot fail.
        let body = serde_json::to_string(&members).unwrap_or_default();
        let mut response = Response::new(RejectionBody::new(body));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response
    }

    /// Adds to `response` what holds for any response to this rejection.
    pub(super) fn finish(
        &self,
        mut response: Response<RejectionBody>,
        request: &Parts,
    ) -> Response<RejectionBody> {
        if response.status() == StatusCode::OK {
            // The program's function has set no status. A client would take the rejection for a success.
            *response.status_mut() = self.status();
        }
        let headers = response.headers_mut();
        if let Some(seconds) = self.wait {
            headers.entry(RETRY_AFTER).or_insert(seconds.into());
        }
        if self.kind == BodyRejectionKind::Unread(Unread::Compressed) {
            headers.entry(ACCEPT_ENCODING).or_insert(HeaderValue::from_static("identity"));
        }
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        if request.version <= Version::HTTP_11 && self.kind != BodyRejectionKind::Invalid {
            // The rest of the body is still on the connection. Over HTTP/2, only its stream ends.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl fmt::Display for BodyRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            BodyRejectionKind::TooLarge => {
                write!(f, "the body of the request is larger than {} bytes", self.max_bytes)
            }
            BodyRejectionKind::TimedOut => {
                write!(f, "the body of the request was not complete after {:?}", self.timeout)
            }
            BodyRejectionKind::Overloaded => {
                f.write_str("the service has no memory for the body of the request; try again in ")?;
                match self.wait {
                    None | Some(1) => f.write_str("1 second"),
                    Some(seconds) => write!(f, "{seconds} seconds"),
                }
            }
            BodyRejectionKind::Unread(reason) => reason.fmt(f),
            BodyRejectionKind::Failed => f.write_str("the body of the request could not be read"),
            BodyRejectionKind::Invalid => f.write_str(&self.text),
        }
    }
}

impl StdError for BodyRejection {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}

/// The members of problem details.
#[derive(Serialize)]
struct Members<'a> {
    r#type: &'a str,
    title: &'a str,
    status: u16,
    detail: String,
}

/// The text as a sentence.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(chars).chain(['.']).collect()
}
