use std::{
    any::Any,
    error::Error as StdError,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::response::RefusalBody;

pin_project! {
    /// The body of a [`RateLimit`](crate::RateLimit) service's response: the inner service's, or that of
    /// a refusal. See [`ResponseMapper`](crate::ResponseMapper) for an example.
    pub struct ResponseBody<B> {
        #[pin]
        inner: Inner<B>,
        // Units that are in use until the body ends, fails or is dropped.
        permit: Option<Arc<dyn Any + Send + Sync>>,
    }
}

pin_project! {
    #[project = InnerProj]
    enum Inner<B> {
        Service {
            #[pin]
            body: B,
        },
        Refusal {
            #[pin]
            body: RefusalBody,
        },
    }
}

impl<B> ResponseBody<B> {
    pub(crate) const fn service(body: B, permit: Option<Arc<dyn Any + Send + Sync>>) -> Self {
        Self { inner: Inner::Service { body }, permit }
    }

    pub(crate) const fn refusal(body: RefusalBody) -> Self {
        Self { inner: Inner::Refusal { body }, permit: None }
    }
}

impl<B: Default> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::service(B::default(), None)
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Data = Bytes;
    // Not `B::Error`: a response mapper's body may fail with an error of its own.
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.project();
        let frame = match this.inner.project() {
            InnerProj::Service { body } => body.poll_frame(cx).map_err(Into::into),
            InnerProj::Refusal { body } => body.poll_frame(cx),
        };
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            *this.permit = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Service { body } => body.is_end_stream(),
            Inner::Refusal { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Service { body } => body.size_hint(),
            Inner::Refusal { body } => body.size_hint(),
        }
    }
}

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}
