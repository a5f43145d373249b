//! `BufferedRetryLayer`: bodies that are sent again, those that are not, and tonic clients of a limited server.

use std::{
    convert::Infallible,
    future::ready,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{Code, transport::Channel};
use tower::{Layer as _, ServiceBuilder, ServiceExt as _, service_fn};
use tower_ratelimit::{MemoryStore, PeerIp, Policy, Quota, RateLimitLayer, Rule};
use tower_ratelimit_retry::{BufferedRetryLayer, RetryPolicy};

use crate::grpc::{
    greeter::{HelloReply, HelloRequest, greeter_client::GreeterClient},
    hello, serve,
};

type Body = UnsyncBoxBody<Bytes, &'static str>;
type Next = Result<Frame<Bytes>, &'static str>;

const BOUND: usize = 10;

fn data(text: &'static str) -> Next {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

fn frames<const N: usize>(frames: [Next; N]) -> Body {
    StreamBody::new(stream::iter(frames)).boxed_unsync()
}

fn full(text: &'static str) -> Body {
    Full::from(text).map_err(|never| match never {}).boxed_unsync()
}

#[test]
fn the_inner_service_can_be_read_changed_and_taken_out() {
    let mut service = BufferedRetryLayer::new(RetryPolicy::new()).layer(1);
    *service.get_mut() += 1;
    assert_eq!((*service.get_ref(), service.into_inner()), (2, 2));
}

/// What the server reads of a body: the text of each frame, trailers by their number, errors.
async fn read(mut body: Body) -> Vec<String> {
    let mut read = Vec::new();
    while let Some(next) = body.frame().await {
        read.push(match next.map(Frame::into_data) {
            Ok(Ok(data)) => String::from_utf8(data.into()).unwrap(),
            Ok(Err(frame)) => format!("{} trailers", frame.into_trailers().unwrap().len()),
            Err(error) => error.to_owned(),
        });
    }
    read
}

/// What a server that denies everything learns of `body` with `look`, attempt by attempt, by a client that retries once.
async fn attempts<T, F: Future<Output = T>>(body: Body, look: fn(Body) -> F) -> Vec<T> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let server = service_fn(move |request: Request<Body>| {
        let log = log.clone();
        async move {
            let sight = look(request.into_body()).await;
            log.lock().unwrap().push(sight);
            Ok::<_, Infallible>(Response::builder().status(429).body(()).unwrap())
        }
    });
    let layer = BufferedRetryLayer::new(RetryPolicy::new().max_retries(1)).max_body(BOUND);
    let response = ServiceBuilder::new().layer(layer).service(server).oneshot(Request::new(body)).await;
    assert_eq!(response.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    std::mem::take(&mut *seen.lock().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_ready_and_within_the_bound_is_sent_again_and_any_other_once() {
    let trailers = HeaderMap::from_iter([(http::header::DATE, "now".parse().unwrap())]);
    let trailers = || Ok(Frame::trailers(trailers.clone()));
    let rows: Vec<(&str, Body, &[&str], usize)> = vec![
        ("empty", full(""), &[], 2),
        ("at the bound", full("0123456789"), &["0123456789"], 2),
        ("above the bound, by its size", full("0123456789a"), &["0123456789a"], 1),
        ("frames at the bound", frames([data("01234"), data("56789")]), &["01234", "56789"], 2),
        (
            "frames above the bound",
            frames([data("01234"), data("567890"), data("a"), data("b")]),
            &["01234", "567890", "a", "b"],
            1,
        ),
        ("trailers", frames([data("a"), trailers()]), &["a", "1 trailers"], 2),
        ("an error", frames([data("a"), Err("broken")]), &["a", "broken"], 1),
        ("a late error", frames([data("0123456789a"), Err("broken")]), &["0123456789a", "broken"], 1),
    ];
    for (name, body, text, times) in rows {
        assert_eq!(attempts(body, read).await, vec![text; times], "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_end_is_not_known_is_sent_once_as_it_comes() {
    let rows: [(&str, Vec<Next>, &[&str]); 4] = [
        ("nothing", vec![], &[]),
        ("one message", vec![data("a")], &["a"]),
        ("two messages", vec![data("a"), data("b")], &["a", "b"]),
        ("an error", vec![data("a"), Err("broken")], &["a", "broken"]),
    ];
    for (name, messages, text) in rows {
        let (send, receive) = mpsc::channel(1);
        let sends = tokio::spawn(async move {
            for message in messages {
                tokio::time::sleep(Duration::from_secs(1)).await;
                send.send(message).await.unwrap();
            }
        });
        let first = stream::iter([data("first")]);
        let body = StreamBody::new(first.chain(ReceiverStream::new(receive))).boxed_unsync();
        assert_eq!(attempts(body, read).await, [[&["first"], text].concat()], "{name}");
        sends.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_ready_is_sent_again_even_if_the_task_has_used_up_its_budget() {
    // Tokio lets a task receive about 128 messages before it has to yield.
    for used in 120..=128 {
        let (send, receive) = mpsc::channel(200);
        for _ in 0..used {
            send.try_send(data("before")).unwrap();
        }
        for _ in 0..2 {
            send.try_send(data("a")).unwrap();
        }
        drop(send);
        let mut messages = ReceiverStream::new(receive);
        for _ in 0..used {
            messages.next().await.unwrap().unwrap();
        }
        let seen = attempts(StreamBody::new(messages).boxed_unsync(), read).await;
        assert_eq!(seen, [["a", "a"]; 2], "after {used} messages");
    }
    let (send, receive) = mpsc::channel(200);
    for _ in 0..200 {
        send.try_send(data("")).unwrap();
    }
    drop(send);
    let body = StreamBody::new(ReceiverStream::new(receive)).boxed_unsync();
    assert_eq!(attempts(body, read).await, vec![vec![""; 200]; 2], "a body of more messages than the budget");
}

#[tokio::test(start_paused = true)]
async fn a_body_of_more_than_1024_frames_is_sent_once() {
    for (frames, times) in [(1_024, 2), (1_025, 1)] {
        let body = StreamBody::new(stream::iter((0..frames).map(|_| data("")))).boxed_unsync();
        assert_eq!(attempts(body, read).await, vec![vec![""; frames]; times], "{frames} frames");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_without_end_does_not_block_the_client() {
    for text in ["", "a"] {
        let body = StreamBody::new(stream::repeat_with(move || data(text))).boxed_unsync();
        assert_eq!(attempts(body, |_| ready(())).await, [()], "{text:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_announces_the_size_that_it_did_without_the_layer() {
    let rows = [
        ("a size", full("0123"), vec![Some(4); 2]),
        ("nothing", full(""), vec![Some(0); 2]),
        ("above the bound", full("0123456789a"), vec![Some(11)]),
        ("no size", frames([data("0123")]), vec![None; 2]),
    ];
    for (name, body, sizes) in rows {
        assert_eq!(attempts(body, |body| ready(body.size_hint().exact())).await, sizes, "{name}");
    }
}

/// A channel to a greeter that admits a burst of one call and then as many as `quota`, and the number of its calls.
async fn limited(quota: Quota) -> (Channel, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let count = calls.clone();
    let rule = Rule::new(Policy::new("calls", quota.burst(1)), PeerIp::new()).cost(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        1
    });
    let server = serve(RateLimitLayer::with_rules(MemoryStore::new(), rule));
    let channel = Channel::from_shared(format!("http://{}", server.await)).unwrap();
    (channel.connect().await.unwrap(), calls)
}

#[tokio::test]
async fn all_calls_of_a_tonic_client_are_admitted_by_a_real_limit() {
    let (channel, calls) = limited(Quota::per_second(5)).await;
    let layer = BufferedRetryLayer::new(RetryPolicy::new().max_retries(50).jitter(100).budget(None));
    let client = GreeterClient::new(ServiceBuilder::new().layer(layer).service(channel.clone()));
    let mut unary = tokio::task::JoinSet::new();
    for i in 0..6 {
        let mut client = client.clone();
        unary.spawn(async move {
            let request = HelloRequest { name: format!("you {i}"), count: 1 };
            assert_eq!(client.say_hello(request.clone()).await.unwrap().into_inner().message, request.name);
        });
    }
    unary.join_all().await;
    let replies = client.clone().say_hellos(hello()).await.unwrap().into_inner();
    let replies: Vec<_> = replies.map(|reply| reply.unwrap().message).collect().await;
    assert_eq!(replies, ["you"; 7]);
    // Seven calls were admitted, at least one of them after a denial.
    assert!(calls.load(Ordering::Relaxed) > 7);
}

#[tokio::test]
async fn a_clients_stream_passes_the_layer_as_it_comes_and_its_denial_is_returned() {
    // A denial sets a wait that the client would accept.
    let (channel, calls) = limited(Quota::per_minute(1)).await;
    let layer = BufferedRetryLayer::new(RetryPolicy::new());
    let mut client = tonic::client::Grpc::new(ServiceBuilder::new().layer(layer).service(channel));
    let mut call = async |messages: ReceiverStream<HelloRequest>| {
        client.ready().await.unwrap();
        let path = http::uri::PathAndQuery::from_static("/greeter.Greeter/SayHello");
        let codec = tonic_prost::ProstCodec::<HelloRequest, HelloReply>::default();
        client.client_streaming(tonic::Request::new(messages), path, codec).await
    };
    let (send, messages) = mpsc::channel(1);
    // The server has the call before it has the message.
    let (reply, ()) = tokio::join!(call(ReceiverStream::new(messages)), async {
        assert!(support::eventually(async || calls.load(Ordering::Relaxed) == 1).await);
        send.send(hello()).await.unwrap();
        drop(send);
    });
    assert_eq!(reply.unwrap().into_inner().message, "you");

    let (_send, messages) = mpsc::channel(1);
    let denial = call(ReceiverStream::new(messages)).await.unwrap_err();
    assert_eq!(denial.code(), Code::ResourceExhausted);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}
