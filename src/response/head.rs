//! What a response depends on in its request: HTTP or gRPC, HEAD, and what a mapper reads.

use http::{HeaderMap, HeaderValue, Method, Request, header::CONTENT_TYPE, request::Parts};

/// What a mapper reads of a request that is with the service, in case the service rejects it.
#[derive(Debug)]
pub(crate) enum RequestHead {
    /// What the default mappers read.
    Kind { is_head: bool, grpc_type: Option<&'static str> },
    /// The whole head, for a mapper that reads it.
    Whole(Box<Parts>),
}

impl RequestHead {
    /// What identifies HEAD requests and gRPC calls. `is_call` is [`is_grpc`].
    #[inline]
    pub(crate) fn kind(request: &Parts, is_call: bool) -> Self {
        let grpc_type = is_call.then(|| grpc_type(&request.headers));
        Self::Kind { is_head: request.method == Method::HEAD, grpc_type }
    }

    #[cold]
    pub(crate) fn whole(request: &Parts) -> Self {
        Self::Whole(Box::new(request.clone()))
    }

    pub(crate) fn into_parts(self) -> Parts {
        let (mut parts, ()) = Request::new(()).into_parts();
        match self {
            Self::Whole(whole) => parts = *whole,
            Self::Kind { is_head: true, .. } => parts.method = Method::HEAD,
            Self::Kind { grpc_type: Some(kind), .. } => {
                parts.method = Method::POST;
                parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            }
            Self::Kind { .. } => {}
        }
        parts
    }
}

/// Whether the client speaks gRPC or grpc-web, and understands no other response. Both are POST requests:
/// another request with that content type would be rejected with a 200 that caches may keep.
pub(crate) fn is_grpc(request: &Parts) -> bool {
    request.method == Method::POST && is_grpc_type(&request.headers)
}

/// Whether the content type of a request or a response is gRPC or grpc-web.
pub(super) fn is_grpc_type(headers: &HeaderMap) -> bool {
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

/// The content type of the response. grpc-web clients expect the type of their request, one of those that
/// exist.
pub(super) fn grpc_type(request: &HeaderMap) -> &'static str {
    let kind = request.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let begins = |known: &&str| {
        kind.get(..known.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(known.as_bytes()))
    };
    GRPC_TYPES.into_iter().find(begins).unwrap_or("application/grpc")
}
