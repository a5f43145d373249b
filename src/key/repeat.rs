//! What happens to a header or cookie that a request has more than once.

/// What an extractor does with a header or a cookie that a request has more than once, with different values.
/// Equal values are always one value.
///
/// Clients can repeat what they send, and a service reads one of the values. The choice decides who can do
/// what:
///
/// | | the key | what can happen |
/// |---|---|---|
/// | [`Reject`](Self::Reject) | none: 400 | Rejection. Someone who can add a value to another client's requests can have them rejected. For a cookie, a sibling subdomain can: it sets one for the parent domain. |
/// | [`First`](Self::First), [`Last`](Self::Last) | that value | Evasion, if the service reads another value than the one that is the key: a client sends the value that the service reads beside an invented one, and each invented one has a new limit. |
///
/// So choose the value that your service reads, and test it: for cookies, axum-extra's `CookieJar` keeps the
/// last one, and the `Cookie` of the crate `headers` finds the first. For headers,
/// [`HeaderMap::get`](http::HeaderMap::get) returns the first. Keep `Reject` if several services read the
/// value, such as a proxy and the service behind it.
///
/// # Example
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{ErrorKind, Key, KeyExtractor, key::{Cookie, Repeat}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (parts, ()) = Request::get("/").header("cookie", "session=s1; session=s2").body(())?.into_parts();
/// let session = || Cookie::new("session");
/// assert_eq!(session().extract(&parts).await.unwrap_err().kind(), ErrorKind::InvalidIdentity);
/// assert_eq!(session().on_repeat(Repeat::Last).extract(&parts).await?, Key::new("s2"));
///
/// let (parts, ()) = Request::get("/").header("cookie", "session=s1; session=s1").body(())?.into_parts();
/// assert_eq!(session().extract(&parts).await?, Key::new("s1"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Repeat {
    /// The request has no usable identity and is rejected with 400. The default.
    #[default]
    Reject,
    /// The first value is the key.
    First,
    /// The last value is the key.
    Last,
}

/// A request has several values that differ, and they are rejected.
#[derive(Debug)]
pub(super) struct Differ;

impl Repeat {
    /// The value of a request that has `values`. `None` without any.
    pub(super) fn choose<T: PartialEq>(
        self,
        mut values: impl Iterator<Item = T>,
    ) -> Result<Option<T>, Differ> {
        match self {
            Self::First => Ok(values.next()),
            Self::Last => Ok(values.last()),
            Self::Reject => {
                let first = values.next();
                let is_same = values.all(|other| first.as_ref() == Some(&other));
                if is_same { Ok(first) } else { Err(Differ) }
            }
        }
    }
}
