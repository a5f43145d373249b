//! Rejections in the form of a vendor's errors.

use std::time::Duration;

use http::{Request, Response, StatusCode};
use serde_json::{Value, json};
use support::inner::{ask, get, text};
use tower_ratelimit::{
    Error, ErrorKind, Key, MemoryStore, Policy, Quota, RateLimitLayer, Rejection,
    algorithm::FixedWindow,
    layer::ResponseBody,
    response::{RejectionBody, ResponseMapper as _},
    store::ManualClock,
};
use tower_ratelimit_gateway::prices::{Api, ApiErrors};

const APIS: [Api; 4] = [Api::OpenAiChat, Api::OpenAiResponses, Api::AnthropicMessages, Api::Gemini];

async fn content(response: Response<RejectionBody>) -> Value {
    assert_eq!(response.headers()["content-type"], "application/json");
    serde_json::from_str(&text(response).await).unwrap()
}

/// The response of the mapper to `rejection`.
fn answer(errors: ApiErrors, rejection: &Rejection) -> Response<RejectionBody> {
    errors.response(rejection, &Request::new(()).into_parts().0)
}

/// The denial of a second request in `period`.
async fn denial(errors: ApiErrors, period: u64) -> Response<ResponseBody<String>> {
    let store = MemoryStore::with_clock(ManualClock::new());
    let policy = Policy::new("api", Quota::new(1, Duration::from_secs(period)));
    let policy = policy.algorithm(FixedWindow::anchored());
    let layer = RateLimitLayer::new(store, policy, Key::new("all")).response(errors);
    assert_eq!(ask(&layer, get()).await.status(), 200);
    ask(&layer, get()).await
}

#[tokio::test]
async fn a_denial_has_the_form_of_the_vendor_and_only_a_long_one_is_not_to_be_retried() {
    for (period, asks_not_to) in [(7, false), (60, false), (61, true), (2_678_400, true)] {
        for api in APIS {
            let response = denial(ApiErrors::new(api), period).await;
            assert_eq!(response.status(), 429);
            assert_eq!(response.headers()["retry-after"], period.to_string(), "{api:?}");
            assert_eq!(response.headers()["cache-control"], "no-store");
            let asks = response.headers().get("x-should-retry").map(|value| value.to_str().unwrap());
            assert_eq!(asks, asks_not_to.then_some("false"), "{api:?}, {period}");
            let body: Value = serde_json::from_str(&text(response).await).unwrap();
            let message = body["error"]["message"].as_str().unwrap();
            assert!(message.starts_with("over the rate limit; try again in "), "{message}");
            let expected = match (api, asks_not_to) {
                (Api::OpenAiChat | Api::OpenAiResponses, false) => json!({ "error": {
                    "message": message, "type": "rate_limit_error", "param": null, "code": "rate_limit_exceeded",
                } }),
                (Api::OpenAiChat | Api::OpenAiResponses, true) => json!({ "error": {
                    "message": message, "type": "insufficient_quota", "param": null, "code": "insufficient_quota",
                } }),
                (Api::AnthropicMessages, _) => {
                    json!({ "type": "error", "error": { "type": "rate_limit_error", "message": message } })
                }
                _ => json!({ "error": {
                    "code": 429, "message": message, "status": "RESOURCE_EXHAUSTED",
                    "details": [{
                        "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": format!("{period}s"),
                    }],
                } }),
            };
            assert_eq!(body, expected, "{api:?}");
        }
    }
}

#[tokio::test]
async fn the_longest_wait_is_a_setting() {
    let has = async |longest, period| {
        let errors = ApiErrors::new(Api::OpenAiChat).retry_up_to(longest);
        denial(errors, period).await.headers().contains_key("x-should-retry")
    };
    assert!(has(Duration::ZERO, 1).await);
    assert!(!has(Duration::from_secs(3_600), 3_600).await);
    assert!(!has(Duration::MAX, 31_536_000).await);
}

#[tokio::test]
async fn another_rejection_has_the_vendors_name_for_it_and_no_error_of_the_store() {
    let unidentified = |kind| Rejection::Unidentified(Error::new(kind, "no api key"));
    let unavailable = Rejection::Unavailable(Error::new(ErrorKind::StoreTimeout, "secret"));
    let rows = [
        (
            unidentified(ErrorKind::MissingIdentity),
            400,
            ["invalid_request", "invalid_request_error", "INVALID_ARGUMENT"],
        ),
        (
            unidentified(ErrorKind::UnknownIdentity),
            401,
            ["invalid_api_key", "authentication_error", "UNAUTHENTICATED"],
        ),
        (unidentified(ErrorKind::MissingSetup), 500, ["server_error", "api_error", "INTERNAL"]),
        (unavailable, 503, ["server_error", "overloaded_error", "UNAVAILABLE"]),
        (Rejection::Blocked, 429, ["insufficient_quota", "rate_limit_error", "RESOURCE_EXHAUSTED"]),
    ];
    for (rejection, status, [openai, anthropic, gemini]) in rows {
        for (api, field, name) in [
            (Api::OpenAiChat, "code", openai),
            (Api::OpenAiResponses, "code", openai),
            (Api::AnthropicMessages, "type", anthropic),
            (Api::Gemini, "status", gemini),
        ] {
            let response = answer(ApiErrors::new(api), &rejection);
            assert_eq!(response.status().as_u16(), status, "{api:?}");
            // Waiting helps only if the store is unavailable.
            let asks_not_to = response.headers().contains_key("x-should-retry");
            assert_eq!(asks_not_to, status != 503, "{api:?} {status}");
            let body = content(response).await;
            assert_eq!(body["error"][field], name, "{api:?} {status}");
            assert!(!body.to_string().contains("secret"), "{body}");
        }
    }
}

#[tokio::test]
async fn an_error_of_the_program_has_the_same_form() {
    let text = "a \"quote\", \u{1f600} and \u{7}";
    for api in APIS {
        let response = ApiErrors::new(api).error(StatusCode::PAYLOAD_TOO_LARGE, text);
        assert_eq!(response.status(), 413);
        assert_eq!(content(response).await["error"]["message"], text, "{api:?}");
    }
}
