//! The layer and the service of a [`LoadMeter`], which measure HTTP requests.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::{HeaderName, HeaderValue, Response, StatusCode};
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
        // Taken, so that a panic of the service ends the request here. This future may be dropped later,
        // after the panic was caught.
        let mut in_flight = this.in_flight.take();
        let Poll::Ready(result) = this.inner.poll(cx) else {
            *this.in_flight = in_flight;
            return Poll::Pending;
        };
        if let Some(in_flight) = &mut in_flight {
            in_flight.answer(result.as_ref().map_or(Ended::Failed, ended));
        }
        Poll::Ready(result.map(|response| response.map(|body| MeasuredBody::new(body, in_flight))))
    }
}

/// Whether the request was carried out, and if not, whether the server is the cause or the client.
fn ended<B>(response: &Response<B>) -> Ended {
    // Parsed once: with the text, each request would parse it.
    static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
    match response.status() {
        // The client chooses the method and the version.
        StatusCode::NOT_IMPLEMENTED | StatusCode::HTTP_VERSION_NOT_SUPPORTED => return Ended::Unserved,
        status if status.is_server_error() => return Ended::Failed,
        status if status.is_client_error() => return Ended::Unserved,
        _ => {}
    }
    match response.headers().get(&GRPC_STATUS).map(HeaderValue::as_bytes) {
        None | Some(b"0") => Ended::Answered,
        // UNKNOWN, INTERNAL, UNAVAILABLE, DATA_LOSS.
        Some(b"2" | b"13" | b"14" | b"15") => Ended::Failed,
        // The client chooses the deadline, and its own limits exhaust first.
        Some(_) => Ended::Unserved,
    }
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
    fn a_request_fails_if_the_server_is_the_cause_and_is_unserved_if_the_client_is() {
        for (status, grpc, expected) in [
            (200, None, Ended::Answered),
            (304, None, Ended::Answered),
            (400, None, Ended::Unserved),
            (404, None, Ended::Unserved),
            (408, None, Ended::Unserved),
            (429, None, Ended::Unserved),
            (500, None, Ended::Failed),
            (501, None, Ended::Unserved),
            (503, None, Ended::Failed),
            (504, None, Ended::Failed),
            (505, None, Ended::Unserved),
            (200, Some("0"), Ended::Answered),
            (200, Some("1"), Ended::Unserved),
            (200, Some("2"), Ended::Failed),
            (200, Some("4"), Ended::Unserved),
            (200, Some("5"), Ended::Unserved),
            (200, Some("8"), Ended::Unserved),
            (200, Some("13"), Ended::Failed),
            (200, Some("14"), Ended::Failed),
            (200, Some("nonsense"), Ended::Unserved),
        ] {
            let mut response = Response::builder().status(status);
            if let Some(grpc) = grpc {
                response = response.header("grpc-status", grpc);
            }
            assert_eq!(ended(&response.body(()).unwrap()), expected, "{status} {grpc:?}");
        }
    }
}
