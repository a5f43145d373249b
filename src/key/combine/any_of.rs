use http::request::Parts;

use crate::{
    base::Answer,
    key::{AnyOf, KeyExtractor, RequestMatcher, matcher::not_determined},
};

impl<K: KeyExtractor> RequestMatcher for AnyOf<K> {
    fn matches(&self, request: &Parts) -> Answer<bool> {
        let keys = self.keys.clone();
        self.extractor.extract(request).then(move |key| {
            let key = key?;
            match keys.binary_search(&key) {
                Ok(_) if key.is_assumed() => Err(not_determined()),
                found => Ok(found.is_ok()),
            }
        })
    }
}
