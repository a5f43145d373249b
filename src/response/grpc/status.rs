use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use http::{HeaderValue, Response, header::CONTENT_TYPE, request::Parts};

use super::request::{GRPC_MESSAGE, GRPC_PUSHBACK, GRPC_STATUS, grpc_type};
use crate::{
    base::ErrorKind,
    response::{body::RejectionBody, mapper::ResponseMapper, rejection::Rejection},
};

/// The default [`ResponseMapper`] for gRPC calls, which are POST requests with the content type `application/grpc` or
/// a variant of it: HTTP 200 with a gRPC status in the headers and no body.
///
/// | rejection | gRPC status |
/// |---|---|
/// | denied | 8, `RESOURCE_EXHAUSTED` |
/// | banned by a policy, for a time | 8, `RESOURCE_EXHAUSTED` |
/// | blocked by the layer | 7, `PERMISSION_DENIED` |
/// | store unavailable, policy closed | 14, `UNAVAILABLE` |
/// | no identity, the client's fault | 3, `INVALID_ARGUMENT` |
/// | unknown identity | 16, `UNAUTHENTICATED` |
/// | no identity, the server's fault | 13, `INTERNAL` |
///
/// With the feature `tonic` the status of a denied call has details: a `RetryInfo` with the wait, and a
/// `QuotaFailure` with one violation for each policy that denied. A call, streaming or not, is charged once, when it
/// starts. grpc-web calls are answered in grpc-web, in text if the call came in text. The header block stays below
/// 8 KiB.
///
/// # In a handler
///
/// With the feature `tonic`, a [`Rejection`] and an [`Error`](crate::Error) become a `tonic::Status` with `?` or
/// `Status::from`. The layer puts its [`Limiter`](crate::Limiter) into the extensions of the tonic request:
/// `request.extensions().get::<Limiter>()`. There is an example at
/// [`Status::from`](#impl-From<Rejection>-for-Status).
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{Key, ManualClock, MemoryStore, Policy, Quota, RateLimitLayer, response::GrpcStatus};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = Policy::new("calls", Quota::per_hour(1));
/// let store = MemoryStore::with_clock(ManualClock::new());
/// let layer = RateLimitLayer::new(store, policy, Key::new("all"))
///     .grpc_response(GrpcStatus::default().retry_pushback());
/// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
///     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// }));
///
/// let call = || Request::post("/").header("content-type", "application/grpc").body(String::new());
/// service.clone().oneshot(call()?).await?;
/// let rejection = service.oneshot(call()?).await?;
/// assert_eq!(rejection.status(), 200);
/// assert_eq!(rejection.headers()["grpc-status"], "8");
/// assert_eq!(rejection.headers()["grpc-message"], "over the rate limit; try again in 3600 seconds");
/// assert_eq!(rejection.headers()["grpc-retry-pushback-ms"], "3600000");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct GrpcStatus {
    pushback: bool,
    #[cfg(feature = "tonic")]
    name_identities: bool,
    code: Option<Arc<dyn Fn(&Rejection) -> Option<GrpcCode> + Send + Sync>>,
    message: Option<Arc<dyn Fn(&Rejection) -> Option<String> + Send + Sync>>,
}

impl GrpcStatus {
    /// Sends `grpc-retry-pushback-ms` (gRFC A6): the wait for clients that retry automatically, and -1 if waiting
    /// cannot help. Defaults to not sending it: a client then retries only the status codes in its configuration.
    #[must_use]
    pub const fn retry_pushback(mut self) -> Self {
        self.pushback = true;
        self
    }

    /// Names the identity in each violation's `subject`, as [`Key::as_str`](crate::Key::as_str) shows it. Defaults to an
    /// empty subject.
    #[cfg(feature = "tonic")]
    #[must_use]
    pub const fn name_identities(mut self) -> Self {
        self.name_identities = true;
        self
    }

    /// The code of the rejections for which `code` gives one. Defaults to the [table](Self).
    ///
    /// # Example
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::{response::{GrpcCode, GrpcStatus, ResponseMapper}, Error, ErrorKind, Rejection};
    ///
    /// let status = GrpcStatus::default()
    ///     .code(|rejection| match rejection {
    ///         Rejection::Unidentified(error) if error.kind() == ErrorKind::MissingIdentity => {
    ///             Some(GrpcCode::Unauthenticated)
    ///         }
    ///         _ => None,
    ///     })
    ///     .message(|rejection| match rejection {
    ///         Rejection::Blocked => Some("contact support@example.org".to_owned()),
    ///         _ => None,
    ///     });
    ///
    /// let (call, ()) = Request::post("/").header("content-type", "application/grpc").body(())?.into_parts();
    /// let missing = Rejection::Unidentified(Error::new(ErrorKind::MissingIdentity, "no api key"));
    /// let response = status.response(&missing, &call);
    /// assert_eq!(response.headers()["grpc-status"], "16");
    /// assert_eq!(response.headers()["grpc-message"], "no api key");
    /// let response = status.response(&Rejection::Blocked, &call);
    /// assert_eq!(response.headers()["grpc-status"], "7");
    /// assert_eq!(response.headers()["grpc-message"], "contact support@example.org");
    /// # Ok::<(), http::Error>(())
    /// ```
    #[must_use]
    pub fn code(mut self, code: impl Fn(&Rejection) -> Option<GrpcCode> + Send + Sync + 'static) -> Self {
        self.code = Some(Arc::new(code));
        self
    }

