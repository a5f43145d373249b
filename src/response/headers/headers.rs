use std::str::FromStr;

use super::dialect::Dialect;
use crate::{
    base::{Error, ErrorKind},
    key::Secret,
};

/// The rate limit headers of responses: which dialect, and on which responses.
///
/// Every denial that waiting can resolve carries `Retry-After`, regardless of these settings.
///
/// See [`Dialect`] for what is on the wire.
///
/// # Meaning of the IETF headers
///
/// `q` and `w` are the quota: `q` units per `w` seconds (`w` is left out for periods below a
/// second). `r` is the units that can be charged now. `t` is the seconds over which `r` is to last: a
/// client that spends `r` evenly over `t` stays within the quota. `t` is left out if the response's `Retry-After` is
/// shorter.
///
/// # Several policies
///
/// The list headers name every policy, in the order of the layer. The other headers, which hold one number each,
/// describe the policy that [binds](crate::Decision::binding). Headers of an inner service are
/// never replaced: lists are appended to them, except to the dictionary of draft 07, and the other headers are left out.
///
/// # As text
///
/// The names of the dialects read as headers, joined by `+`: `ietf`, `ietf-draft-07`, `ietf-draft-06`, `legacy-epoch`,
/// `legacy-delta`, `off`, or `ietf+legacy-delta`. With the feature `serde`, configuration files hold the same text.
///
/// # Example
///
/// ```
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{Headers, Key, MemoryStore, Policy, Quota, RateLimitLayer, response::Dialect};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let layer = RateLimitLayer::new(
///     MemoryStore::new(),
///     Policy::new("api", Quota::per_minute(2)),
///     Key::new("all"),
/// )
/// .headers(Headers::new(Dialect::Ietf).and(Dialect::LegacyDelta));
/// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
/// }));
///
/// let request = || Request::get("/").body(String::new());
/// let admitted = service.clone().oneshot(request()?).await?;
/// assert_eq!(admitted.headers()["ratelimit-policy"], r#""api";q=2;w=60"#);
/// assert_eq!(admitted.headers()["ratelimit"], r#""api";r=1;t=30"#);
/// assert_eq!(admitted.headers()["x-ratelimit-remaining"], "1");
///
/// service.clone().oneshot(request()?).await?;
/// let denied = service.clone().oneshot(request()?).await?;
/// assert_eq!(denied.headers()["ratelimit"], r#""api";r=0;t=30"#);
/// assert_eq!(denied.headers()["retry-after"], "30");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    pub(super) ietf: Option<Dialect>,
    pub(super) legacy: Option<Dialect>,
    pub(super) successes: bool,
    pub(super) redirects: bool,
    pub(super) tightest_only: bool,
    pub(super) partition_key: Option<Secret>,
}

const SAME_NAMES: &str = "these dialects use the same header names: choose one of them";

impl Headers {
    /// The headers of `dialect` on every response. The default is [`Dialect::Ietf`].
    #[must_use]
    pub fn new(dialect: Dialect) -> Self {
        let mut headers = Self::off();
        *headers.place_of(dialect) = Some(dialect);
        headers
    }

    /// Adds the headers of `dialect`.
    ///
    /// # Panics
    ///
    /// If there is a dialect whose headers have the same names: a response has one form of the IETF headers, and one of the
    /// `X-RateLimit-*` headers.
    #[must_use]
    #[track_caller]
    pub fn and(self, dialect: Dialect) -> Self {
        match self.try_and(dialect) {
            Some(headers) => headers,
            None => panic!("{SAME_NAMES}"),
        }
    }

    /// No headers but `Retry-After`.
    #[must_use]
    pub const fn off() -> Self {
        Self {
            ietf: None,
            legacy: None,
            successes: true,
            redirects: true,
            tightest_only: false,
            partition_key: None,
        }
    }

    fn try_and(mut self, dialect: Dialect) -> Option<Self> {
        let place = self.place_of(dialect);
        if place.is_some() {
            return None;
        }
        *place = Some(dialect);
        Some(self)
    }

    /// The drafts share names, and a client cannot tell the two forms of `X-RateLimit-Reset` apart, so a response has one of
    /// each.
    const fn place_of(&mut self, dialect: Dialect) -> &mut Option<Dialect> {
        match dialect {
            Dialect::Ietf | Dialect::IetfDraft07 | Dialect::IetfDraft06 => &mut self.ietf,
            Dialect::LegacyEpoch | Dialect::LegacyDelta => &mut self.legacy,
        }
    }

    /// Sends the headers on denials only. Defaults to every response.
    #[must_use]
    pub fn on_rejections_only(mut self) -> Self {
        self.successes = false;
        self
    }

    /// Sends no headers on redirects (3xx), where a client may take them for the target's headers. Defaults to every
    /// response.
    #[must_use]
    pub fn not_on_redirects(mut self) -> Self {
        self.redirects = false;
        self
    }

    /// Names only the policy that [binds](crate::Decision::binding) in `RateLimit`. `RateLimit-Policy` still names every
    /// policy. Defaults to every policy in both.
    #[must_use]
    pub fn tightest_only(mut self) -> Self {
        self.tightest_only = true;
        self
    }

    /// Adds `pk` to the items of the list form's `RateLimit`: 96 bits of an HMAC-SHA256 of the key under
    /// `secret`. A client sees by it which of its requests count together. Defaults to no `pk`, because others
    /// could recognize the client by it.
    ///
    /// # Panics
    ///
    /// If `secret` is shorter than 16 bytes.
    #[must_use]
    #[track_caller]
    pub fn partition_key(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.partition_key = Some(Secret::new(secret.as_ref()));
        self
    }
}

impl Default for Headers {
    fn default() -> Self {
        Self::new(Dialect::Ietf)
    }
}

/// Reads the names of dialects, joined by `+`.
///
/// # Errors
///
/// [`InvalidConfig`](ErrorKind::InvalidConfig) for any other text, and for two dialects whose headers have the same names.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Headers, response::Dialect};
///
/// let both = Headers::new(Dialect::Ietf).and(Dialect::LegacyDelta);
/// assert_eq!("ietf+legacy-delta".parse::<Headers>()?, both);
/// assert!("ietf+ietf-draft-07".parse::<Headers>().is_err());
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
impl FromStr for Headers {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |problem: &str| {
            Error::new(ErrorKind::InvalidConfig, format!("invalid rate limit headers `{text}`: {problem}"))
        };
        if text.trim() == "off" {
            return Ok(Self::off());
        }
        let mut headers = Self::off();
        for dialect in text.split('+').map(str::trim) {
            let dialect = match dialect {
                "ietf" => Dialect::Ietf,
                "ietf-draft-07" => Dialect::IetfDraft07,
                "ietf-draft-06" => Dialect::IetfDraft06,
                "legacy-epoch" => Dialect::LegacyEpoch,
                "legacy-delta" => Dialect::LegacyDelta,
                _ => {
                    return Err(invalid(
                        "write `ietf`, `ietf-draft-07`, `ietf-draft-06`, `legacy-epoch`, `legacy-delta` or `off`, \
                         or `ietf+legacy-delta` for both",
                    ));
                }
            };
            headers = headers.try_and(dialect).ok_or_else(|| invalid(SAME_NAMES))?;
        }
        Ok(headers)
    }
}

/// From the text that [`from_str`](Headers::from_str) reads.
#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Headers {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::base::text::deserialize(deserializer, "the names of header dialects, such as \"ietf\"")
    }
}
