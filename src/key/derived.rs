//! Keys that are made of other keys.

use super::{
    Key, Secret,
    key::Origin,
    text::{FIRST, KEYED, PREFLIGHT, SECOND, Text, bounded, push_hex, split_marks},
};

impl Key {
    /// The key of a client that could not be determined. This key is its proxy's key.
    pub(crate) fn assumed(self) -> Self {
        let mut origin = self.to_origin();
        origin.assumed = true;
        Self::with_origin(self.text().clone(), origin)
    }

    /// A key that shows nothing of this one without `secret`.
    pub(super) fn with_hash(&self, secret: &Secret) -> Self {
        let mut hashed = KEYED.to_owned();
        push_hex(&mut hashed, &secret.mac(self.as_str()));
        let mut origin = self.to_origin();
        origin.secret = true;
        origin.keep_identity(self);
        Self::with_origin(Text::from(hashed.as_str()), origin)
    }

    /// The key if the first of two extractors found it: this one, unless it looks like a key of the second.
    pub(crate) fn of_first(self) -> Self {
        if [FIRST, SECOND].iter().any(|mark| self.as_bytes().starts_with(mark.as_bytes())) {
            return self.marked(FIRST);
        }
        self
    }

    /// The key if the second of two extractors found it. No key of the first is equal to it.
    pub(crate) fn of_second(&self) -> Self {
        self.marked(SECOND)
    }

    /// The key of a CORS preflight. No key of another request is equal to it.
    pub(crate) fn of_preflight(&self) -> Self {
        self.marked(PREFLIGHT)
    }

    /// The mark of a preflight's key, and the text of the key without it. The mark of another key is empty.
    pub(crate) fn split_preflight(&self) -> (&'static str, &str) {
        match self.as_str().strip_prefix(PREFLIGHT) {
            Some(client) => (PREFLIGHT, client),
            None => ("", self.as_str()),
        }
    }

    /// The key of the client, if this is one of a preflight.
    pub(crate) fn client(&self) -> Option<Self> {
        match self.split_preflight() {
            ("", _) => None,
            (_, client) => Some(Self::of_text(client)),
        }
    }

    /// The key, which a function made of `source`, as one that the same extractor of an `or` found.
    pub(super) fn made_of(self, source: &Self) -> Self {
        let (marks, _) = split_marks(source.as_str());
        let key = if marks.is_empty() { self } else { self.marked(marks) };
        if source.is_assumed() { key.assumed() } else { key }
    }

    pub(super) fn marked(&self, marks: &str) -> Self {
        // The marks are kept even if the text is hashed: they keep the key apart from others.
        let (text, hashed) = bounded(marks, self.as_str());
        let mut origin = self.to_origin();
        if hashed {
            origin.keep_identity(self);
        }
        Self::with_origin(text, origin)
    }

    fn to_origin(&self) -> Origin {
        self.origin().cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::*;
    use crate::key::text::MAX;

    #[test]
    fn a_stored_key_is_the_same_key_without_what_its_text_does_not_show() {
        let secret = Secret::new(&[7; 32]);
        let long = Key::new("x".repeat(200));
        let short = Key::new("alice");
        for key in [
            long.clone(),
            long.of_second(),
            Key::join([&long, &short]),
            Key::new("x".repeat(95)).of_second(),
            short.with_hash(&secret),
            Key::join([&short.with_hash(&secret)]),
        ] {
            assert!(key.identity().is_some());
            let stored = key.clone().stored();
            assert_eq!(stored, key);
            assert_eq!(stored.cmp(&key), Ordering::Equal);
            assert!(stored.identity().is_none() && stored.is_final());
        }
        assert_eq!(short.clone().assumed().stored().identity().unwrap(), "alice");
        assert!(short.clone().assumed().is_assumed() && !short.assumed().stored().is_assumed());
    }

    #[test]
    fn the_key_of_a_preflight_differs_from_every_other_request_s() {
        for identity in ["", "alice", "%^alice", &"x".repeat(200)] {
            let key = Key::new(identity);
            let preflight = key.of_preflight();
            assert_ne!(preflight, key);
            assert_ne!(preflight, Key::new(preflight.as_str()));
            assert_ne!(preflight, preflight.of_preflight());
            assert_eq!(preflight.identity().unwrap(), identity);
        }
    }

    #[test]
    fn the_answers_of_three_alternatives_never_meet() {
        // As `a.or(b).or(c)` and `a.or(b.or(c))` make them of one identity, of any length.
        for length in 0..200 {
            let same = || Key::new("x".repeat(length));
            let left = [same().of_first().of_first(), same().of_second().of_first(), same().of_second()];
            let right = [same().of_first(), same().of_first().of_second(), same().of_second().of_second()];
            for [a, b, c] in [left, right] {
                assert!(a != b && b != c && a != c, "{length}");
                assert!([&a, &b, &c].iter().all(|key| key.as_str().len() <= MAX), "{length}");
            }
        }
    }

    #[test]
    fn no_identity_passes_for_a_hash_a_join_or_an_alternative() {
        let joined = Key::join([&Key::new("a"), &Key::new("b")]);
        let hashed = Key::new(&[b'a'; 97]);
        for made in [&joined, &hashed, &Key::new("b").of_second(), &Key::new("")] {
            assert_ne!(made, &Key::new(made.as_str()));
        }
    }

    #[test]
    fn a_key_is_small_and_a_plain_one_has_nothing_beside_its_text() {
        assert_eq!(size_of::<Key>(), 32);
        for identity in ["203.0.113.7", "a b", "", &"a".repeat(96)] {
            assert!(Key::new(identity).origin().is_none(), "{identity}");
            assert!(Key::new(identity).of_second().stored().origin().is_none(), "{identity}");
        }
    }
}
