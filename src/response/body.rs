//! The body of a rejection, and why a body failed.

use std::{
    error::Error as StdError,
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Either, Full, combinators::UnsyncBoxBody};

/// The body of a rejection: any body of bytes.
///
/// A custom type that implements [`ResponseMapper`](crate::response::ResponseMapper) returns it:
///
/// ```
/// use http::{Response, request::Parts};
/// use tower_ratelimit::{response::{RejectionBody, ResponseMapper}, Rejection};
///
/// struct Plain;
///
/// impl ResponseMapper for Plain {
///     fn response(&self, rejection: &Rejection, _: &Parts) -> Response<RejectionBody> {
///         let mut response = Response::new(RejectionBody::new(rejection.to_string()));
///         *response.status_mut() = rejection.status();
///         response
///     }
/// }
/// ```
pub struct RejectionBody(AnyBody);

/// The bodies of a rejection. Their error is not wrapped in a [`BodyError`] yet.
pub(crate) type AnyBody = Either<Full<Bytes>, UnsyncBoxBody<Bytes, BoxError>>;

type BoxError = Box<dyn StdError + Send + Sync>;

impl RejectionBody {
    /// A body with the content of `body`.
    pub fn new<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Either::Right(body.map_err(Into::into).boxed_unsync()))
    }

    /// Without the allocation that [`new`](Self::new) makes for a body of any type.
    pub(super) fn of_text(text: String) -> Self {
        Self(Either::Left(Full::from(text)))
    }

    pub(super) fn empty() -> Self {
        Self::of_text(String::new())
    }

    pub(crate) fn into_any(self) -> AnyBody {
        self.0
    }
}

impl Body for RejectionBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.0).poll_frame(cx).map_err(BodyError::new)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

opaque_debug!(RejectionBody);

/// The failure of a response's body: the service's body, or a rejection's.
///
/// Its text and its [`source`](StdError::source) are the error of that body.
///
/// # Example
///
/// ```
/// use std::io;
///
/// use bytes::Bytes;
/// use http_body_util::{BodyExt, StreamBody};
/// use tower_ratelimit::response::RejectionBody;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let failing = futures_util::stream::iter([Err::<http_body::Frame<Bytes>, _>(io::Error::other("the disk is gone"))]);
/// let error = RejectionBody::new(StreamBody::new(failing)).collect().await.unwrap_err();
/// assert_eq!(error.to_string(), "the disk is gone");
/// assert!(error.into_inner().is::<io::Error>());
/// # }
/// ```
#[derive(Debug)]
pub struct BodyError(BoxError);

impl BodyError {
    /// `error`, or the [`BodyError`] that it is: a body may be wrapped by several layers.
    pub(crate) fn new(error: BoxError) -> Self {
        error.downcast().map_or_else(Self, |same| *same)
    }

    /// The error of the body that failed.
    #[must_use]
    pub fn into_inner(self) -> Box<dyn StdError + Send + Sync> {
        self.0
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for BodyError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}
