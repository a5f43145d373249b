use std::net::{IpAddr, Ipv6Addr};

use crate::{
    error::{Error, ErrorKind},
    key::Key,
};

/// How many leading bits of an IPv6 address make its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefix(u8);

impl Prefix {
    pub(super) const DEFAULT: Self = Self(64);

    pub(super) const fn new(bits: u8) -> Result<Self, &'static str> {
        match bits {
            1..=128 => Ok(Self(bits)),
            _ => Err("an IPv6 prefix must have 1 to 128 bits"),
        }
    }

    pub(super) const fn bits(self) -> u8 {
        self.0
    }

    /// The key of `address`. A link-local IPv6 address has a key of its own.
    pub(super) fn key(self, address: IpAddr) -> Key {
        match address.to_canonical() {
            IpAddr::V4(address) => Key::of_octets(address),
            IpAddr::V6(address) => {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_an_address_is_that_of_its_network() {
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
            Row { name: "v6, all bits", address: "2001:db8::1", prefix: 128, key: "2001:db8::1/128" },
        ];
        for Row { name, address, prefix, key } in rows {
            let prefix = Prefix::new(prefix).unwrap();
            assert_eq!(prefix.key(address.parse().unwrap()).as_str(), key, "{name}");
        }
    }
}
