//! Keys from the method of a gRPC call.

use std::{collections::BTreeSet, sync::Arc};

use http::request::Parts;

use super::{Key, KeyExtractor, KeyKind, extractor::only};
use crate::base::Answer;

/// The gRPC method that is called, such as `greeter.Greeter/SayHello`, or its [service](Self::service).
///
/// The method is the path of the request, without its first slash. A path of another form shares the key
/// `(other)`, which cannot be a method's name.
///
/// A client can call methods that do not exist, and each would have a separate quota. Where that matters,
/// name those that exist with [`only`](Self::only): all others share the key `(other)`.
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{key::GrpcMethod, Key, KeyExtractor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (call, ()) = Request::post("/greeter.Greeter/SayHello").body(())?.into_parts();
/// assert_eq!(GrpcMethod::new().extract(&call).await?, Key::new("greeter.Greeter/SayHello"));
/// assert_eq!(GrpcMethod::service().extract(&call).await?, Key::new("greeter.Greeter"));
///
/// let known = GrpcMethod::new().only(["greeter.Greeter/SayHello"]);
/// let (invented, ()) = Request::post("/greeter.Greeter/Invented").body(())?.into_parts();
/// assert_eq!(known.extract(&call).await?, Key::new("greeter.Greeter/SayHello"));
/// assert_eq!(known.extract(&invented).await?, Key::new("(other)"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "an extractor does nothing until a layer or a rule uses it"]
pub struct GrpcMethod {
    is_service: bool,
    known: Option<Arc<BTreeSet<Box<str>>>>,
}

/// No name of protobuf has parentheses.
const OTHER: &str = "(other)";

impl GrpcMethod {
    /// The method of a call.
    pub const fn new() -> Self {
        Self { is_service: false, known: None }
    }

    /// Only the service of the method, such as `greeter.Greeter`: one key for all its methods.
    pub const fn service() -> Self {
        Self { is_service: true, known: None }
    }

    /// Gives each of `names` a key, and all others the key `(other)`. Defaults to a key for each name. A
    /// method is written as `package.Service/Method`, a service as `package.Service`.
    pub fn only(mut self, names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let names = names.into_iter().map(|name| name.as_ref().trim_start_matches('/').into());
        self.known = Some(Arc::new(names.collect()));
        self
    }

    fn is_known(&self, name: &str) -> bool {
        self.known.as_ref().is_none_or(|known| known.contains(name))
    }
}

impl KeyExtractor for GrpcMethod {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        let method = request.uri.path().strip_prefix('/').and_then(split);
        let name = method.map(|(service, method)| if self.is_service { service } else { method });
        Answer::ready(Ok(Key::new(name.filter(|name| self.is_known(name)).unwrap_or(OTHER))))
    }

    fn kind(&self) -> KeyKind {
        KeyKind::named(if self.is_service { "the gRPC service" } else { "the gRPC method" })
    }

    fn keys_of(&self, named: &Key) -> Answer<Vec<Key>> {
        let (is_name, expected): (fn(&str) -> bool, _) = match self.is_service {
            true => (is_service, "a gRPC service, as `package.Service`, or `(other)`"),
            false => {
                (|name| split(name).is_some(), "a gRPC method, as `package.Service/Method`, or `(other)`")
            }
        };
        let is_possible = |name: &str| name == OTHER || is_name(name) && self.is_known(name);
        only(named, |name| str::from_utf8(name).is_ok_and(is_possible), expected)
    }
}

/// The service of `package.Service/Method`, and the whole.
fn split(method: &str) -> Option<(&str, &str)> {
    let (service, name) = method.split_once('/')?;
    (is_service(service) && is_identifier(name)).then_some((service, method))
}

fn is_service(name: &str) -> bool {
    name.split('.').all(is_identifier)
}

/// Whether it is a name of protobuf.
fn is_identifier(name: &str) -> bool {
    let begins = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    begins && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
