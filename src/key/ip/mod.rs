//! The address of a request's client.

mod client;
mod forwarding_header;
mod network;
mod peer;
mod prefix;
mod proxies;
mod warn_once;

pub(crate) use self::peer::preflight_key;
pub use self::{client::ClientIp, network::Network, peer::PeerIp, proxies::TrustedProxies};
