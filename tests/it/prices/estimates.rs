//! The estimate of a call before it is made.

use http::Response;
use http_body_util::Full;
use tower_ratelimit::Key;
use tower_ratelimit_extra::prices::{
    Api::{self, AnthropicMessages, Gemini, OpenAiChat, OpenAiResponses},
    Basis, CallError, LearnedOutput, Usage,
};

use super::{Desk, EVENTS, REQUEST, Then, all_of, response, some_of};

#[test]
fn the_estimate_is_the_length_of_the_prompt_and_the_longest_answer() {
    let desk = Desk::with(|meter| meter.bytes_per_token(10).max_output(1_000));
    let rows: [(Api, &str, u64); 15] = [
        (OpenAiChat, r#"{ "model": "model" }"#, 1_000),
        (OpenAiChat, r#"{ "model": "model", "n": 3 }"#, 3_000),
        (OpenAiChat, r#"{ "model": "model", "max_tokens": 50 }"#, 50),
        (OpenAiChat, r#"{ "model": "model", "max_tokens": 50, "n": 4 }"#, 200),
        (OpenAiChat, r#"{ "model": "model", "max_completion_tokens": 60, "max_tokens": 50 }"#, 60),
        (OpenAiChat, r#"{ "model": "model", "max_tokens": null, "max_output_tokens": 1 }"#, 1_000),
        (OpenAiChat, r#"{ "model": "model", "max_tokens": 18446744073709551615, "n": 2 }"#, u64::MAX),
        (OpenAiResponses, r#"{ "model": "model", "max_output_tokens": 70 }"#, 70),
        // The vendor ignores this, and the estimate does too.
        (OpenAiResponses, r#"{ "model": "model", "max_tokens": 1, "n": 5 }"#, 1_000),
        (AnthropicMessages, r#"{ "model": "model", "max_tokens": 80 }"#, 80),
        (AnthropicMessages, r#"{ "model": "model", "max_completion_tokens": 1 }"#, 1_000),
        (Gemini, r#"{ "contents": [] }"#, 1_000),
        (Gemini, r#"{ "generationConfig": { "maxOutputTokens": 90, "candidateCount": 2 } }"#, 180),
        (Gemini, r#"{ "generation_config": { "max_output_tokens": 90 } }"#, 90),
        (Gemini, r#"{ "max_tokens": 1 }"#, 1_000),
    ];
    for (api, body, output) in rows {
        let call = desk.meter.call_of(api, "model", body.as_bytes()).unwrap();
        let input = (body.len() as u64).div_ceil(10);
        assert_eq!(call.estimate(), Usage::new(input, output), "{body}");
        assert_eq!(
            call.estimated_micro_dollars(),
            (2 * input).saturating_add(output.saturating_mul(10)),
            "{body}"
        );
    }
}

#[test]
fn a_request_that_cannot_be_read_makes_no_call() {
    let desk = Desk::new();
    let rows = [
        ("", "EOF"),
        ("model", "expected value"),
        (r#"{ "messages": [] }"#, "it has no `model`"),
        (r#"{ "model": 7 }"#, "invalid type: integer `7`"),
        (r#"{ "model": "model", "max_tokens": -1 }"#, "invalid value: integer `-1`"),
        (r#"{ "model": "model", "max_tokens": "9" }"#, "invalid type: string"),
        // Which one would the vendor read?
        (r#"{ "model": "cheap", "model": "dear" }"#, "duplicate field `model`"),
        (r#"{ "model": "model", "max_tokens": 1, "max_tokens": 9 }"#, "duplicate field `max_tokens`"),
    ];
    for (body, expected) in rows {
        let error = desk.meter.call(OpenAiChat, body.as_bytes()).unwrap_err();
        assert!(
            matches!(error, CallError::InvalidRequest(_)) && error.to_string().contains(expected),
            "{error}"
        );
    }
    let long = format!(r#"{{ "model": "\u0007{}" }}"#, "x".repeat(5_000));
    let error = desk.meter.call(OpenAiChat, long.as_bytes()).unwrap_err().to_string();
    assert_eq!(error, format!("the model \"\\u{{7}}{}\" is not available", "x".repeat(99)));
}

#[tokio::test]
async fn the_output_of_a_key_and_a_model_is_learned_from_what_was_reported() {
    let desk = Desk::new();
    let learned = LearnedOutput::new().after(5);
    let (alice, bob) = (Key::new("alice"), Key::new("bob"));
    let call = |key, body: &str| desk.meter.call(OpenAiChat, body.as_bytes()).unwrap().learned(&learned, key);
    let estimate = |key, body: &str| call(key, body).estimate().output;
    let unlimited = r#"{ "model": "model" }"#;
    let answered = async |output: u64| {
        let body = format!(
            r#"{{ "choices": [], "usage": {{ "prompt_tokens": 1, "completion_tokens": {output} }} }}"#
        );
        let response = Response::new(Full::<bytes::Bytes>::from(body));
        let sent = call(&alice, REQUEST).metered(desk.reservation().await, async { Ok::<_, ()>(response) });
        all_of(sent.await.unwrap()).await;
    };
    for output in [40, 41, 42, 43] {
        answered(output).await;
        assert_eq!([estimate(&alice, REQUEST), estimate(&alice, unlimited)], [100, 4_096]);
    }
    // What was cut or refunded is not learned.
    for end in [Then::Hangs, Then::Fails] {
        let cut =
            response(EVENTS, vec!["data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n".into()], end);
        let sent = call(&alice, REQUEST)
            .metered(desk.reservation().await, async { Ok::<_, ()>(cut) })
            .await
            .unwrap();
        some_of(sent, 1).await;
    }
    // Even if it has reported what it had used until then.
    let gemini =
        include_str!("../fixtures/prices/gemini.sse").split_inclusive("\n\n").map(Into::into).collect();
    let begun = desk.meter.call_of(Gemini, "model", b"{}").unwrap().learned(&learned, &alice);
    let cut = async { Ok::<_, ()>(response(EVENTS, gemini, Then::Hangs)) };
    some_of(begun.metered(desk.reservation().await, cut).await.unwrap(), 2).await;
    let failed = async { Err::<Response<Full<bytes::Bytes>>, _>(()) };
    assert!(call(&alice, REQUEST).metered(desk.reservation().await, failed).await.is_err());
    assert_eq!(estimate(&alice, REQUEST), 100);

    answered(44).await;
    assert!((43..=53).contains(&estimate(&alice, REQUEST)), "{}", estimate(&alice, REQUEST));
    assert_eq!(estimate(&alice, unlimited), estimate(&alice, REQUEST));
    // Not above the limit of the request.
    assert_eq!(estimate(&alice, r#"{ "model": "model", "max_tokens": 30 }"#), 30);
    assert_eq!(estimate(&bob, REQUEST), 100);
    let settled: Vec<Basis> = desk.settled.lock().unwrap().iter().map(|call| call.basis).collect();
    assert_eq!(settled.iter().filter(|basis| **basis == Basis::Reported).count(), 6, "{settled:?}");

    assert!(std::panic::catch_unwind(|| LearnedOutput::new().percentile(101)).is_err());
}
