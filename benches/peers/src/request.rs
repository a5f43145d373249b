//! The request that every caller sends.

use axum::body::Body;
use http::{HeaderName, HeaderValue, Request};

/// All contenders tell clients apart by this header.
pub(crate) const KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The first extension of a request makes the map of all. A request to axum has some before any layer sees it.
#[derive(Clone)]
struct Extended;

pub(crate) fn request(key: HeaderValue, is_extended: bool) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    request.headers_mut().insert(KEY, key);
    if is_extended {
        request.extensions_mut().insert(Extended);
    }
    request
}
