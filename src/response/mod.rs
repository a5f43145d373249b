//! What a client sees: headers on every response, and the rejections.
//!
//! [`Headers`] chooses the headers. A [`ResponseMapper`] makes the response to a [`Rejection`]: [`ProblemDetails`] for HTTP
//! and [`GrpcStatus`] for gRPC, or your own.

mod body;
mod grpc;
mod head;
mod headers;
mod mapper;
mod problem;
mod reject;
mod rejection;
#[cfg(feature = "tonic")]
mod tonic;
mod words;

pub(crate) use self::{
    body::AnyBody,
    head::{RequestHead, is_grpc},
    headers::{HeaderWriter, is_read, mark_request, mark_response, note_refund},
    reject::{reject, replace},
};
pub use self::{
    body::{BodyError, RejectionBody},
    grpc::GrpcStatus,
    headers::{Dialect, Headers},
    mapper::{ResponseMapper, from_fn},
    problem::ProblemDetails,
    rejection::Rejection,
};
