//! [`MeasuredBody`]: keeps a request in flight until its response has been sent.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::meter::InFlight;

pin_project! {
    /// The response body of a [`Measured`](super::Measured) service: the inner service's body. The request is
    /// in flight until it ends, fails or is dropped. [`LoadMeter`](super::LoadMeter) has an example.
    pub struct MeasuredBody<B> {
        #[pin]
        inner: B,
        in_flight: Option<InFlight>,
    }
}

impl<B> MeasuredBody<B> {
    pub(super) const fn new(inner: B, in_flight: Option<InFlight>) -> Self {
        Self { inner, in_flight }
    }

    /// A reference to the inner service's body.
    pub const fn get_ref(&self) -> &B {
        &self.inner
    }
}

/// A body without a request, for middleware that makes empty responses.
impl<B: Default> Default for MeasuredBody<B> {
    fn default() -> Self {
        Self::new(B::default(), None)
    }
}

impl<B: Body> Body for MeasuredBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.project();
        let frame = this.inner.poll_frame(cx);
        if let Poll::Ready(None | Some(Err(_))) = frame {
            *this.in_flight = None;
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

impl<B> fmt::Debug for MeasuredBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeasuredBody").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, io};

    use axum::body::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt as _, Full};
    use tower::{Layer as _, ServiceExt as _, service_fn};

    use super::*;
    use crate::adaptive::LoadMeter;

    /// Fails immediately.
    struct Cut;

    impl Body for Cut {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
            Poll::Ready(Some(Err(io::Error::other("cut"))))
        }
    }

    async fn answer<B>(meter: &LoadMeter, body: B) -> MeasuredBody<B> {
        let mut body = Some(body);
        let service = service_fn(move |_: Request<()>| {
            let response = Response::new(body.take().unwrap());
            async { Ok::<_, Infallible>(response) }
        });
        meter.layer(service).oneshot(Request::new(())).await.unwrap().into_body()
    }

    #[tokio::test]
    async fn a_request_is_in_flight_until_its_body_ends_fails_or_is_dropped() {
        let meter = LoadMeter::new();
        let mut ends = answer(&meter, Full::new(Bytes::from_static(b"hello"))).await;
        let empty = answer(&meter, String::new()).await;
        assert_eq!((meter.in_flight(), ends.size_hint().exact(), empty.is_end_stream()), (2, Some(5), true));
        assert_eq!(ends.frame().await.unwrap().unwrap().into_data().unwrap(), "hello");
        assert_eq!(meter.in_flight(), 2);
        assert!(ends.frame().await.is_none());
        assert_eq!(meter.in_flight(), 1);
        drop(empty);
        assert_eq!(meter.in_flight(), 0);

        let mut fails = answer(&meter, Cut).await;
        assert_eq!(meter.in_flight(), 1);
        assert!(fails.frame().await.unwrap().is_err());
        assert_eq!(meter.in_flight(), 0);
    }
}
