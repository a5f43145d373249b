//! Rejections of gRPC calls.

mod code;
#[cfg(feature = "tonic")]
mod details;
mod message;
mod names;
mod request;
mod status;

pub(crate) use self::request::is_grpc;
pub use self::{code::GrpcCode, status::GrpcStatus};
pub(super) use self::{
    names::{GRPC_DETAILS, GRPC_MESSAGE, GRPC_PUSHBACK, GRPC_STATUS},
    request::{grpc_type, is_grpc_type},
};
