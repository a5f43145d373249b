//! The body that the inner service gets.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf as _, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::collect::Trailers;

pin_project! {
    /// The request body behind a [`BufferBodyLayer`](super::BufferBodyLayer): the same bytes and trailers, with
    /// the bytes in one frame. A body that was not read passes through.
    pub struct RequestBody<B> {
        #[pin]
        content: Content<B>,
    }
}

pin_project! {
    #[project = ContentProj]
    enum Content<B> {
        Read { bytes: Option<Bytes>, trailers: Option<Trailers> },
        Unread { #[pin] body: B },
    }
}

impl<B> RequestBody<B> {
    pub(super) fn read(bytes: Bytes, trailers: Option<Trailers>) -> Self {
        let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
        Self { content: Content::Read { bytes, trailers } }
    }

    pub(super) const fn unread(body: B) -> Self {
        Self { content: Content::Unread { body } }
    }
}

impl<B: Body> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.project().content.project() {
            ContentProj::Read { bytes, trailers } => {
                let data = bytes.take().map(Frame::data);
                let trailers = || trailers.take().map(|trailers| Frame::trailers(trailers.headers));
                Poll::Ready(data.or_else(trailers).map(Ok))
            }
            ContentProj::Unread { body } => body
                .poll_frame(cx)
                .map_ok(|frame| frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Read { bytes, trailers } => bytes.is_none() && trailers.is_none(),
            Content::Unread { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Read { bytes, .. } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Content::Unread { body } => body.size_hint(),
        }
    }
}

impl<B> fmt::Debug for RequestBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBody").finish_non_exhaustive()
    }
}
