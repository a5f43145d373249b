use std::borrow::Cow;

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response,
    header::{CONTENT_TYPE, RETRY_AFTER},
    request::Parts,
};

use super::{
    headers::{LIMIT_LISTS, insert},
    mapper::{RejectionBody, ResponseMapper},
    rejection::Rejection,
};
use crate::error::ErrorKind;

/// The [`ResponseMapper`] for gRPC requests, those by POST whose content type begins with `application/grpc`:
/// a status in the headers and no body, with HTTP 200, as gRPC clients understand it.
///
/// | rejection | gRPC status |
/// |---|---|
/// | limited | 8, `RESOURCE_EXHAUSTED` |
/// | banned | 7, `PERMISSION_DENIED` |
/// | store unavailable, policy closed | 14, `UNAVAILABLE` |
/// | no identity, the client's fault | 3, `INVALID_ARGUMENT` |
/// | no identity, the server's fault | 13, `INTERNAL` |
///
/// With the feature `tonic` a limited call's status has details: a `RetryInfo` with the wait, and a
/// `QuotaFailure` with one violation for each policy that refused. A call is charged once, when it starts, be
/// it a stream or not. grpc-web is answered as grpc-web, and in text where it came in text. The block of header
/// fields stays below 8 KiB.
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{key::Constant, response::GrpcStatus, MemoryStore, Policy, Quota, RateLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::new("calls", Quota::per_hour(1));
/// let layer = RateLimitLayer::new(MemoryStore::new(), policy, Constant::new("all"))
///     .grpc_response(GrpcStatus::default().retry_pushback());
/// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
///     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// }));
///
/// let call = || Request::post("/").header("content-type", "application/grpc").body(String::new());
/// service.clone().oneshot(call()?).await?;
/// let refused = service.oneshot(call()?).await?;
/// assert_eq!(refused.status(), 200);
/// assert_eq!(refused.headers()["grpc-status"], "8");
/// assert_eq!(refused.headers()["grpc-message"], "over the rate limit; try again in 3600 seconds");
/// assert_eq!(refused.headers()["grpc-retry-pushback-ms"], "3600000");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct GrpcStatus {
    pushback: bool,
    #[cfg(feature = "tonic")]
    identities: bool,
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// What clients take at least is 8 KiB, with what the server adds itself.
const MAX_BLOCK: usize = 7 * 1024;
/// The most violations that the details name. Each takes some 130 bytes, and a third more in base64.
#[cfg(feature = "tonic")]
const MAX_VIOLATIONS: usize = 16;
const MAX_MESSAGE: usize = 1024;

impl GrpcStatus {
    /// Adds `grpc-retry-pushback-ms` (gRFC A6), which tells clients that retry by themselves when to, and, as
    /// -1, that waiting cannot help. Defaults to none: a client retries only statuses that its own configuration
    /// names.
    #[must_use]
    pub const fn retry_pushback(mut self) -> Self {
        self.pushback = true;
        self
    }

    /// Names the identity in each violation's `subject`, as the [key](crate::Key::as_str) has it. Defaults to
    /// none.
    #[cfg(feature = "tonic")]
    #[must_use]
    pub const fn name_identities(mut self) -> Self {
        self.identities = true;
        self
    }

    #[cfg(feature = "tonic")]
    fn details(self, code: u8, message: &str, decision: &crate::decision::Decision) -> Option<HeaderValue> {
        use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
        use tonic_types::{ErrorDetails, QuotaViolation, StatusExt as _};

        let mut details = ErrorDetails::new();
        if let Some(wait) = decision.advised_wait() {
            details.set_retry_info(Some(wait.max(std::time::Duration::from_millis(1))));
        }
        let refused = decision.outcomes().iter().filter(|outcome| !outcome.is_allowed());
        let violations = refused.take(MAX_VIOLATIONS).map(|outcome| {
            let subject = if self.identities { outcome.key().as_str() } else { "" };
            let policy = outcome.policy();
            let mut violation = QuotaViolation::new(subject, format!("over {}", policy.quota()));
            violation.quota_id = policy.name().to_owned();
            violation.quota_value = i64::try_from(outcome.capacity()).unwrap_or(i64::MAX);
            violation
        });
        details.set_quota_failure(violations.collect::<Vec<_>>());
        let status = tonic::Status::with_error_details(tonic::Code::from(i32::from(code)), message, details);
        HeaderValue::try_from(STANDARD_NO_PAD.encode(status.details())).ok()
    }
}

impl ResponseMapper for GrpcStatus {
    fn response(&self, rejection: &Rejection, request: &Parts) -> Response<RejectionBody> {
        let (code, message): (u8, Cow<'_, str>) = match rejection {
            Rejection::Denied(_) => (
                8,
                match rejection.retry_after_seconds() {
                    Some(1) => "over the rate limit; try again in 1 second".into(),
                    Some(seconds) => format!("over the rate limit; try again in {seconds} seconds").into(),
                    None => "the call costs more than the quota can ever hold; waiting does not help".into(),
                },
            ),
            Rejection::Banned => (7, "calls of this client are not answered".into()),
            Rejection::Unavailable(error) if error.kind() != ErrorKind::InvalidConfig => {
                (14, "the call could not be counted against its quota".into())
            }
            Rejection::Unidentified(error) => match error.kind() {
                ErrorKind::MissingIdentity | ErrorKind::InvalidIdentity => (3, error.to_string().into()),
                // Written for the operator, and said to be shown.
                ErrorKind::MissingSetup => (13, error.to_string().into()),
                ErrorKind::InvalidConfig => (13, "the rate limit is not set up right".into()),
                _ => (13, "it could not be found out whose call it is".into()),
            },
            Rejection::Unavailable(_) => (13, "the rate limit is not set up right".into()),
        };

        let mut response = Response::new(RejectionBody::new(http_body_util::Empty::new()));
        let fields = response.headers_mut();
        insert(fields, CONTENT_TYPE, content_type(request));
        insert(fields, GRPC_STATUS, u64::from(code));
        if let Ok(message) = HeaderValue::try_from(percent_encoded(&message)) {
            insert(fields, GRPC_MESSAGE, message);
        }
        if let Rejection::Denied(decision) = rejection {
            #[cfg(feature = "tonic")]
            if let Some(details) = self.details(code, &message, decision) {
                insert(fields, GRPC_DETAILS, details);
            }
            if self.pushback {
                let millis = decision
                    .advised_wait()
                    .map_or(-1, |wait| i32::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(i32::MAX));
                insert(fields, GRPC_PUSHBACK, HeaderValue::from(millis));
            }
        }
        response
    }
}

/// Whether the client speaks gRPC or grpc-web, and takes nothing else for an answer. Both are sent by POST only;
/// anything else would be refused with a 200 that caches may keep.
pub(crate) fn is_grpc(request: &Parts) -> bool {
    request.method == Method::POST && is_grpc_type(&request.headers)
}

fn is_grpc_type(fields: &HeaderMap) -> bool {
    let Some(kind) = fields.get(CONTENT_TYPE) else { return false };
    let kind = kind.as_bytes();
    const GRPC: &[u8] = b"application/grpc";
    kind.len() >= GRPC.len()
        && kind[..GRPC.len()].eq_ignore_ascii_case(GRPC)
        && matches!(kind.get(GRPC.len()), None | Some(b'+' | b'-' | b';' | b' '))
}

/// The more special first.
const GRPC_TYPES: [&str; 5] = [
    "application/grpc-web-text+proto",
    "application/grpc-web-text",
    "application/grpc-web+proto",
    "application/grpc-web",
    "application/grpc",
];

/// grpc-web clients want their own type back, of those there are; for the others it is always the same.
fn content_type(request: &Parts) -> HeaderValue {
    let kind = request.headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let begins = |known: &&str| {
        kind.get(..known.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(known.as_bytes()))
    };
    HeaderValue::from_static(GRPC_TYPES.into_iter().find(begins).unwrap_or("application/grpc"))
}

/// As `grpc-message` wants it: printable ASCII but `%` stays as it is. Cut between characters, because clients
/// report half a one as a status of their own.
fn percent_encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for char in message.chars() {
        if encoded.len() >= MAX_MESSAGE {
            break;
        }
        match char {
            '%' => encoded.push_str("%25"),
            ' '..='~' => encoded.push(char),
            _ => {
                for byte in char.encode_utf8(&mut [0; 4]).bytes() {
                    encoded.push_str(&format!("%{byte:02X}"));
                }
            }
        }
    }
    encoded
}

