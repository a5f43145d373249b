/// Which fields tell a client about its limits, and on which responses.
///
/// `Retry-After` is on every refusal that waiting helps against, whatever is chosen here.
///
/// | dialect | on the wire | spoken by |
/// |---|---|---|
/// | [`ietf`](Self::ietf) (default) | `RateLimit-Policy: "burst";q=100;w=60` and `RateLimit: "burst";r=50;t=30` | draft-ietf-httpapi-ratelimit-headers 08 to 11 |
/// | [`legacy_epoch`](Self::legacy_epoch) | `X-RateLimit-Limit`, `-Remaining`, `-Used`, and `-Reset` in seconds since 1970 | GitHub and most public APIs |
/// | [`legacy_delta`](Self::legacy_delta) | the same, with `-Reset` in seconds from now | Envoy, Reddit |
/// | [`off`](Self::off) | nothing | |
///
/// # What the IETF fields say
///
/// `q` and `w` are the quota: so many units per so many seconds (`w` is left out for periods below a
/// second). `r` is what can be taken now. `t` is the seconds that `r` is to last: long enough that a
/// client which spends `r` evenly over `t` stays within the quota, and never more than `Retry-After`.
///
/// # Several policies
///
/// The list fields name each one, in the order of the layer. The legacy fields, which hold one number,
/// speak of the policy that [binds](crate::Decision::binding). A field that an inner service set is
/// never replaced: list fields are appended to it, legacy ones then left out.
///
/// # Example
///
/// ```
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{Constant, Headers, MemoryStore, Policy, Quota, RateLimitLayer};
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
/// let refused = service.clone().oneshot(request()?).await?;
/// assert_eq!(refused.headers()["ratelimit"], r#""api";r=0;t=30"#);
/// assert_eq!(refused.headers()["retry-after"], "30");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    pub(super) ietf: bool,
    pub(super) legacy: Option<LegacyReset>,
    pub(super) successes: bool,
    pub(super) redirects: bool,
    pub(super) tightest_only: bool,
}

/// What `X-RateLimit-Reset` counts from. Never both: a client cannot tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LegacyReset {
    Epoch,
    Delta,
}

impl Headers {
    /// The IETF list fields `RateLimit-Policy` and `RateLimit`. The default.
    #[must_use]
    pub const fn ietf() -> Self {
        Self { ietf: true, ..Self::off() }
    }

    /// The `X-RateLimit-*` fields, with a reset in seconds since 1970 UTC.
    #[must_use]
    pub const fn legacy_epoch() -> Self {
        Self::off().and_legacy_epoch()
    }

    /// The `X-RateLimit-*` fields, with a reset in seconds from now.
    #[must_use]
    pub const fn legacy_delta() -> Self {
        Self::off().and_legacy_delta()
    }

    /// No fields but `Retry-After`.
    #[must_use]
    pub const fn off() -> Self {
        Self { ietf: false, legacy: None, successes: true, redirects: true, tightest_only: false }
    }

    /// These, and the fields of [`legacy_epoch`](Self::legacy_epoch).
    #[must_use]
    pub const fn and_legacy_epoch(mut self) -> Self {
        self.legacy = Some(LegacyReset::Epoch);
        self
    }

    /// These, and the fields of [`legacy_delta`](Self::legacy_delta).
    #[must_use]
    pub const fn and_legacy_delta(mut self) -> Self {
        self.legacy = Some(LegacyReset::Delta);
        self
    }

    /// On refusals only. Defaults to every response.
    #[must_use]
    pub const fn on_refusals_only(mut self) -> Self {
        self.successes = false;
        self
    }

    /// Not on redirections (3xx), where a client may take them for the target's. Defaults to every
    /// response.
    #[must_use]
    pub const fn not_on_redirects(mut self) -> Self {
        self.redirects = false;
        self
    }

    /// Only the policy that [binds](crate::Decision::binding) in `RateLimit`. `RateLimit-Policy` names all
    /// of them still. Defaults to all.
    #[must_use]
    pub const fn tightest_only(mut self) -> Self {
        self.tightest_only = true;
        self
    }
}

impl Default for Headers {
    fn default() -> Self {
        Self::ietf()
    }
}
