//! The content of a request's body, in the extensions of the request.

use std::fmt;

use bytes::Bytes;
use http::request::Parts;
use tower_ratelimit::{Error, ErrorKind};

/// The content of a request's body, which a [`BufferBodyLayer`](super::BufferBodyLayer) has put into the
/// extensions of the request, or the reason why it has not read the body.
///
/// It is cheap to clone. The memory counts towards the layer's
/// [total](super::BufferBodyLayer::max_total_bytes) until the last clone of the bytes is dropped.
///
/// `Debug` shows the length, not the content.
///
/// # Example
///
/// A key from the body, the e-mail address of a login:
///
/// ```
/// use axum::{Router, body::Body, routing::post};
/// use http::{Request, request::Parts};
/// use tower::ServiceExt;
/// use tower_ratelimit::{Error, MemoryStore, Policy, Quota, RateLimitLayer};
/// use tower_ratelimit_gateway::body::{BodyBytes, BufferBodyLayer};
///
/// #[derive(serde::Deserialize)]
/// struct Login {
///     email: String,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let email = |request: &Parts| {
///     let login: Option<Login> = serde_json::from_slice(BodyBytes::of(request)?).ok();
///     Ok::<_, Error>(login.map(|login| login.email.to_lowercase()))
/// };
/// let limit = RateLimitLayer::new(MemoryStore::new(), Policy::new("login", Quota::per_hour(1)), email);
/// let app = Router::new().route("/login", post(async || "welcome")).layer(limit).layer(BufferBodyLayer::new(4_096));
/// for (body, status) in [
///     (r#"{"email":"ann@example.com"}"#, 200),
///     (r#"{"email":"Ann@Example.com"}"#, 429),
///     (r#"{"email":"bob@example.com"}"#, 200),
///     ("nonsense", 400),
/// ] {
///     let request = Request::post("/login").body(Body::from(body))?;
///     assert_eq!(app.clone().oneshot(request).await?.status(), status);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct BodyBytes(Result<Bytes, Unread>);

/// Why a [`BufferBodyLayer`](super::BufferBodyLayer) has not read a body. The service gets such a body as the
/// client sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unread {
    /// The body is compressed, by `Content-Encoding` or `Transfer-Encoding`.
    Compressed,
    /// The request is a gRPC call, a stream whose end may depend on what the service answers.
    Grpc,
}

impl BodyBytes {
    pub(super) const fn new(content: Result<Bytes, Unread>) -> Self {
        Self(content)
    }

    /// The bytes of the body of `request`: empty if it has none.
    ///
    /// A key extractor returns the error with `?`.
    ///
    /// # Errors
    ///
    /// [`InvalidIdentity`](ErrorKind::InvalidIdentity), answered with 400, if the body was not read.
    /// [`MissingSetup`](ErrorKind::MissingSetup), answered with 500, if no
    /// [`BufferBodyLayer`](super::BufferBodyLayer) is in front.
    pub fn of(request: &Parts) -> Result<&Bytes, Error> {
        let body = request.extensions.get::<Self>();
        let missing =
            || Error::new(ErrorKind::MissingSetup, "no `BufferBodyLayer` is in front of this layer");
        body.ok_or_else(missing)?.get().map_err(Error::from)
    }

    /// The bytes of the body: empty if the request has none.
    ///
    /// # Errors
    ///
    /// The reason why the body was not read.
    pub const fn get(&self) -> Result<&Bytes, Unread> {
        match &self.0 {
            Ok(bytes) => Ok(bytes),
            Err(reason) => Err(*reason),
        }
    }
}

impl fmt::Debug for BodyBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(bytes) => write!(f, "BodyBytes({} bytes)", bytes.len()),
            Err(reason) => write!(f, "BodyBytes({reason:?})"),
        }
    }
}

/// A text for the client.
impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compressed => "the body of the request must not be compressed",
            Self::Grpc => "the body of a gRPC call is not read",
        })
    }
}

impl std::error::Error for Unread {}

/// [`InvalidIdentity`](ErrorKind::InvalidIdentity), because the client chooses how it sends its body.
impl From<Unread> for Error {
    fn from(reason: Unread) -> Self {
        Self::new(ErrorKind::InvalidIdentity, reason.to_string())
    }
}
