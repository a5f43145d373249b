//! Who is asking: a [`Key`], and how to find it in a request.

#[cfg(feature = "axum")]
mod axum;
mod bearer;
mod client_ip;
mod combine;
mod constant;
mod convert;
mod cookie;
mod extractor;
mod forwarding;
mod header;
mod identity;
mod ip;
mod marks;
mod matcher;
mod networks;
mod peer;
mod preflight;
mod request;
mod secret;
mod transform;
mod value;

#[cfg(feature = "axum")]
pub use self::{axum::FromExtractor, request::MatchedRoute};
pub use self::{
    bearer::Bearer,
    client_ip::{ClientIp, ForwardingHeader, TrustedProxies},
    combine::Or,
    constant::Constant,
    cookie::Cookie,
    extractor::{IntoKey, KeyExtractor},
    header::Header,
    ip::PeerIp,
    matcher::{AnyOf, RequestMatcher},
    networks::Within,
    request::{FromExtension, RequestMethod, RequestPath},
    transform::{Hashed, Map},
    value::Key,
};
pub(crate) use self::{preflight::preflight_key, secret::Secret};
