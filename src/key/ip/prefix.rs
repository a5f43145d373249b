//! The network by which addresses are grouped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    base::{Error, ErrorKind},
    key::Key,
};

/// How many leading bits of an IPv6 address count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefix(u8);

/// The prefixes of addresses with an IPv4 address in them.
const NAT64: u128 = 0x0064_ff9b << 96;
const TEREDO: u128 = 0x2001_0000 << 96;
const SIX_TO_FOUR: u128 = 0x2002 << 112;

impl Prefix {
    pub(super) const DEFAULT: Self = Self(64);

    pub(super) fn new(bits: u8) -> Result<Self, Error> {
        match bits {
            1..=128 => Ok(Self(bits)),
            _ => Err(Error::invalid("an IPv6 prefix must have 1 to 128 bits")),
        }
    }

    /// The key of `address`. A link-local IPv6 address has a separate key.
    pub(super) fn key(self, address: IpAddr) -> Key {
        match address.to_canonical() {
            IpAddr::V4(address) => Key::of_octets(address),
            IpAddr::V6(address) => {
                if let Some(address) = ipv4_in(address) {
                    return Key::of_octets(address);
                }
                let bits = if address.is_unicast_link_local() { 128 } else { self.0 };
                let network = address.to_bits() & (u128::MAX << (128 - u32::from(bits)));
                Key::new(format!("{}/{bits}", Ipv6Addr::from_bits(network)))
            }
        }
    }

    /// The key of the address that `named` is the text of, or `named` itself if it is the key of a network.
    pub(super) fn keys_of(self, named: &Key) -> Result<Vec<Key>, Error> {
        let text = named.identity();
        let text = text.as_deref().unwrap_or_default();
        if let Ok(address) = text.parse() {
            return Ok(vec![self.key(address)]);
        }
        let network = text.split_once('/').and_then(|(address, _)| address.parse().ok());
        match network.map(|address| self.key(address)) {
            Some(key) if key == *named => Ok(vec![key]),
            _ => Err(Error::new(
                ErrorKind::InvalidIdentity,
                format!("{text:?} is not an IP address: leave out the port, and use `within` for networks"),
            )),
        }
    }
}

/// The IPv4 address of the client that `address` stands for. Without it, all IPv4 clients of a gateway would
/// share the key of its network.
pub(super) fn ipv4_in(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = address.to_bits();
    let starts_with = |prefix: u128, length: u32| (bits ^ prefix) >> (128 - length) == 0;
    // `::` and `::1` have no IPv4 address in them.
    let is_compatible = starts_with(0, 96) && bits > 1;
    let embedded = if is_compatible || starts_with(NAT64, 96) {
        bits as u32
    } else if starts_with(TEREDO, 32) {
        !(bits as u32)
    } else if starts_with(SIX_TO_FOUR, 16) {
        (bits >> 80) as u32
    } else {
        return None;
    };
    Some(Ipv4Addr::from_bits(embedded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_key_of_its_network() {
        struct Row {
            name: &'static str,
            address: &'static str,
            prefix: u8,
            key: &'static str,
        }
        let rows = [
            Row { name: "v4", address: "203.0.113.7", prefix: 64, key: "203.0.113.7" },
            Row { name: "the longest v4", address: "255.255.255.255", prefix: 64, key: "255.255.255.255" },
            Row { name: "v4 mapped", address: "::ffff:203.0.113.7", prefix: 64, key: "203.0.113.7" },
            Row { name: "mapped, in hex", address: "::ffff:cb00:7107", prefix: 64, key: "203.0.113.7" },
            Row { name: "looks mapped", address: "2001:db8::203.0.113.7", prefix: 64, key: "2001:db8::/64" },
            Row { name: "v6", address: "2001:db8:1:2:3:4:5:6", prefix: 64, key: "2001:db8:1:2::/64" },
            Row { name: "v6 by /56", address: "2001:db8:1:2fff::1", prefix: 56, key: "2001:db8:1:2f00::/56" },
            Row { name: "link-local", address: "fe80::1:2", prefix: 64, key: "fe80::1:2/128" },
            Row { name: "NAT64", address: "64:ff9b::203.0.113.7", prefix: 64, key: "203.0.113.7" },
            Row {
                name: "beside NAT64",
                address: "64:ff9b:0:0:0:1:cb00:7107",
                prefix: 64,
                key: "64:ff9b::/64",
            },
            Row {
                name: "Teredo",
                address: "2001:0:5ef5:79fd:0:59d:34ff:8ef8",
                prefix: 64,
                key: "203.0.113.7",
            },
            Row { name: "beside Teredo", address: "2001:1::34ff:8ef8", prefix: 64, key: "2001:1::/64" },
            Row { name: "6to4", address: "2002:cb00:7107:1::1", prefix: 48, key: "203.0.113.7" },
            Row { name: "compatible", address: "::203.0.113.7", prefix: 64, key: "203.0.113.7" },
            Row { name: "unspecified", address: "::", prefix: 64, key: "::/64" },
            Row { name: "loopback", address: "::1", prefix: 64, key: "::/64" },
            Row { name: "v6, all bits", address: "2001:db8::1", prefix: 128, key: "2001:db8::1/128" },
        ];
        for Row { name, address, prefix, key } in rows {
            let prefix = Prefix::new(prefix).unwrap();
            assert_eq!(prefix.key(address.parse().unwrap()).as_str(), key, "{name}");
        }
    }
}
