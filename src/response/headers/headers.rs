//! Which headers a layer adds to responses.

use http::{HeaderName, header::RETRY_AFTER};

use crate::{
    base::{Error, valid},
    key::Secret,
};

/// Which rate limit headers responses carry, and which responses carry them. [`Dialect`] shows the headers.
///
/// Every denial that waiting can resolve carries `Retry-After`, regardless of these settings.
///
/// # Meaning of the IETF headers
///
/// `q` and `w` are the quota: `q` units per `w` seconds. `w` is left out for periods below a second. `r` is
/// the number of units that can be charged now.
///
/// * With windows ([`FixedWindow`](crate::algorithm::FixedWindow)), `t` is the number of seconds until the
///   window ends. Until then, the client can use `r` units. `t` is left out before the first charge of a
///   window.
/// * With the other algorithms, units become available again all the time. A client that spreads `r` units
///   evenly over `t` seconds stays within the quota. If `r` is 0, `t` is the wait for the next unit or, on a
///   denial, for all that the request costs.
///
/// `t` is left out where no number would be right: under [`Concurrency`](crate::algorithm::Concurrency); on a
/// denial with `r` above 0, except with windows; for a request that costs more than the capacity; and if
/// `Retry-After` is shorter than `t` would be.
///
/// In drafts 04 to 07, `reset` is this time too. All numbers are as of the decision, not as of the end of the
/// request.
///
/// # Several policies
///
/// The lists of [`Dialect::Ietf`] and [`Dialect::IetfNext`] include every policy but
/// [shadows](crate::Policy::shadow), in the order of the layer. In drafts 04 to 07, `RateLimit-Policy` lists
/// the limits of all of them. The other headers describe the [binding](crate::Decision::binding) policy. If
/// several layers of this crate send them, they describe the binding policy of all these layers, in any order
/// of the layers.
///
/// Headers that another service behind the layer wrote are never replaced. List headers are appended to the
/// service's; the dictionary of draft 07 and headers with one number keep the service's value.
///
/// # Redirects
///
/// By default, redirects (3xx except 304) carry none of these headers, because a client may take them for the
/// headers of the target. [`on_redirects`](Self::on_redirects) adds them.
///
/// # Shared caches
///
/// A response that a CDN keeps is sent to other clients with these headers. Clients should ignore them in a stored
/// response, but few do: see the [guide](crate::guide::clients#shared-caches).
///
/// # Example
///
/// ```
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitHeaders, RateLimitLayer, response::Dialect};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let layer = RateLimitLayer::new(
///     MemoryStore::new(),
///     Policy::new("api", Quota::per_minute(2)),
///     Key::new("all"),
/// )
/// .headers(RateLimitHeaders::new(Dialect::Ietf).and(Dialect::LegacyDelta));
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
///
/// Fewer headers:
///
/// ```
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitHeaders, RateLimitLayer, response::Dialect};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let denials = || RateLimitHeaders::new(Dialect::Ietf).on_rejections_only();
/// let ietf = || RateLimitHeaders::new(Dialect::Ietf).binding_only().on_redirects();
/// for (headers, admitted_has, denied_has) in
///     [(ietf(), true, true), (denials(), false, true), (RateLimitHeaders::off(), false, false)]
/// {
///     let policy = Policy::new("api", Quota::per_hour(1));
///     let layer = RateLimitLayer::new(MemoryStore::new(), policy, Key::new("all")).headers(headers);
///     let service = layer.layer(tower::service_fn(|_: Request<String>| async {
///         Ok::<_, std::convert::Infallible>(Response::new(String::new()))
///     }));
///     let admitted = service.clone().oneshot(Request::new(String::new())).await?;
///     assert_eq!(admitted.headers().contains_key("ratelimit"), admitted_has);
///     let denied = service.oneshot(Request::new(String::new())).await?;
///     assert_eq!(denied.headers().contains_key("ratelimit"), denied_has);
///     assert!(denied.headers().contains_key("retry-after"));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitHeaders {
    pub(super) ietf: Option<Dialect>,
    pub(super) legacy: Option<Dialect>,
    pub(super) successes: bool,
    pub(super) redirects: bool,
    pub(super) millis: bool,
    pub(super) binding_only: bool,
    pub(super) partition_key: Option<Secret>,
}

