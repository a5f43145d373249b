//! The bounded reader of request bodies, and what reads them: the module `body`.

mod bounds;
mod buffer;
mod json_rpc;
mod sockets;

use std::{
    convert::Infallible,
    io,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use futures_util::{Stream, stream};
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Full, StreamBody};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tower::{Layer as _, Service, ServiceExt as _, service_fn};
use tower_ratelimit_gateway::body::{BodyBytes, BufferBodyLayer, RequestBody};

type Sent = Result<Frame<Bytes>, io::Error>;
type Streamed = StreamBody<UnboundedStream>;
type UnboundedStream = std::pin::Pin<Box<dyn Stream<Item = Sent> + Send>>;

/// A body whose frames a test sends.
fn channel() -> (UnboundedSender<Sent>, Streamed) {
    let (sender, mut receiver): (_, UnboundedReceiver<Sent>) = unbounded_channel();
    (sender, StreamBody::new(Box::pin(stream::poll_fn(move |cx| receiver.poll_recv(cx)))))
}

fn data(bytes: &'static [u8]) -> Sent {
    Ok(Frame::data(Bytes::from_static(bytes)))
}

/// A body of these frames, which is complete.
fn body(frames: impl IntoIterator<Item = Sent>) -> Streamed {
    let frames: Vec<_> = frames.into_iter().collect();
    StreamBody::new(Box::pin(stream::iter(frames)))
}

/// The requests that a service has got: what `BodyBytes` says, and the body.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<(String, String)>>>);

impl Seen {
    /// A service behind `layer` that reads the body, notes what it got, and answers with the body.
    fn service<B>(
        &self,
        layer: &BufferBodyLayer,
    ) -> impl Service<
        Request<B>,
        Response = Response<tower_ratelimit_gateway::body::MaybeRejected<Full<Bytes>>>,
        Error = Infallible,
        Future: Send,
    > + Clone
    + Send
    + use<B>
    where
        B: Body<Data: Send, Error: std::error::Error + Send + Sync> + Send + 'static,
    {
        let seen = self.clone();
        layer.layer(service_fn(move |request: Request<RequestBody<B>>| {
            let seen = seen.clone();
            async move {
                let known = format!("{:?}", request.extensions().get::<BodyBytes>().unwrap());
                let bytes = request.into_body().collect().await.unwrap().to_bytes();
                let text = String::from_utf8_lossy(&bytes).into_owned();
                seen.0.lock().unwrap().push((known, text));
                Ok(Response::new(Full::new(bytes)))
            }
        }))
    }

    fn take(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// The response to `request`, whose body is text.
async fn answer<B>(layer: &BufferBodyLayer, request: Request<B>) -> Response<String>
where
    B: Body<Data: Send, Error: std::error::Error + Send + Sync> + Send + 'static,
{
    let response = Seen::default().service(layer).oneshot(request).await.unwrap();
    text(response).await
}

async fn text<B: Body<Data = Bytes, Error: std::fmt::Debug>>(response: Response<B>) -> Response<String> {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Response::from_parts(parts, String::from_utf8(body.to_vec()).unwrap())
}
