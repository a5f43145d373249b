use http::request::Parts;

use super::{Key, KeyExtractor};
use crate::Error;

/// One key for every request: a limit on the service as a whole.
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{Constant, Key, KeyExtractor};
///
/// let (parts, ()) = Request::get("/").body(())?.into_parts();
/// assert_eq!(Constant::new("all").extract(&parts)?, Key::new("all"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Constant(Key);

impl Constant {
    /// `key` for every request.
    #[must_use]
    pub fn new(key: impl Into<Key>) -> Self {
        Self(key.into())
    }
}

impl KeyExtractor for Constant {
    fn extract(&self, _: &Parts) -> Result<Key, Error> {
        Ok(self.0.clone())
    }
}
