//! What a client is told: fields on every response, and an answer in place of the service's.

mod grpc;
mod headers;
mod mapper;
mod problem;
mod rejection;

pub use self::{
    grpc::GrpcStatus,
    headers::Headers,
    mapper::{RejectionBody, ResponseMapper},
    problem::ProblemDetails,
    rejection::Rejection,
};
pub(crate) use self::{
    grpc::is_grpc,
    headers::{decorate, mark_request},
    mapper::refuse,
};
