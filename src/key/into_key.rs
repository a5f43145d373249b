//! Values that a [`Key`] can be made of.

use std::{
    borrow::Cow,
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use super::Key;
use crate::base::{Answer, Error, ErrorKind};

/// A value that a closure may return as a [`Key`].
///
/// | value | key |
/// |---|---|
/// | a [`Key`] | itself |
/// | text, a number, an address, bytes | the key of the value |
/// | 16 bytes | the key of the UUID with these bytes, `uuid.into_bytes()` |
/// | a tuple of 2 to 4 of these | the parts [joined](Key::join) |
/// | `Some(value)`, `Ok(value)` | the key of `value` |
/// | `None` | an error of the kind [`MissingIdentity`](ErrorKind::MissingIdentity) |
/// | `Err(error)` | `error` |
/// | an [`Answer<Key>`](Answer) | known now or later |
///
/// A closure that borrows text from the request must return it as a `String`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be made into a key",
    note = "return a `Key`, text, a number, an address, a tuple of these, or an `Option`, a `Result<_, \
            tower_ratelimit::Error>` or an `Answer` of one",
    note = "for any other value make a key with `Key::new(value.to_string())`"
)]
pub trait IntoKey {
    /// Whether the key may be [known later](Answer), because it is looked up. Defaults to `false`.
    const LOOKED_UP: bool = false;

    /// The key of this value, or the reason why it has no key.
    ///
    /// # Errors
    ///
    /// The same as [`KeyExtractor::extract`](crate::KeyExtractor::extract).
    fn into_key(self) -> Answer<Key>;
}

macro_rules! into_key {
    ($($identity:ty),+) => { $(
        impl IntoKey for $identity {
            fn into_key(self) -> Answer<Key> {
                Answer::ready(Ok(Key::from(self)))
            }
        }
    )+ };
}

macro_rules! from {
    ($($value:ty),+: $identity:ident => $key:expr) => {
        $(
            impl From<$value> for Key {
                fn from($identity: $value) -> Self {
                    $key
                }
            }
        )+
        into_key!($($value),+);
    };
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

        /// The parts [joined](Key::join), such as a tenant and a user.
        impl<$($part: Into<Key>),+> IntoKey for ($($part,)+) {
            fn into_key(self) -> Answer<Key> {
                Answer::ready(Ok(Key::from(self)))
            }
        }
    };
}

from!(String, Box<str>, Arc<str>, Vec<u8>: identity => Self::of_bytes((*identity).as_ref()));
from!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize: identity => {
    Self::new(itoa::Buffer::new().format(identity))
});
from!(Ipv4Addr, Ipv6Addr: identity => IpAddr::from(identity).into());
from_tuple!(A B);
from_tuple!(A B C);
from_tuple!(A B C D);
into_key!(Key, &'static str, Cow<'static, str>, [u8; 16], IpAddr);

impl From<Cow<'_, str>> for Key {
    fn from(identity: Cow<'_, str>) -> Self {
        Self::of_bytes(identity.as_bytes())
    }
}

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

impl<T: IntoKey> IntoKey for Option<T> {
    const LOOKED_UP: bool = T::LOOKED_UP;

    fn into_key(self) -> Answer<Key> {
        match self {
            Some(identity) => identity.into_key(),
            None => Answer::ready(Err(Error::new(ErrorKind::MissingIdentity, "the request has no identity"))),
        }
    }
}

impl<T: IntoKey> IntoKey for Result<T, Error> {
    const LOOKED_UP: bool = T::LOOKED_UP;

    fn into_key(self) -> Answer<Key> {
        match self {
            Ok(identity) => identity.into_key(),
            Err(error) => Answer::ready(Err(error)),
        }
    }
}

impl IntoKey for Answer<Key> {
    const LOOKED_UP: bool = true;

    fn into_key(self) -> Self {
        self
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
