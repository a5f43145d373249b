//! The request that every caller sends.

use axum::body::Body;
use http::{HeaderName, HeaderValue, Request};

/// All contenders tell clients apart by this header.
pub(crate) const KEY: HeaderName = HeaderName::from_static("x-api-key");

pub(crate) fn request(key: HeaderValue) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    request.headers_mut().insert(KEY, key);
    request
}
