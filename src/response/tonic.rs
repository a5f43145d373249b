//! Rejections as tonic's status, with `google.rpc` details.

use std::time::Duration;

use tonic::Status;
use tonic_types::{ErrorDetails, QuotaViolation, StatusExt as _};

use super::{grpc::GrpcStatus, rejection::Rejection};
use crate::{base::Error, decision::Decision};

impl GrpcStatus {
    /// The status of `rejection`: for handlers that reject a call themselves and adjust the status as the
    /// layer does. `Status::from(rejection)` is the status with default settings.
    #[must_use]
    pub fn status(&self, rejection: &Rejection) -> Status {
        let (code, message) = (i32::from(rejection.described().1).into(), rejection.to_string());
        match rejection {
            Rejection::Denied(decision) => {
                Status::with_error_details(code, message, details(decision, self.name_identities))
            }
            _ => Status::new(code, message),
        }
    }
}

/// The status that the layer sends by default, with its details: for handlers that charge more themselves.
///
/// # Example
///
/// ```
/// use tonic::{Request, Response, Status};
/// use tower_ratelimit::{Key, Limiter, Policy};
///
/// /// A handler finds the layer's limiter in the request's extensions.
/// async fn export(request: Request<()>, exports: &Policy, user: &Key) -> Result<Response<()>, Status> {
///     let limiter = Limiter::from_extensions(request.extensions());
///     let limiter = limiter.ok_or_else(|| Status::internal("the rate limit layer is missing"))?;
///     limiter.check(exports, user, 10).await?.into_result()?;
///     Ok(Response::new(()))
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use tonic_types::StatusExt as _;
/// use tower_ratelimit::{MemoryStore, Quota};
///
/// let limiter = Limiter::new(MemoryStore::new());
/// let (exports, alice) = (Policy::new("exports", Quota::per_hour(10)), Key::new("alice"));
/// let request = || {
///     let mut request = Request::new(());
///     request.extensions_mut().insert(limiter.clone());
///     request
/// };
/// assert!(export(request(), &exports, &alice).await.is_ok());
/// let status = export(request(), &exports, &alice).await.unwrap_err();
/// assert_eq!(status.code(), tonic::Code::ResourceExhausted);
/// assert!(status.get_details_retry_info().is_some());
/// # }
/// ```
impl From<Rejection> for Status {
    fn from(rejection: Rejection) -> Self {
        GrpcStatus::default().status(&rejection)
    }
}

/// The status of the [`Rejection`] that the error becomes.
impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Rejection::from(error).into()
    }
}

/// The most violations in one status. Each takes about 130 bytes, and a third more in base64.
const MAX_VIOLATIONS: usize = 16;

/// A `RetryInfo` with the wait, and a `QuotaFailure` with a violation for each policy that denied.
fn details(decision: &Decision, name_identities: bool) -> ErrorDetails {
    let mut details = ErrorDetails::new();
    if let Some(wait) = decision.advised_wait() {
        details.set_retry_info(Some(wait.max(Duration::from_millis(1))));
    }
    let denied = decision.outcomes().iter().filter(|outcome| outcome.is_denied());
    let violations = denied.take(MAX_VIOLATIONS).map(|outcome| {
        let subject = if name_identities { outcome.key().as_str() } else { "" };
        let policy = outcome.policy();
        let what = if outcome.is_banned() { "banned".to_owned() } else { format!("over {}", policy.quota()) };
        let mut violation = QuotaViolation::new(subject, what);
        violation.quota_id = policy.name().to_owned();
        violation.quota_value = i64::try_from(outcome.capacity()).unwrap_or(i64::MAX);
        violation
    });
    details.set_quota_failure(violations.collect::<Vec<_>>());
    details
}
