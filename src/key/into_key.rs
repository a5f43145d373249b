//! Values that a [`Key`] can be made of.

use super::Key;
use crate::base::{Answer, Error, ErrorKind};

/// A value that a closure may return as a [`Key`].
///
/// | value | key |
/// |---|---|
/// | what [`Key::new`] takes: text, bytes, a number, an address, a tuple of these, a [`Key`] | the key of the value |
/// | `Some(value)`, `Ok(value)` | the key of `value` |
/// | `None` | an error of the kind [`MissingIdentity`](ErrorKind::MissingIdentity) |
/// | `Err(error)` | `error` |
/// | an [`Answer<Key>`](Answer) | known now or later |
///
/// A closure that borrows text from the request must return it as a `String`. For a type of your program,
/// implement `From<YourType> for Key`: then [`KeyExtractor::any_of`](crate::KeyExtractor::any_of) takes it as
/// well.
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

/// The key of [`Key::new`].
#[diagnostic::do_not_recommend]
impl<T: Into<Key>> IntoKey for T {
    fn into_key(self) -> Answer<Key> {
        Answer::ready(Ok(self.into()))
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
