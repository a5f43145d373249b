//! Rejections in the form of a vendor's errors.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Response, StatusCode, header::CONTENT_TYPE, request::Parts};
use serde_json::{Value, json};
use tower_ratelimit::{
    Rejection,
    response::{RejectionBody, ResponseMapper},
};

use super::Api;

/// The [`ResponseMapper`] for the clients of an [`Api`]: the status of the rejection, and an error in the form of
/// its vendor, which their libraries read.
///
/// Without it, most of them report only the status: `429 status code (no body)`.
///
/// | [`Api`] | body of a denial |
/// |---|---|
/// | `OpenAiChat`, `OpenAiResponses` | `{"error":{"message":"..","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}}` |
/// | `AnthropicMessages` | `{"type":"error","error":{"type":"rate_limit_error","message":".."}}` |
/// | `Gemini` | `{"error":{"code":429,"message":"..","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"7s"}]}}` |
///
/// The message is the text of the [`Rejection`], which has no key and no error of the store.
///
/// # Long waits
///
/// The libraries of these vendors retry a 429 without asking the program, and most wait as long as `Retry-After`
/// states. Under a budget for a month, such a program hangs for days. `Retry-After` stays true, so a rejection
/// whose wait is above 60 seconds, or that no wait helps, also has `x-should-retry: false`: with it, the libraries of
/// OpenAI and Anthropic fail immediately. [`retry_up_to`](Self::retry_up_to) sets another time.
///
/// In OpenAI's form, the `type` and the `code` of such a denial are `insufficient_quota`, as for an account without
/// credit: frameworks that retry by themselves do not retry it.
///
/// # Example
///
/// ```
/// use http::{Request, Response};
/// use http_body_util::BodyExt;
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, algorithm::FixedWindow};
/// use tower_ratelimit_gateway::prices::{Api, ApiErrors};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let budget = Policy::new("budget", Quota::per_year(1)).algorithm(FixedWindow::aligned());
/// let service = RateLimitLayer::new(MemoryStore::new(), budget, Key::new("all"))
///     .response(ApiErrors::new(Api::AnthropicMessages))
///     .layer(tower::service_fn(|_: Request<String>| async {
///         Ok::<_, std::convert::Infallible>(Response::new(String::from("hello")))
///     }));
///
/// let send = || service.clone().oneshot(Request::post("/v1/messages").body(String::new()).unwrap());
/// assert_eq!(send().await?.status(), 200);
/// let rejection = send().await?;
/// assert_eq!(rejection.status(), 429);
/// assert!(rejection.headers().contains_key("retry-after"));
/// # // A year that ends within a minute would have a short wait.
/// # if rejection.headers()["retry-after"].to_str()?.parse::<u64>()? > 60 {
/// assert_eq!(rejection.headers()["x-should-retry"], "false");
/// # }
/// let body = rejection.into_body().collect().await.unwrap().to_bytes();
/// let body: serde_json::Value = serde_json::from_slice(&body)?;
/// assert_eq!((&body["type"], &body["error"]["type"]), (&"error".into(), &"rate_limit_error".into()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a mapper does nothing until a layer has it"]
pub struct ApiErrors {
    api: Api,
    longest: Duration,
}

const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

impl ApiErrors {
    /// The mapper for the clients of `api`.
    pub const fn new(api: Api) -> Self {
        Self { api, longest: Duration::from_secs(60) }
    }

    /// Sets the longest wait for which clients shall retry without asking their program. Defaults to 60 seconds. A
    /// rejection with a longer wait, or without one, has `x-should-retry: false`.
    ///
    /// `Duration::MAX` leaves the header out of rejections with a wait.
    pub const fn retry_up_to(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }

    /// The response to a request that the program itself does not accept, with `status` and `message`: such as a
    /// [`CallError`](super::CallError), or the rejection of a [`BufferBodyLayer`](crate::body::BufferBodyLayer).
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit_gateway::prices::{Api, ApiErrors};
    ///
    /// let errors = ApiErrors::new(Api::OpenAiChat);
    /// let buffer = tower_ratelimit_gateway::body::BufferBodyLayer::new(65_536)
    ///     .response(move |rejection, _| errors.error(rejection.status(), &rejection.to_string()));
    /// # drop(buffer);
    /// assert_eq!(errors.error(http::StatusCode::BAD_REQUEST, "no model").headers()["content-type"], "application/json");
    /// ```
    #[must_use]
    pub fn error(&self, status: StatusCode, message: &str) -> Response<RejectionBody> {
        self.response_of(status, self.code(status), message, None)
    }

    /// The name of the error in the form of the vendor.
    fn code(&self, status: StatusCode) -> &'static str {
        let [openai, anthropic, gemini] = match status {
            StatusCode::UNAUTHORIZED => ["invalid_api_key", "authentication_error", "UNAUTHENTICATED"],
            StatusCode::FORBIDDEN => ["permission_denied", "permission_error", "PERMISSION_DENIED"],
            StatusCode::NOT_FOUND => ["model_not_found", "not_found_error", "NOT_FOUND"],
            StatusCode::PAYLOAD_TOO_LARGE => ["invalid_request", "request_too_large", "INVALID_ARGUMENT"],
            StatusCode::TOO_MANY_REQUESTS => {
                ["rate_limit_exceeded", "rate_limit_error", "RESOURCE_EXHAUSTED"]
            }
            StatusCode::SERVICE_UNAVAILABLE => ["server_error", "overloaded_error", "UNAVAILABLE"],
            status if status.is_client_error() => {
                ["invalid_request", "invalid_request_error", "INVALID_ARGUMENT"]
            }
            _ => ["server_error", "api_error", "INTERNAL"],
        };
        match self.api {
            Api::OpenAiChat | Api::OpenAiResponses => openai,
            Api::AnthropicMessages => anthropic,
            Api::Gemini => gemini,
        }
    }

    fn response_of(
        &self,
        status: StatusCode,
        code: &str,
        message: &str,
        wait: Option<u64>,
    ) -> Response<RejectionBody> {
        let body = match self.api {
            Api::OpenAiChat | Api::OpenAiResponses => {
                let kind = match code {
                    "rate_limit_exceeded" => "rate_limit_error",
                    "insufficient_quota" | "server_error" => code,
                    _ => "invalid_request_error",
                };
                json!({ "error": { "message": message, "type": kind, "param": null, "code": code } })
            }
            Api::AnthropicMessages => {
                json!({ "type": "error", "error": { "type": code, "message": message } })
            }
            Api::Gemini => {
                let info = "type.googleapis.com/google.rpc.RetryInfo";
                let detail = |wait| json!({ "@type": info, "retryDelay": format!("{wait}s") });
                let details: Vec<Value> = wait.map(detail).into_iter().collect();
                json!({
                    "error": { "code": status.as_u16(), "message": message, "status": code, "details": details }
                })
            }
        };
        let mut response = Response::new(RejectionBody::new(body.to_string()));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

impl ResponseMapper for ApiErrors {
    fn response(&self, rejection: &Rejection, _: &Parts) -> Response<RejectionBody> {
        let (status, wait) = (rejection.status(), rejection.retry_after_seconds());
        let is_temporary = wait.is_some_and(|seconds| Duration::from_secs(seconds) <= self.longest);
        let mut code = self.code(status);
        if code == "rate_limit_exceeded" && !is_temporary {
            code = "insufficient_quota";
        }
        let mut response = self.response_of(status, code, &rejection.to_string(), wait);
        if !is_temporary {
            response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        response
    }

    fn reads_request(&self) -> bool {
        false
    }
}
