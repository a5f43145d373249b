//! [`KeyKind`]: what the keys of an extractor stand for.

use std::{
    any::{TypeId, type_name},
    fmt,
};

/// What the keys of an [extractor](crate::KeyExtractor) stand for, such as addresses or the values of one header.
///
/// The stored name of a count has the policy and the identity, and nothing of the extractor. So a layer
/// [warns](crate::RateLimitLayer::warnings) if one policy has keys of two kinds: user 42 and tenant 42 would share a
/// count.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Header, KeyExtractor, PeerIp, key::KeyKind};
///
/// assert_eq!(Header::new("x-user").kind(), Header::new("X-User").kind());
/// assert_ne!(Header::new("x-user").kind(), Header::new("x-tenant").kind());
/// assert_eq!(PeerIp::new().kind().to_string(), "the client's address");
/// // Two closures are of two kinds, even if both find the same.
/// assert_ne!(KeyKind::of::<fn(u8)>(), KeyKind::of::<fn(u16)>());
/// assert_eq!(KeyKind::named("the account"), KeyKind::named("the account"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyKind {
    name: String,
    /// Of the parts that have no name. Two closures of one function have one name.
    types: Vec<TypeId>,
}

impl KeyKind {
    /// The kind with this name, such as "the account". Extractors with equal names find equal identities.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), types: Vec::new() }
    }

    /// The kind of an extractor of the type `T`, whose keys nothing else has.
    #[must_use]
    pub fn of<T: ?Sized + 'static>() -> Self {
        Self { name: format!("`{}`", type_name::<T>()), types: vec![TypeId::of::<T>()] }
    }

    /// This kind, changed by a function of the type `F`.
    pub(super) fn changed_by<F: 'static>(mut self) -> Self {
        self.name += ", changed";
        self.types.push(TypeId::of::<F>());
        self
    }

    pub(super) fn hashed(mut self) -> Self {
        self.name += ", hashed";
        self
    }

    /// The kind of a key that has several, or one of them.
    pub(super) fn joined(kinds: impl IntoIterator<Item = Self>, word: &str) -> Self {
        let joined = kinds.into_iter().reduce(|mut all, kind| {
            all.name = format!("{} {word} {}", all.name, kind.name);
            all.types.extend(kind.types);
            all
        });
        joined.unwrap_or_else(|| Self::named(""))
    }
}

/// For a sentence.
impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
