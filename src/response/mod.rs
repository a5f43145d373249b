//! What a client sees: headers on every response, and the rejections.
//!
//! [`Headers`] chooses the headers. A [`ResponseMapper`] makes the response to a [`Rejection`]: [`ProblemDetails`] for HTTP
//! and [`GrpcStatus`] for gRPC, or your own.

mod grpc;
mod headers;
mod mapper;
mod problem;
mod reject;
mod rejection;
#[cfg(feature = "tonic")]
mod tonic;
mod words;

pub use self::{
    grpc::GrpcStatus,
    headers::{Dialect, Headers},
    mapper::{RejectionBody, ResponseMapper, from_fn},
    problem::ProblemDetails,
    rejection::Rejection,
};
pub(crate) use self::{
    grpc::is_grpc,
    headers::{HeaderWriter, is_read, mark_request, mark_response, note_refund},
    reject::{RequestHead, reject, replace},
};
