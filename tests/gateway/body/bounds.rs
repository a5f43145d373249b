//! The bounds: bytes, time, and the memory of all buffers together.

use std::{
    future::ready,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt as _, future::join_all, stream};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, StreamBody};
use support::eventually;
use tokio::{
    task::{unconstrained, yield_now},
    time::{Instant, sleep},
};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_ratelimit_gateway::body::{BodyBytes, BufferBodyLayer, RequestBody};

use super::{Seen, Sent, Streamed, answer, body, channel, data, text};

/// A body that must not be read. Its length is announced in the head, or by the body.
#[derive(Default)]
struct NotRead {
    hint: SizeHint,
    is_read: Arc<AtomicBool>,
}

impl Body for NotRead {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.is_read.store(true, Ordering::Relaxed);
        Poll::Ready(None)
    }

    fn size_hint(&self) -> SizeHint {
        self.hint
    }
}

#[tokio::test]
async fn a_body_that_announces_too_much_is_not_read() {
    let layer = BufferBodyLayer::new(1_000);
    for (announced, hint, status) in [
        (Some("1001"), SizeHint::new(), 413),
        (Some("18446744073709551615"), SizeHint::new(), 413),
        (None, SizeHint::with_exact(1_001), 413),
        (Some("10"), SizeHint::with_exact(1_001), 413),
        (Some("1000"), SizeHint::new(), 200),
        (None, SizeHint::with_exact(1_000), 200),
    ] {
        let body = NotRead { hint, ..NotRead::default() };
        let is_read = body.is_read.clone();
        let mut request = Request::post("/");
        if let Some(length) = announced {
            request = request.header("content-length", length);
        }
        let response = answer(&layer, request.body(body).unwrap()).await;
        assert_eq!(response.status(), status, "{announced:?} {hint:?}");
        assert_eq!(is_read.load(Ordering::Relaxed), status == 200, "{announced:?} {hint:?}");
        if status == 413 {
            assert_eq!(response.headers()["content-type"], "application/problem+json");
            assert_eq!(
                response.body(),
                r#"{"type":"about:blank","title":"Payload Too Large","status":413,"detail":"The body of the request is larger than 1000 bytes."}"#
            );
        }
    }
}

#[tokio::test]
async fn a_body_may_have_as_many_bytes_as_the_bound_and_no_more() {
    let layer = BufferBodyLayer::new(10);
    let mut trailers = HeaderMap::new();
    trailers.insert("a", HeaderValue::from_static("b"));
    for (name, frames, status) in [
        ("ten", vec![data(b"01234"), data(b"56789")], 200),
        ("eleven", vec![data(b"01234"), data(b"567890")], 413),
        ("eleven in one frame", vec![data(b"01234567890")], 413),
        ("ten and an empty frame", vec![data(b"0123456789"), data(b"")], 200),
        // 34 bytes.
        ("trailers", vec![Ok(Frame::trailers(trailers))], 413),
    ] {
        let response = answer(&layer, Request::new(body(frames))).await;
        assert_eq!(response.status(), status, "{name}");
        assert_eq!(layer.buffered_bytes(), 0, "{name}");
    }
    // An announced length is not believed.
    let request = Request::post("/").header("content-length", "3").body(body([data(b"01234567890")]));
    assert_eq!(answer(&layer, request.unwrap()).await.status(), 413);
}

