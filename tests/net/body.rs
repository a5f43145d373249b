//! Bodies that are buffered, over HTTP/2.

use std::net::SocketAddr;

use axum::{Router, extract::Request, routing::post};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::{eventually, http::serve};
use tokio::{
    net::TcpStream,
    sync::mpsc::{UnboundedSender, unbounded_channel},
};
use tower_ratelimit_gateway::body::{BodyBytes, BufferBodyLayer};

type Sent = Result<Frame<Bytes>, std::io::Error>;
type Body = StreamBody<std::pin::Pin<Box<dyn futures_util::Stream<Item = Sent> + Send>>>;

/// Answers with the length of `BodyBytes`, the number of trailers, and the length of the body.
async fn echo(request: Request) -> String {
    let known = request.extensions().get::<BodyBytes>().unwrap().get().unwrap().len();
    let collected = request.into_body().collect().await.unwrap();
    let trailers = collected.trailers().map_or(0, HeaderMap::len);
    format!("{known} {trailers} {}", collected.to_bytes().len())
}

async fn serve_behind(layer: &BufferBodyLayer) -> SocketAddr {
    serve(Router::new().route("/", post(echo)).layer(layer.clone())).await
}

fn channel() -> (UnboundedSender<Sent>, Body) {
    let (sender, mut receiver) = unbounded_channel();
    let frames = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
    (sender, StreamBody::new(Box::pin(frames)))
}

async fn connect(server: SocketAddr) -> http2::SendRequest<Body> {
    let socket = TokioIo::new(TcpStream::connect(server).await.unwrap());
    let (client, connection) = http2::handshake(TokioExecutor::new(), socket).await.unwrap();
    tokio::spawn(connection);
    client
}

fn request(server: SocketAddr, body: Body) -> http::Request<Body> {
    http::Request::post(format!("http://{server}/")).body(body).unwrap()
}

async fn text(response: Response<hyper::body::Incoming>) -> (StatusCode, String) {
    let (parts, body) = response.into_parts();
    assert!(!parts.headers.contains_key("connection"));
    let text = body.collect().await.unwrap().to_bytes();
    (parts.status, String::from_utf8(text.to_vec()).unwrap())
}

#[tokio::test]
async fn a_body_without_a_length_arrives_with_its_trailers() {
    let server = serve_behind(&BufferBodyLayer::new(200_000)).await;
    let mut client = connect(server).await;
    let (sender, body) = channel();
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("7"));
    for _ in 0..10 {
        sender.send(Ok(Frame::data(Bytes::from(vec![b'x'; 10_000])))).unwrap();
    }
    sender.send(Ok(Frame::trailers(trailers))).unwrap();
    drop(sender);
    let response = client.send_request(request(server, body)).await.unwrap();
    assert_eq!(text(response).await, (StatusCode::OK, "100000 1 100000".into()));
}

#[tokio::test]
async fn a_body_that_is_too_large_ends_its_stream_and_not_the_connection() {
    let layer = BufferBodyLayer::new(1_000);
    let server = serve_behind(&layer).await;
    let mut client = connect(server).await;
    let (sender, body) = channel();
    // The body does not end.
    sender.send(Ok(Frame::data(Bytes::from(vec![b'x'; 1_001])))).unwrap();
    let response = client.send_request(request(server, body)).await.unwrap();
    assert_eq!(text(response).await.0, StatusCode::PAYLOAD_TOO_LARGE);

    let (_unsent, body) = channel();
    let mut announced = request(server, body);
    announced.headers_mut().insert("content-length", HeaderValue::from_static("1001"));
    let response = client.send_request(announced).await.unwrap();
    assert_eq!(text(response).await.0, StatusCode::PAYLOAD_TOO_LARGE);

    let (sender, body) = channel();
    sender.send(Ok(Frame::data(Bytes::from_static(b"small")))).unwrap();
    drop(sender);
    let response = client.send_request(request(server, body)).await.unwrap();
    assert_eq!(text(response).await, (StatusCode::OK, "5 0 5".into()));
    assert_eq!(layer.buffered_bytes(), 0);
}

#[tokio::test]
async fn a_stream_that_a_client_resets_frees_its_memory() {
    let layer = BufferBodyLayer::new(100_000);
    let server = serve_behind(&layer).await;
    let mut client = connect(server).await;
    let (sender, body) = channel();
    let response = tokio::spawn(client.send_request(request(server, body)));
    sender.send(Ok(Frame::data(Bytes::from(vec![b'x'; 5_000])))).unwrap();
    assert!(eventually(async || layer.buffered_bytes() >= 5_000).await);
    sender.send(Err(std::io::Error::other("the client gives up"))).unwrap();
    assert!(eventually(async || layer.buffered_bytes() == 0).await);
    assert!(response.await.unwrap().is_err());
}

/// A call of a gRPC stream, whose client waits for an answer before it sends more.
#[tokio::test]
async fn a_grpc_stream_is_answered_before_it_ends() {
    let app = Router::new().route(
        "/",
        post(async |mut request: Request| {
            let first = request.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
            format!("{:?} {}", request.extensions().get::<BodyBytes>(), first.len())
        }),
    );
    let server = serve(app.layer(BufferBodyLayer::new(1_000))).await;
    let mut client = connect(server).await;
    let (sender, body) = channel();
    let mut call = request(server, body);
    call.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    sender.send(Ok(Frame::data(Bytes::from_static(b"first")))).unwrap();
    let response = client.send_request(call).await.unwrap();
    assert_eq!(text(response).await, (StatusCode::OK, "Some(BodyBytes(Grpc)) 5".into()));
    drop(sender);
}
