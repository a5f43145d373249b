//! [`MeteredBody`]: reads the usage of an answer while it passes.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{reader::End, settling::Settling};

pin_project! {
    /// The body of a [metered](super::Call::metered) response: the upstream service's body, whose frames pass
    /// unchanged, except for the usage that only [`prepare`](super::Call::prepare) has asked for. When it ends,
    /// fails or is dropped, the call is settled.
    pub struct MeteredBody<B> {
        #[pin]
        inner: B,
        settling: Settling,
        // They come after what the filter has held.
        trailers: Option<Frame<Bytes>>,
        // Whether `inner` has no more frames. It may panic if it is polled again.
        is_over: bool,
    }
}

impl<B: Body<Data = Bytes>> MeteredBody<B> {
    pub(super) fn new(inner: B, mut settling: Settling) -> Self {
        // A server does not poll an empty body.
        if inner.is_end_stream() {
            drop(settling.end(End::Complete));
        }
        Self { inner, settling, trailers: None, is_over: false }
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
        if let Some(trailers) = this.trailers.take() {
            return Poll::Ready(Some(Ok(trailers)));
        }
        if *this.is_over {
            return Poll::Ready(None);
        }
        loop {
            let frame = match ready!(this.inner.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    this.settling.failed();
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    *this.is_over = true;
                    let rest = this.settling.end(End::Complete);
                    return Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest.into()))));
                }
            };
            let removes_some = this.settling.removes_some();
            let (data, trailers) = match frame.into_data() {
                Ok(data) => (Some(this.settling.push(data)), None),
                Err(frame) => (None, Some(frame)),
            };
            // A server does not poll again at the end of the stream, and sends no data after trailers.
            let is_end = trailers.is_some() || this.inner.is_end_stream();
            let rest = if is_end { this.settling.end(End::Complete) } else { Vec::new() };
            let data = match data {
                _ if !rest.is_empty() => Some([data.unwrap_or_default(), rest.into()].concat().into()),
                Some(data) if data.is_empty() && removes_some && !is_end => continue,
                data => data,
            };
            return Poll::Ready(match data {
                Some(data) => {
                    *this.trailers = trailers;
                    Some(Ok(Frame::data(data)))
                }
                None => trailers.map(Ok),
            });
        }
    }

    fn is_end_stream(&self) -> bool {
        self.trailers.is_none() && (self.is_over || self.inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        if self.settling.removes_some() { SizeHint::default() } else { self.inner.size_hint() }
    }
}

impl<B> fmt::Debug for MeteredBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeteredBody").finish_non_exhaustive()
    }
}
