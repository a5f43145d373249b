//! What the head of a request announces of its body.

use http::{
    HeaderMap, HeaderValue, Method,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, TRANSFER_ENCODING},
    request::Parts,
};
use http_body::Body;

use super::body_bytes::Unread;

/// Why the body of `request` is not read.
pub(super) fn unread(request: &Parts) -> Option<Unread> {
    let headers = &request.headers;
    if request.method == Method::POST && is_grpc(headers) {
        return Some(Unread::Grpc);
    }
    let is_plain = lists_only(headers, &CONTENT_ENCODING, "identity")
        && lists_only(headers, &TRANSFER_ENCODING, "chunked");
    (!is_plain).then_some(Unread::Compressed)
}

/// The bytes that `Content-Length` or `body` announces, the larger number of both.
pub(super) fn announced(request: &Parts, body: &impl Body) -> Option<u64> {
    let length = request.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let least = Some(body.size_hint().lower()).filter(|bytes| *bytes > 0);
    length.max(least)
}

/// gRPC and grpc-web, as in the core: `application/grpc`, alone or with a suffix.
fn is_grpc(headers: &HeaderMap) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    kind.get(..GRPC.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(GRPC))
        && matches!(kind.get(GRPC.len()), None | Some(b'+' | b'-' | b';' | b' '))
}

/// Whether all elements of the list `name` are `only`.
fn lists_only(headers: &HeaderMap, name: &HeaderName, only: &str) -> bool {
    headers.get_all(name).iter().all(|line| {
        let mut elements = line.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        elements.all(|element| element.is_empty() || element.eq_ignore_ascii_case(only.as_bytes()))
    })
}
