use std::time::Duration;

use crate::key::Key;

/// A key that a policy bans, from [`Limiter::bans`](crate::Limiter::bans).
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{decision::Ban, Key};
///
/// let ban = Ban::new(Key::new("alice"), Duration::from_secs(60));
/// assert_eq!((ban.key().as_str(), ban.rest().as_secs()), ("alice", 60));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    key: Key,
    rest: Duration,
}

impl Ban {
    /// A ban of `key` that ends after `rest`, for your own stores.
    #[must_use]
    pub const fn new(key: Key, rest: Duration) -> Self {
        Self { key, rest }
    }

    /// The key, as it is [stored](crate::key#the-stored-form): a long identity is a hash.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// The time until the ban ends.
    #[must_use]
    pub const fn rest(&self) -> Duration {
        self.rest
    }
}
