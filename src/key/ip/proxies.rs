//! [`TrustedProxies`]: the proxies whose headers are believed.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;

use super::network::Network;
use crate::base::{Error, valid};

/// How many hops of a list are read, from the right.
pub(super) const MAX_HOPS: usize = 64;

/// The proxies in front of the service, whose forwarding headers are trusted. How to choose them:
/// [the client's address behind proxies](crate::guide::client_ip).
///
/// # Example
///
/// ```
/// use std::net::SocketAddr;
/// use http::Request;
/// use tower_ratelimit::{ClientIp, key::TrustedProxies};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let request = || Request::get("/").header("x-forwarded-for", "203.0.113.7");
/// let through_tcp = request().extension(SocketAddr::from(([10, 0, 0, 2], 80))).body(())?.into_parts().0;
///
/// let networks = ClientIp::behind(TrustedProxies::cidrs(["10.0.0.0/24", "fd00::/64"])?);
/// assert_eq!(networks.address(&through_tcp)?.to_string(), "203.0.113.7");
///
/// // Exactly one proxy, with any address: safe only if no client can bypass it.
/// let hops = ClientIp::behind(TrustedProxies::hops(1));
/// assert_eq!(hops.address(&through_tcp)?.to_string(), "203.0.113.7");
///
/// // An nginx on the same host that connects through a Unix socket.
/// # #[cfg(all(unix, feature = "axum"))] {
/// use std::os::unix::net::SocketAddr as UnixAddr;
/// let nginx = UnixAddr::from_pathname("/run/nginx")?;
/// let through_socket = request().extension(nginx).body(())?.into_parts().0;
/// assert!(networks.address(&through_socket).is_err());
/// let socket = ClientIp::behind(TrustedProxies::cidrs(["127.0.0.1"])?.and_unix_socket());
/// assert_eq!(socket.address(&through_socket)?.to_string(), "203.0.113.7");
/// # }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "proxies are not trusted until a `ClientIp` uses them"]
pub struct TrustedProxies(pub(super) Trust);

#[derive(Clone, Debug)]
pub(super) enum Trust {
    Networks { networks: Networks, unix_socket: bool },
    Hops(usize),
}

