use std::{
    borrow::Cow,
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

macro_rules! tuple_into_key {
    ($($part:ident)+) => {
        /// The parts [joined](Key::join), such as a tenant and a user.
        impl<$($part: Into<Key>),+> IntoKey for ($($part,)+) {
            fn into_key(self) -> Answer<Key> {
                Answer::ready(Ok(Key::from(self)))
            }
        }
    };
}

into_key!(Key, &'static str, String, Box<str>, Arc<str>, Cow<'static, str>, Vec<u8>, [u8; 16]);
into_key!(IpAddr, Ipv4Addr, Ipv6Addr);
into_key!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize);
tuple_into_key!(A B);
tuple_into_key!(A B C);
tuple_into_key!(A B C D);

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