/// A form of the rate limit headers, for [`RateLimitHeaders::new`].
///
/// | dialect | on the wire | used by |
/// |---|---|---|
/// | [`Ietf`](Self::Ietf) (default) | `RateLimit-Policy: "burst";q=100;w=60` and `RateLimit: "burst";r=50;t=30` | draft-ietf-httpapi-ratelimit-headers 08 to 11 |
/// | [`IetfNext`](Self::IetfNext) | `RateLimit-Policy` as above, and `RateLimit: "burst";a=50;w=30;c=1` | the text after draft 11, which is unfinished |
/// | [`IetfDraft07`](Self::IetfDraft07) | `RateLimit: limit=100, remaining=50, reset=30` and `RateLimit-Policy: 100;w=60` | draft 07, clients of express-rate-limit's `draft-7` |
/// | [`IetfDraft06`](Self::IetfDraft06) | `RateLimit-Limit`, `-Remaining`, `-Reset`, and `RateLimit-Policy: 100;w=60` | drafts 04 to 06, clients of `draft-6` |
/// | [`LegacyEpoch`](Self::LegacyEpoch) | `X-RateLimit-Limit`, `-Remaining`, `-Used`, and `-Reset` in seconds since 1970 UTC | GitHub and most public APIs |
/// | [`LegacyDelta`](Self::LegacyDelta) | the same, with `-Reset` in seconds from now | Envoy, Reddit |
///
/// # Example
///
/// ```
/// use tower_ratelimit::{RateLimitHeaders, response::Dialect};
///
/// let both = RateLimitHeaders::new(Dialect::Ietf).and(Dialect::LegacyDelta);
/// assert!(both.names().iter().any(|name| name == "x-ratelimit-remaining"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// The list headers, with every policy.
    Ietf,
    /// The list headers as the working copy of draft-ietf-httpapi-ratelimit-headers of August 2026 has them
    /// ([pull request 166](https://github.com/ietf-wg-httpapi/ratelimit-headers/pull/166)).
    ///
    /// **Exempt from semver**: the text is unfinished. Any release, a patch release too, may change what this
    /// variant sends so that it follows the text, and may remove it in favor of [`Ietf`](Self::Ietf).
    ///
    /// `RateLimit-Policy` is the same as with [`Ietf`](Self::Ietf). In `RateLimit`:
    ///
    /// * `a` is the number of available units, in place of `r`.
    /// * `w` is the effective window, in place of `t`. It has the same value and [is left
    ///   out](RateLimitHeaders#meaning-of-the-ietf-headers) in the same cases.
    /// * `c` is the cost of the request: the units that it was charged or, on a denial, would have been. For
    ///   a [reservation](crate::Reservation), it is the estimate. `c` is left out if the charge has changed
    ///   since the decision, after a refund or a [debit](crate::Limiter::debit).
    /// * `pk` is the same as with [`Ietf`](Self::Ietf), if [`partition_key`](RateLimitHeaders::partition_key)
    ///   is set.
    ///
    /// The header `RateLimit-Partition` is not sent. It lists the attributes of a request that make up `pk`,
    /// so that clients can compute `pk` from them, and `pk` must then contain their values unhashed.
    ///
    /// Layers with different list dialects append to the same lists. A client that knows one dialect lacks
    /// the numbers of the other layer, so set the same dialect on all of them.
    IetfNext,
    /// One dictionary, for the binding policy.
    IetfDraft07,
    /// One header for each number, for the binding policy.
    IetfDraft06,
    /// The `X-RateLimit-*` headers for the binding policy, with the time of the reset by the clock of this
    /// machine, or by the [`ManualClock`](crate::store::ManualClock) of the store.
    LegacyEpoch,
    /// The `X-RateLimit-*` headers for the binding policy, with the wait until the reset.
    LegacyDelta,
}

