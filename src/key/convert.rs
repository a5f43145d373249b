//! What a key is made of.

use std::{fmt::Write as _, net::IpAddr, sync::Arc};

use super::Key;

macro_rules! from_text {
    ($($text:ty),+) => { $(
        impl From<$text> for Key {
            fn from(identity: $text) -> Self {
                Self::new(&*identity)
            }
        }
    )+ };
}

macro_rules! from_number {
    ($($number:ty),+) => { $(
        impl From<$number> for Key {
            fn from(identity: $number) -> Self {
                Self::new(identity.to_string())
            }
        }
    )+ };
}

from_text!(&str, String, Arc<str>, &[u8], Vec<u8>);
from_number!(i32, i64, i128, isize, u16, u32, u64, u128, usize);

/// The bytes of a UUID: the same key as of its text, `67e55044-10b1-426f-9247-bb680e5fe0c8`.
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

/// The address itself, every bit of it; [`PeerIp`](crate::PeerIp) is what groups IPv6 networks.
impl From<IpAddr> for Key {
    fn from(identity: IpAddr) -> Self {
        Self::new(identity.to_canonical().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_identity_is_one_key_whatever_type_it_has() {
        let rows = [
            ("text", Key::from("7"), Key::from(7_u64)),
            ("signed", Key::from("-7"), Key::from(-7_i32)),
            ("large", Key::from(u128::MAX.to_string()), Key::from(u128::MAX)),
            ("bytes", Key::from(b"abc".as_slice()), Key::from(Arc::<str>::from("abc"))),
            (
                "a UUID",
                Key::from("67e55044-10b1-426f-9247-bb680e5fe0c8"),
                Key::from(0x67e5_5044_10b1_426f_9247_bb68_0e5f_e0c8_u128.to_be_bytes()),
            ),
        ];
        for (name, one, other) in rows {
            assert_eq!(one, other, "{name}");
        }
    }
}
