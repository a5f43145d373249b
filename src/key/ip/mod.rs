//! The address of a request's client.

mod client;
mod forwarding_header;
mod peer;
mod prefix;
mod proxies;
mod warn_once;

pub(crate) use self::peer::preflight_key;
pub use self::{
    client::ClientIp,
    peer::PeerIp,
    prefix::ipv4_in,
    proxies::{TrustedProxies, network},
};