impl RateLimitHeaders {
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
    /// If a dialect with the same header names is already set: a response can have one form of the IETF
    /// headers, and one of the `X-RateLimit-*` headers.
    #[must_use]
    #[track_caller]
    pub fn and(mut self, dialect: Dialect) -> Self {
        if let Some(other) = self.place_of(dialect).replace(dialect) {
            panic!("{other:?} and {dialect:?} use the same header names: choose one of them");
        }
        self
    }

    /// No headers but `Retry-After`.
    #[must_use]
    pub const fn off() -> Self {
        Self {
            ietf: None,
            legacy: None,
            successes: true,
            redirects: false,
            millis: false,
            binding_only: false,
            partition_key: None,
        }
    }

    /// The drafts share names, and a client cannot tell the two forms of `X-RateLimit-Reset` apart, so a
    /// response has one of each.
    const fn place_of(&mut self, dialect: Dialect) -> &mut Option<Dialect> {
        match dialect {
            Dialect::Ietf | Dialect::IetfNext | Dialect::IetfDraft07 | Dialect::IetfDraft06 => &mut self.ietf,
            Dialect::LegacyEpoch | Dialect::LegacyDelta => &mut self.legacy,
        }
    }

    /// Whether rejections have `retry-after-ms`.
    pub(crate) const fn millis(&self) -> bool {
        self.millis
    }

    /// The names of the draft's headers that a response has once.
    pub(super) fn once_of_draft(&self) -> Vec<HeaderName> {
        match self.ietf {
            None | Some(Dialect::Ietf | Dialect::IetfNext) => Vec::new(),
            Some(Dialect::IetfDraft07) => vec![RATELIMIT],
            Some(_) => DRAFT_06.into(),
        }
    }

    /// Sends the headers only on rejections. Defaults to every response but redirects.
    #[must_use]
    pub fn on_rejections_only(mut self) -> Self {
        self.successes = false;
        self
    }

    /// Sends the headers on [redirects](Self#redirects) too. Defaults to every other response.
    #[must_use]
    pub fn on_redirects(mut self) -> Self {
        self.redirects = true;
        self
    }

