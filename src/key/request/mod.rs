//! Keys of what a request contains.

mod bearer;
mod cookie;
mod extension;
#[cfg(feature = "axum")]
mod from_extractor;
mod grpc;
mod header;
mod method;
mod path;
#[cfg(feature = "axum")]
mod route;
mod value;

pub use self::{
    bearer::Bearer,
    cookie::Cookie,
    extension::FromExtension,
    grpc::{GrpcMethod, GrpcService},
    header::Header,
    method::RequestMethod,
    path::RequestPath,
};
#[cfg(feature = "axum")]
pub use self::{from_extractor::FromExtractor, route::MatchedRoute};
