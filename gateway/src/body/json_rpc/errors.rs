//! Rejections as JSON-RPC errors.

use http::{HeaderValue, Response, StatusCode, header::CONTENT_TYPE, request::Parts};
use serde::Serialize;
use serde_json::value::RawValue;
use tower_ratelimit::{
    Rejection,
    response::{RejectionBody, ResponseMapper},
};

use super::{message::Message, request::JsonRpc};
use crate::body::BodyRejection;

/// The [`ResponseMapper`] for JSON-RPC over HTTP, such as MCP: the status of the rejection, and a JSON-RPC
/// error.
///
/// ```json
/// {"jsonrpc":"2.0","id":7,"error":{"code":-32029,"message":"over the rate limit; try again in 30 seconds","data":{"retryAfterSeconds":30}}}
/// ```
///
/// | rejection | `code` |
/// |---|---|
/// | denied, banned or blocked | -32029, or what [`code`](Self::code) sets |
/// | any other with a status from 400 to 499 | -32600, "Invalid Request" |
/// | any other | -32603, "Internal error" |
///
/// `data` is there if a wait helps. `id` is the request's, exactly as the client wrote it, if
/// [`JsonRpc::parse`] has read it, and null otherwise. A batch is answered with an array that has an error for
/// each request with an `id`, and with one error if no message has one.
///
/// The status is not 200, because clients that retry, proxies and [`RateLimitHeaders`] rely on it.
///
/// [`RateLimitHeaders`]: tower_ratelimit::RateLimitHeaders
#[derive(Clone, Copy, Debug)]
#[must_use = "a mapper does nothing until a layer has it"]
pub struct JsonRpcErrors {
    code: i64,
}

const INVALID_REQUEST: i64 = -32_600;
const INTERNAL_ERROR: i64 = -32_603;

impl JsonRpcErrors {
    /// The mapper with the code -32029.
    pub const fn new() -> Self {
        Self { code: -32_029 }
    }

    /// Sets the code of a denial. JSON-RPC reserves -32099 to -32000 for servers, and no code for this.
    /// Defaults to -32029, which ToolHive and other MCP servers use.
    pub const fn code(mut self, code: i64) -> Self {
        self.code = code;
        self
    }

    /// The response to a request whose body is not read, for
    /// [`BufferBodyLayer::response`](crate::body::BufferBodyLayer::response). Its `id` is null.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit_gateway::body::{BufferBodyLayer, json_rpc::{JsonRpc, JsonRpcErrors}};
    ///
    /// let errors = JsonRpcErrors::new();
    /// let buffer = BufferBodyLayer::new(65_536)
    ///     .parse_with(JsonRpc::parse)
    ///     .response(move |rejection, _| errors.of_body(rejection));
    /// # drop(buffer);
    /// ```
    #[must_use]
    pub fn of_body(&self, rejection: &BodyRejection) -> Response<RejectionBody> {
        let (status, wait) = (rejection.status(), rejection.retry_after_seconds());
        response(status, code(status), rejection.to_string(), wait, None)
    }
}

impl Default for JsonRpcErrors {
    fn default() -> Self {
        Self::new()
    }
}

impl ResponseMapper for JsonRpcErrors {
    fn response(&self, rejection: &Rejection, request: &Parts) -> Response<RejectionBody> {
        let status = rejection.status();
        let code = match rejection {
            Rejection::Denied(_) | Rejection::Blocked => self.code,
            _ => code(status),
        };
        let rpc = request.extensions.get();
        response(status, code, rejection.to_string(), rejection.retry_after_seconds(), rpc)
    }
}

fn code(status: StatusCode) -> i64 {
    if status.is_client_error() { INVALID_REQUEST } else { INTERNAL_ERROR }
}

#[derive(Serialize)]
struct Answer<'a> {
    jsonrpc: &'static str,
    id: Option<&'a RawValue>,
    error: &'a Failure,
}

#[derive(Serialize)]
struct Failure {
    code: i64,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Data>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    retry_after_seconds: u64,
}

fn response(
    status: StatusCode,
    code: i64,
    message: String,
    wait: Option<u64>,
    rpc: Option<&JsonRpc>,
) -> Response<RejectionBody> {
    let data = wait.map(|retry_after_seconds| Data { retry_after_seconds });
    let error = Failure { code, message, data };
    let answer = |id| Answer { jsonrpc: "2.0", id, error: &error };
    let ids = || rpc.into_iter().flat_map(JsonRpc::messages).filter_map(Message::id);
    let body = if rpc.is_some_and(JsonRpc::is_batch) && ids().next().is_some() {
        serde_json::to_string(&ids().map(|id| answer(Some(id))).collect::<Vec<_>>())
    } else {
        serde_json::to_string(&answer(ids().next()))
    };
    // Texts and numbers, which cannot fail.
    let mut response = Response::new(RejectionBody::new(body.unwrap_or_default()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