    /// Adds `retry-after-ms` to each rejection with a `Retry-After` of this crate: the same wait in whole
    /// milliseconds, rounded up. Some clients of APIs prefer it. Defaults to `Retry-After` alone.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitHeaders, RateLimitLayer, store::ManualClock};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryStore::with_clock(ManualClock::new());
    /// let layer = RateLimitLayer::new(store, Policy::new("api", "4/s burst 1".parse::<Quota>()?), Key::new("all"))
    ///     .headers(RateLimitHeaders::default().retry_after_ms());
    /// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
    ///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    /// }));
    /// service.clone().oneshot(Request::new(String::new())).await?;
    /// let denied = service.oneshot(Request::new(String::new())).await?;
    /// assert_eq!(denied.headers()["retry-after"], "1");
    /// assert_eq!(denied.headers()["retry-after-ms"], "250");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn retry_after_ms(mut self) -> Self {
        self.millis = true;
        self
    }

    /// Lists only the [binding](crate::Decision::binding) policy in `RateLimit`. `RateLimit-Policy` still
    /// lists every policy. Defaults to every policy in both.
    #[must_use]
    pub fn binding_only(mut self) -> Self {
        self.binding_only = true;
        self
    }

    /// Adds `pk` to each policy in the `RateLimit` header of the list dialects: 96 bits of an HMAC-SHA256 of
    /// the key under `secret`. It shows a client which of its requests count together. Defaults to no `pk`,
    /// because others could recognize the client by it.
    ///
    /// # Panics
    ///
    /// If `secret` is shorter than 16 bytes. [`try_partition_key`](Self::try_partition_key) gives an error
    /// instead.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitHeaders, RateLimitLayer, response::Dialect};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let headers = RateLimitHeaders::new(Dialect::Ietf).partition_key("32 random bytes from the config.");
    /// let policy = Policy::new("api", Quota::per_hour(5));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), policy, Key::new("all")).headers(headers);
    /// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
    ///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    /// }));
    /// let response = service.oneshot(Request::new(String::new())).await?;
    /// assert!(response.headers()["ratelimit"].to_str()?.contains(";pk=:"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn partition_key(self, secret: impl AsRef<[u8]>) -> Self {
        valid(self.try_partition_key(secret))
    }

    /// The fallible form of [`partition_key`](Self::partition_key), for a secret read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`partition_key`](Self::partition_key)
    /// panics.
    pub fn try_partition_key(mut self, secret: impl AsRef<[u8]>) -> Result<Self, Error> {
        self.partition_key = Some(Secret::new(secret.as_ref())?);
        Ok(self)
    }

    /// The names of the headers that responses carry with these settings, `Retry-After` among them.
    ///
    /// Browsers hide all of them from scripts of other origins, except those that the CORS layer exposes. A
    /// layer that [only reports](crate::policy::Enforcement::ReportOnly) adds `x-ratelimit-exceeded`, and one with a
    /// rule that [degrades](crate::Rule::or_degrade) `x-ratelimit-degraded`.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_http::cors::{Any, CorsLayer};
    /// use tower_ratelimit::{RateLimitHeaders, response::Dialect};
    ///
    /// let names = RateLimitHeaders::new(Dialect::Ietf).names();
    /// assert_eq!(names, ["ratelimit", "ratelimit-policy", "retry-after"]);
    /// let legacy = RateLimitHeaders::new(Dialect::LegacyDelta).names();
    /// assert!(legacy.iter().any(|name| name == "x-ratelimit-remaining"));
    /// // The outer layer of the two.
    /// let cors = CorsLayer::new().allow_origin(Any).expose_headers(names);
    /// # drop(cors);
    /// ```
    #[must_use]
    pub fn names(&self) -> Vec<HeaderName> {
        let mut names = Vec::new();
        match self.ietf {
            Some(Dialect::IetfDraft06) => {
                names.extend(DRAFT_06);
                names.push(RATELIMIT_POLICY);
            }
            Some(_) => names.extend([RATELIMIT, RATELIMIT_POLICY]),
            None => {}
        }
        if self.legacy.is_some() {
            names.extend(LEGACY);
        }
        names.push(RETRY_AFTER);
        if self.millis {
            names.push(RETRY_AFTER_MS);
        }
        names
    }
}

impl Default for RateLimitHeaders {
    fn default() -> Self {
        Self::new(Dialect::Ietf)
    }
}

pub(super) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(super) const RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
pub(super) const RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
pub(super) const RATELIMIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
pub(super) const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(super) const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(super) const X_USED: HeaderName = HeaderName::from_static("x-ratelimit-used");
pub(super) const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// Lists the policies of the denied charges without which the request goes on.
pub(super) const X_DEGRADED: HeaderName = HeaderName::from_static("x-ratelimit-degraded");
/// Lists the policies that denied the request, of layers that only report.
pub(super) const X_EXCEEDED: HeaderName = HeaderName::from_static("x-ratelimit-exceeded");

/// `Retry-After` in milliseconds, as some clients of APIs read it.
pub(in crate::response) const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// The headers of drafts 04 to 06, but for `RateLimit-Policy`.
pub(super) const DRAFT_06: [HeaderName; 3] = [RATELIMIT_LIMIT, RATELIMIT_REMAINING, RATELIMIT_RESET];
/// The `X-RateLimit-*` headers.
pub(super) const LEGACY: [HeaderName; 4] = [X_LIMIT, X_REMAINING, X_USED, X_RESET];
