use http::{Method, request::Parts};

use crate::{
    base::{Answer, Error},
    key::{Key, KeyExtractor, extractor::only},
};

/// The method of the request. Use it in a tuple, for a limit per client and method.
///
/// The methods of RFC 9110 and `PATCH` have a key each. All other methods share the key `(other)`, because a client can
/// invent any number of methods, and each would have a separate limit.
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{key::RequestMethod, Key, KeyExtractor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let key = RequestMethod::new();
/// let with = |method| Request::builder().method(method).body(()).unwrap().into_parts().0;
/// assert_eq!(key.extract(&with("POST")).await?, Key::new("POST"));
/// assert_eq!(key.extract(&with("PURGE")).await?, Key::new("(other)"));
/// assert_eq!(key.extract(&with("MADE-UP")).await?, Key::new("(other)"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub struct RequestMethod(());

impl RequestMethod {
    /// The method of a request.
    pub const fn new() -> Self {
        Self(())
    }
}

/// No method contains parentheses.
const OTHER_METHOD: &str = "(other)";

const fn is_registered(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET
            | Method::HEAD
            | Method::POST
            | Method::PUT
            | Method::DELETE
            | Method::CONNECT
            | Method::OPTIONS
            | Method::TRACE
            | Method::PATCH
    )
}

impl KeyExtractor for RequestMethod {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        let registered = is_registered(&request.method);
        Answer::ready(Ok(Key::new(if registered { request.method.as_str() } else { OTHER_METHOD })))
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        let is_possible = |name: &[u8]| {
            name == OTHER_METHOD.as_bytes() || Method::from_bytes(name).is_ok_and(|name| is_registered(&name))
        };
        only(named, is_possible, "a method of RFC 9110, `PATCH` or `(other)`")
    }
}
