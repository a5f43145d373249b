//! Who is asking: a [`Key`], and how to find it in a request.

#[cfg(feature = "axum")]
mod axum;
mod client_ip;
mod combine;
mod constant;
mod extractor;
mod forwarding;
mod header;
mod ip;
mod matcher;
mod networks;
mod peer;
mod request;
mod secret;
mod transform;
mod value;

pub(crate) use self::secret::Secret;
#[cfg(feature = "axum")]
pub use self::{axum::FromExtractor, request::MatchedRoute};
pub use self::{
    client_ip::{ClientIp, ForwardingHeader, TrustedProxies},
    combine::Or,
    constant::Constant,
    extractor::{IntoKey, KeyExtractor},
    header::Header,
    ip::PeerIp,
    matcher::{AnyOf, RequestMatcher},
    networks::Within,
    request::{Cookie, FromExtension, RequestMethod, RequestPath},
    transform::{Hashed, Map},
    value::Key,
};
