//! Keys, which identify who is limited, and extractors, which find the key of a request.
//!
//! | key | extractor |
//! |---|---|
//! | address of the client | [`PeerIp`](crate::PeerIp); behind proxies [`ClientIp`](crate::ClientIp) |
//! | header, cookie, bearer token | [`Header`](crate::Header), [`Cookie`], [`Bearer`] |
//! | matched route, gRPC method | [`MatchedRoute`], [`GrpcMethod`] |
//! | value in the request's extensions | [`from_extension`] |
//! | what an axum extractor returns | [`from_extractor`] |
//! | one key for all requests | a [`Key`] |
//! | anything else in the head of a request | a closure, see [`from_fn`] |
//! | several together | a tuple of extractors |
//! | the first of several that the request has | [`KeyExtractor::or`] |
//!
//! A header or a cookie that a request has more than once, with different values, is rejected unless the
//! extractor has another [`Repeat`].
//!
//! # The stored form
//!
//! A key is stored as text: printable ASCII without braces and spaces, 1 to 96 bytes. In Redis it is the last
//! part of `prefix:policy:algorithm:{key}`, or of `prefix:policy:algorithm:{shard}:key` in a Cluster. `%` and
//! two hex digits are an encoded byte. `%` and another character are a mark, which no identity contains. The
//! marks of a CORS preflight do not count towards the 96 bytes:
//!
//! | key | stored form | example |
//! |---|---|---|
//! | identity of printable ASCII | itself | `alice` |
//! | identity with `%`, `{`, `}`, spaces, control or non-ASCII characters | these bytes percent-encoded | `Jos%C3%A9` |
//! | empty identity | `%` | `%` |
//! | identity longer than 96 bytes in this form | `%#` and 128 bits of SHA-256 in hex | `%#2a2c60fe96afac9151d4bd932fdb45be` |
//! | several [joined](Key::join) | `%(`, the parts with `%\|` between them, `%)` | `%(acme%\|alice%)` |
//! | the same, with a join as a part | the part in its own `%(` and `%)` | `%(%(acme%\|eu%)%\|alice%)` |
//! | several joined, longer than 96 bytes | `%+` and 128 bits of SHA-256 in hex | `%+2a5b83c9b383cd519973803d6aeca4c4` |
//! | from [`KeyExtractor::hashed`] | `%*` and 128 bits of HMAC-SHA256 in hex | `%*a6949588618bfddffa881161bfd2fd6d` |
//! | from the second extractor of an [`or`](KeyExtractor::or) | `%>` and the key | `%>203.0.113.7` |
//! | from the first extractor of an `or`, if the key itself begins with `%>` or `%<` | `%<` and the key | `%<%>203.0.113.7` |
//! | of a CORS preflight | `%^` and the key; in Redis, except in a Cluster, the mark follows the brace: `{203.0.113.7}%^` | `%^203.0.113.7` |
//!
//! If another mark makes a key longer than 96 bytes, the mark is followed by `%#` and the key's hash.
//!
//! ```
//! use http::Request;
//! use tower_ratelimit::{Header, Key, KeyExtractor};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_ratelimit::Error> {
//! let (acme, eu, alice) = (Key::new("acme"), Key::new("eu"), Key::new("alice"));
//! assert_eq!(alice.as_str(), "alice");
//! assert_eq!(Key::new("José").as_str(), "Jos%C3%A9");
//! assert_eq!(Key::new("").as_str(), "%");
//! assert_eq!(Key::new("a".repeat(97)).as_str(), "%#2a2c60fe96afac9151d4bd932fdb45be");
//! assert_eq!(Key::join([&acme, &alice]).as_str(), "%(acme%|alice%)");
//! assert_eq!(Key::join([&Key::join([&acme, &eu]), &alice]).as_str(), "%(%(acme%|eu%)%|alice%)");
//! assert_eq!(Key::join(&vec![acme; 20]).as_str(), "%+2a5b83c9b383cd519973803d6aeca4c4");
//!
//! let (request, ()) = Request::new(()).into_parts();
//! let hashed = Key::new("user-4").hashed("0123456789abcdef");
//! assert_eq!(hashed.extract(&request).await?.as_str(), "%*a6949588618bfddffa881161bfd2fd6d");
//! let address = Key::new("203.0.113.7");
//! let second = Header::new("x-api-key").or(address);
//! assert_eq!(second.extract(&request).await?.as_str(), "%>203.0.113.7");
//! let first = second.or(Key::new("all"));
//! assert_eq!(first.extract(&request).await?.as_str(), "%<%>203.0.113.7");
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "axum")]
mod axum;
mod combine;
mod cookie;
mod extension;
pub(crate) mod extractor;
mod grpc;
pub(crate) mod header;
mod host;
mod into_key;
pub(crate) mod ip;
pub(crate) mod key;
mod kind;
mod repeat;
mod secret;
mod stored;
mod text;

pub use crate::base::is_hidden;

#[cfg(feature = "axum")]
pub use self::axum::{MatchedRoute, from_extractor};
pub use self::{
    cookie::Cookie,
    extension::from_extension,
    extractor::from_fn,
    grpc::GrpcMethod,
    header::Bearer,
    into_key::IntoKey,
    ip::{Network, TrustedProxies},
    kind::KeyKind,
    repeat::Repeat,
};
pub(crate) use self::{
    extension::required,
    extractor::{KeyExtractor, Matcher, guarantee_key, matcher},
    ip::preflight_key,
    key::Key,
    secret::Secret,
    text::{HashSecret, decode as percent_decode},
};
