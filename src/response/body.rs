use std::{
    error::Error as StdError,
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Empty, combinators::UnsyncBoxBody};

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
pub struct RejectionBody(UnsyncBoxBody<Bytes, Box<dyn StdError + Send + Sync>>);

impl RejectionBody {
    /// A body with the content of `body`.
    pub fn new<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        Self(body.map_err(Into::into).boxed_unsync())
    }

    pub(super) fn empty() -> Self {
        Self::new(Empty::new())
    }
}

impl Body for RejectionBody {
    type Data = Bytes;
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

impl fmt::Debug for RejectionBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejectionBody").finish_non_exhaustive()
    }
}
