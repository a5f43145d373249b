//! How much is allowed: a limit per period, and a burst.

#[expect(clippy::module_inception, reason = "the module's main type")]
mod quota;
#[cfg(feature = "serde")]
mod serialize;
mod text;

pub use self::quota::Quota;
pub(crate) use self::text::duration_text;
#[cfg(feature = "serde")]
pub(crate) use self::text::parse_duration;
