//! What the texts of keys begin with that are not an identity's.
//!
//! What can follow `%` in an encoded identity is two upper-case hex digits, so no identity can be mistaken for
//! one of these.

/// The empty identity.
pub(super) const EMPTY: &str = "%";
/// A hash in the place of an identity that is too long.
pub(super) const HASHED: &str = "%#";
/// A hash under a secret.
pub(super) const KEYED: &str = "%*";
/// Several keys.
pub(super) const JOINED: &str = "%+";
/// The first one's of an `or`, where its key looks like a second one's.
pub(super) const FIRST: &str = "%<";
/// The second one's of an `or`.
pub(super) const SECOND: &str = "%>";
/// A CORS preflight's.
pub(super) const PREFLIGHT: &str = "%^";
