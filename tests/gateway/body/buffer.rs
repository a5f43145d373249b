//! What the service gets: the same bytes and trailers, or the body as it is.

use std::{
    convert::Infallible,
    future::{pending, ready},
    io,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Version, request::Parts};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, Full};
use proptest::{collection::vec, prelude::*};
use support::current_thread;
use tower::{Layer as _, Service, ServiceBuilder, ServiceExt as _, service_fn};
use tower_ratelimit::{
    Error, ErrorKind, MemoryStore, Policy, Quota, RateLimitLayer, Rule, response::RejectionBody,
};
use tower_ratelimit_gateway::body::{
    BodyBytes, BodyRejection, BodyRejectionKind, BufferBodyLayer, RequestBody, Unread,
};

use super::{Seen, Streamed, answer, body, channel, data, text};

fn post(content: &'static str) -> Request<Full<Bytes>> {
    Request::post("/").body(Full::from(content)).unwrap()
}

/// A service that does nothing.
async fn empty<B>(_: Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::default()))
}

#[tokio::test]
async fn a_service_gets_the_body_and_its_bytes_before_it_is_called() {
    let (seen, layer) = (Seen::default(), BufferBodyLayer::new(100));
    let service = seen.service(&layer);
    service.clone().oneshot(post("hello")).await.unwrap();
    service.oneshot(post("")).await.unwrap();
    let known = |known: &str, body: &str| (known.to_owned(), body.to_owned());
    assert_eq!(seen.take(), [known("BodyBytes(5 bytes)", "hello"), known("BodyBytes(0 bytes)", "")]);
}

#[tokio::test]
async fn a_body_that_is_not_read_passes_through_while_it_arrives_and_the_reason_is_known() {
    for (name, value, reason) in [
        ("content-encoding", "gzip", Unread::Compressed),
        ("content-encoding", "identity, br", Unread::Compressed),
        ("transfer-encoding", "gzip, chunked", Unread::Compressed),
        ("content-type", "application/grpc", Unread::Grpc),
        ("content-type", "Application/gRPC-web+proto", Unread::Grpc),
    ] {
        let (sender, streamed) = channel();
        let service =
            BufferBodyLayer::new(3).layer(service_fn(|request: Request<RequestBody<Streamed>>| async move {
                let known = request.extensions().get::<BodyBytes>().unwrap().clone();
                // The service answers before the body has ended.
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(format!("{:?}", known.get()))))
            }));
        let request = Request::post("/").header(name, value).body(streamed).unwrap();
        let response = text(service.oneshot(request).await.unwrap()).await;
        assert_eq!(response.body(), &format!("Err({reason:?})"), "{name}: {value}");
        drop(sender);

        let seen = Seen::default();
        let service = seen.service(&BufferBodyLayer::new(3));
        let request = Request::post("/").header(name, value).body(body([data(b"com"), data(b"pressed")]));
        service.oneshot(request.unwrap()).await.unwrap();
        assert_eq!(seen.take()[0].1, "compressed", "{name}: {value}");
    }
}

#[tokio::test]
async fn plain_bodies_are_read_regardless_of_how_their_encoding_is_written() {
    for (name, value) in [
        ("content-encoding", "identity"),
        ("content-encoding", "Identity, identity"),
        ("content-encoding", ""),
        ("transfer-encoding", "Chunked"),
        ("content-type", "application/grpcs"),
        ("content-type", "application/json"),
    ] {
        let seen = Seen::default();
        let request = Request::post("/").header(name, value).body(Full::<Bytes>::from("plain")).unwrap();
        seen.service(&BufferBodyLayer::new(100)).oneshot(request).await.unwrap();
        assert_eq!(seen.take()[0].0, "BodyBytes(5 bytes)", "{name}: {value}");
    }
    // Only a POST is a gRPC call.
    let seen = Seen::default();
    let request =
        Request::put("/").header("content-type", "application/grpc").body(Full::<Bytes>::from("put"));
    seen.service(&BufferBodyLayer::new(100)).oneshot(request.unwrap()).await.unwrap();
    assert_eq!(seen.take()[0].0, "BodyBytes(3 bytes)");
}

