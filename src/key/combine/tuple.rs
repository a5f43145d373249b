use std::slice;

use http::request::Parts;

use crate::{
    base::{Answer, Error},
    key::{Key, KeyExtractor, extractor::impossible},
};

macro_rules! tuple {
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
            fn looks_up(&self) -> bool {
                let ($($part,)+) = self;
                false $(|| $part.looks_up())+
            }

            #[expect(non_snake_case, reason = "the parts are named like their types")]
            fn warning(&self) -> Option<String> {
                let ($($part,)+) = self;
                None$(.or_else(|| $part.warning()))+
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
