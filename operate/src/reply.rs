//! The responses of `admin` and `usage`.

use axum::{body::Body, response::Response};
use http::{
    HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use serde::Serialize;

/// A response with `value` as JSON.
pub(crate) fn json(value: &impl Serialize) -> Response {
    reply(StatusCode::OK, "application/json", value)
}

pub(crate) fn reply(status: StatusCode, content_type: &'static str, value: &impl Serialize) -> Response {
    // Every value here is one of strings and numbers, which cannot fail.
    let mut body = serde_json::to_vec(value).unwrap_or_default();
    body.push(b'\n');
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    // A state is soon out of date, and it shows identities.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