#[tokio::test]
async fn bodies_that_are_not_read_are_rejected_on_request() {
    let layer = BufferBodyLayer::new(100).reject_unread();
    let request =
        Request::post("/").header("content-encoding", "gzip").body(Full::<Bytes>::from("x")).unwrap();
    let response = answer(&layer, request).await;
    assert_eq!(response.status(), 415);
    assert_eq!(response.headers()["accept-encoding"], "identity");
    let call = Request::post("/").header("content-type", "application/grpc").body(Full::<Bytes>::from("x"));
    let response = answer(&layer, call.unwrap()).await;
    assert_eq!(response.status(), 415);
    assert!(!response.headers().contains_key("accept-encoding"));
    assert!(response.body().contains("The body of a gRPC call is not read."), "{}", response.body());
    // A request without a body has nothing that is not read.
    let empty = Request::get("/").header("content-encoding", "gzip").body(Full::<Bytes>::default()).unwrap();
    assert_eq!(answer(&layer, empty).await.status(), 200);
}

#[tokio::test]
async fn a_body_that_fails_is_answered_and_the_service_is_not_called() {
    let (seen, cause) = (Seen::default(), std::sync::Arc::new(std::sync::Mutex::new(String::new())));
    let noted = cause.clone();
    let layer = BufferBodyLayer::new(100).response(move |rejection: &BodyRejection, _: &Parts| {
        *noted.lock().unwrap() = std::error::Error::source(rejection).unwrap().to_string();
        rejection.to_problem()
    });
    let broken = body([data(b"par"), Err(io::Error::other("connection lost"))]);
    let response = seen.service(&layer).oneshot(Request::post("/").body(broken).unwrap()).await.unwrap();
    let response = text(response).await;
    assert_eq!((response.status().as_u16(), cause.lock().unwrap().as_str()), (400, "connection lost"));
    assert_eq!(
        response.body(),
        r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"The body of the request could not be read."}"#
    );
    assert_eq!((seen.take().len(), layer.buffered_bytes()), (0, 0));
}

#[tokio::test]
async fn a_response_of_the_program_gets_what_it_lacks() {
    let layer = BufferBodyLayer::new(3).response(|rejection: &BodyRejection, request: &Parts| {
        assert_eq!(rejection.kind(), BodyRejectionKind::TooLarge);
        Response::new(format!("{}: {rejection}", request.uri))
    });
    let response = answer(&layer, post("hello")).await;
    assert_eq!(response.body(), "/: the body of the request is larger than 3 bytes");
    assert_eq!(response.status(), 413);
    assert_eq!(
        (&response.headers()["cache-control"], &response.headers()["connection"]),
        (&HeaderValue::from_static("no-store"), &HeaderValue::from_static("close"))
    );

    let mut request = post("hello");
    *request.version_mut() = Version::HTTP_2;
    assert!(!answer(&layer, request).await.headers().contains_key("connection"));

    let layer = BufferBodyLayer::new(3).response(|_: &BodyRejection, _: &Parts| {
        Response::builder()
            .status(400)
            .header("cache-control", "private")
            .body(RejectionBody::new(String::new()))
            .unwrap()
    });
    let response = answer(&layer, post("hello")).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["cache-control"]),
        (400, &"private".parse().unwrap())
    );
}

#[tokio::test]
async fn a_body_is_parsed_once_for_all_rules_and_the_service() {
    let layer = BufferBodyLayer::new(100)
        .parse_with(|body: &BodyBytes| Ok::<_, Unread>(Bytes::copy_from_slice(body.get()?)))
        .parse_with(|body: &BodyBytes| Ok::<_, Unread>(body.get()?.len()));
    let service = layer.layer(service_fn(|request: Request<RequestBody<Full<Bytes>>>| {
        let extensions = request.extensions();
        let parsed = format!("{:?} {:?}", extensions.get::<Bytes>(), extensions.get::<usize>());
        ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(parsed))))
    }));
    let response = text(service.oneshot(post("hello")).await.unwrap()).await;
    assert_eq!(response.body(), r#"Some(b"hello") Some(5)"#);
}

#[tokio::test]
async fn a_body_that_cannot_be_parsed_is_answered_with_the_text_and_the_service_is_not_called() {
    let seen = Seen::default();
    let layer = BufferBodyLayer::new(100).parse_with(|body: &BodyBytes| match body.get() {
        Ok(bytes) if bytes.is_empty() => Ok(()),
        Ok(_) => Err("écrit \"mal\""),
        Err(_) => Err("unread"),
    });
    let response = text(seen.service(&layer).oneshot(post("hello")).await.unwrap()).await;
    assert_eq!(response.status(), 400);
    assert_eq!(
        response.body(),
        r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"écrit \"mal\"."}"#
    );
    // The body is read, so the connection can be used again.
    assert!(!response.headers().contains_key("connection"));
    let call =
        Request::post("/").header("content-type", "application/grpc").body(Full::<Bytes>::from("x")).unwrap();
    let response = text(seen.service(&layer).oneshot(call).await.unwrap()).await;
    assert_eq!(response.status(), 415);
    assert!(response.body().contains("The body of a gRPC call is not read."), "{}", response.body());
    assert_eq!((seen.take().len(), layer.buffered_bytes()), (0, 0));
    assert_eq!(answer(&layer, post("")).await.status(), 200);
}

