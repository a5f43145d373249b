//! What a call is charged whose answer does not report its usage, or that fails.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use support::{Lines, day};
use tower_ratelimit::{Key, Limiter, MemoryStore, Reservation};
use tower_ratelimit_gateway::prices::{
    Api::{self, AnthropicMessages, Gemini, OpenAiChat, OpenAiResponses},
    Basis, Price, Prices, Usage, UsageMeter,
};

use super::{Desk, EVENTS, JSON, REQUEST, Then, all_of, response, some_of};

/// The events of a fixture, each a part.
fn events(text: &str) -> Vec<Bytes> {
    text.split_inclusive("\n\n").map(|event| Bytes::copy_from_slice(event.as_bytes())).collect()
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_is_charged_the_last_report_and_the_text_since() {
    let desk = Desk::new();
    let chat = include_str!("../fixtures/prices/openai-chat.sse");
    let responses = include_str!("../fixtures/prices/openai-responses.sse");
    let messages = include_str!("../fixtures/prices/anthropic.sse");
    let gemini = include_str!("../fixtures/prices/gemini.sse");
    let begun = |output| Usage::new(25, output).cached_input(3).cache_write(7);
    let rows: [(&str, Api, &str, usize, Usage, Basis); 14] = [
        ("before an event", OpenAiChat, chat, 0, Usage::new(10, 0), Basis::Counted),
        ("after the role", OpenAiChat, chat, 1, Usage::new(10, 0), Basis::Counted),
        ("after a word", OpenAiChat, chat, 2, Usage::new(10, 1), Basis::Counted),
        ("before the usage", OpenAiChat, chat, 5, Usage::new(10, 3), Basis::Counted),
        ("after the usage", OpenAiChat, chat, 6, Usage::new(15, 10).cached_input(4), Basis::Reported),
        ("before the text", OpenAiResponses, responses, 3, Usage::new(10, 0), Basis::Counted),
        ("after the text", OpenAiResponses, responses, 6, Usage::new(10, 2), Basis::Counted),
        ("before the prompt", AnthropicMessages, messages, 0, Usage::new(10, 0), Basis::Counted),
        ("after the prompt", AnthropicMessages, messages, 3, begun(0), Basis::Counted),
        ("after text", AnthropicMessages, messages, 5, begun(2), Basis::Counted),
        ("at the end", AnthropicMessages, messages, 7, begun(15), Basis::Reported),
        ("without the output", Gemini, gemini, 1, Usage::new(9, 1), Basis::Counted),
        ("with the output", Gemini, gemini, 2, Usage::new(9, 25), Basis::Reported),
        ("all", Gemini, gemini, 3, Usage::new(7, 26).cached_input(2), Basis::Reported),
    ];
    for (name, api, text, count, usage, basis) in rows {
        let sent = desk.send(api, REQUEST, response(EVENTS, events(text), Then::Hangs)).await;
        some_of(sent, count).await;
        desk.assert_charged(name, usage, basis).await;
        // A stream that breaks off is charged the same, once a byte has come.
        let parts = events(text).into_iter().take(count).collect();
        let sent = desk.send(api, REQUEST, response(EVENTS, parts, Then::Fails)).await;
        assert_eq!(all_of(sent).await.1, Some("broken off"), "{name}");
        let (usage, basis) = if count == 0 { (Usage::default(), Basis::Refunded) } else { (usage, basis) };
        desk.assert_charged(name, usage, basis).await;
    }
}

#[tokio::test]
async fn what_a_stream_has_sent_is_charged_before_it_ends_if_it_exceeds_the_estimate() {
    let desk = Desk::new();
    let word = Bytes::from("data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}]}\n\n");
    let sent = desk.send(OpenAiChat, REQUEST, response(EVENTS, vec![word; 400], Then::Hangs)).await;
    let mut body = Box::pin(sent.into_body());
    for words in 1..=400 {
        assert!(http_body_util::BodyExt::frame(&mut body).await.is_some());
        let (tokens, _) = desk.charged_now().await;
        // Each time that the answer has grown by an eighth.
        assert!(
            tokens >= 110 && tokens <= 110.max(10 + words) && tokens * 9 / 8 >= 10 + words,
            "{words}: {tokens}"
        );
    }
    drop(body);
    desk.assert_charged("in the end", Usage::new(10, 400), Basis::Counted).await;
}

#[tokio::test]
async fn money_is_charged_before_a_stream_ends_even_if_its_tokens_are_fewer_than_estimated() {
    let desk = Desk::new();
    // Estimated at 1,000 + 10 tokens, and 2,100 micro-dollars.
    let request = format!(r#"{{ "max_tokens": 10, "prompt": "{}" }}"#, "x".repeat(3_966));
    assert_eq!(request.len(), 4_000);
    let begins = "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":10}}}\n\n";
    let word = "data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"word\"}}\n\n";
    let parts = [begins].into_iter().chain([word; 300]).map(Into::into).collect();
    let sent = desk.send(AnthropicMessages, &request, response(EVENTS, parts, Then::Hangs)).await;
    let mut body = Box::pin(sent.into_body());
    for words in 0..=300 {
        assert!(http_body_util::BodyExt::frame(&mut body).await.is_some());
        let (tokens, money) = desk.charged_now().await;
        let used = 20 + 10 * words;
        assert!(tokens == 1_010 && money <= 2_100.max(used) && money * 9 / 8 >= used, "{words}: {money}");
    }
    drop(body);
    desk.assert_charged("in the end", Usage::new(10, 300), Basis::Counted).await;
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_is_counted_and_one_that_has_not_begun_is_estimated() {
    let desk = Desk::new();
    let whole = include_str!("../fixtures/prices/openai-chat.json");
    let start = Bytes::copy_from_slice(&whole.as_bytes()[..400]);
    let sized = |mut response: Response<_>, length: usize| {
        response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
        response
    };
    let estimate = Usage::new(10, 100);

    let sent = desk.send(OpenAiChat, REQUEST, response(JSON, vec![start.clone()], Then::Hangs)).await;
    some_of(sent, 0).await;
    desk.assert_charged("before a byte", estimate, Basis::Estimated).await;

    let sent = desk.send(OpenAiChat, REQUEST, response(JSON, vec![start.clone()], Then::Hangs)).await;
    some_of(sent, 1).await;
    desk.assert_charged("during the answer", Usage::new(10, 100), Basis::Counted).await;

    let sent = sized(response(JSON, vec![start.clone()], Then::Hangs), 800);
    let sent = desk.send(OpenAiChat, REQUEST, sent).await;
    some_of(sent, 1).await;
    desk.assert_charged("of a known length", Usage::new(10, 200), Basis::Counted).await;

    // All of it was there, and the client has left before the end.
    let sent = desk.send(OpenAiChat, REQUEST, response(JSON, vec![whole.into()], Then::Hangs)).await;
    some_of(sent, 1).await;
    desk.assert_charged("after the answer", Usage::new(176, 310).cached_input(1_024), Basis::Reported).await;

    let sent = desk.send(OpenAiChat, REQUEST, response(JSON, vec!["<html>".into()], Then::Ends)).await;
    all_of(sent).await;
    desk.assert_charged("not JSON", Usage::new(10, 2), Basis::Counted).await;

    let sent = desk.send(OpenAiChat, REQUEST, Response::new(Full::<Bytes>::default())).await;
    drop(sent);
    desk.assert_charged("empty", Usage::new(10, 0), Basis::Counted).await;

    for kind in [EVENTS, JSON] {
        let mut encoded = response(kind, vec![vec![7; 40].into()], Then::Ends);
        encoded.headers_mut().insert(header::CONTENT_ENCODING, "gzip".parse().unwrap());
        all_of(desk.send(OpenAiChat, REQUEST, encoded).await).await;
        desk.assert_charged("encoded", estimate, Basis::Estimated).await;
    }
    let mut identity = response(JSON, vec![whole.into()], Then::Ends);
    identity.headers_mut().insert(header::CONTENT_ENCODING, "identity".parse().unwrap());
    all_of(desk.send(OpenAiChat, REQUEST, identity).await).await;
    desk.assert_charged("identity", Usage::new(176, 310).cached_input(1_024), Basis::Reported).await;
}

