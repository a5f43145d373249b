use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::request::Parts;

use super::{Key, KeyExtractor};
use crate::{Error, ErrorKind};

/// The address at the other end of the connection. IPv6 addresses count by their /64 network, which is
/// what one customer gets.
///
/// The address is axum's `ConnectInfo<SocketAddr>` (feature `axum`, on by default), so the router must
/// be served with it:
///
/// ```text
/// axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
/// ```
///
/// Without axum, put a [`SocketAddr`] into the request's extensions. Where there is neither, requests
/// are answered 500 and the error says which call is missing.
///
/// No header is read. **Behind a load balancer or a proxy this is the proxy's address**, one for all
/// its clients, and the wrong key.
///
/// # Example
///
/// ```
/// use std::net::SocketAddr;
/// use http::Request;
/// use tower_ratelimit::{ErrorKind, Key, KeyExtractor, PeerIp};
///
/// let from = |peer: &str| {
///     let peer: SocketAddr = peer.parse().unwrap();
///     Request::get("/").extension(peer).body(()).unwrap().into_parts().0
/// };
/// let key = PeerIp::default();
/// assert_eq!(key.extract(&from("203.0.113.7:4711"))?, Key::new("203.0.113.7"));
/// // The same address in its IPv6 form.
/// assert_eq!(key.extract(&from("[::ffff:203.0.113.7]:4711"))?, Key::new("203.0.113.7"));
/// assert_eq!(key.extract(&from("[2001:db8::1]:80"))?, key.extract(&from("[2001:db8::2]:80"))?);
///
/// let (parts, ()) = Request::get("/").body(())?.into_parts();
/// assert_eq!(key.extract(&parts).unwrap_err().kind(), ErrorKind::MissingSetup);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PeerIp {
    ipv6_prefix: u8,
}

impl PeerIp {
    /// How many leading bits of an IPv6 address count. Defaults to 64; 56 and 48 are what larger
    /// customers get.
    ///
    /// # Panics
    ///
    /// If `bits` is 0 or above 128.
    #[must_use]
    pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
        assert!(bits >= 1 && bits <= 128, "an IPv6 prefix has 1 to 128 bits");
        self.ipv6_prefix = bits;
        self
    }

    fn key(self, address: IpAddr) -> Key {
        match address.to_canonical() {
            IpAddr::V4(address) => Key::new(address.to_string()),
            IpAddr::V6(address) => {
                let network = address.to_bits() & (u128::MAX << (128 - u32::from(self.ipv6_prefix)));
                Key::new(format!("{}/{}", Ipv6Addr::from_bits(network), self.ipv6_prefix))
            }
        }
    }
}

impl Default for PeerIp {
    fn default() -> Self {
        Self { ipv6_prefix: 64 }
    }
}

impl KeyExtractor for PeerIp {
    fn extract(&self, request: &Parts) -> Result<Key, Error> {
        match peer(request) {
            Some(peer) => Ok(self.key(peer.ip())),
            None => Err(Error::new(
                ErrorKind::MissingSetup,
                "the server does not know its peers' addresses: serve the axum router with \
                 `into_make_service_with_connect_info::<SocketAddr>()`, or put a `SocketAddr` into the \
                 request's extensions",
            )),
        }
    }
}

fn peer(request: &Parts) -> Option<SocketAddr> {
    #[cfg(feature = "axum")]
    {
        use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

        let extensions = &request.extensions;
        if let Some(ConnectInfo(peer)) = extensions.get::<ConnectInfo<SocketAddr>>() {
            return Some(*peer);
        }
        if let Some(MockConnectInfo(peer)) = extensions.get::<MockConnectInfo<SocketAddr>>() {
            return Some(*peer);
        }
    }
    request.extensions.get::<SocketAddr>().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_count_by_their_network() {
        struct Row {
            name: &'static str,
            address: &'static str,
            prefix: u8,
            key: &'static str,
        }
        let rows = [
            Row { name: "v4", address: "203.0.113.7", prefix: 64, key: "203.0.113.7" },
            Row { name: "v4 mapped", address: "::ffff:203.0.113.7", prefix: 64, key: "203.0.113.7" },
            Row { name: "mapped, in hex", address: "::ffff:cb00:7107", prefix: 64, key: "203.0.113.7" },
            Row { name: "looks mapped", address: "2001:db8::203.0.113.7", prefix: 64, key: "2001:db8::/64" },
            Row { name: "v6", address: "2001:db8:1:2:3:4:5:6", prefix: 64, key: "2001:db8:1:2::/64" },
            Row { name: "v6 by /56", address: "2001:db8:1:2fff::1", prefix: 56, key: "2001:db8:1:2f00::/56" },
            Row { name: "v6, all of it", address: "2001:db8::1", prefix: 128, key: "2001:db8::1/128" },
        ];
        for Row { name, address, prefix, key } in rows {
            let extractor = PeerIp::default().ipv6_prefix(prefix);
            assert_eq!(extractor.key(address.parse().unwrap()).as_str(), key, "{name}");
        }
    }
}
