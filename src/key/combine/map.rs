use http::request::Parts;

use crate::{
    base::{Answer, Error, ErrorKind},
    key::{Hashed, Key, KeyExtractor, Map},
};

impl<K: KeyExtractor> KeyExtractor for Map<K> {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        match self.extractor.extract(request).now() {
            Ok(Ok(key)) => changed(&*self.change, key),
            Ok(Err(error)) => Answer::ready(Err(error)),
            Err(pending) => {
                let change = self.change.clone();
                Answer::pending(async move {
                    let changed = changed(&*change, pending.await?);
                    changed.await
                })
            }
        }
    }

    fn looks_up(&self) -> bool {
        self.looks_up || self.extractor.looks_up()
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        let change = |key: Key| match changed(&*self.change, key).now() {
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

/// The key that `change` makes of the identity of `key`.
fn changed(change: &(dyn Fn(&str) -> Answer<Key> + Send + Sync), key: Key) -> Answer<Key> {
    let answer = match key.to_map() {
        Some(identity) => change(&identity),
        None => {
            return Answer::ready(Err(Error::new(ErrorKind::InvalidIdentity, "the identity is not UTF-8")));
        }
    };
    answer.then(move |changed| Ok(changed?.made_of(&key)))
}

impl<K: KeyExtractor> KeyExtractor for Hashed<K> {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        let secret = self.secret.clone();
        self.extractor.extract(request).then(move |key| Ok(key?.hashed(&secret)))
    }

    fn warning(&self) -> Option<String> {
        self.extractor.warning()
    }

    fn looks_up(&self) -> bool {
        self.extractor.looks_up()
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        Ok(self.extractor.keys_of(named)?.iter().map(|key| key.hashed(&self.secret)).collect())
    }
}