#[tokio::test(start_paused = true)]
async fn a_body_must_be_complete_in_time() {
    let layer = BufferBodyLayer::new(1_000).timeout(Duration::from_secs(5));
    let (sender, slow) = channel();
    let began = Instant::now();
    let response = answer(&layer, Request::new(slow)).await;
    assert_eq!((response.status().as_u16(), began.elapsed().as_secs()), (408, 5));
    assert_eq!(
        response.body(),
        r#"{"type":"about:blank","title":"Request Timeout","status":408,"detail":"The body of the request was not complete after 5s."}"#
    );
    drop(sender);

    // A byte each second does not extend the time.
    let drops = stream::unfold((), |()| async {
        sleep(Duration::from_secs(1)).await;
        Some((data(b"."), ()))
    });
    let began = Instant::now();
    let request = Request::new(StreamBody::new(Box::pin(drops)));
    assert_eq!((answer(&layer, request).await.status().as_u16(), began.elapsed().as_secs()), (408, 5));
    assert_eq!(layer.buffered_bytes(), 0);

    // The service has as much time as it needs.
    let service = layer.layer(service_fn(|_: Request<RequestBody<Full<Bytes>>>| async {
        sleep(Duration::from_secs(60)).await;
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    let response = service.oneshot(Request::new(Full::<Bytes>::from("fast"))).await.unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn a_body_of_endless_empty_frames_does_not_keep_other_tasks_from_running() {
    let endless = StreamBody::new(stream::repeat_with(|| data(b"")));
    let mut request = Box::pin(answer_endless(endless));
    // It is polled, and leaves the thread.
    assert!((&mut request).now_or_never().is_none());
    yield_now().await;
    assert!((&mut request).now_or_never().is_none());
}

async fn answer_endless(
    body: impl Body<Data = Bytes, Error = std::io::Error> + Send + 'static,
) -> Response<String> {
    answer(&BufferBodyLayer::new(10), Request::new(body)).await
}

#[tokio::test]
async fn frames_of_one_byte_take_no_more_memory_than_their_bytes() {
    let layer = BufferBodyLayer::new(100_000);
    let (sender, slow) = channel();
    let kept = layer.layer(service_fn(|request: Request<RequestBody<Streamed>>| {
        let bytes = request.extensions().get::<BodyBytes>().unwrap().get().unwrap().clone();
        ready(Ok::<_, std::convert::Infallible>(Response::new(Full::new(bytes))))
    }));
    let mut request = Box::pin(unconstrained(kept.oneshot(Request::new(slow))));
    let (mut most, mut steps) = (0, Vec::new());
    for sent in 1..=3_000 {
        // Each frame is a part of a large buffer, as the frames of a connection are.
        sender.send(Ok(Frame::data(Bytes::from(vec![b'x'; 10_000]).slice(5_000..5_001)))).unwrap();
        assert!((&mut request).now_or_never().is_none());
        most = most.max(layer.buffered_bytes());
        assert!(layer.buffered_bytes() >= sent);
        if steps.last() != Some(&layer.buffered_bytes()) {
            steps.push(layer.buffered_bytes());
        }
    }
    assert_eq!(steps, [1_024, 2_048, 4_096]);
    drop(sender);
    let response = request.await.unwrap();
    // What the service keeps counts with its length.
    assert_eq!(layer.buffered_bytes(), 3_000);
    drop(response);
    assert_eq!(layer.buffered_bytes(), 0);
}

/// A body that announces less than it has, as the lower bound of a size hint may.
#[tokio::test]
async fn a_buffer_grows_in_few_steps_regardless_of_the_announced_length() {
    for (announced, expected) in [
        ("0", &[1_024, 2_048, 4_096][..]),
        ("10", &[10, 1_024, 2_048, 4_096]),
        ("1500", &[1_024, 1_500, 3_000]),
        ("3000", &[1_024, 2_048, 3_000]),
        ("5000", &[1_024, 2_048, 4_096]),
    ] {
        let layer = BufferBodyLayer::new(5_000);
        let (sender, slow) = channel();
        let request = Request::post("/").header("content-length", announced).body(slow).unwrap();
        let mut request = Box::pin(unconstrained(Seen::default().service(&layer).oneshot(request)));
        let mut steps = Vec::new();
        for _ in 0..3_000 {
            sender.send(data(b"x")).unwrap();
            assert!((&mut request).now_or_never().is_none());
            if steps.last() != Some(&layer.buffered_bytes()) {
                steps.push(layer.buffered_bytes());
            }
        }
        assert_eq!(steps, expected, "{announced}");
    }
}

#[tokio::test]
async fn an_announced_length_takes_no_memory_until_bytes_arrive() {
    let layer = BufferBodyLayer::new(100_000).max_total_bytes(100_000);
    let mut waiting = Vec::new();
    for _ in 0..50 {
        let (sender, slow) = channel();
        let request = Request::post("/").header("content-length", "100000").body(slow).unwrap();
        let mut request = Box::pin(Seen::default().service(&layer).oneshot(request));
        assert!((&mut request).now_or_never().is_none());
        waiting.push((sender, request));
    }
    assert_eq!(layer.buffered_bytes(), 0);
    let large = Full::<Bytes>::from(vec![b'x'; 100_000]);
    assert_eq!(answer(&layer, Request::new(large)).await.status(), 200);
}

#[tokio::test]
async fn a_hundred_bodies_that_arrive_side_by_side_stay_within_the_bound_on_all_of_them() {
    const BOUND: usize = 60_100;
    let layer = BufferBodyLayer::new(2_000).max_total_bytes(BOUND);
    let mut requests: Vec<_> = (0..100)
        .map(|_| {
            let (sender, streamed) = channel();
            // Clones of the layer share the bound.
            let service = Seen::default().service(&layer.clone());
            // The channels of one task would stop it from time to time.
            (Some(sender), Box::pin(unconstrained(service.oneshot(Request::new(streamed)))))
        })
        .collect();
    let mut responses = Vec::new();
    for chunk in [Some(500), Some(0), Some(1_000), Some(300), Some(200), None] {
        requests.retain_mut(|(sender, request)| {
            match chunk {
                Some(chunk) => drop(sender.as_ref().unwrap().send(Ok(Frame::data(vec![b'x'; chunk].into())))),
                None => *sender = None,
            }
            let response = request.now_or_never();
            assert!(layer.buffered_bytes() <= BOUND);
            let is_waiting = response.is_none();
            responses.extend(response);
            is_waiting
        });
    }
    assert_eq!((requests.len(), responses.len()), (0, 100));
    let mut served = 0;
    for response in responses {
        let response = text(response.unwrap()).await;
        if response.status() == 200 {
            assert_eq!(response.body().len(), 2_000);
            served += 1;
            continue;
        }
        assert_eq!(response.status(), 503);
        let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((1..=5).contains(&wait));
        let body = response.body();
        assert!(body.contains("#temporary-reduced-capacity") && body.contains("; try again in "), "{body}");
    }
    // 30 whole bodies have room.
    assert!((20..=30).contains(&served), "{served}");
    assert_eq!(layer.buffered_bytes(), 0);
    assert_eq!(answer(&layer, Request::new(Full::<Bytes>::from(vec![b'x'; 2_000]))).await.status(), 200);
}

#[tokio::test]
async fn exactly_as_many_bodies_are_served_as_there_is_room_for() {
    let layer = BufferBodyLayer::new(1_000).max_total_bytes(40_000);
    let release = Arc::new(tokio::sync::Semaphore::new(0));
    let wait = release.clone();
    let service = layer.layer(service_fn(move |request: Request<RequestBody<Full<Bytes>>>| {
        let wait = wait.clone();
        async move {
            let _request = request;
            drop(wait.acquire().await.unwrap());
            Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default()))
        }
    }));
    let request = || Request::new(Full::<Bytes>::from(vec![b'x'; 1_000]));
    let requests: Vec<_> = (0..100).map(|_| tokio::spawn(service.clone().oneshot(request()))).collect();
    // The others are answered while these wait.
    let are_answered = async || requests.iter().filter(|request| request.is_finished()).count() == 60;
    assert!(eventually(are_answered).await);
    assert_eq!(layer.buffered_bytes(), 40_000);
    // A request without a body needs no room.
    let empty = tokio::spawn(service.clone().oneshot(Request::new(Full::default())));
    release.add_permits(1_000);
    let statuses =
        join_all(requests).await.into_iter().map(|result| result.unwrap().unwrap().status().as_u16());
    let mut statuses: Vec<_> = statuses.collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [[200; 40].as_slice(), &[503; 60]].concat());
    assert_eq!(empty.await.unwrap().unwrap().status(), 200);
    assert_eq!(layer.buffered_bytes(), 0);
}

#[tokio::test]
async fn memory_counts_until_the_last_bytes_of_the_body_are_dropped() {
    let layer = BufferBodyLayer::new(1_000);
    let gauge = layer.clone();
    let service = layer.layer(service_fn(move |request: Request<RequestBody<Streamed>>| {
        let gauge = gauge.clone();
        async move {
            // The trailer has 10 bytes, 1 byte, and 32 for its memory.
            assert_eq!(gauge.buffered_bytes(), 5 + 43);
            let mut body = request.into_body();
            let bytes = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(body.frame().await.unwrap().unwrap().is_trailers());
            let mut response = Response::new(Full::<Bytes>::default());
            // A part keeps the whole buffer.
            response.extensions_mut().insert(bytes.slice(1..2));
            Ok::<_, std::convert::Infallible>(response)
        }
    }));
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", HeaderValue::from_static("7"));
    let frames: [Sent; 2] = [data(b"hello"), Ok(Frame::trailers(trailers))];
    let mut response = service.oneshot(Request::new(body(frames))).await.unwrap();
    assert_eq!(layer.buffered_bytes(), 5);
    let part = response.extensions_mut().remove::<Bytes>();
    drop(response);
    assert_eq!((layer.buffered_bytes(), part.as_deref()), (5, Some(&b"e"[..])));
    drop(part);
    assert_eq!(layer.buffered_bytes(), 0);
}

#[tokio::test]
async fn the_total_is_at_least_one_body() {
    let layer = BufferBodyLayer::new(1_000).max_total_bytes(10);
    assert_eq!(answer(&layer, Request::new(Full::<Bytes>::from(vec![b'x'; 1_000]))).await.status(), 200);
}
