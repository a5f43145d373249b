use std::sync::Arc;

use http::request::Parts;

use super::{IntoKey, Key, KeyExtractor, Secret};
use crate::Answer;

/// An extractor whose keys are changed by a function. Made by [`KeyExtractor::map`].
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

impl<K, F, T> KeyExtractor for Map<K, F>
where
    K: KeyExtractor,
    F: Fn(Key) -> T + Send + Sync + 'static,
    T: IntoKey,
{
    fn extract(&self, request: &Parts) -> Answer<Key> {
        match self.extractor.extract(request).now() {
            Ok(Ok(key)) => (self.change)(key).into_key(),
            Ok(Err(error)) => Answer::ready(Err(error)),
            Err(pending) => {
                let change = self.change.clone();
                Answer::pending(async move {
                    let changed = change(pending.await?).into_key();
                    changed.await
                })
            }
        }
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

    fn keys_of(&self, identity: &Key) -> Vec<Key> {
        self.extractor.keys_of(identity).iter().map(|key| key.hashed(&self.secret)).collect()
    }
}
