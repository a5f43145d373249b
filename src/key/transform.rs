use std::sync::Arc;

use http::request::Parts;

use super::{IntoKey, Key, KeyExtractor, Secret};
use crate::{
    answer::Answer,
    error::{Error, ErrorKind},
};

/// An extractor whose identities are changed by a function. Made by [`KeyExtractor::map`].
#[derive(Clone, Debug)]
pub struct Map<K, F> {
    extractor: K,
    change: Arc<F>,
}

impl<K, F> Map<K, F> {
    pub(super) fn new(extractor: K, change: F) -> Self {
        Self { extractor, change: Arc::new(change) }
    }
}

/// What `change` makes of the identity of `key`.
fn changed<F, T>(change: &F, key: Key) -> Answer<Key>
where
    F: Fn(&str) -> T,
    T: IntoKey,
{
    let answer = match key.to_map() {
        Some(identity) => change(&identity).into_key(),
        None => {
            return Answer::ready(Err(Error::new(ErrorKind::InvalidIdentity, "the identity is not UTF-8")));
        }
    };
    answer.then(move |changed| Ok(changed?.made_of(&key)))
}

impl<K, F, T> KeyExtractor for Map<K, F>
where
    K: KeyExtractor,
    F: Fn(&str) -> T + Send + Sync + 'static,
    T: IntoKey,
{
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

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        let wrong = |problem: String| Error::new(ErrorKind::InvalidConfig, problem);
        let change = |key: Key| match changed(&*self.change, key).now() {
            Ok(Ok(key)) => Ok(key),
            Ok(Err(error)) => Err(wrong(format!("no request has the identity that is named: {error}"))),
            Err(_) => Err(wrong("the function of `map` answers later: name identities before `map`".into())),
        };
        self.extractor.keys_of(named)?.into_iter().map(change).collect()
    }
}

/// An extractor whose keys show nothing of the identity. Made by [`KeyExtractor::hashed`].
#[derive(Clone, Debug)]
pub struct Hashed<K> {
    extractor: K,
    secret: Secret,
}

impl<K> Hashed<K> {
    pub(super) const fn new(extractor: K, secret: Secret) -> Self {
        Self { extractor, secret }
    }
}

impl<K: KeyExtractor> KeyExtractor for Hashed<K> {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        let secret = self.secret.clone();
        self.extractor.extract(request).then(move |key| Ok(key?.hashed(&secret)))
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        Ok(self.extractor.keys_of(named)?.iter().map(|key| key.hashed(&self.secret)).collect())
    }
}