#[tokio::test]
async fn keys_and_costs_read_the_body_and_a_body_that_is_not_read_has_no_key() {
    let first_word = |request: &Parts| {
        let text = String::from_utf8_lossy(BodyBytes::of(request)?).into_owned();
        Ok::<_, Error>(text.split(' ').next().map(String::from))
    };
    let rule = Rule::new(Policy::new("words", Quota::per_hour(10)), first_word)
        .cost(|request| BodyBytes::of(request).map_or(1, |bytes| bytes.len() as u64));
    let limit = RateLimitLayer::with_rules(MemoryStore::new(), rule);
    let service = ServiceBuilder::new()
        .layer(BufferBodyLayer::new(100))
        .layer(limit.clone())
        .service(service_fn(empty));
    for (content, status) in [("a 34567", 200), ("a 34567", 429), ("b 34567", 200), ("a 3", 200)] {
        assert_eq!(service.clone().oneshot(post(content)).await.unwrap().status(), status, "{content}");
    }
    let compressed =
        Request::post("/").header("content-encoding", "gzip").body(Full::<Bytes>::from("a")).unwrap();
    let response = text(service.oneshot(compressed).await.unwrap()).await;
    assert_eq!(response.status(), 400);
    assert!(
        response.body().contains("the body of the request must not be compressed"),
        "{}",
        response.body()
    );

    // Without the layer in front, the service is not set up.
    let response = limit.layer(service_fn(empty)).oneshot(post("a")).await.unwrap();
    assert_eq!(response.status(), 500);
    let (request, ()) = Request::new(()).into_parts();
    assert_eq!(BodyBytes::of(&request).unwrap_err().kind(), ErrorKind::MissingSetup);
}

#[tokio::test]
async fn a_slow_body_does_not_hold_what_other_requests_need_of_the_inner_service() {
    let layer = ServiceBuilder::new().layer(BufferBodyLayer::new(100)).concurrency_limit(1);
    let service = layer.service(service_fn(|request: Request<RequestBody<Streamed>>| async move {
        Ok::<_, Infallible>(Response::new(Full::new(request.into_body().collect().await.unwrap().to_bytes())))
    }));
    let (sender, slow) = channel();
    let mut slow = Box::pin(service.clone().oneshot(Request::new(slow)));
    assert!((&mut slow).now_or_never().is_none());
    sender.send(data(b"slow")).unwrap();
    assert!((&mut slow).now_or_never().is_none());

    let fast = service.oneshot(Request::new(body([data(b"fast")]))).now_or_never();
    assert_eq!(text(fast.expect("the slow request holds no permit").unwrap()).await.body(), "fast");
    drop(sender);
    assert_eq!(text(slow.await.unwrap()).await.body(), "slow");
}

/// A service that must be made ready before each call.
#[derive(Debug, Default)]
struct Strict {
    is_ready: bool,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Service<Request<RequestBody<Streamed>>> for Strict {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<RequestBody<Streamed>>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called before it was ready");
        ready(Ok(Response::new(Full::default())))
    }
}

