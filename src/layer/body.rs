//! The body of a response, which settles what remains of a request's charge when it ends.

use std::{
    error::Error as StdError,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Either;
use pin_project_lite::pin_project;

use super::settle::Settling;
use crate::{
    decision::Permit,
    response::{AnyBody, BodyError, RejectionBody},
};

pin_project! {
    /// The response body of a [`RateLimit`](crate::layer::RateLimit) service: the inner service's body, or a
    /// rejection's. It holds the permits of a [`Concurrency`](crate::algorithm::Concurrency) policy until it
    /// ends.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response};
    /// use http_body_util::BodyExt;
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, layer::ResponseBody};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::new("api", Quota::per_hour(1));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), policy, Key::new("all"));
    /// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
    ///     Ok::<_, std::convert::Infallible>(Response::new(String::from("hello")))
    /// }));
    ///
    /// let text = async |response: Response<ResponseBody<String>>| {
    ///     response.into_body().collect().await.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned()).unwrap()
    /// };
    /// let admitted = service.clone().oneshot(Request::new(String::new())).await?;
    /// assert_eq!(text(admitted).await, "hello");
    /// let rejection = service.oneshot(Request::new(String::new())).await?;
    /// assert!(text(rejection).await.contains(r#""violated-policies":["api"]"#));
    /// # Ok(())
    /// # }
    /// ```
    pub struct ResponseBody<B> {
        #[pin]
        inner: Either<B, AnyBody>,
        // `None` for nearly all responses. Boxed, because every response is moved several times.
        held: Option<Box<Held>>,
    }
}

/// What a body holds until it ends, fails or is dropped.
struct Held {
    /// The layer's permit and the handler's. They are released then.
    _permits: [Option<Permit>; 2],
    /// What is settled then.
    settling: Option<Box<Settling>>,
}

impl<B> ResponseBody<B> {
    #[inline]
    pub(super) fn service(body: B, permits: [Option<Permit>; 2], settling: Option<Box<Settling>>) -> Self {
        let holds = permits.iter().any(Option::is_some) || settling.is_some();
        Self {
            inner: Either::Left(body),
            held: holds.then(|| Box::new(Held { _permits: permits, settling })),
        }
    }

    pub(super) fn rejection(body: RejectionBody) -> Self {
        Self { inner: Either::Right(body.into_any()), held: None }
    }
}

impl<B: Default> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::service(B::default(), [None, None], None)
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Data = Bytes;
    // Not `B::Error`: a response mapper's body may fail with another error.
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.project();
        let frame = this.inner.poll_frame(cx);
        match &frame {
            Poll::Ready(None | Some(Err(_))) => *this.held = None,
            Poll::Ready(Some(Ok(frame))) => {
                if let (Some(held), Some(data)) = (this.held, frame.data_ref())
                    && let Some(settling) = &mut held.settling
                {
                    settling.add(data.len());
                }
            }
            Poll::Pending => {}
        }
        frame.map_err(BodyError::new)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

opaque_debug!(ResponseBody<B>);
