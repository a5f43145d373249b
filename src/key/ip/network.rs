//! [`Network`]: addresses with the same leading bits.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::{IpNet, Ipv4Net};

use super::prefix::ipv4_in;
use crate::base::Error;

/// A network of IP addresses, such as `203.0.113.0/24`: the addresses with the same leading bits.
///
/// An address without a prefix length is the network of that address, and an IPv4 network in IPv6 form is the IPv4
/// network. Bits after the prefix are ignored.
///
/// # Example
///
/// ```
/// use std::net::IpAddr;
/// use tower_ratelimit::key::Network;
///
/// # fn main() -> Result<(), tower_ratelimit::Error> {
/// let office: Network = "203.0.113.7/24".parse()?;
/// assert_eq!(office.to_string(), "203.0.113.0/24");
/// assert!(office.contains("203.0.113.9".parse::<IpAddr>().unwrap()));
/// assert_eq!("::ffff:192.0.2.1".parse::<Network>()?.to_string(), "192.0.2.1/32");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network(pub(super) IpNet);

impl Network {
    /// The lowest address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.0.addr()
    }

    /// The number of leading bits.
    #[must_use]
    pub fn prefix_len(&self) -> u8 {
        self.0.prefix_len()
    }

    /// Whether all addresses of `other`, a network or an address, are in this network.
    #[must_use]
    pub fn contains(&self, other: impl Into<Self>) -> bool {
        self.0.contains(&other.into().0)
    }

    /// The network with a prefix of `length` bits that contains this one. `None` if this one is larger.
    #[must_use]
    pub fn widened_to(&self, length: u8) -> Option<Self> {
        let wider = IpNet::new(self.0.addr(), length).ok().filter(|_| length <= self.0.prefix_len());
        wider.map(|wider| Self(wider.trunc()))
    }

    /// The IPv4 address that an IPv6 address stands for, behind a gateway such as NAT64: [`ClientIp`](crate::ClientIp)
    /// limits its client under that address. `None` for other addresses and for networks.
    #[must_use]
    pub fn translated(&self) -> Option<Self> {
        match self.0 {
            IpNet::V6(v6) if v6.prefix_len() == 128 => ipv4_in(v6.addr()).map(|v4| IpAddr::V4(v4).into()),
            _ => None,
        }
    }
}

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        Self(IpNet::from(address.to_canonical()))
    }
}

impl FromStr for Network {
    type Err = Error;

    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig): the text is neither a network nor an address.
    fn from_str(text: &str) -> Result<Self, Error> {
        let trimmed = text.trim();
        if let Ok(address) = trimmed.parse::<IpAddr>() {
            return Ok(address.into());
        }
        let parsed = trimmed.parse::<IpNet>().map_err(|cause| {
            invalid!("{text:?} is neither a network, such as 10.0.0.0/8, nor an address").with_source(cause)
        })?;
        Ok(Self(canonical(parsed).trunc()))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An IPv4 network in IPv6 form is the IPv4 network. Addresses are treated in the same way.
fn canonical(network: IpNet) -> IpNet {
    let mapped = match network {
        IpNet::V6(v6) => v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(96)),
        IpNet::V4(_) => None,
    };
    match mapped.map(|(address, prefix)| Ipv4Net::new(address, prefix)) {
        Some(Ok(v4)) => IpNet::V4(v4),
        _ => network,
    }
}
