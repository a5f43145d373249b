//! A mapper's response, with everything that must hold for any mapper.

use std::mem;

use http::{
    HeaderName, HeaderValue, Method, Response, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH,
        CONTENT_RANGE, CONTENT_TYPE, ETAG, LAST_MODIFIED, RETRY_AFTER, TRAILER, TRANSFER_ENCODING,
    },
    request, response,
};
use http_body::Body as _;

use super::{
    body::RejectionBody,
    grpc::is_grpc,
    headers::{HeaderWriter, add_retry_after, add_retry_after_of_store, insert, insert_new},
    mapper::ResponseMapper,
    rejection::Rejection,
    returned::Returned,
};

/// Headers that describe the replaced body, or that the layer sets.
const REPLACED: [HeaderName; 16] = [
    CACHE_CONTROL,
    CONTENT_DISPOSITION,
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_TYPE,
    ETAG,
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("repr-digest"),
    LAST_MODIFIED,
    RETRY_AFTER,
    TRAILER,
    TRANSFER_ENCODING,
    HeaderName::from_static("content-md5"),
];

/// The response to a request that the layer rejects.
pub(crate) fn reject(
    mapper: &dyn ResponseMapper,
    rejection: &Rejection,
    request: &request::Parts,
    headers: &HeaderWriter,
) -> Response<RejectionBody> {
    let mut response = mapped(mapper, rejection, request);
    if let Some(decision) = rejection.decision() {
        headers.decorate_rejection(&mut response, decision, request);
    }
    finish(&mut response, request);
    response
}

/// The response to a request that the service has rejected with the response `returned`: without the headers of the layer.
/// A status other than the rejection's, and headers that do not describe the body, are the service's own and kept.
pub(crate) fn replace(
    mapper: &dyn ResponseMapper,
    rejection: &Rejection,
    request: &request::Parts,
    returned: response::Parts,
) -> Response<RejectionBody> {
    let mut response = mapped(mapper, rejection, request);
    if returned.status != rejection.status() && !is_grpc(request) {
        *response.status_mut() = returned.status;
    }
    let headers = response.headers_mut();
    let own: Vec<_> = returned.headers.keys().filter(|name| !REPLACED.contains(name)).collect();
    for name in own.into_iter().filter(|name| !headers.contains_key(*name)).collect::<Vec<_>>() {
        for value in returned.headers.get_all(name) {
            let _ = headers.try_append(name, value.clone());
        }
    }
    if let Some(decision) = rejection.decision() {
        add_retry_after(headers, decision);
    }
    finish(&mut response, request);
    // The mapper's own win.
    let mut extensions = returned.extensions;
    extensions.extend(mem::take(response.extensions_mut()));
    *response.extensions_mut() = extensions;
    if let Some(decision) = rejection.decision() {
        response.extensions_mut().insert(decision.clone());
    }
    response
}

fn mapped(
    mapper: &dyn ResponseMapper,
    rejection: &Rejection,
    request: &request::Parts,
) -> Response<RejectionBody> {
    let mut response = mapper.response(rejection, request);
    // Left by a mapper that returns the rejection's own response. An outer layer would map it again.
    Returned::take(&mut response);
    if response.status() == StatusCode::OK && !is_grpc(request) {
        // The mapper has set no status. A client would take the rejection for a success.
        *response.status_mut() = rejection.status();
    }
    if let (Rejection::Unavailable(_), StatusCode::SERVICE_UNAVAILABLE) = (rejection, response.status()) {
        add_retry_after_of_store(response.headers_mut());
    }
    response
}

fn finish(response: &mut Response<RejectionBody>, request: &request::Parts) {
    // Regardless of the status: the response is about one client at one moment, and caches keep some statuses by
    // default.
    insert_new(response.headers_mut(), CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if request.method == Method::HEAD {
        // The length of the content that GET would get.
        if let Some(length) = response.body().size_hint().exact() {
            insert(response.headers_mut(), CONTENT_LENGTH, length);
        }
        *response.body_mut() = RejectionBody::empty();
    }
}