/// Keeps the block below what clients take, dropping what they need least first.
pub(super) fn bound(fields: &mut HeaderMap) {
    let needed = [CONTENT_TYPE, GRPC_STATUS, GRPC_MESSAGE, GRPC_PUSHBACK, GRPC_DETAILS, RETRY_AFTER];
    if block_size(fields) > MAX_BLOCK {
        let spare: Vec<_> = fields.keys().filter(|name| !needed.contains(name)).cloned().collect();
        for name in spare {
            fields.remove(name);
        }
    }
    if block_size(fields) > MAX_BLOCK {
        fields.remove(GRPC_DETAILS);
    }
}

/// The values of each of [`LIMIT_LISTS`].
type Lists = [Vec<HeaderValue>; 3];

/// The lists of a response before the limit adds to them, if a gRPC client will read it.
pub(super) fn lists_of_call(fields: &HeaderMap) -> Option<Lists> {
    is_grpc_type(fields).then(|| LIMIT_LISTS.map(|name| fields.get_all(name).iter().cloned().collect()))
}

/// Leaves out what the limit added to the lists `own` of a gRPC service, where it makes the block too large: a
/// client would end the connection, with all its calls. Whether it did.
pub(super) fn bound_admitted(fields: &mut HeaderMap, own: Lists) -> bool {
    let too_large = block_size(fields) > MAX_BLOCK;
    if too_large {
        for (name, values) in LIMIT_LISTS.into_iter().zip(own) {
            fields.remove(&name);
            for value in values {
                let _ = fields.try_append(&name, value);
            }
        }
    }
    too_large
}

/// As HTTP/2 counts it: 32 bytes more a field.
fn block_size(fields: &HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}
