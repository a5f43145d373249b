use http::request::Parts;

use crate::{
    base::{Answer, Error},
    key::{Hashed, Key, KeyExtractor},
};

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
