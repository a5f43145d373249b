//! What a client sees: headers on every response, and the rejections.
//!
//! [`Headers`] chooses the headers. A [`ResponseMapper`] makes the response to a [`Rejection`]: [`ProblemDetails`] for HTTP
//! and [`GrpcStatus`] for gRPC, or your own.

mod body;
mod grpc;
mod headers;
mod mapper;
mod problem;
mod reject;
mod rejection;
mod returned;
mod wait;

pub use self::{
    body::RejectionBody,
    grpc::{GrpcCode, GrpcStatus},
    headers::{Dialect, Headers},
    mapper::{ResponseMapper, from_fn},
    problem::ProblemDetails,
    rejection::Rejection,
};
pub(crate) use self::{
    grpc::is_grpc,
    headers::{HeaderWriter, is_read, mark_request},
    reject::{reject, replace},
    returned::{Kept, Returned},
};
