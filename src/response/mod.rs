//! What a client sees: headers on every response, and the rejections.
//!
//! [`RateLimitHeaders`] chooses the headers. A [`ResponseMapper`] makes the response to a [`Rejection`]:
//! [`ProblemDetails`] for HTTP and [`GrpcStatus`] for gRPC, or your own.

mod body;
mod grpc;
mod head;
pub(crate) mod headers;
mod mapper;
mod problem;
mod reject;
pub(crate) mod rejection;
#[cfg(feature = "tonic")]
mod tonic;
mod words;

pub(crate) use self::{
    body::AnyBody,
    head::{RequestHead, is_grpc},
    headers::{
        HeaderWriter, RateLimitHeaders, is_read, mark_degraded, mark_request, mark_response, note_refund,
    },
    reject::{reject, replace},
    rejection::Rejection,
};
pub use self::{
    body::{BodyError, RejectionBody},
    grpc::GrpcStatus,
    headers::Dialect,
    mapper::{ResponseMapper, from_fn},
    problem::ProblemDetails,
};
