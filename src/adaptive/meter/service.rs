use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{HeaderName, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    body::MeasuredBody,
    meter::{Ended, InFlight, LoadMeter},
};

impl<S> Layer<S> for LoadMeter {
    type Service = Measured<S>;

    fn layer(&self, inner: S) -> Measured<S> {
        Measured { inner, meter: self.clone() }
    }
}

/// A service that a [`LoadMeter`] measures, which has an example.
#[derive(Clone, Debug)]
pub struct Measured<S> {
    inner: S,
    meter: LoadMeter,
}

impl<S> Measured<S> {
    /// A reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// A mutable reference to the inner service.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Unwraps the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, R, B> Service<R> for Measured<S>
where
    S: Service<R, Response = Response<B>>,
{
    type Response = Response<MeasuredBody<B>>;
    type Error = S::Error;
    type Future = MeasuredFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let in_flight = Some(self.meter.begin());
        MeasuredFuture { inner: self.inner.call(request), in_flight }
    }
}

#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService> tonic::server::NamedService for Measured<S> {
    const NAME: &'static str = S::NAME;
}

pin_project! {
    /// The future of a [`Measured`] service.
    pub struct MeasuredFuture<F> {
        #[pin]
        inner: F,
        in_flight: Option<InFlight>,
    }
}

impl<F, B, E> Future for MeasuredFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<MeasuredBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.inner.poll(cx));
        let mut in_flight = this.in_flight.take();
        if let Some(in_flight) = &mut in_flight {
            in_flight.answer(match &result {
                Ok(response) if !has_failed(response) => Ended::Answered,
                _ => Ended::Failed,
            });
        }
        Poll::Ready(result.map(|response| response.map(|body| MeasuredBody::new(body, in_flight))))
    }
}

/// Whether the server is the cause that the request was not carried out.
fn has_failed<B>(response: &Response<B>) -> bool {
    // UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE, DATA_LOSS.
    const CAUSED_BY_SERVER: [&[u8]; 6] = [b"2", b"4", b"8", b"13", b"14", b"15"];
    // Parsed once: with the text, each request would parse it.
    static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
    let grpc = response.headers().get(&GRPC_STATUS);
    response.status().is_server_error()
        || grpc.is_some_and(|status| CAUSED_BY_SERVER.contains(&status.as_bytes()))
}

impl<F> fmt::Debug for MeasuredFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeasuredFuture").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_fails_if_the_server_is_the_cause() {
        for (status, grpc, failed) in [
            (200, None, false),
            (404, None, false),
            (429, None, false),
            (500, None, true),
            (503, None, true),
            (200, Some("0"), false),
            (200, Some("5"), false),
            (200, Some("4"), true),
            (200, Some("14"), true),
        ] {
            let mut response = Response::builder().status(status);
            if let Some(grpc) = grpc {
                response = response.header("grpc-status", grpc);
            }
            assert_eq!(has_failed(&response.body(()).unwrap()), failed, "{status} {grpc:?}");
        }
    }
}
