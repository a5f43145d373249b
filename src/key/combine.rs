use http::request::Parts;

use super::{Key, KeyExtractor};
use crate::{Error, ErrorKind};

/// One extractor, or another where the first finds nothing. Made by [`KeyExtractor::or`].
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{Constant, Header, Key, KeyExtractor};
///
/// let key = Header::new("x-api-key").or(Constant::new("anonymous"));
///
/// let (parts, ()) = Request::get("/").header("x-api-key", "k1").body(())?.into_parts();
/// assert_eq!(key.extract(&parts)?, Key::new("k1"));
///
/// // Whoever sends no key shares one limit, and cannot be mistaken for a key named "anonymous".
/// let (parts, ()) = Request::get("/").body(())?.into_parts();
/// assert_ne!(key.extract(&parts)?, Key::new("anonymous"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B> {
    first: A,
    second: B,
}

impl<A, B> Or<A, B> {
    pub(super) const fn new(first: A, second: B) -> Self {
        Self { first, second }
    }
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn extract(&self, request: &Parts) -> Result<Key, Error> {
        match self.first.extract(request) {
            Ok(key) => Ok(key.of_first()),
            Err(error) if error.kind() == ErrorKind::MissingIdentity => {
                self.second.extract(request).map(|key| key.of_second())
            }
            Err(error) => Err(error),
        }
    }
}

macro_rules! all_of {
    ($($part:ident)+) => {
        /// All of them together: the limit is per combination, such as tenant and address.
        impl<$($part: KeyExtractor),+> KeyExtractor for ($($part,)+) {
            #[expect(non_snake_case, reason = "the parts are named like their types")]
            fn extract(&self, request: &Parts) -> Result<Key, Error> {
                let ($($part,)+) = self;
                Ok(Key::join([$(&$part.extract(request)?),+]))
            }
        }
    };
}

all_of!(A B);
all_of!(A B C);
all_of!(A B C D);
