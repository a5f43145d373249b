//! Which requests are gRPC calls.

use http::{HeaderMap, HeaderName, HeaderValue, Method, header::CONTENT_TYPE, request::Parts};

/// Whether the client speaks gRPC or grpc-web, and understands no other response. Both are POST requests: another
/// request with that content type would be rejected with a 200 that caches may keep.
pub(crate) fn is_grpc(request: &Parts) -> bool {
    request.method == Method::POST && is_grpc_type(&request.headers)
}

/// Whether the content type of a request or a response is gRPC or grpc-web.
pub(in crate::response) fn is_grpc_type(headers: &HeaderMap) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let Some(kind) = headers.get(CONTENT_TYPE) else { return false };
    let kind = kind.as_bytes();
    kind.get(..GRPC.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(GRPC))
        && matches!(kind.get(GRPC.len()), None | Some(b'+' | b'-' | b';' | b' '))
}

/// The specific types first.
const GRPC_TYPES: [&str; 5] = [
    "application/grpc-web-text+proto",
    "application/grpc-web-text",
    "application/grpc-web+proto",
    "application/grpc-web",
    "application/grpc",
];

/// The content type of the response. grpc-web clients expect the type of their request, one of those that exist.
pub(in crate::response) fn grpc_type(request: &HeaderMap) -> &'static str {
    let kind = request.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let begins = |known: &&str| {
        kind.get(..known.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(known.as_bytes()))
    };
    GRPC_TYPES.into_iter().find(begins).unwrap_or("application/grpc")
}

pub(in crate::response) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(in crate::response) const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(in crate::response) const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
pub(in crate::response) const GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
