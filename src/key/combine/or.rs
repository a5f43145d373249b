use http::request::Parts;

use crate::{
    base::{Answer, Error, ErrorKind},
    key::{Key, KeyExtractor, Or},
};

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

    fn warning(&self) -> Option<String> {
        self.first.warning().or_else(|| self.second.warning())
    }

    fn looks_up(&self) -> bool {
        self.first.looks_up() || self.second.looks_up()
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        let first = self.first.keys_of(named).map(|keys| keys.into_iter().map(Key::of_first));
        let second = self.second.keys_of(named).map(|keys| keys.into_iter().map(|key| key.of_second()));
        // An identity that is impossible for one extractor may be the other's. Any other error must not be lost: the
        // keys of that extractor would be missing, and a ban would not match them.
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
