//! The response to a rejected gRPC call.

use std::fmt::Write as _;

#[cfg(feature = "tonic")]
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use http::{HeaderName, HeaderValue, Response, header::CONTENT_TYPE, request::Parts};

use super::{body::RejectionBody, head::grpc_type, mapper::ResponseMapper, rejection::Rejection};
use crate::base::time::millis_up;

/// The default [`ResponseMapper`] for gRPC calls, which are POST requests with the content type
/// `application/grpc` or a variant of it: HTTP 200 with a gRPC status in the headers and no body.
///
/// | rejection | gRPC status |
/// |---|---|
/// | denied | 8, `RESOURCE_EXHAUSTED` |
/// | temporarily banned by a policy's penalty | 8, `RESOURCE_EXHAUSTED` |
/// | blocked by the layer | 7, `PERMISSION_DENIED` |
/// | store unavailable, policy closed | 14, `UNAVAILABLE` |
/// | no identity, the client's fault | 3, `INVALID_ARGUMENT` |
/// | unknown identity | 16, `UNAUTHENTICATED` |
/// | no identity, the server's fault | 13, `INTERNAL` |
///
/// With the feature `tonic` the status of a denied call has details: a `RetryInfo` with the wait, and a
/// `QuotaFailure` with one violation for each policy that denied. A call, streaming or not, is charged once,
/// when it starts. grpc-web calls are answered in grpc-web, in text if the call came in text. The header
/// block stays below 8 KiB.
///
/// # Another code or message
///
/// Call this mapper in a closure, and change the headers. The details of a denied call keep the default code
/// and message.
///
/// ```
/// use http::{HeaderValue, Request, request::Parts};
/// use tower_ratelimit::{Rejection, response::{GrpcStatus, ResponseMapper}};
///
/// let mapper = |rejection: &Rejection, call: &Parts| {
///     let mut response = GrpcStatus::default().response(rejection, call);
///     if let Rejection::Blocked = rejection {
///         let message = HeaderValue::from_static("contact support@example.org");
///         response.headers_mut().insert("grpc-message", message);
///     }
///     response
/// };
///
/// let (call, ()) = Request::post("/").header("content-type", "application/grpc").body(())?.into_parts();
/// let response = mapper(&Rejection::Blocked, &call);
/// assert_eq!(response.headers()["grpc-status"], "7");
/// assert_eq!(response.headers()["grpc-message"], "contact support@example.org");
/// # Ok::<(), http::Error>(())
/// ```
///
/// # In a handler
///
/// With the feature `tonic`, a [`Rejection`] and an [`Error`](crate::Error) become a `tonic::Status` with `?`
/// or `Status::from`. [`Limiter::from_extensions`](crate::Limiter::from_extensions) gets the layer's limiter
/// from the tonic request. There is an example at
/// [`Rejection`](crate::Rejection#impl-From<Rejection>-for-Status).
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, response::GrpcStatus, store::ManualClock};
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
/// assert_eq!(rejection.headers()["grpc-message"], "over the rate limit; try again in 1 hour");
/// assert_eq!(rejection.headers()["grpc-retry-pushback-ms"], "3600000");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct GrpcStatus {
    pushback: bool,
    #[cfg(feature = "tonic")]
    pub(super) name_identities: bool,
}

impl GrpcStatus {
    /// Sends `grpc-retry-pushback-ms` (gRFC A6): the wait for clients that retry automatically, and -1 if
    /// waiting cannot help. Defaults to not sending it: a client then retries only the status codes in its
    /// configuration.
    #[must_use]
    pub const fn retry_pushback(mut self) -> Self {
        self.pushback = true;
        self
    }

    /// Names the identity in each violation's `subject`, as [`Key::as_str`](crate::Key::as_str) shows it.
    /// Defaults to an empty subject.
    ///
    /// # Example
    ///
    /// ```
    /// use http::Request;
    /// use tonic::Status;
    /// use tonic_types::StatusExt;
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, Rejection};
    /// use tower_ratelimit::response::{GrpcStatus, ResponseMapper};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let denied = limiter.check(&Policy::new("calls", Quota::per_hour(1)), &Key::new("alice"), 2).await?;
    /// let (call, ()) = Request::post("/").header("content-type", "application/grpc").body(())?.into_parts();
    ///
    /// let mapper = GrpcStatus::default().name_identities();
    /// let response = mapper.response(&Rejection::Denied(denied), &call);
    /// let status = Status::from_header_map(response.headers()).expect("a gRPC status");
    /// let failure = status.get_details_quota_failure().expect("the policies that denied");
    /// assert_eq!(failure.violations[0].subject, "alice");
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tonic")]
    #[must_use]
    pub const fn name_identities(mut self) -> Self {
        self.name_identities = true;
        self
    }
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(super) const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

impl ResponseMapper for GrpcStatus {
    fn response(&self, rejection: &Rejection, request: &Parts) -> Response<RejectionBody> {
        let mut response = Response::new(RejectionBody::empty());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(grpc_type(&request.headers)));
        headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(rejection.described().1)));
        if let Ok(message) = HeaderValue::try_from(percent_encoded(&rejection.to_string())) {
            headers.insert(GRPC_MESSAGE, message);
        }
        let Rejection::Denied(decision) = rejection else { return response };
        #[cfg(feature = "tonic")]
        if let Ok(details) = HeaderValue::try_from(STANDARD_NO_PAD.encode(self.status(rejection).details())) {
            headers.insert(GRPC_DETAILS, details);
        }
        if self.pushback {
            let millis = |wait| i32::try_from(millis_up(wait)).unwrap_or(i32::MAX);
            headers.insert(GRPC_PUSHBACK, HeaderValue::from(decision.advised_wait().map_or(-1, millis)));
        }
        response
    }

    fn reads_request(&self) -> bool {
        false
    }
}

const MAX_MESSAGE: usize = 1024;

/// `message` as `grpc-message` carries it: printable ASCII except `%` stays as it is. Cut between characters,
/// because clients report half a character as another status.
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
                    // Writing to a `String` does not fail.
                    let _ = write!(encoded, "%{byte:02X}");
                }
            }
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::decision::Decision;

    #[test]
    fn a_denied_call_has_details_with_the_feature_tonic_and_not_without_it() {
        let (call, ()) = Request::post("/").body(()).unwrap().into_parts();
        let response = GrpcStatus::default().response(&Rejection::Denied(Decision::new([])), &call);
        assert_eq!(response.headers()[GRPC_STATUS], "8");
        assert_eq!(response.headers().contains_key("grpc-status-details-bin"), cfg!(feature = "tonic"));
    }
}
