//! The extractors that are not a struct of their own: one key, closures, pointers, and combinations of extractors.

use std::{slice, sync::Arc};

use http::request::Parts;

use super::{
    IntoKey, Key, KeyExtractor,
    extractor::{Changed, Or, impossible},
};
use crate::base::{Answer, Error, ErrorKind};

/// This key for all requests: a limit on the service as a whole.
impl KeyExtractor for Key {
    fn extract(&self, _: &Parts) -> Answer<Self> {
        Answer::ready(Ok(self.clone()))
    }

    fn keys_of(&self, named: &Self) -> Result<Vec<Self>, Error> {
        if named == self {
            return Ok(vec![named.clone()]);
        }
        Err(impossible("the one key"))
    }
}

/// For a closure, identity and key are the same.
impl<F, T> KeyExtractor for F
where
    F: Fn(&Parts) -> T + Send + Sync + 'static,
    T: IntoKey,
{
    fn extract(&self, request: &Parts) -> Answer<Key> {
        self(request).into_key()
    }

    fn looks_up(&self) -> bool {
        T::LOOKED_UP
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        Ok(vec![named.clone()])
    }
}

macro_rules! pointer {
    ($pointer:ident) => {
        impl KeyExtractor for $pointer<dyn KeyExtractor> {
            fn extract(&self, request: &Parts) -> Answer<Key> {
                (**self).extract(request)
            }

            fn looks_up(&self) -> bool {
                (**self).looks_up()
            }

            fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
                (**self).keys_of(named)
            }
        }
    };
}

// Not for every pointer to an extractor, which could be a closure too.
pointer!(Arc);
pointer!(Box);

impl<K: KeyExtractor> KeyExtractor for Changed<K> {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        match self.extractor.extract(request).now() {
            Ok(Ok(key)) => (self.change)(key),
            Ok(Err(error)) => Answer::ready(Err(error)),
            Err(pending) => {
                let change = self.change.clone();
                Answer::pending(async move {
                    let changed = change(pending.await?);
                    changed.await
                })
            }
        }
    }

    fn looks_up(&self) -> bool {
        self.looks_up || self.extractor.looks_up()
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        let change = |key: Key| match (self.change)(key).now() {
            Ok(Ok(key)) => Ok(key),
            Ok(Err(error)) => {
                let message = format!("no request has this identity: {error}");
                Err(Error::new(ErrorKind::InvalidIdentity, message))
            }
            Err(_) => Err(Error::invalid(
                "the function of `map` returns a pending answer: call `any_of` before `map`",
            )),
        };
        self.extractor.keys_of(named)?.into_iter().map(change).collect()
    }
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        match self.first.extract(request).now() {
            Ok(Ok(key)) => Answer::ready(Ok(key.of_first())),
            Ok(Err(error)) if is_missing(&error) => self.second.extract(request).then(of_second),
            Ok(Err(error)) => Answer::ready(Err(error)),
            Err(first) => {
                // It is called now, because the request is not there later, and awaited only if it is needed.
                let second = self.second.extract(request);
                Answer::pending(async move {
                    match first.await {
                        Ok(key) => Ok(key.of_first()),
                        Err(error) if is_missing(&error) => of_second(second.await),
                        Err(error) => Err(error),
                    }
                })
            }
        }
    }

    fn looks_up(&self) -> bool {
        self.first.looks_up() || self.second.looks_up()
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        let first = self.first.keys_of(named).map(|keys| keys.into_iter().map(Key::of_first));
        let second = self.second.keys_of(named).map(|keys| keys.into_iter().map(|key| key.of_second()));
        // An identity that is impossible for one extractor may be the other's. Any other error must not be lost: the
        // keys of that extractor would be missing, and a blocklist would not match them.
        let is_impossible = |error: &Error| error.kind() == ErrorKind::InvalidIdentity;
        match (first, second) {
            (Err(error), _) if !is_impossible(&error) => Err(error),
            (_, Err(error)) if !is_impossible(&error) => Err(error),
            (Err(error), Err(_)) => Err(error),
            (first, second) => Ok(first.into_iter().flatten().chain(second.into_iter().flatten()).collect()),
        }
    }
}

fn is_missing(error: &Error) -> bool {
    error.kind() == ErrorKind::MissingIdentity
}

fn of_second(key: Result<Key, Error>) -> Result<Key, Error> {
    key.map(|key| key.of_second())
}

macro_rules! tuple {
    ($($part:ident)+) => {
        /// All of them together: the limit is per combination, such as tenant and address.
        #[expect(non_snake_case, reason = "the parts are named like their types")]
        impl<$($part: KeyExtractor),+> KeyExtractor for ($($part,)+) {
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

            fn looks_up(&self) -> bool {
                let ($($part,)+) = self;
                false $(|| $part.looks_up())+
            }

            fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
                let ($($part,)+) = self;
                let extractors: &[&dyn KeyExtractor] = &[$($part),+];
                joined_keys(named, extractors)
            }
        }
    };
}

tuple!(A B);
tuple!(A B C);
tuple!(A B C D);

/// Every key that `extractors` together can return for the parts of `named`.
fn joined_keys(named: &Key, extractors: &[&dyn KeyExtractor]) -> Result<Vec<Key>, Error> {
    let parts = named.parts().filter(|parts| parts.len() == extractors.len());
    let Some(parts) = parts else {
        return Err(impossible("a tuple, or a `Key::join`, of one identity for each part"));
    };
    let mut combinations = vec![Vec::new()];
    for (part, extractor) in parts.iter().zip(extractors) {
        let keys = if part.is_final() { vec![part.clone()] } else { extractor.keys_of(part)? };
        combinations = combinations
            .iter()
            .flat_map(|before| keys.iter().map(|key| [before.as_slice(), slice::from_ref(key)].concat()))
            .collect();
    }
    Ok(combinations.iter().map(Key::join).collect())
}
