use std::{collections::BTreeSet, sync::Arc};

use http::request::Parts;

use crate::base::{Answer, Error};
use crate::key::{Key, KeyExtractor, extractor::only};

/// The gRPC method that is called, such as `greeter.Greeter/SayHello`.
///
/// The method is the path of the request, without its first slash. A path of another form shares the key `(other)`,
/// which cannot be a method's name.
///
/// A client can call methods that do not exist, and each would have a separate quota. Where that matters, name those
/// that exist with [`only`](Self::only): all others share the key `(other)`.
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{key::{GrpcMethod, GrpcService}, Key, KeyExtractor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (call, ()) = Request::post("/greeter.Greeter/SayHello").body(())?.into_parts();
/// assert_eq!(GrpcMethod::new().extract(&call).await?, Key::new("greeter.Greeter/SayHello"));
/// assert_eq!(GrpcService::new().extract(&call).await?, Key::new("greeter.Greeter"));
///
/// let known = GrpcMethod::new().only(["greeter.Greeter/SayHello"]);
/// let (invented, ()) = Request::post("/greeter.Greeter/Invented").body(())?.into_parts();
/// assert_eq!(known.extract(&call).await?, Key::new("greeter.Greeter/SayHello"));
/// assert_eq!(known.extract(&invented).await?, Key::new("(other)"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct GrpcMethod {
    known: Option<Arc<BTreeSet<Box<str>>>>,
}

/// The gRPC service that is called, such as `greeter.Greeter`.
///
/// As for [`GrpcMethod`], where there is an example: a path of another form, and with [`only`](Self::only) every service
/// that is not named, has the key `(other)`.
#[derive(Clone, Debug, Default)]
pub struct GrpcService {
    known: Option<Arc<BTreeSet<Box<str>>>>,
}

impl GrpcMethod {
    /// The method of a call.
    #[must_use]
    pub const fn new() -> Self {
        Self { known: None }
    }

    /// Gives each of `methods`, written as `package.Service/Method`, a key, and all others the key `(other)`. Defaults to a
    /// key for each method.
    #[must_use]
    pub fn only(mut self, methods: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.known = Some(set(methods));
        self
    }
}

impl GrpcService {
    /// The service of a call.
    #[must_use]
    pub const fn new() -> Self {
        Self { known: None }
    }

    /// Gives each of `services`, written as `package.Service`, a key, and all others the key `(other)`. Defaults to a key
    /// for each service.
    #[must_use]
    pub fn only(mut self, services: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.known = Some(set(services));
        self
    }
}

impl KeyExtractor for GrpcMethod {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        let method = request.uri.path().strip_prefix('/');
        Answer::ready(Ok(key(method.filter(|method| split(method).is_some()), self.known.as_deref())))
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        let possible = |name: &str| is_known(name, self.known.as_deref()) && split(name).is_some();
        only(named, |name| is_key(name, possible), "a gRPC method, as `package.Service/Method`, or `(other)`")
    }
}

impl KeyExtractor for GrpcService {
    fn extract(&self, request: &Parts) -> Answer<Key> {
        let service = request.uri.path().strip_prefix('/').and_then(split).map(|(service, _)| service);
        Answer::ready(Ok(key(service, self.known.as_deref())))
    }

    fn keys_of(&self, named: &Key) -> Result<Vec<Key>, Error> {
        let possible = |name: &str| is_known(name, self.known.as_deref()) && is_service(name);
        only(named, |name| is_key(name, possible), "a gRPC service, as `package.Service`, or `(other)`")
    }
}

/// No name of protobuf has parentheses.
const OTHER: &str = "(other)";

fn set(names: impl IntoIterator<Item = impl AsRef<str>>) -> Arc<BTreeSet<Box<str>>> {
    Arc::new(names.into_iter().map(|name| name.as_ref().trim_start_matches('/').into()).collect())
}

fn key(name: Option<&str>, known: Option<&BTreeSet<Box<str>>>) -> Key {
    Key::new(name.filter(|name| is_known(name, known)).unwrap_or(OTHER))
}

fn is_known(name: &str, known: Option<&BTreeSet<Box<str>>>) -> bool {
    known.is_none_or(|known| known.contains(name))
}

fn is_key(name: &[u8], possible: impl FnOnce(&str) -> bool) -> bool {
    str::from_utf8(name).is_ok_and(|name| name == OTHER || possible(name))
}

/// The service and the method of `package.Service/Method`.
fn split(method: &str) -> Option<(&str, &str)> {
    let (service, method) = method.split_once('/')?;
    (is_service(service) && is_identifier(method)).then_some((service, method))
}

fn is_service(name: &str) -> bool {
    name.split('.').all(is_identifier)
}

/// A name of protobuf.
fn is_identifier(name: &str) -> bool {
    let begins = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    begins && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
