//! What a key is made of.

use std::net::IpAddr;

use super::Key;

impl From<&str> for Key {
    fn from(identity: &str) -> Self {
        Self::new(identity)
    }
}

impl From<String> for Key {
    fn from(identity: String) -> Self {
        Self::new(identity)
    }
}

impl From<&[u8]> for Key {
    fn from(identity: &[u8]) -> Self {
        Self::new(identity)
    }
}

impl From<Vec<u8>> for Key {
    fn from(identity: Vec<u8>) -> Self {
        Self::new(identity)
    }
}

impl From<i64> for Key {
    fn from(identity: i64) -> Self {
        Self::new(identity.to_string())
    }
}

impl From<u32> for Key {
    fn from(identity: u32) -> Self {
        Self::new(identity.to_string())
    }
}

impl From<u64> for Key {
    fn from(identity: u64) -> Self {
        Self::new(identity.to_string())
    }
}

/// The address itself, every bit of it; [`PeerIp`](crate::PeerIp) is what groups IPv6 networks.
impl From<IpAddr> for Key {
    fn from(identity: IpAddr) -> Self {
        Self::new(identity.to_canonical().to_string())
    }
}
