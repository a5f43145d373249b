use http::request::Parts;

use super::{Key, KeyExtractor, matcher::never};
use crate::{
    answer::Answer,
    error::{Error, ErrorKind},
};

/// One extractor, or another where the first finds nothing. Made by [`KeyExtractor::or`].
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{key::Constant, Header, Key, KeyExtractor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let key = Header::new("x-api-key").or(Constant::new("anonymous"));
///
/// let (parts, ()) = Request::get("/").header("x-api-key", "k1").body(())?.into_parts();
/// assert_eq!(key.extract(&parts).await?, Key::new("k1"));
///
/// // Whoever sends no key shares one limit, and cannot be mistaken for a key named "anonymous".
/// let (parts, ()) = Request::get("/").body(())?.into_parts();
/// assert_ne!(key.extract(&parts).await?, Key::new("anonymous"));
/// # Ok(())
/// # }
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
    fn extract(&self, request: &Parts) -> Answer<Key> {
        let missing = |error: &Error| error.kind() == ErrorKind::MissingIdentity;
        match self.first.extract(request).now() {
            Ok(Ok(key)) => Answer::ready(Ok(key.of_first())),
            Ok(Err(error)) if missing(&error) => self.second.extract(request).then(of_second),
            Ok(Err(error)) => Answer::ready(Err(error)),
            Err(first) => {
                // Asked for while the request is at hand, awaited only where it is needed.
                let second = self.second.extract(request);
                Answer::pending(async move {
                    match first.await {
                        Ok(key) => Ok(key.of_first()),
                        Err(error) if missing(&error) => of_second(second.await),
                        Err(error) => Err(error),
                    }
                })
            }
        }
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        let first = self.first.keys_of(named).map(|keys| keys.into_iter().map(Key::of_first));
        let second = self.second.keys_of(named).map(|keys| keys.into_iter().map(|key| key.of_second()));
        match (first, second) {
            (Err(error), Err(_)) => Err(error),
            (first, second) => Ok(first.into_iter().flatten().chain(second.into_iter().flatten()).collect()),
        }
    }
}

fn of_second(key: Result<Key, Error>) -> Result<Key, Error> {
    key.map(|key| key.of_second())
}

macro_rules! all_of {
    ($($part:ident)+) => {
        /// All of them together: the limit is per combination, such as tenant and address.
        impl<$($part: KeyExtractor),+> KeyExtractor for ($($part,)+) {
            #[expect(non_snake_case, reason = "the parts are named like their types")]
            fn extract(&self, request: &Parts) -> Answer<Key> {
                let ($($part,)+) = self;
                $(let $part = match $part.extract(request).now() {
                    Ok(Err(error)) => return Answer::ready(Err(error)),
                    part => part,
                };)+
                if let ($(Ok(Ok($part)),)+) = ($(&$part,)+) {
                    return Answer::ready(Ok(Key::join([$($part),+])));
                }
                Answer::pending(async move {
                    $(let $part = match $part {
                        Ok(part) => part?,
                        Err(part) => part.await?,
                    };)+
                    Ok(Key::join([$(&$part),+]))
                })
            }

            #[expect(non_snake_case, reason = "the parts are named like their types")]
            fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
                let ($($part,)+) = self;
                let extractors: &[&dyn KeyExtractor] = &[$($part),+];
                joined_keys(named, extractors)
            }
        }
    };
}

/// The keys that `extractors` give together for the parts that `named` was joined of.
fn joined_keys(named: &Key, extractors: &[&dyn KeyExtractor]) -> Result<Vec<Key>, Error> {
    let parts = named.parts().filter(|parts| parts.len() == extractors.len());
    let Some(parts) = parts else {
        return Err(never("`Key::join` of as many identities as the tuple has parts"));
    };
    let mut combinations = vec![Vec::new()];
    for (part, extractor) in parts.iter().zip(extractors) {
        let keys = if part.is_final() { vec![part.clone()] } else { extractor.keys_of(part)? };
        combinations = combinations
            .iter()
            .flat_map(|before| keys.iter().map(|key| [before.as_slice(), std::slice::from_ref(key)].concat()))
            .collect();
    }
    Ok(combinations.iter().map(Key::join).collect())
}

all_of!(A B);
all_of!(A B C);
all_of!(A B C D);
