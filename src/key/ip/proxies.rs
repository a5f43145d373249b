use super::{hops::MAX_HOPS, networks::Networks};
use crate::base::Error;

/// The proxies in front of the service, whose forwarding headers are trusted. See [`ClientIp`](crate::ClientIp) for an
/// example.
#[derive(Clone, Debug)]
#[must_use = "proxies are not trusted until a `ClientIp` uses them"]
pub struct TrustedProxies(pub(super) Trust);

#[derive(Clone, Debug)]
pub(super) enum Trust {
    Networks { networks: Networks, unix_socket: bool },
    Hops(usize),
}

impl TrustedProxies {
    /// Trusts proxies whose addresses are in `cidrs`, such as `10.0.0.0/8` and `fd00::/8`. An address without a prefix
    /// length is the network of that address.
    ///
    /// List only networks that contain no clients: a client in one of them can choose its key. If you list the networks
    /// of a CDN, you trust it with the requests of all its customers.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig): one of `cidrs` is neither a network nor an address. The
    /// message names it.
    pub fn cidrs(cidrs: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Error> {
        Ok(Self(Trust::Networks { networks: Networks::parse(cidrs)?, unix_socket: false }))
    }

    /// Trusts the last `count` proxies that every request passes, regardless of their addresses.
    ///
    /// # Panics
    ///
    /// If `count` is 0 or above 64. Without proxies use [`PeerIp`](crate::PeerIp).
    #[track_caller]
    pub const fn hops(count: usize) -> Self {
        assert!(matches!(count, 1..=MAX_HOPS), "the number of trusted proxies must be 1 to 64");
        Self(Trust::Hops(count))
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
