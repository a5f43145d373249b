use std::{str::FromStr, time::Duration};

use crate::{
    base::{Error, ErrorKind, random::random_time},
    key::Secret,
};

/// The rate limit headers of responses: which dialect, and on which responses.
///
/// `Retry-After` is on every denial that waiting helps against, whatever these settings are.
///
/// | dialect | on the wire | spoken by |
/// |---|---|---|
/// | [`ietf`](Self::ietf) (default) | `RateLimit-Policy: "burst";q=100;w=60` and `RateLimit: "burst";r=50;t=30` | draft-ietf-httpapi-ratelimit-headers 08 to 11 |
/// | [`ietf_draft_07`](Self::ietf_draft_07) | `RateLimit: limit=100, remaining=50, reset=30` and `RateLimit-Policy: 100;w=60` | draft 07, clients of express-rate-limit's `draft-7` |
/// | [`ietf_draft_06`](Self::ietf_draft_06) | `RateLimit-Limit`, `-Remaining`, `-Reset`, and `RateLimit-Policy: 100;w=60` | drafts 04 to 06, clients of `draft-6` |
/// | [`legacy_epoch`](Self::legacy_epoch) | `X-RateLimit-Limit`, `-Remaining`, `-Used`, and `-Reset` in seconds since 1970 | GitHub and most public APIs |
/// | [`legacy_delta`](Self::legacy_delta) | the same, with `-Reset` in seconds from now | Envoy, Reddit |
/// | [`off`](Self::off) | nothing | |
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
/// use tower_ratelimit::{key::Constant, Headers, MemoryStore, Policy, Quota, RateLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let layer = RateLimitLayer::new(
///     MemoryStore::new(),
///     Policy::new("api", Quota::per_minute(2)),
///     Constant::new("all"),
/// )
/// .headers(Headers::ietf().and_legacy_delta());
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
    pub(super) ietf: Ietf,
    pub(super) legacy: Option<LegacyReset>,
    pub(super) successes: bool,
    pub(super) redirects: bool,
    pub(super) tightest_only: bool,
    pub(super) jitter: Duration,
    pub(super) partition_key: Option<Secret>,
}

/// A form of the IETF headers. The drafts share names, so a response has one form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ietf {
    Off,
    Draft06,
    Draft07,
    List,
}

/// The origin of `X-RateLimit-Reset`. A client cannot tell the two apart, so a response has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LegacyReset {
    Epoch,
    Delta,
}

/// An address has 32 bits: with a shorter secret, a client could find the secret by trial.
const SHORTEST_SECRET: usize = 16;

impl Headers {
    /// The IETF list headers `RateLimit-Policy` and `RateLimit`. The default.
    #[must_use]
    pub fn ietf() -> Self {
        Self { ietf: Ietf::List, ..Self::off() }
    }

    /// The headers of draft 07: one dictionary for the policy that binds.
    #[must_use]
    pub fn ietf_draft_07() -> Self {
        Self { ietf: Ietf::Draft07, ..Self::off() }
    }

    /// The headers of drafts 04 to 06, for the policy that binds.
    #[must_use]
    pub fn ietf_draft_06() -> Self {
        Self { ietf: Ietf::Draft06, ..Self::off() }
    }

    /// The `X-RateLimit-*` headers, with a reset in seconds since 1970 UTC.
    #[must_use]
    pub fn legacy_epoch() -> Self {
        Self::off().and_legacy_epoch()
    }

    /// The `X-RateLimit-*` headers, with a reset in seconds from now.
    #[must_use]
    pub fn legacy_delta() -> Self {
        Self::off().and_legacy_delta()
    }

    /// No headers but `Retry-After`.
    #[must_use]
    pub fn off() -> Self {
        Self {
            ietf: Ietf::Off,
            legacy: None,
            successes: true,
            redirects: true,
            tightest_only: false,
            jitter: Duration::ZERO,
            partition_key: None,
        }
    }

    /// Adds the headers of [`legacy_epoch`](Self::legacy_epoch).
    #[must_use]
    pub fn and_legacy_epoch(mut self) -> Self {
        self.legacy = Some(LegacyReset::Epoch);
        self
    }

    /// Adds the headers of [`legacy_delta`](Self::legacy_delta).
    #[must_use]
    pub fn and_legacy_delta(mut self) -> Self {
        self.legacy = Some(LegacyReset::Delta);
        self
    }

    /// Sends the headers on denials only. Defaults to every response.
    #[must_use]
    pub fn on_rejections_only(mut self) -> Self {
        self.successes = false;
        self
    }

    /// Sends no headers on redirects (3xx), where a client may take them for those of the target. Defaults to every
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
}

impl Headers {
    /// Adds a random time of up to `up_to` to the wait of each denial, so that clients denied together do not retry
    /// together. `Retry-After`, the problem's text and gRPC's RetryInfo name the same wait. Defaults to no jitter.
    #[must_use]
    pub fn jitter(mut self, up_to: Duration) -> Self {
        self.jitter = up_to;
        self
    }

    /// Adds `pk` to the items of the list form's `RateLimit`: 96 bits of an HMAC-SHA256 of the key under
    /// `secret`. A client sees by it which of its requests count together. Defaults to no `pk`, because others
    /// could recognize the client by it.
    ///
    /// # Panics
    ///
    /// If `secret` is shorter than 16 bytes. [`try_partition_key`](Self::try_partition_key) gives an error instead.
    #[must_use]
    #[track_caller]
    pub fn partition_key(self, secret: impl AsRef<[u8]>) -> Self {
        match self.try_partition_key(secret) {
            Ok(headers) => headers,
            Err(error) => panic!("{error}"),
        }
    }

    /// The fallible form of [`partition_key`](Self::partition_key), for a secret read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) if `secret` is shorter than 16 bytes.
    pub fn try_partition_key(mut self, secret: impl AsRef<[u8]>) -> Result<Self, Error> {
        let secret = secret.as_ref();
        if secret.len() < SHORTEST_SECRET {
            return Err(Error::invalid(
                "the secret of a partition key must have at least 16 bytes of random data",
            ));
        }
        self.partition_key = Some(Secret::new(secret));
        Ok(self)
    }

    /// A random time of up to the jitter.
    pub(crate) fn random_wait(&self) -> Duration {
        if self.jitter.is_zero() { Duration::ZERO } else { random_time(self.jitter) }
    }
}

impl Default for Headers {
    fn default() -> Self {
        Self::ietf()
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
/// use tower_ratelimit::Headers;
///
/// assert_eq!("ietf+legacy-delta".parse::<Headers>()?, Headers::ietf().and_legacy_delta());
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
            let (ietf, legacy) = match dialect {
                "ietf" => (Some(Ietf::List), None),
                "ietf-draft-07" => (Some(Ietf::Draft07), None),
                "ietf-draft-06" => (Some(Ietf::Draft06), None),
                "legacy-epoch" => (None, Some(LegacyReset::Epoch)),
                "legacy-delta" => (None, Some(LegacyReset::Delta)),
                _ => {
                    return Err(invalid(
                        "write `ietf`, `ietf-draft-07`, `ietf-draft-06`, `legacy-epoch`, `legacy-delta` or `off`, \
                         or `ietf+legacy-delta` for both",
                    ));
                }
            };
            if ietf.is_some() && headers.ietf != Ietf::Off || legacy.is_some() && headers.legacy.is_some() {
                return Err(invalid("these dialects use the same header names: choose one of them"));
            }
            headers.ietf = ietf.unwrap_or(headers.ietf);
            headers.legacy = legacy.or(headers.legacy);
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
