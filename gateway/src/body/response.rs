//! The response body of a service that buffers.

use std::{
    error::Error as StdError,
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_ratelimit::response::RejectionBody;

pin_project! {
    /// The response body of a [`BufferBody`](super::BufferBody) service: the inner service's body, or a
    /// rejection's.
    pub struct MaybeRejected<B> {
        #[pin]
        content: Content<B>,
    }
}

pin_project! {
    #[project = ContentProj]
    enum Content<B> {
        Service { #[pin] body: B },
        Rejection { body: RejectionBody },
    }
}

impl<B> MaybeRejected<B> {
    pub(super) const fn service(body: B) -> Self {
        Self { content: Content::Service { body } }
    }

    pub(super) const fn rejection(body: RejectionBody) -> Self {
        Self { content: Content::Rejection { body } }
    }
}

/// A body without a request, for middleware that makes empty responses.
impl<B: Default> Default for MaybeRejected<B> {
    fn default() -> Self {
        Self::service(B::default())
    }
}

impl<B> Body for MaybeRejected<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Data = Bytes;
    // Not `B::Error`: a rejection's body may fail with another error.
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.project().content.project() {
            ContentProj::Service { body } => body.poll_frame(cx).map_err(Into::into),
            ContentProj::Rejection { body } => Pin::new(body).poll_frame(cx).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Service { body } => body.is_end_stream(),
            Content::Rejection { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Service { body } => body.size_hint(),
            Content::Rejection { body } => body.size_hint(),
        }
    }
}

impl<B> fmt::Debug for MaybeRejected<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaybeRejected").finish_non_exhaustive()
    }
}