#[tokio::test]
async fn the_service_is_ready_when_it_is_called() {
    let mut service = BufferBodyLayer::new(100).layer(Strict::default());
    service.ready().await.unwrap().call(Request::new(body([data(b"there already")]))).await.unwrap();
    service.ready().await.unwrap().call(Request::new(body([]))).await.unwrap();
    let (sender, slow) = channel();
    let mut slow = service.ready().await.unwrap().call(Request::new(slow)).boxed();
    assert!((&mut slow).now_or_never().is_none());
    drop(sender);
    slow.await.unwrap();
    let call = Request::post("/").header("content-type", "application/grpc").body(body([])).unwrap();
    service.ready().await.unwrap().call(call).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_needs_no_timer_if_its_body_is_there() {
    // The timeout is over immediately.
    let layer = BufferBodyLayer::new(100).timeout(Duration::ZERO);
    assert_eq!(answer(&layer, post("hello")).await.status(), 200);
    let (_sender, never) = channel();
    assert_eq!(answer(&layer, Request::new(never)).await.status(), 408);
}

/// Frames of data, and trailers at the end.
fn content() -> impl Strategy<Value = (Vec<Vec<u8>>, Option<Vec<(u8, Vec<u8>)>>)> {
    let frames = vec(vec(any::<u8>(), 0..40), 0..60);
    (frames, proptest::option::of(vec((0_u8..5, vec(b'a'..=b'z', 0..20)), 0..6)))
}

proptest! {
    #[test]
    fn any_frames_arrive_with_the_same_bytes_and_trailers((frames, trailers) in content()) {
        let expected: Vec<u8> = frames.concat();
        let trailers = trailers.map(|trailers| {
            let header = |(name, value): (u8, Vec<u8>)| {
                (HeaderName::try_from(format!("x-{name}")).unwrap(), HeaderValue::from_bytes(&value).unwrap())
            };
            let mut headers = HeaderMap::new();
            for (name, value) in trailers.into_iter().map(header) {
                headers.append(name, value);
            }
            headers
        });
        let sent = frames.into_iter().map(|frame| Ok(Frame::data(Bytes::from(frame))));
        let sent = body(sent.chain(trailers.clone().map(|trailers| Ok(Frame::trailers(trailers)))));
        let layer = BufferBodyLayer::new(10_000);
        let service = layer.layer(service_fn(|request: Request<RequestBody<Streamed>>| async move {
            let known = request.extensions().get::<BodyBytes>().unwrap().get().unwrap().clone();
            let (hint, is_end) = (request.body().size_hint(), request.body().is_end_stream());
            let collected = request.into_body().collect().await.unwrap();
            let trailers = collected.trailers().cloned();
            assert!(!is_end || (known.is_empty() && trailers.is_none()));
            assert_eq!(hint.exact(), Some(known.len() as u64));
            let mut response = Response::new(Full::new(collected.to_bytes()));
            response.extensions_mut().insert((known, trailers));
            Ok::<_, Infallible>(response)
        }));
        let response = current_thread().block_on(service.oneshot(Request::new(sent))).unwrap();
        let (known, seen) = response.extensions().get::<(Bytes, Option<HeaderMap>)>().unwrap();
        prop_assert_eq!(known, &expected);
        prop_assert_eq!(seen, &trailers);
        prop_assert_eq!(layer.buffered_bytes(), expected.len());
        let bytes = current_thread().block_on(response.into_body().collect()).unwrap().to_bytes();
        prop_assert_eq!(bytes, expected);
        prop_assert_eq!(layer.buffered_bytes(), 0);
    }
}

#[tokio::test]
async fn a_client_that_leaves_drops_the_buffer_and_the_service_is_not_called() {
    let (seen, layer) = (Seen::default(), BufferBodyLayer::new(100_000));
    let (sender, slow) = channel();
    let mut request = Box::pin(seen.service(&layer).oneshot(Request::new(slow)));
    sender.send(data(&[7; 5_000])).unwrap();
    assert!((&mut request).now_or_never().is_none());
    assert_eq!(layer.buffered_bytes(), 5_000);
    drop(request);
    assert_eq!((layer.buffered_bytes(), seen.take().len()), (0, 0));
    assert!(sender.is_closed());
}

#[tokio::test]
async fn the_request_is_dropped_with_the_future_while_the_service_runs() {
    let layer = BufferBodyLayer::new(100);
    let service = layer.layer(service_fn(|request: Request<RequestBody<Full<Bytes>>>| async move {
        let _request = request;
        pending::<Result<Response<Full<Bytes>>, Infallible>>().await
    }));
    let mut request = Box::pin(service.oneshot(post("hello")));
    assert!((&mut request).now_or_never().is_none());
    assert_eq!(layer.buffered_bytes(), 5);
    drop(request);
    assert_eq!(layer.buffered_bytes(), 0);
}

#[test]
fn debug_shows_the_settings() {
    let layer = BufferBodyLayer::new(100);
    let shown = format!("{layer:?}");
    assert!(shown.contains("max_bytes: 100, timeout: 10s, max_total_bytes: 67108864"), "{shown}");
}

#[tokio::test]
async fn a_parser_of_bodies_panics_through_its_own_request() {
    let layer = BufferBodyLayer::new(64).parse_with(|body: &BodyBytes| -> Result<u8, Error> {
        assert!(body.get()? != b"panic".as_slice(), "foreign code panics on purpose");
        Ok(1)
    });
    let service = layer.layer(service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    // All of the bytes that the layer may hold, again and again.
    for (body, panics) in [("panic", true), ("a", false), ("panic", true), ("a", false)] {
        let request = Request::post("/").body(Full::<Bytes>::from(body)).unwrap();
        let asked = tokio::spawn(service.clone().oneshot(request)).await;
        assert_eq!(asked.is_err(), panics, "{body}");
    }
}
