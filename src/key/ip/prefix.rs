use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::Ipv6Net;

use crate::{
    base::{Error, ErrorKind},
    key::Key,
};

/// How an IPv6 address makes a key: which of its leading bits count, and where it may have an IPv4 address in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefix {
    bits: u8,
    /// The prefix of a NAT64 gateway, in addition to the well-known one.
    nat64: Option<Ipv6Net>,
}

/// The prefixes of addresses with an IPv4 address in them.
const NAT64: u128 = 0x0064_ff9b << 96;
const TEREDO: u128 = 0x2001_0000 << 96;
const SIX_TO_FOUR: u128 = 0x2002 << 112;

impl Prefix {
    pub(super) const DEFAULT: Self = Self { bits: 64, nat64: None };

    /// The first `bits` count.
    pub(super) const fn with_bits(self, bits: u8) -> Result<Self, &'static str> {
        match bits {
            1..=128 => Ok(Self { bits, ..self }),
            _ => Err("an IPv6 prefix must have 1 to 128 bits"),
        }
    }

    /// The IPv4 address in addresses of the network `nat64` counts.
    pub(super) fn with_nat64(self, nat64: &str) -> Result<Self, Error> {
        let network: Option<Ipv6Net> = nat64.trim().parse().ok();
        match network.filter(|network| matches!(network.prefix_len(), 32 | 40 | 48 | 56 | 64 | 96)) {
            Some(network) => Ok(Self { nat64: Some(network), ..self }),
            None => Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "{nat64:?} is not the prefix of a NAT64 gateway: write an IPv6 network of 32, 40, 48, 56, 64 or 96 \
                     bits, such as 64:ff9b:1::/96"
                ),
            )),
        }
    }

    pub(super) const fn bits(self) -> u8 {
        self.bits
    }

    /// The key of `address`. A link-local IPv6 address has a separate key.
    pub(super) fn key(self, address: IpAddr) -> Key {
        match address.to_canonical() {
            IpAddr::V4(address) => Key::of_octets(address),
            IpAddr::V6(address) => {
                if let Some(address) = self.ipv4_in(address) {
                    return Key::of_octets(address);
                }
                let bits = if address.is_unicast_link_local() { 128 } else { self.bits };
                let network = address.to_bits() & (u128::MAX << (128 - u32::from(bits)));
                Key::new(format!("{}/{bits}", Ipv6Addr::from_bits(network)))
            }
        }
    }

    /// The IPv4 address of the client that `address` stands for. Without it, all IPv4 clients of a gateway would share the
    /// key of its network.
    fn ipv4_in(self, address: Ipv6Addr) -> Option<Ipv4Addr> {
        let bits = address.to_bits();
        let starts_with = |prefix: u128, length: u32| (bits ^ prefix) >> (128 - length) == 0;
        // `::` and `::1` have no IPv4 address in them.
        let is_compatible = starts_with(0, 96) && bits > 1;
        if is_compatible || starts_with(NAT64, 96) {
            return Some(Ipv4Addr::from_bits(bits as u32));
        }
        if starts_with(TEREDO, 32) {
            return Some(Ipv4Addr::from_bits(!(bits as u32)));
        }
        if starts_with(SIX_TO_FOUR, 16) {
            return Some(Ipv4Addr::from_bits((bits >> 80) as u32));
        }
        let nat64 = self.nat64.filter(|network| network.contains(&address))?;
        // RFC 6052: after the prefix, without the octet of the bits 64 to 71.
        let mut octets = [0; 4];
        let after = usize::from(nat64.prefix_len() / 8);
        let embedded = address.octets().into_iter().enumerate().skip(after).filter(|(place, _)| *place != 8);
        octets.iter_mut().zip(embedded).for_each(|(octet, (_, embedded))| *octet = embedded);
        Some(Ipv4Addr::from(octets))
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
            let prefix = Prefix::DEFAULT.with_bits(prefix).unwrap();
            assert_eq!(prefix.key(address.parse().unwrap()).as_str(), key, "{name}");
        }
    }

    /// The examples of RFC 6052, section 2.4.
    #[test]
    fn the_ipv4_address_is_where_the_prefix_of_a_gateway_puts_it() {
        let rows = [
            ("2001:db8::/32", "2001:db8:c000:221::"),
            ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
        ];
        for (nat64, address) in rows {
            let prefix = Prefix::DEFAULT.with_nat64(nat64).unwrap();
            assert_eq!(prefix.key(address.parse().unwrap()).as_str(), "192.0.2.33", "{nat64}");
        }
        for wrong in ["64:ff9b:1::/95", "64:ff9b:1::", "192.0.2.0/24", "a gateway"] {
            let error = Prefix::DEFAULT.with_nat64(wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")) && error.contains("64:ff9b:1::/96"), "{error}");
        }
    }
}