    /// Sets the message of the rejections for which `message` returns one. Defaults to a message with the wait.
    #[must_use]
    pub fn message(mut self, message: impl Fn(&Rejection) -> Option<String> + Send + Sync + 'static) -> Self {
        self.message = Some(Arc::new(message));
        self
    }

    #[cfg(feature = "tonic")]
    pub(super) const fn names_identities(&self) -> bool {
        self.name_identities
    }

    pub(super) fn code_and_message(&self, rejection: &Rejection) -> (GrpcCode, String) {
        let code = self.code.as_ref().and_then(|code| code(rejection));
        let message = self.message.as_ref().and_then(|message| message(rejection));
        (code.unwrap_or_else(|| default_code(rejection)), message.unwrap_or_else(|| rejection.to_string()))
    }
}

fn default_code(rejection: &Rejection) -> GrpcCode {
    match rejection {
        Rejection::Denied(_) => GrpcCode::ResourceExhausted,
        Rejection::Blocked => GrpcCode::PermissionDenied,
        Rejection::Unavailable(error) if error.kind() != ErrorKind::InvalidConfig => GrpcCode::Unavailable,
        Rejection::Unidentified(error)
            if matches!(error.kind(), ErrorKind::MissingIdentity | ErrorKind::InvalidIdentity) =>
        {
            GrpcCode::InvalidArgument
        }
        Rejection::Unidentified(error) if error.kind() == ErrorKind::UnknownIdentity => {
            GrpcCode::Unauthenticated
        }
        Rejection::Unidentified(_) | Rejection::Unavailable(_) => GrpcCode::Internal,
    }
}

impl ResponseMapper for GrpcStatus {
    fn response(&self, rejection: &Rejection, request: &Parts) -> Response<RejectionBody> {
        let (code, message) = self.code_and_message(rejection);
        let mut response = Response::new(RejectionBody::empty());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(grpc_type(&request.headers)));
        headers.insert(GRPC_STATUS, HeaderValue::from(code as u16));
        if let Ok(message) = HeaderValue::try_from(percent_encoded(&message)) {
            headers.insert(GRPC_MESSAGE, message);
        }
        let Rejection::Denied(decision) = rejection else { return response };
        #[cfg(feature = "tonic")]
        {
            use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};

            if let Ok(details) =
                HeaderValue::try_from(STANDARD_NO_PAD.encode(self.status(rejection).details()))
            {
                headers.insert(super::request::GRPC_DETAILS, details);
            }
        }
        if self.pushback {
            let millis = |wait: std::time::Duration| {
                i32::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(i32::MAX)
            };
            headers.insert(GRPC_PUSHBACK, HeaderValue::from(decision.advised_wait().map_or(-1, millis)));
        }
        response
    }

    fn reads_request(&self) -> bool {
        false
    }
}

impl fmt::Debug for GrpcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcStatus").field("pushback", &self.pushback).finish_non_exhaustive()
    }
}

const MAX_MESSAGE: usize = 1024;

/// `message` as `grpc-message` carries it: printable ASCII except `%` stays as it is. Cut between characters, because
/// clients report half a character as another status.
pub(super) fn percent_encoded(message: &str) -> String {
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
                    // Writing to a `String` does not fail.
                    let _ = write!(encoded, "%{byte:02X}");
                }
            }
        }
    }
    encoded
}

/// A gRPC status code of a failed call. `OK` is not among them: a rejection is never a success.
///
/// See [`GrpcStatus::code`](crate::response::GrpcStatus::code) for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum GrpcCode {
    /// `CANCELLED`
    Cancelled = 1,
    /// `UNKNOWN`
    Unknown = 2,
    /// `INVALID_ARGUMENT`
    InvalidArgument = 3,
    /// `DEADLINE_EXCEEDED`
    DeadlineExceeded = 4,
    /// `NOT_FOUND`
    NotFound = 5,
    /// `ALREADY_EXISTS`
    AlreadyExists = 6,
    /// `PERMISSION_DENIED`
    PermissionDenied = 7,
    /// `RESOURCE_EXHAUSTED`
    ResourceExhausted = 8,
    /// `FAILED_PRECONDITION`
    FailedPrecondition = 9,
    /// `ABORTED`
    Aborted = 10,
    /// `OUT_OF_RANGE`
    OutOfRange = 11,
    /// `UNIMPLEMENTED`
    Unimplemented = 12,
    /// `INTERNAL`
    Internal = 13,
    /// `UNAVAILABLE`
    Unavailable = 14,
    /// `DATA_LOSS`
    DataLoss = 15,
    /// `UNAUTHENTICATED`
    Unauthenticated = 16,
}

#[cfg(feature = "tonic")]
impl From<GrpcCode> for tonic::Code {
    fn from(code: GrpcCode) -> Self {
        Self::from_i32(code as i32)
    }
}
