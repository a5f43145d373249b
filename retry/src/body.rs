//! Request bodies that can be sent again.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use tokio::task::coop::unconstrained;

/// The most frames that are kept of a body. A frame takes about 100 bytes beside its data.
const MAX_FRAMES: usize = 1_024;

/// A request body that [`RetryPolicy`](crate::RetryPolicy) can send again.
///
/// Every body that is `Clone` is one. For other bodies, use
/// [`BufferedRetryLayer`](crate::BufferedRetryLayer).
#[diagnostic::on_unimplemented(
    message = "the request body `{Self}` cannot be sent again",
    label = "the body `{Self}` is not `Clone`",
    note = "use `tower_ratelimit_retry::BufferedRetryLayer` in place of `tower::retry::RetryLayer`: it buffers bodies, such as tonic's (with the feature `tonic`)"
)]
pub trait RetryBody: Sized {
    /// Returns a copy that can be sent after this one. `None` if the request is to be sent only once.
    fn try_clone(&self) -> Option<Self>;
}

// Otherwise, the compiler asks for `Clone`, and does not print the note above.
#[diagnostic::do_not_recommend]
impl<B: Clone> RetryBody for B {
    fn try_clone(&self) -> Option<Self> {
        Some(self.clone())
    }
}

/// A request body that [`BufferedRetryLayer`](crate::BufferedRetryLayer) can rebuild from the bytes that it
/// kept.
///
/// Boxed bodies are: tonic's with the feature `tonic`, and the two of `http_body_util`.
#[diagnostic::on_unimplemented(
    message = "`BufferedRetryLayer` cannot rebuild the request body `{Self}`",
    label = "no `BufferedBody`",
    note = "for tonic's body, turn on the feature `tonic` of `tower-ratelimit-retry`",
    note = "for others, use a `BoxBody` or `UnsyncBoxBody` of `http_body_util` with this layer, or a body that is `Clone` with `tower::retry::RetryLayer`"
)]
pub trait BufferedBody: Body<Data = Bytes> + Unpin + Sized {
    /// Makes a body that yields what `body` yields.
    fn rebuild(body: ReplayBody<Self>) -> Self;
}

/// A request body whose beginning, or all of it, was read ahead: what
/// [`BufferedRetryLayer`](crate::BufferedRetryLayer) sends.
pub struct ReplayBody<B: Body> {
    /// Only the last can be an error.
    read: VecDeque<Result<Frame<Bytes>, B::Error>>,
    /// The rest of a body that was not read to its end.
    rest: Option<B>,
    /// Whether the body had an exact size. If not, it gets none, because the client might send it.
    sized: bool,
}

impl<B: BufferedBody> ReplayBody<B> {
    /// Reads what is ready now, up to `max` bytes and [`MAX_FRAMES`], and the frame that exceeds them.
    pub(crate) fn new(mut body: B, max: usize) -> Self {
        let hint = body.size_hint();
        let sized = hint.exact().is_some();
        let mut read = VecDeque::new();
        if hint.lower() > u64::try_from(max).unwrap_or(u64::MAX) {
            return Self { read, rest: Some(body), sized };
        }
        let mut bytes = 0_usize;
        while bytes <= max && read.len() <= MAX_FRAMES {
            let Poll::Ready(next) = poll_once(&mut body) else { break };
            let Some(next) = next else { return Self { read, rest: None, sized } };
            let length = next.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::len);
            bytes = bytes.saturating_add(length);
            let failed = next.is_err();
            read.push_back(next);
            if failed {
                break;
            }
        }
        Self { read, rest: Some(body), sized }
    }
}

/// Whether the next frame is ready, regardless of the task's budget: with the budget used up, Tokio's
/// channels are pending although they have frames, and the rest of the body would count as not ready.
fn poll_once<B: Body + Unpin>(body: &mut B) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
    // The client polls the rest with its own waker.
    let mut context = Context::from_waker(Waker::noop());
    let next = pin!(poll_fn(|context| Pin::new(&mut *body).poll_frame(context)));
    pin!(unconstrained(next)).poll(&mut context)
}

impl<B: Body<Data = Bytes>> RetryBody for ReplayBody<B> {
    /// `None` unless all of the body was read.
    fn try_clone(&self) -> Option<Self> {
        if self.rest.is_some() {
            return None;
        }
        let copy = |frame: &Frame<Bytes>| {
            let data = frame.data_ref().cloned().map(Frame::data);
            data.or_else(|| frame.trailers_ref().cloned().map(Frame::trailers))
        };
        let read = self.read.iter().map(|next| next.as_ref().ok().and_then(copy).map(Ok));
        Some(Self { read: read.collect::<Option<_>>()?, rest: None, sized: self.sized })
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for ReplayBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(next) = self.read.pop_front() {
            return Poll::Ready(Some(next));
        }
        self.rest.as_mut().map_or(Poll::Ready(None), |rest| Pin::new(rest).poll_frame(context))
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = match &self.rest {
            Some(rest) => rest.size_hint(),
            None if self.sized => SizeHint::with_exact(0),
            None => SizeHint::default(),
        };
        let frames = self.read.iter().filter_map(|next| next.as_ref().ok()?.data_ref());
        let read =
            frames.fold(0_u64, |sum, data| sum.saturating_add(data.len().try_into().unwrap_or(u64::MAX)));
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(read));
        }
        hint.set_lower(hint.lower().saturating_add(read));
        hint
    }
}

impl<B: Body> Unpin for ReplayBody<B> {}

impl<B: Body> fmt::Debug for ReplayBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (frames, is_whole) = (self.read.len(), self.rest.is_none());
        f.debug_struct("ReplayBody")
            .field("frames", &frames)
            .field("is_whole", &is_whole)
            .finish_non_exhaustive()
    }
}

impl<E: Send + Sync + 'static> BufferedBody for BoxBody<Bytes, E> {
    fn rebuild(body: ReplayBody<Self>) -> Self {
        Self::new(body)
    }
}

impl<E: Send + 'static> BufferedBody for UnsyncBoxBody<Bytes, E> {
    fn rebuild(body: ReplayBody<Self>) -> Self {
        Self::new(body)
    }
}

#[cfg(feature = "tonic")]
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
impl BufferedBody for tonic::body::Body {
    fn rebuild(body: ReplayBody<Self>) -> Self {
        Self::new(body)
    }
}