#[tokio::test]
async fn a_client_that_leaves_before_the_response_is_charged_the_estimate() {
    let desk = Desk::new();
    let reservation = desk.reservation().await;
    let call = desk.meter.call(OpenAiChat, REQUEST.as_bytes()).unwrap();
    call.charge(&reservation).await.unwrap();
    let never = std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>();
    assert!(call.metered(reservation, never).now_or_never().is_none());
    desk.assert_charged("dropped", Usage::new(10, 100), Basis::Estimated).await;
}

#[tokio::test]
async fn failures_of_the_upstream_service_are_refunded() {
    let desk = Desk::new();
    for status in [StatusCode::BAD_REQUEST, StatusCode::TOO_MANY_REQUESTS, StatusCode::BAD_GATEWAY] {
        // Even with a usage.
        let mut failed =
            response(JSON, vec![include_str!("../fixtures/prices/openai-chat.json").into()], Then::Ends);
        *failed.status_mut() = status;
        let sent = desk.send(OpenAiChat, REQUEST, failed).await;
        desk.assert_charged("before the body is read", Usage::default(), Basis::Refunded).await;
        assert_eq!((sent.status(), all_of(sent).await.1), (status, None));
    }

    let reservation = desk.reservation().await;
    let call = desk.meter.call(OpenAiChat, REQUEST.as_bytes()).unwrap();
    call.charge(&reservation).await.unwrap();
    let failed = call.metered(reservation, async { Err::<Response<Full<Bytes>>, _>("no connection") }).await;
    assert_eq!(failed.err(), Some("no connection"));
    desk.assert_charged("no connection", Usage::default(), Basis::Refunded).await;

    let begun = "data: {\"type\":\"response.created\",\"response\":{\"usage\":null,\"error\":null}}\n\n";
    let failed = "data: {\"type\":\"response.failed\",\"response\":{\"usage\":null,\"error\":{\"code\":\"server_error\"}}}\n\n";
    let overloaded = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n";
    let rows = [
        ("a failed response", OpenAiResponses, EVENTS, format!("{begun}{failed}")),
        ("an overloaded stream", AnthropicMessages, EVENTS, overloaded.to_owned()),
        (
            "an error instead of an answer",
            OpenAiChat,
            JSON,
            r#"{ "error": { "message": "overloaded" } }"#.to_owned(),
        ),
        ("an error as an event", OpenAiChat, EVENTS, "data: {\"error\":{}}\n\ndata: [DONE]\n\n".to_owned()),
        ("an error of a list", Gemini, JSON, r#"[{ "error": { "code": 503 } }]"#.to_owned()),
    ];
    for (name, api, kind, body) in rows {
        let sent = desk.send(api, REQUEST, response(kind, vec![body.into()], Then::Ends)).await;
        all_of(sent).await;
        desk.assert_charged(name, Usage::default(), Basis::Refunded).await;
    }

    // What came before the error was used.
    let word =
        "data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"one\"}}\n\n";
    let parts = vec![word.into(), overloaded.into()];
    all_of(desk.send(AnthropicMessages, REQUEST, response(EVENTS, parts, Then::Ends)).await).await;
    desk.assert_charged("an error after a word", Usage::new(10, 1), Basis::Counted).await;
}

#[tokio::test]
async fn a_part_of_an_event_is_not_counted_and_an_unknown_event_counts_with_its_bytes() {
    let desk = Desk::new();
    let word = "data: {\"choices\":[{\"delta\":{\"content\":\"one\"}}]}\n\n";
    let rows: [(&str, Vec<&str>, u64); 6] = [
        ("a part of an event", vec![word, &word[..30]], 1),
        ("an event without its empty line", vec![word, &word[..word.len() - 2]], 2),
        ("an event and a part of a line end", vec![word, &word[..word.len() - 1]], 2),
        ("JSON of another form", vec!["data: {\"an\":\"answer\"}\n\n"], 4),
        ("no JSON", vec!["data: not JSON\n\n", word], 3),
        (
            "comments, other fields, and the end",
            vec![": x\n\n", "event: y\nid: 7\n\n", word, "data: [DONE]\n\n"],
            1,
        ),
    ];
    for (name, parts, output) in rows {
        let bytes = || parts.iter().map(|part| Bytes::copy_from_slice(part.as_bytes())).collect::<Vec<_>>();
        let sent = desk.send(OpenAiChat, REQUEST, response(EVENTS, bytes(), Then::Hangs)).await;
        some_of(sent, parts.len()).await;
        desk.assert_charged(name, Usage::new(10, output), Basis::Counted).await;
        all_of(desk.send(OpenAiChat, REQUEST, response(EVENTS, bytes(), Then::Ends)).await).await;
        desk.assert_charged(name, Usage::new(10, output), Basis::Counted).await;
    }
}

#[tokio::test]
async fn on_settled_keeps_the_settlement_and_the_response() {
    let limiter = Limiter::new(MemoryStore::new());
    let calls = Arc::<AtomicUsize>::default();
    let settled = calls.clone();
    let prices = Prices::new("1").model("m", Price::new("1", "1"));
    let meter = UsageMeter::new(prices).tokens_unit(None).money_unit(None).on_settled(move |_| {
        settled.fetch_add(1, Relaxed);
        panic!("foreign code panics on purpose");
    });
    let (policy, key) = (day("tokens", 10_000), Key::new("all"));
    let (lines, _listening) = Lines::listen();
    for _ in 0..2 {
        let decision = limiter.check(&policy, &key, 1_000).await.unwrap();
        let reservation = Reservation::new(&limiter, &decision);
        let call = meter.call(OpenAiChat, br#"{"model":"m","max_tokens":9}"#).unwrap();
        let response = Response::new(Full::<Bytes>::from("{}"));
        let sent = call.metered(reservation, async { Ok::<_, Infallible>(response) });
        let Ok(response) = sent.await;
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "{}");
    }
    assert_eq!(calls.load(Relaxed), 2);
    assert_eq!(lines.with("`on_settled` panicked"), 1);
}
