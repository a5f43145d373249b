//! [`MeteredBody`]: reads the usage of an answer while it passes.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{reader::End, settling::Settling};

pin_project! {
    /// The body of a [metered](super::Call::metered) response: the upstream service's body, whose frames pass
    /// unchanged. When it ends, fails or is dropped, the call is settled.
    pub struct MeteredBody<B> {
        #[pin]
        inner: B,
        settling: Settling,
    }
}

impl<B: Body<Data = Bytes>> MeteredBody<B> {
    pub(super) fn new(inner: B, mut settling: Settling) -> Self {
        // A server does not poll an empty body.
        if inner.is_end_stream() {
            settling.end(End::Complete);
        }
        Self { inner, settling }
    }
}

impl<B> MeteredBody<B> {
    /// A reference to the upstream service's body.
    pub const fn get_ref(&self) -> &B {
        &self.inner
    }
}

impl<B: Body<Data = Bytes>> Body for MeteredBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        let frame = this.inner.as_mut().poll_frame(cx);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    this.settling.push(data);
                }
                // Then a server does not poll again.
                if this.inner.is_end_stream() {
                    this.settling.end(End::Complete);
                }
            }
            Poll::Ready(Some(Err(_))) => this.settling.failed(),
            Poll::Ready(None) => this.settling.end(End::Complete),
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B> fmt::Debug for MeteredBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeteredBody").finish_non_exhaustive()
    }
}
