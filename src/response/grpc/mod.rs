//! Rejections of gRPC calls.

#[cfg(feature = "tonic")]
mod details;
mod request;
mod status;

pub(crate) use self::request::is_grpc;
pub(super) use self::request::{
    GRPC_DETAILS, GRPC_MESSAGE, GRPC_PUSHBACK, GRPC_STATUS, grpc_type, is_grpc_type,
};
pub use self::status::{GrpcCode, GrpcStatus};
