//! Closures, pointers, and combinations of extractors as extractors.

use std::{slice, sync::Arc};

use http::request::Parts;

use super::{
    IntoKey, Key, KeyExtractor, KeyKind,
    extractor::{Changed, Or, impossible},
};
use crate::base::{Answer, Error, ErrorKind, Now};

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

    fn keys_of(&self, named: &Key) -> Answer<Vec<Key>> {
        Answer::ready(Ok(vec![named.clone()]))
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

            fn kind(&self) -> KeyKind {
                (**self).kind()
            }

            fn keys_of(&self, named: &Key) -> Answer<Vec<Key>> {
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
            Now::Ready(Ok(key)) => (self.change)(key),
            Now::Ready(Err(error)) => Answer::ready(Err(error)),
            Now::Later(pending) => {
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

    fn kind(&self) -> KeyKind {
        self.kind.clone()
    }

    fn keys_of(&self, named: &Key) -> Answer<Vec<Key>> {
        let change = self.change.clone();
        let changed = move |keys: Vec<Key>| {
            all(keys.into_iter().map(|key| change(key).then(|changed| changed.map_err(of_identity))))
        };
        match self.extractor.keys_of(named).now() {
            Now::Ready(Ok(keys)) => changed(keys),
            Now::Ready(Err(error)) => Answer::ready(Err(error)),
            Now::Later(pending) => Answer::pending(async move {
                let keys = pending.await?;
                changed(keys).await
            }),
        }
    }
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        match self.first.extract(request).now() {
            Now::Ready(Ok(key)) => Answer::ready(Ok(key.of_first())),
            Now::Ready(Err(error)) if is_missing(&error) => self.second.extract(request).then(of_second),
            Now::Ready(Err(error)) => Answer::ready(Err(error)),
            Now::Later(first) => {
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

    fn kind(&self) -> KeyKind {
        KeyKind::joined([self.first.kind(), self.second.kind()], "or")
    }

    fn keys_of(&self, named: &Key) -> Answer<Vec<Key>> {
        // An identity that is impossible for one extractor may be the other's. Any other error must not be
        // lost: the keys of that extractor would be missing, and a blocklist would not match them.
        let possible = |keys: Answer<Vec<Key>>| {
            keys.then(|keys| match keys {
                Err(error) if error.kind() == ErrorKind::InvalidIdentity => Ok(Err(error)),
                keys => keys.map(Ok),
            })
        };
        all([possible(self.first.keys_of(named)), possible(self.second.keys_of(named))]).and_then(
            |mut keys| match (keys.pop(), keys.pop()) {
                (Some(Err(_)), Some(Err(error))) => Err(error),
                (second, first) => {
                    let first = first.into_iter().flatten().flatten().map(Key::of_first);
                    let second = second.into_iter().flatten().flatten().map(|key| key.of_second());
                    Ok(first.chain(second).collect())
                }
            },
        )
    }
}

/// The error of the function that changes an identity, as one of an identity that a request cannot have. A
/// failure of the server stays as it is.
fn of_identity(error: Error) -> Error {
    if error.kind().is_clients() {
        return Error::new(ErrorKind::InvalidIdentity, format!("no request has this identity: {error}"));
    }
    error
}

/// The values of all `answers`. Ready if each of them is, or if one of them is an error.
fn all<T: Send + 'static>(answers: impl IntoIterator<Item = Answer<T>>) -> Answer<Vec<T>> {
    let answers: Vec<Answer<T>> = answers.into_iter().collect();
    let error = answers.iter().filter_map(Answer::if_ready).find_map(|result| result.as_ref().err());
    match error {
        Some(error) => Answer::ready(Err(error.clone())),
        None => Answer::all(answers),
    }
}

fn is_missing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::MissingIdentity | ErrorKind::NotApplicable)
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
                    Now::Ready(Err(error)) => return Answer::ready(Err(error)),
                    part => part,
                };)+
                if let ($(Now::Ready(Ok($part)),)+) = ($(&$part,)+) {
                    return Answer::ready(Ok(Key::join([$($part),+])));
                }
                Answer::pending(async move {
                    $(let $part = match $part {
                        Now::Ready(part) => part?,
                        Now::Later(part) => part.await?,
                    };)+
                    Ok(Key::join([$(&$part),+]))
                })
            }

            fn looks_up(&self) -> bool {
                let ($($part,)+) = self;
                false $(|| $part.looks_up())+
            }

            fn kind(&self) -> KeyKind {
                let ($($part,)+) = self;
                KeyKind::joined([$($part.kind()),+], "with")
            }

            fn keys_of(&self, named: &Key) -> Answer<Vec<Key>> {
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
fn joined_keys(named: &Key, extractors: &[&dyn KeyExtractor]) -> Answer<Vec<Key>> {
    let parts = named.parts().filter(|parts| parts.len() == extractors.len());
    let Some(parts) = parts else {
        // An extractor without `keys_of` is a mistake of the program, which no other identity avoids.
        let mistake = |extractor: &&dyn KeyExtractor| match extractor.keys_of(named).now() {
            Now::Ready(Err(error)) if error.kind() == ErrorKind::InvalidConfig => Some(error),
            _ => None,
        };
        let mistake = extractors.iter().find_map(mistake);
        let impossible = || impossible("a tuple, or a `Key::join`, of one identity for each part");
        return Answer::ready(Err(mistake.unwrap_or_else(impossible)));
    };
    let keys = parts.into_iter().zip(extractors).map(|(part, extractor)| {
        if part.is_final() { Answer::ready(Ok(vec![part])) } else { extractor.keys_of(&part) }
    });
    all(keys).map(|keys_of_parts| {
        let mut combinations = vec![Vec::new()];
        for keys in keys_of_parts {
            combinations = combinations
                .iter()
                .flat_map(|before| keys.iter().map(|key| [before.as_slice(), slice::from_ref(key)].concat()))
                .collect();
        }
        combinations.iter().map(Key::join).collect()
    })
}
