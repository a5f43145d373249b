//! Who is asking: a [`Key`], and how to find it in a request.

#[cfg(feature = "axum")]
mod axum;
mod bearer;
mod combine;
mod constant;
mod convert;
mod cookie;
mod extractor;
mod grpc;
mod header;
mod identity;
mod ip;
mod keys;
mod marks;
mod matcher;
mod preflight;
mod request;
mod secret;
mod transform;
mod value;

#[cfg(feature = "axum")]
pub use self::{axum::FromExtractor, request::MatchedRoute};
pub use self::{
    bearer::Bearer,
    combine::Or,
    constant::Constant,
    cookie::Cookie,
    extractor::{IntoKey, KeyExtractor},
    grpc::{GrpcMethod, GrpcService},
    header::Header,
    ip::{ClientIp, ForwardingHeader, PeerIp, TrustedProxies, Within},
    matcher::{AnyOf, RequestMatcher},
    request::{FromExtension, RequestMethod, RequestPath},
    transform::{Hashed, Map},
    value::Key,
};
pub(crate) use self::{keys::Keys, preflight::preflight_key, secret::Secret};
