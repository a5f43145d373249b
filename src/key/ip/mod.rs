//! The address of a request's client.

mod client;
mod connection;
mod forwarding;
mod networks;
mod peer;

pub use self::{
    client::{ClientIp, ForwardingHeader, TrustedProxies},
    networks::Within,
    peer::PeerIp,
};
