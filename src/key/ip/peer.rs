use std::net::{IpAddr, Ipv6Addr};

use http::request::Parts;

use super::{Within, connection::Peer, networks::Networks};
use crate::key::{Key, KeyExtractor};
use crate::{
    answer::Answer,
    error::{Error, ErrorKind},
};

/// The address at the other end of the connection. IPv6 addresses count by their /64 network, which is
/// what one customer gets; link-local ones (`fe80::/10`), which are all in one network, by the whole address.
///
/// No header is read. **Behind a load balancer or a proxy this is the proxy's address**, one for all
/// its clients, and the wrong key: use [`ClientIp`](crate::ClientIp) there.
///
/// # Where the address comes from
///
/// The first of these that the request's extensions hold:
///
/// | extension | feature | put there by |
/// |---|---|---|
/// | `ConnectInfo<SocketAddr>`, `MockConnectInfo<SocketAddr>` | `axum` | axum, served as below |
/// | `TcpConnectInfo` | `tonic` | tonic's server, with its own TLS too |
/// | `TlsConnectInfo<TcpConnectInfo>` | `tonic-tls` | tonic's server, over TLS streams of yours |
/// | [`SocketAddr`](std::net::SocketAddr) | | you |
///
/// ```text
/// axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
/// ```
///
/// Where there is none, requests are answered 500 and the error says which call is missing.
///
/// A Unix socket has no address. One is known by tonic's `UdsConnectInfo`, and by the `SocketAddr` of Unix
/// sockets, that of tokio (feature `axum`) or of std, in `ConnectInfo` or by itself. Such a request is
/// answered 500 too, and the error says so. What helps is
/// [`TrustedProxies::and_unix_socket`](crate::TrustedProxies::and_unix_socket).
///
/// # Example
///
/// ```
/// use std::net::SocketAddr;
/// use http::Request;
/// use tower_ratelimit::{ErrorKind, Key, KeyExtractor, PeerIp};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let from = |peer: &str| {
///     let peer: SocketAddr = peer.parse().unwrap();
///     Request::get("/").extension(peer).body(()).unwrap().into_parts().0
/// };
/// let key = PeerIp::new();
/// assert_eq!(key.extract(&from("203.0.113.7:4711")).await?, Key::new("203.0.113.7"));
/// // The same address in its IPv6 form.
/// assert_eq!(key.extract(&from("[::ffff:203.0.113.7]:4711")).await?, Key::new("203.0.113.7"));
/// assert_eq!(key.extract(&from("[2001:db8::1]:80")).await?, Key::new("2001:db8::/64"));
///
/// let (parts, ()) = Request::get("/").body(())?.into_parts();
/// assert_eq!(key.extract(&parts).await.unwrap_err().kind(), ErrorKind::MissingSetup);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PeerIp {
    ipv6_prefix: u8,
}

impl PeerIp {
    /// The address of the connection's other end, IPv6 addresses by their /64 network.
    #[must_use]
    pub const fn new() -> Self {
        Self { ipv6_prefix: 64 }
    }

    /// How many leading bits of an IPv6 address count. Defaults to 64; 56 and 48 are what larger
    /// customers get. All bits of a link-local address count.
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

    /// The peer's whole address, whatever [`ipv6_prefix`](Self::ipv6_prefix) says. An IPv4 address in its
    /// IPv6 form is given as IPv4.
    ///
    /// # Errors
    ///
    /// [`MissingSetup`](ErrorKind::MissingSetup): the server does not say who its peer is, or the peer is a
    /// Unix socket.
    pub fn address(&self, request: &Parts) -> Result<IpAddr, Error> {
        match Peer::of(request) {
            Peer::Address(address) => Ok(address),
            Peer::UnixSocket => Err(Error::new(
                ErrorKind::MissingSetup,
                "the peer is a Unix socket, which has no address: use `ClientIp` with \
                 `TrustedProxies::and_unix_socket`, or another key",
            )),
            Peer::Unknown => Err(unknown_peer()),
        }
    }

    /// The requests whose peer is in one of `networks`, such as `10.0.0.0/8`; an address on its own is the
    /// network of itself. See [`Within`] for an example.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig): one of `networks` is neither; the message names it.
    pub fn within(self, networks: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Within<Self>, Error> {
        Ok(Within::new(self, Networks::parse(networks)?))
    }

    /// The key of the address that `named` is the text of, or of the network, which is a key already.
    pub(super) fn key_of(self, named: &Key) -> Result<Key, Error> {
        let text = named.identity();
        let text = text.as_deref().unwrap_or_default();
        if let Ok(address) = text.parse() {
            return Ok(self.key(address));
        }
        let network = text.split_once('/').and_then(|(address, _)| address.parse().ok());
        match network.map(|address| self.key(address)) {
            Some(key) if key == *named => Ok(key),
            _ => Err(Error::new(
                ErrorKind::InvalidConfig,
                format!("{text:?} is not an IP address: name it without a port, and networks with `within`"),
            )),
        }
    }

    /// The key of `address`.
    pub(crate) fn key(self, address: IpAddr) -> Key {
        match address.to_canonical() {
            IpAddr::V4(address) => Key::of_octets(address),
            IpAddr::V6(address) => {
                let prefix = if address.is_unicast_link_local() { 128 } else { self.ipv6_prefix };
                let network = address.to_bits() & (u128::MAX << (128 - u32::from(prefix)));
                Key::new(format!("{}/{prefix}", Ipv6Addr::from_bits(network)))
            }
        }
    }
}

impl Default for PeerIp {
    fn default() -> Self {
        Self::new()
    }
}

impl KeyExtractor for PeerIp {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        Answer::ready(self.address(request).map(|address| self.key(address)))
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        self.key_of(named).map(|key| vec![key])
    }
}

pub(super) fn unknown_peer() -> Error {
    Error::new(
        ErrorKind::MissingSetup,
        "the server does not know its peers' addresses: serve the axum router with \
         `into_make_service_with_connect_info::<SocketAddr>()`, or put a `SocketAddr` into the \
         request's extensions",
    )
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
            Row { name: "link-local", address: "fe80::1:2", prefix: 64, key: "fe80::1:2/128" },
            Row { name: "v6, all of it", address: "2001:db8::1", prefix: 128, key: "2001:db8::1/128" },
        ];
        for Row { name, address, prefix, key } in rows {
            let extractor = PeerIp::new().ipv6_prefix(prefix);
            assert_eq!(extractor.key(address.parse().unwrap()).as_str(), key, "{name}");
        }
    }
}
