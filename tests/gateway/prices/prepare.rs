//! Requests to a vendor that are prepared, so that their answers can be metered.

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tower_ratelimit_gateway::prices::{
    Api::{self, AnthropicMessages, Gemini, OpenAiChat, OpenAiResponses},
    Basis, CallError, Usage,
};

use super::{Desk, EVENTS, JSON, Then, all_of, price, response, some_of};

/// The body that a vendor gets.
fn prepared(desk: &Desk, api: Api, body: &str) -> String {
    let (mut headers, mut prepared) = (HeaderMap::new(), Bytes::copy_from_slice(body.as_bytes()));
    let mut call = desk.meter.call_of(api, "model", body.as_bytes()).unwrap();
    let estimate = call.estimate();
    call.prepare(&mut headers, &mut prepared).unwrap();
    assert_eq!(call.estimate(), estimate, "{body}");
    assert_eq!(headers[header::CONTENT_LENGTH], prepared.len().to_string(), "{body}");
    // Nothing is left to change.
    let mut again = prepared.clone();
    call.prepare(&mut headers, &mut again).unwrap();
    assert_eq!(again, prepared);
    String::from_utf8(prepared.to_vec()).unwrap()
}

#[test]
fn a_body_asks_for_the_usage_of_its_stream_and_for_no_more_than_the_estimate() {
    let desk = Desk::with(|meter| meter.max_output(500));
    let rows: [(Api, &str, &str); 19] = [
        (OpenAiChat, r#"{ "max_tokens": 9 }"#, r#"{ "max_tokens": 9 }"#),
        (OpenAiChat, r#"{ "messages": [] }"#, r#"{"messages":[],"max_completion_tokens":500}"#),
        (OpenAiChat, r#"{ "prompt": "a" }"#, r#"{"prompt":"a","max_tokens":500}"#),
        (
            OpenAiChat,
            r#"{ "max_tokens": null, "n": 3, "max_completion_tokens": 0 }"#,
            r#"{"n":3,"max_completion_tokens":500}"#,
        ),
        (
            OpenAiChat,
            r#"{ "stream": true, "max_tokens": 9 }"#,
            r#"{"stream":true,"max_tokens":9,"stream_options":{"include_usage":true}}"#,
        ),
        (
            OpenAiChat,
            r#"{ "stream_options": { "include_usage": false, "include_obfuscation": false }, "max_tokens": 9, "stream": true }"#,
            r#"{"stream_options":{"include_usage":true,"include_obfuscation":false},"max_tokens":9,"stream":true}"#,
        ),
        (
            OpenAiChat,
            r#"{ "stream_options": null, "max_tokens": 9, "stream": true }"#,
            r#"{"stream_options":{"include_usage":true},"max_tokens":9,"stream":true}"#,
        ),
        (
            OpenAiChat,
            r#"{ "stream_options": { "include_usage": true }, "max_tokens": 9, "stream": true }"#,
            r#"{ "stream_options": { "include_usage": true }, "max_tokens": 9, "stream": true }"#,
        ),
        // What a vendor may read exactly stays as it is written.
        (
            OpenAiChat,
            r#"{ "temperature": 0.10000000000000000001, "a\u0062": [ 1e2, "\u00e9" ], "x": 1, "x": 2 }"#,
            r#"{"temperature":0.10000000000000000001,"ab":[ 1e2, "\u00e9" ],"x":1,"x":2,"max_completion_tokens":500}"#,
        ),
        (OpenAiResponses, r#"{ "stream": true }"#, r#"{"stream":true,"max_output_tokens":500}"#),
        (OpenAiResponses, r#"{ "max_output_tokens": null }"#, r#"{"max_output_tokens":500}"#),
        (
            OpenAiResponses,
            r#"{ "max_output_tokens": 7, "stream": true }"#,
            r#"{ "max_output_tokens": 7, "stream": true }"#,
        ),
        (AnthropicMessages, r#"{ "stream": true }"#, r#"{"stream":true,"max_tokens":500}"#),
        (AnthropicMessages, r#"{ "max_tokens": 0 }"#, r#"{"max_tokens":0}"#),
        (
            AnthropicMessages,
            r#"{ "max_tokens": 7, "stream": true }"#,
            r#"{ "max_tokens": 7, "stream": true }"#,
        ),
        (Gemini, "{}", r#"{"generationConfig":{"maxOutputTokens":500}}"#),
        (
            Gemini,
            r#"{ "generation_config": { "max_output_tokens": 0, "topK": 1 } }"#,
            r#"{"generation_config":{"topK":1,"maxOutputTokens":500}}"#,
        ),
        (
            Gemini,
            r#"{ "generationConfig": { "maxOutputTokens": null } }"#,
            r#"{"generationConfig":{"maxOutputTokens":500}}"#,
        ),
        (
            Gemini,
            r#"{ "generationConfig": { "maxOutputTokens": 7 } }"#,
            r#"{ "generationConfig": { "maxOutputTokens": 7 } }"#,
        ),
    ];
    for (api, body, expected) in rows {
        assert_eq!(prepared(&desk, api, body), expected, "{api:?} {body}");
    }
    let older = Desk::with(|meter| meter.max_output(500).sent_limit("max_tokens"));
    assert_eq!(prepared(&older, OpenAiChat, "{}"), r#"{"max_tokens":500}"#);
    let none = Desk::with(|meter| meter.sent_limit(None));
    for api in [OpenAiChat, OpenAiResponses, AnthropicMessages, Gemini] {
        assert_eq!(prepared(&none, api, "{ }"), "{ }");
    }
}

#[test]
fn headers_that_change_the_request_or_the_answer_are_replaced() {
    let desk = Desk::new();
    let body = r#"{ "model": "model", "max_tokens": 1 }"#;
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("accept-encoding", "gzip"),
        ("accept-encoding", "br"),
        ("connection", "te"),
        ("content-encoding", "identity"),
        ("content-length", "9"),
        ("content-type", "application/json; charset=utf-16"),
        ("expect", "100-continue"),
        ("if-none-match", "*"),
        ("range", "bytes=0-1"),
        ("te", "gzip"),
        ("transfer-encoding", "chunked"),
        ("x-goog-fieldmask", "candidates"),
        ("x-request-id", "7"),
    ] {
        headers.append(name, value.parse().unwrap());
    }
    let mut call = desk.meter.call(OpenAiChat, body.as_bytes()).unwrap();
    call.prepare(&mut headers, &mut Bytes::from(body)).unwrap();
    let mut all: Vec<_> =
        headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    all.sort_unstable();
    let length = body.len().to_string();
    assert_eq!(
        all,
        [
            ("accept-encoding", "identity"),
            ("content-length", &*length),
            ("content-type", "application/json"),
            ("x-request-id", "7")
        ]
    );
    // Of another body than the call.
    let error = call.prepare(&mut headers, &mut Bytes::from("[]")).unwrap_err();
    assert!(matches!(error, CallError::InvalidRequest(_)), "{error}");
}

/// The answer to a prepared stream, which has a usage.
async fn answer(
    desk: &Desk,
    request: &str,
    parts: Vec<Bytes>,
    end: Then,
) -> Response<impl http_body::Body<Data = Bytes, Error = &'static str> + use<>> {
    let mut body = Bytes::copy_from_slice(request.as_bytes());
    let mut call = desk.meter.call_of(OpenAiChat, "model", request.as_bytes()).unwrap();
    call.prepare(&mut HeaderMap::new(), &mut body).unwrap();
    assert!(String::from_utf8_lossy(&body).contains("\"include_usage\":true"));
    let mut response = response(EVENTS, parts, end);
    response.headers_mut().insert(header::CONTENT_LENGTH, 9.into());
    let reservation = desk.reservation().await;
    assert!(call.charge(&reservation).await.unwrap().is_admitted());
    call.metered(reservation, async { Ok::<_, ()>(response) }).await.unwrap()
}

const FILTER: &str = "data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n";
const WORD: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"one\"}}],\"usage\":null}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":70}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

#[tokio::test]
async fn the_usage_that_only_the_meter_has_asked_for_is_removed_from_the_stream() {
    let desk = Desk::new();
    let all = [FILTER, WORD, ": ping\n\n", USAGE, DONE].concat();
    let hidden = [FILTER, WORD, ": ping\n\n", DONE].concat();
    let asks = r#"{"max_tokens":100,"stream":true,"stream_options":{"include_usage":true}}"#;
    for (name, request, expected) in [
        ("not asked", r#"{ "max_tokens": 100, "stream": true }"#, &hidden),
        ("asked for none", r#"{ "max_tokens": 100, "stream": true, "stream_options": {} }"#, &hidden),
        ("asked", asks, &all),
    ] {
        for size in [1, 7, 50, 1_000] {
            let parts = all.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
            let response = answer(&desk, request, parts, Then::Ends).await;
            assert_eq!(response.headers().contains_key(header::CONTENT_LENGTH), name == "asked");
            let (received, error) = all_of(response).await;
            assert_eq!(
                (String::from_utf8(received).unwrap(), error),
                (expected.clone(), None),
                "{name}, {size}"
            );
            desk.assert_charged(name, Usage::new(5, 70), Basis::Reported).await;
        }
    }
    // The body ends with the usage, without an empty line.
    let short = [WORD, USAGE.trim_end()].concat();
    for (request, expected) in [(r#"{ "max_tokens": 100, "stream": true }"#, WORD), (asks, &*short)] {
        let response = answer(&desk, request, vec![short.clone().into()], Then::Ends).await;
        assert_eq!(String::from_utf8(all_of(response).await.0).unwrap(), expected);
        desk.assert_charged("short", Usage::new(5, 70), Basis::Reported).await;
    }
}

#[tokio::test]
async fn an_unfinished_event_passes_before_the_trailers_frames_are_not_empty_and_the_end_is_polled_once() {
    let desk = Desk::new();
    let request = r#"{ "max_tokens": 100, "stream": true }"#;
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", "7".parse().unwrap());
    let with = Frame::trailers(trailers);
    for (trailers, expected) in [
        (Some(with), &[WORD, "data: unfinished", r#"{"x-checksum": "7"}"#][..]),
        (None, &[WORD, "data: unfinished"]),
    ] {
        let data = [WORD, USAGE, "data: unfinished"].map(|text| Frame::data(Bytes::from(text)));
        let frames = data.into_iter().chain(trailers);
        // It panics if it is polled after its end.
        let frames = stream::unfold(frames, async |mut frames| Some((Ok::<_, ()>(frames.next()?), frames)));
        let sent = Response::builder().header("content-type", EVENTS).body(StreamBody::new(frames)).unwrap();
        let mut call = desk.meter.call_of(OpenAiChat, "model", request.as_bytes()).unwrap();
        call.prepare(&mut HeaderMap::new(), &mut Bytes::from(request)).unwrap();
        let metered = call.metered(desk.reservation().await, async { Ok::<_, ()>(sent) }).await.unwrap();
        let (mut body, mut seen) = (Box::pin(metered.into_body()), Vec::new());
        while let Some(frame) = body.frame().await {
            let frame = frame.unwrap();
            match frame.data_ref() {
                Some(data) => seen.push(String::from_utf8(data.to_vec()).unwrap()),
                None => seen.push(format!("{:?}", frame.trailers_ref().unwrap())),
            }
        }
        assert_eq!(seen, expected);
    }
}

#[tokio::test]
async fn without_a_reported_usage_the_estimate_is_charged_unless_more_was_counted() {
    let desk =
        Desk::with_price(super::Price::new("2", "10").cached_input("1").cache_write("3"), |meter| meter);
    let request = r#"{ "model": "model", "max_tokens": 100 }"#;
    let estimate = Usage::new(10, 100);
    assert_ne!(desk.meter.call(OpenAiChat, request.as_bytes()).unwrap().estimated_micro_dollars(), 0);
    assert_eq!(price().micro_dollars(&estimate), 1_020);
    let words = |count: usize| vec![Bytes::from(WORD); count];

    for end in [Then::Ends, Then::Hangs, Then::Fails] {
        let sent = desk.send(OpenAiChat, request, response(EVENTS, words(3), end)).await;
        some_of(sent, 3).await;
        desk.assert_charged("a stream", estimate, Basis::Estimated).await;
    }
    let sent = desk.send(OpenAiChat, request, response(EVENTS, words(150), Then::Hangs)).await;
    some_of(sent, 150).await;
    desk.assert_charged("a long stream", Usage::new(10, 150), Basis::Counted).await;

    let begun = "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":30,\"output_tokens\":1}}}\n\n";
    let sent = desk.send(AnthropicMessages, request, response(EVENTS, vec![begun.into()], Then::Hangs)).await;
    some_of(sent, 1).await;
    desk.assert_charged("a reported prompt", Usage::new(30, 100), Basis::Estimated).await;

    // It goes on in the background.
    let queued = r#"{ "status": "queued", "output": [], "usage": null, "error": null }"#;
    let sent = desk
        .send(
            OpenAiResponses,
            r#"{ "max_output_tokens": 100, "a": 1 }"#,
            response(JSON, vec![queued.into()], Then::Ends),
        )
        .await;
    all_of(sent).await;
    desk.assert_charged("in the background", Usage::new(9, 100), Basis::Estimated).await;

    for (name, body) in [("not JSON", "<html>"), ("without a usage", r#"{ "choices": [] }"#)] {
        let sent = desk.send(OpenAiChat, request, response(JSON, vec![body.into()], Then::Ends)).await;
        all_of(sent).await;
        desk.assert_charged(name, estimate, Basis::Estimated).await;
    }
    let sent = desk.send(OpenAiChat, request, response(EVENTS, vec![USAGE.into()], Then::Hangs)).await;
    some_of(sent, 1).await;
    desk.assert_charged("reported", Usage::new(5, 70), Basis::Reported).await;
}

#[tokio::test]
async fn an_answer_that_goes_on_without_its_client_is_charged_the_estimate_even_if_the_price_counts_text() {
    let desk = Desk::new();
    let words = |count: usize| {
        let word = r#"data: {"type":"response.output_text.delta","delta":"one"}"#;
        vec![Bytes::from(format!("{word}\n\n")); count]
    };
    let response_to = |body: &str| vec![Bytes::copy_from_slice(body.as_bytes())];
    let queued = r#"{ "status": "queued", "output": [], "usage": null, "error": null }"#;
    let completed =
        r#"{ "status": "completed", "output": [], "usage": { "input_tokens": 5, "output_tokens": 7 } }"#;
    let background = r#"{ "max_output_tokens": 100, "background": true }"#;
    let deferred = r#"{ "max_tokens": 100, "deferred": true }"#;
    let attended = r#"{ "max_output_tokens": 100, "background": false }"#;
    // A token of text is an event, or four bytes of it. The last request needs no estimate.
    let rows = [
        (
            "queued",
            OpenAiResponses,
            background,
            JSON,
            response_to(queued),
            Usage::new(12, 100),
            Basis::Estimated,
        ),
        ("left", OpenAiResponses, background, EVENTS, words(2), Usage::new(12, 100), Basis::Estimated),
        ("more", OpenAiResponses, background, EVENTS, words(150), Usage::new(12, 150), Basis::Counted),
        (
            "reported",
            OpenAiResponses,
            background,
            JSON,
            response_to(completed),
            Usage::new(5, 7),
            Basis::Reported,
        ),
        (
            "deferred",
            OpenAiChat,
            deferred,
            JSON,
            response_to(r#"{ "request_id": "7" }"#),
            Usage::new(10, 100),
            Basis::Estimated,
        ),
        ("attended", OpenAiResponses, attended, EVENTS, words(2), Usage::new(13, 2), Basis::Counted),
    ];
    for (name, api, request, kind, parts, usage, basis) in rows {
        let count = parts.len();
        let sent = desk.send(api, request, response(kind, parts, Then::Ends)).await;
        match kind {
            JSON => drop(all_of(sent).await),
            _ => some_of(sent, count).await,
        }
        desk.assert_charged(name, usage, basis).await;
    }
    let text = r#"{ "model": "model", "background": "true" }"#;
    let error = desk.meter.call(OpenAiResponses, text.as_bytes()).unwrap_err();
    assert!(matches!(error, CallError::InvalidRequest(_)), "{error}");
}