impl TrustedProxies {
    /// Trusts proxies whose addresses are in `cidrs`, such as `10.0.0.0/24` and `fd00::/64`. An address
    /// without a prefix length is the network of that address.
    ///
    /// List only networks that contain no clients: a client in one of them can choose its key. If you list
    /// the networks of a CDN, you trust it with the requests of all its customers.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig): one of `cidrs` is neither a network nor an
    /// address. The message names it.
    pub fn cidrs(cidrs: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Error> {
        Ok(Self(Trust::Networks { networks: Networks::parse(cidrs)?, unix_socket: false }))
    }

    /// Trusts the last `count` proxies that every request passes, regardless of their addresses.
    ///
    /// # Panics
    ///
    /// If `count` is 0 or above 64. Without proxies use [`PeerIp`](crate::PeerIp).
    /// [`try_hops`](Self::try_hops) gives an error instead.
    #[track_caller]
    pub fn hops(count: usize) -> Self {
        valid(Self::try_hops(count))
    }

    /// The fallible form of [`hops`](Self::hops), for a number read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`hops`](Self::hops) panics.
    pub fn try_hops(count: usize) -> Result<Self, Error> {
        match count {
            1..=MAX_HOPS => Ok(Self(Trust::Hops(count))),
            _ => Err(Error::invalid("the number of trusted proxies must be 1 to 64")),
        }
    }

    /// Also trusts a peer on a Unix socket, such as an nginx on the same host.
    ///
    /// [`hops`](Self::hops) trusts every peer already.
    pub fn and_unix_socket(mut self) -> Self {
        if let Trust::Networks { unix_socket, .. } = &mut self.0 {
            *unix_socket = true;
        }
        self
    }
}

/// A set of addresses.
#[derive(Clone, Debug)]
pub(super) struct Networks {
    /// Disjoint, and sorted by the lowest address.
    sorted: Arc<[IpNet]>,
}

impl Networks {
    /// The networks `cidrs`. An address without a prefix length is the network of that address.
    pub(super) fn parse(cidrs: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Error> {
        let parsed = cidrs.into_iter().map(|cidr| Ok(cidr.as_ref().parse::<Network>()?.0));
        let parsed = parsed.collect::<Result<Vec<_>, Error>>()?;
        let mut sorted = IpNet::aggregate(&parsed);
        sorted.sort_unstable_by_key(IpNet::network);
        Ok(Self { sorted: sorted.into() })
    }

    /// Whether `address`, in canonical form, is in one of them.
    pub(super) fn contain(&self, address: IpAddr) -> bool {
        let after = self.sorted.partition_point(|network| network.network() <= address);
        after
            .checked_sub(1)
            .and_then(|at| self.sorted.get(at))
            .is_some_and(|network| network.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ErrorKind;

    #[test]
    fn an_address_is_in_a_network_by_its_leading_bits() {
        struct Row {
            name: &'static str,
            cidrs: &'static [&'static str],
            inside: &'static [&'static str],
            outside: &'static [&'static str],
        }
        let rows = [
            Row { name: "none", cidrs: &[], inside: &[], outside: &["0.0.0.0", "::", "10.0.0.1"] },
            Row {
                name: "v4",
                cidrs: &["10.0.0.0/8"],
                inside: &["10.0.0.0", "10.255.255.255"],
                outside: &["9.255.255.255", "11.0.0.0", "::a00:1"],
            },
            Row { name: "address", cidrs: &["10.0.0.7"], inside: &["10.0.0.7"], outside: &["10.0.0.6"] },
            Row { name: "v6 address", cidrs: &["fd00::1"], inside: &["fd00::1"], outside: &["fd00::"] },
            Row { name: "spaces", cidrs: &[" 10.0.0.0/8 "], inside: &["10.1.1.1"], outside: &["11.1.1.1"] },
            Row { name: "host bits", cidrs: &["10.1.2.3/8"], inside: &["10.0.0.0"], outside: &["11.0.0.0"] },
            Row {
                name: "all of v4",
                cidrs: &["0.0.0.0/0"],
                inside: &["0.0.0.0", "255.255.255.255"],
                outside: &["::", "::1"],
            },
            Row {
                name: "mapped",
                cidrs: &["::ffff:10.0.0.0/104", "::ffff:192.0.2.1"],
                inside: &["10.2.3.4", "192.0.2.1"],
                outside: &["11.0.0.0", "192.0.2.2"],
            },
            Row {
                name: "nested, touching and in any order",
                cidrs: &["fd00::/8", "10.128.0.0/9", "10.1.0.0/16", "10.0.0.0/9", "192.0.2.0/24"],
                inside: &["10.1.0.0", "10.255.0.0", "192.0.2.255", "fdff::1"],
                outside: &["192.0.3.0", "11.0.0.0", "fc00::", "fe00::"],
            },
        ];
        for Row { name, cidrs, inside, outside } in rows {
            let networks = Networks::parse(cidrs).unwrap();
            for address in inside {
                assert!(networks.contain(address.parse().unwrap()), "{name}: {address}");
            }
            for address in outside {
                assert!(!networks.contain(address.parse().unwrap()), "{name}: {address}");
            }
        }
    }

    #[test]
    fn an_invalid_network_is_named_in_the_error() {
        for cidr in
            ["", "10.0.0.0/33", "10.0.0/8", "fd00::/129", "10.0.0.0/", "localhost", "10.0.0.0/8,", "/8"]
        {
            let error = Networks::parse(["192.0.2.0/24", cidr]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{cidr}");
            assert!(error.to_string().starts_with(&format!("{cidr:?} is neither")), "{error}");
        }
    }
}
