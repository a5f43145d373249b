//! The estimate of a call before it is made.

use http::Response;
use http_body_util::Full;
use tower_ratelimit::Key;
use tower_ratelimit_gateway::prices::{
    Api::{self, AnthropicMessages, Gemini, OpenAiChat, OpenAiResponses},
    Basis, CallError, LearnedOutput, Usage,
};

use super::{Desk, EVENTS, REQUEST, Then, all_of, response, some_of};

#[test]
fn the_estimate_is_the_length_of_the_prompt_and_the_longest_answer() {
    let desk = Desk::with(|meter| meter.bytes_per_token(10).max_output(1_000));
    let rows: [(Api, &str, u64); 26] = [
        (OpenAiChat, r#"{ "model": "model" }"#, 1_000),
        (OpenAiChat, r#"{ "model": "model", "n": 3 }"#, 3_000),
        (OpenAiChat, r#"{ "model": "model", "max_tokens": 50 }"#, 50),
        (OpenAiChat, r#"{ "model": "model", "max_tokens": 50, "n": 4 }"#, 200),
        (OpenAiChat, r#"{ "model": "model", "max_completion_tokens": 60, "max_tokens": 50 }"#, 60),
        (OpenAiChat, r#"{ "model": "model", "max_tokens": null, "max_output_tokens": 1 }"#, 1_000),
        (OpenAiChat, r#"{ "model": "model", "max_tokens": 18446744073709551615, "n": 2 }"#, u64::MAX),
        // Zero may be read as no limit.
        (OpenAiChat, r#"{ "model": "model", "max_tokens": 0 }"#, 1_000),
        (OpenAiChat, r#"{ "model": "model", "max_tokens": 0, "max_completion_tokens": 0 }"#, 1_000),
        (OpenAiChat, r#"{ "model": "model", "max_tokens": 50, "n": 1, "best_of": 4 }"#, 200),
        (OpenAiChat, r#"{ "max_tokens": 50, "prompt": "a" }"#, 50),
        (OpenAiChat, r#"{ "max_tokens": 50, "prompt": [ "a", "b" ], "n": 2 }"#, 200),
        (OpenAiChat, r#"{ "max_tokens": 50, "prompt": [[1, 2], [3]] }"#, 100),
        (OpenAiChat, r#"{ "max_tokens": 50, "prompt": [1, 2, 3] }"#, 50),
        (OpenAiChat, r#"{ "max_tokens": 50, "prompt": [] }"#, 50),
        (OpenAiResponses, r#"{ "model": "model", "max_output_tokens": 70 }"#, 70),
        (OpenAiResponses, r#"{ "max_output_tokens": 70, "prompt": { "id": "p" } }"#, 70),
        (OpenAiResponses, r#"{ "max_output_tokens": 70, "max_tokens": 0, "max_completion_tokens": 1 }"#, 70),
        // The vendor ignores this, and the estimate does too.
        (OpenAiResponses, r#"{ "model": "model", "max_tokens": 1, "n": 5 }"#, 1_000),
        (AnthropicMessages, r#"{ "model": "model", "max_tokens": 80 }"#, 80),
        (AnthropicMessages, r#"{ "model": "model", "max_completion_tokens": 1 }"#, 1_000),
        (AnthropicMessages, r#"{ "model": "model", "max_tokens": 0 }"#, 1_000),
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
        (r#"{ "model": "cheap", "Model": "dear" }"#, "`Model` may be read as `model`"),
        (r#"{ "model": "model", "MAX_TOKENS": 9 }"#, "`MAX_TOKENS` may be read as `max_tokens`"),
        ("{ \"model\": \"model\", \"max_to\u{212a}ens\": 9 }", "may be read as `max_tokens`"),
        (r#"{ "model": "model", "N": 9 }"#, "`N` may be read as `n`"),
        (r#"{ "model": "model", "Stream": true }"#, "`Stream` may be read as `stream`"),
        (
            r#"{ "model": "model", "stream_options": { "Include_Usage": false } }"#,
            "may be read as `include_usage`",
        ),
        (
            r#"{ "model": "model", "generationConfig": { "maxoutputtokens": 9 } }"#,
            "may be read as `maxOutputTokens`",
        ),
        (r#"{ "model": "model", "generationConfig": {}, "generation_config": {} }"#, "duplicate field"),
        (r#"{ "model": "model", "max_tokens": 1e5 }"#, "invalid type: floating point"),
        (r#"{ "model": "model", "max_tokens": 9.0 }"#, "invalid type: floating point"),
        (r#"{ "model": "model", "max_tokens": 99999999999999999999 }"#, "invalid type: floating point"),
        (r#"{ "model": "model", "n": -1 }"#, "invalid value: integer `-1`"),
        (r#"{ "model": "model", "stream": "true" }"#, "invalid type: string"),
        (r#"{ "model": "model", "stream": 1 }"#, "invalid type: integer"),
        // Of which a vendor may read the 0, as no limit.
        (
            r#"{ "model": "model", "max_tokens": 5, "max_completion_tokens": 0 }"#,
            "`max_completion_tokens` is 0",
        ),
        (r#"{ "model": "model", "max_tokens": 0, "max_completion_tokens": 5 }"#, "`max_tokens` is 0"),
        (r#"{ "model": "model" } {}"#, "trailing characters"),
        ("[\"model\"]", "invalid type: sequence"),
        ("\u{feff}{}", "expected value"),
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

#[test]
fn what_a_client_teaches_lowers_no_estimate_below_a_share_of_what_it_asks_for_and_what_the_meter_assumes() {
    let desk = Desk::with(|meter| meter.max_output(1_000));
    let key = Key::new("mallory");
    let rows = [
        (LearnedOutput::new(), 1, None, 1_000),
        (LearnedOutput::new(), 1, Some(500), 500),
        (LearnedOutput::new(), 1, Some(2_000), 1_000),
        (LearnedOutput::new(), 1, Some(100_000), 25_000),
        (LearnedOutput::new().at_least(1), 1, Some(100_000), 1_000),
        (LearnedOutput::new().at_least(100), 1, Some(100_000), 100_000),
        (LearnedOutput::new(), 1, Some(u64::MAX), u64::MAX / 4 + 1),
        (LearnedOutput::new(), 60_000, Some(50_000), 50_000),
        (LearnedOutput::new(), 60_000, Some(100_000), 60_000),
    ];
    for (learned, taught, limit, expected) in rows {
        (0..10).for_each(|_| learned.learn(&key, "model", taught));
        let body = format!(r#"{{ "model": "model", "max_tokens": {} }}"#, serde_json::json!(limit));
        let call = desk.meter.call(OpenAiChat, body.as_bytes()).unwrap();
        // Even if it is called again.
        let estimate = call.learned(&learned, &key).learned(&learned, &key).estimate().output;
        assert!(
            estimate >= expected && estimate <= expected.saturating_add(expected / 5),
            "{body}: {estimate}"
        );
    }
}

#[test]
fn a_tier_that_may_be_dearer_than_the_prices_makes_no_call() {
    let desk = Desk::new();
    let call = |meter: &tower_ratelimit_gateway::prices::UsageMeter, entry: &str| {
        let body = format!(r#"{{ "model": "model", {entry} }}"#);
        meter.call(OpenAiChat, body.as_bytes()).err()
    };
    for entry in ["auto", "default", "flex", "standard_only"] {
        assert_eq!(call(&desk.meter, &format!(r#""service_tier": "{entry}""#)), None);
    }
    assert_eq!(call(&desk.meter, r#""service_tier": null, "speed": "standard""#), None);
    let priority = r#""service_tier": "priority""#;
    assert_eq!(call(&desk.meter, priority), Some(CallError::UnknownTier("priority".into())));
    assert_eq!(call(&desk.meter, r#""speed": "fast""#), Some(CallError::UnknownTier("fast".into())));
    assert!(matches!(call(&desk.meter, r#""Service_Tier": "priority""#), Some(CallError::InvalidRequest(_))));
    for (entry, tier) in [
        (r#""serviceTier": "priority""#, "priority"),
        (r#""service_tier": "standard", "inference_geo": "us""#, "us"),
    ] {
        assert_eq!(call(&desk.meter, entry), Some(CallError::UnknownTier(tier.into())), "{entry}");
    }
    for entry in [r#""serviceTier": "standard""#, r#""inference_geo": "global""#] {
        assert_eq!(call(&desk.meter, entry), None, "{entry}");
    }
    for entry in [r#""serviceTier": null, "service_tier": "priority""#, r#""Inference_Geo": "us""#] {
        assert!(matches!(call(&desk.meter, entry), Some(CallError::InvalidRequest(_))), "{entry}");
    }
    assert_eq!(call(&desk.meter.accept_tier("priority"), priority), None);
    assert_eq!(
        CallError::UnknownTier("priority".into()).to_string(),
        r#"the service tier "priority" is not available"#
    );
}

#[tokio::test]
async fn the_output_of_a_key_and_a_model_is_learned_from_what_was_reported() {
    let desk = Desk::with(|meter| meter.max_output(30));
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
        assert_eq!([estimate(&alice, REQUEST), estimate(&alice, unlimited)], [100, 30]);
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
    assert!(std::panic::catch_unwind(|| LearnedOutput::new().at_least(0)).is_err());
}
