//! What a client is told: fields on every response, and an answer in place of the service's.

mod fields;
mod grpc;
mod headers;
mod mapper;
mod problem;
mod rejection;

pub(crate) use self::{
    fields::{decorate, mark_request},
    grpc::is_grpc,
    mapper::refuse,
};
pub use self::{
    grpc::GrpcStatus,
    headers::Headers,
    mapper::{RefusalBody, ResponseMapper},
    problem::ProblemDetails,
    rejection::Rejection,
};
