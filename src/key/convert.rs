//! Values that a [`Key`] can be made of.

use std::{
    borrow::Cow,
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use super::Key;

macro_rules! from_text {
    ($($text:ty),+) => { $(
        impl From<$text> for Key {
            fn from(identity: $text) -> Self {
                Self::of_bytes((*identity).as_ref())
            }
        }
    )+ };
}

macro_rules! from_number {
    ($($number:ty),+) => { $(
        impl From<$number> for Key {
            fn from(identity: $number) -> Self {
                Self::new(itoa::Buffer::new().format(identity))
            }
        }
    )+ };
}

macro_rules! from_tuple {
    ($($part:ident)+) => {
        /// The parts [joined](Key::join), such as a tenant and a user.
        impl<$($part: Into<Key>),+> From<($($part,)+)> for Key {
            #[expect(non_snake_case, reason = "the parts are named like their types")]
            fn from(($($part,)+): ($($part,)+)) -> Self {
                Self::join([$(&$part.into()),+])
            }
        }
    };
}

from_text!(String, Box<str>, Arc<str>, Cow<'_, str>, Vec<u8>);
from_number!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize);
from_tuple!(A B);
from_tuple!(A B C);
from_tuple!(A B C D);

/// The key of text or bytes.
impl<T: AsRef<[u8]> + ?Sized> From<&T> for Key {
    fn from(identity: &T) -> Self {
        Self::of_bytes(identity.as_ref())
    }
}

/// The key of the UUID with these bytes. It is the key of the UUID's text, `67e55044-10b1-426f-9247-bb680e5fe0c8`.
impl From<[u8; 16]> for Key {
    fn from(uuid: [u8; 16]) -> Self {
        let mut text = String::with_capacity(36);
        for (place, byte) in uuid.iter().enumerate() {
            if matches!(place, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            // Writing to a `String` does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        Self::new(text)
    }
}

/// The key of the whole address. [`PeerIp`](crate::PeerIp) groups IPv6 addresses by network, this does not.
impl From<IpAddr> for Key {
    fn from(identity: IpAddr) -> Self {
        Self::new(identity.to_canonical().to_string())
    }
}

impl From<Ipv4Addr> for Key {
    fn from(identity: Ipv4Addr) -> Self {
        IpAddr::V4(identity).into()
    }
}

impl From<Ipv6Addr> for Key {
    fn from(identity: Ipv6Addr) -> Self {
        IpAddr::V6(identity).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_identity_is_one_key_for_all_types() {
        let join = |parts: &[&str]| Key::join(&parts.iter().map(Key::new).collect::<Vec<_>>());
        let rows = [
            ("text", Key::from("7"), Key::from(7_u64)),
            ("a reference to a string", Key::from("7"), Key::from(&"7".to_owned())),
            (
                "borrowed or owned text",
                Key::from(Cow::Borrowed("7")),
                Key::from(Cow::<str>::Owned("7".into())),
            ),
            ("boxed text", Key::from("7"), Key::from(Box::<str>::from("7"))),
            ("signed", Key::from("-7"), Key::from(-7_i32)),
            ("a signed byte", Key::from("-128"), Key::from(i8::MIN)),
            ("a byte", Key::from("255"), Key::from(u8::MAX)),
            ("large", Key::from(u128::MAX.to_string()), Key::from(u128::MAX)),
            ("large and negative", Key::from(i128::MIN.to_string()), Key::from(i128::MIN)),
            ("bytes", Key::from(b"abc".as_slice()), Key::from(Arc::<str>::from("abc"))),
            (
                "a UUID",
                Key::from("67e55044-10b1-426f-9247-bb680e5fe0c8"),
                Key::from(0x67e5_5044_10b1_426f_9247_bb68_0e5f_e0c8_u128.to_be_bytes()),
            ),
            ("an IPv4 address", Key::from("192.0.2.1"), Key::from(Ipv4Addr::new(192, 0, 2, 1))),
            (
                "an IPv4 address in IPv6 form",
                Key::from("192.0.2.1"),
                Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().into(),
            ),
            ("a pair", join(&["acme", "7"]), Key::from(("acme", 7))),
            ("three parts", join(&["acme", "7", "GET"]), Key::from(("acme", 7, "GET".to_owned()))),
            ("four parts", join(&["acme", "7", "GET", "/"]), Key::from(("acme", 7, "GET", "/"))),
        ];
        for (name, one, other) in rows {
            assert_eq!(one, other, "{name}");
        }
    }
}
