use http::request::Parts;

use super::{Key, KeyExtractor, matcher::never};
use crate::{answer::Answer, error::Error};

/// One key for every request: a limit on the service as a whole.
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{key::Constant, Key, KeyExtractor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (parts, ()) = Request::get("/").body(())?.into_parts();
/// assert_eq!(Constant::new("all").extract(&parts).await?, Key::new("all"));
/// # Ok(())
/// # }
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
    fn extract(&self, _: &Parts) -> Answer<Key> {
        Answer::ready(Ok(self.0.clone()))
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        if *named == self.0 {
            return Ok(vec![named.clone()]);
        }
        Err(never("the constant"))
    }
}
