use http::request::Parts;

use super::{Key, KeyExtractor, extractor::impossible};
use crate::base::{Answer, Error};

/// One key for all requests: a limit on the service as a whole.
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
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub struct Constant(Key);

impl Constant {
    /// The key `key` for all requests.
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
        Err(impossible("the constant"))
    }
}
