//! A metered body passes unchanged.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full};
use tower_ratelimit_gateway::prices::{Api, Basis, Usage};

use super::{Desk, EVENTS, REQUEST, Then, all_of, response, some_of};

/// Ends with its last frame, which is the trailers, and knows its size.
struct WithTrailers(Vec<Frame<Bytes>>);

impl Body for WithTrailers {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready((!self.0.is_empty()).then(|| Ok(self.0.remove(0))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

#[tokio::test]
async fn trailers_the_size_and_the_end_of_a_body_pass_and_the_end_settles_it() {
    let desk = Desk::new();
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", "7".parse().unwrap());
    let json = br#"{ "choices": [], "usage": { "prompt_tokens": 5, "completion_tokens": 7 } }"#;
    let frames = vec![Frame::data(Bytes::from_static(json)), Frame::trailers(trailers.clone())];
    let response = Response::builder().status(201).header("x-id", "9").body(WithTrailers(frames)).unwrap();
    let response = desk.send(Api::OpenAiChat, REQUEST, response).await;
    assert_eq!((response.status().as_u16(), &response.headers()["x-id"]), (201, &"9".parse().unwrap()));
    let mut body = Box::pin(response.into_body());
    assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(2), false));
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), &json[..]);
    assert!(desk.settled.lock().unwrap().is_empty());
    assert_eq!(body.frame().await.unwrap().unwrap().into_trailers().unwrap(), trailers);
    assert!(body.is_end_stream());
    // A server does not poll a body that has ended, and drops it when it has sent it.
    desk.assert_charged("before it is dropped", Usage::new(5, 7), Basis::Reported).await;
    drop(body);
    assert!(desk.settled.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_error_of_the_body_passes() {
    let desk = Desk::new();
    let parts = vec![Bytes::from("data: {\"choices\":[{\"delta\":{\"content\":\"one\"}}]}\n\n")];
    let response = desk.send(Api::OpenAiChat, REQUEST, response(EVENTS, parts.clone(), Then::Fails)).await;
    assert_eq!(all_of(response).await, (parts[0].to_vec(), Some("broken off")));
    desk.assert_charged("broken off", Usage::new(10, 1), Basis::Counted).await;
}

/// An event with this much text.
fn event(text: &str) -> Bytes {
    format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n").into()
}

#[tokio::test]
async fn a_large_event_is_counted_by_its_bytes_and_the_events_after_it_are_read() {
    let desk = Desk::with(|meter| meter.max_buffer(1_000));
    let large = event(&"x".repeat(4_000));
    let (start, end) = (large.slice(..2_000), large.slice(2_000..));
    let bytes = large.len() as u64 - 2;
    let parts = vec![event("one"), start, end, event("two")];
    let sent = desk.send(Api::OpenAiChat, REQUEST, response(EVENTS, parts.clone(), Then::Hangs)).await;
    some_of(sent, 4).await;
    desk.assert_charged("cut", Usage::new(10, (bytes + 6).div_ceil(4)), Basis::Counted).await;

    let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":900}}"#;
    let parts = [parts, vec![format!("{usage}\n\n").into()]].concat();
    let sent = desk.send(Api::OpenAiChat, REQUEST, response(EVENTS, parts, Then::Ends)).await;
    all_of(sent).await;
    desk.assert_charged("with a usage", Usage::new(3, 900), Basis::Reported).await;
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_charged_the_estimate() {
    let desk = Desk::with(|meter| meter.max_buffer(1_000));
    let json = |text: &str| {
        format!(
            r#"{{"choices":[{{"message":{{"content":"{text}"}}}}],"usage":{{"prompt_tokens":3,"completion_tokens":9}}}}"#
        )
    };
    for (name, body, usage, basis) in [
        ("small", json(&"x".repeat(800)), Usage::new(3, 9), Basis::Reported),
        ("large", json(&"x".repeat(1_000)), Usage::new(10, 100), Basis::Estimated),
    ] {
        let sent =
            desk.send(Api::OpenAiChat, REQUEST, Response::new(Full::<Bytes>::from(body.clone()))).await;
        assert_eq!(sent.into_body().collect().await.unwrap().to_bytes(), body);
        desk.assert_charged(name, usage, basis).await;
    }
}
