//! The names of the headers.

use http::{HeaderName, header::RETRY_AFTER};

use super::{dialect::Dialect, headers::Headers};

pub(super) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(super) const RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
pub(super) const RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
pub(super) const RATELIMIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
pub(super) const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(super) const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(super) const X_USED: HeaderName = HeaderName::from_static("x-ratelimit-used");
pub(super) const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// Lists the policies that denied the request, of layers that only report.
pub(super) const X_EXCEEDED: HeaderName = HeaderName::from_static("x-ratelimit-exceeded");

/// The headers that grow with the number of policies.
pub(super) const LISTS: [HeaderName; 3] = [RATELIMIT, RATELIMIT_POLICY, X_EXCEEDED];
/// The headers of drafts 04 to 06, but for `RateLimit-Policy`.
pub(super) const DRAFT_06: [HeaderName; 3] = [RATELIMIT_LIMIT, RATELIMIT_REMAINING, RATELIMIT_RESET];
/// The `X-RateLimit-*` headers.
pub(super) const LEGACY: [HeaderName; 4] = [X_LIMIT, X_REMAINING, X_USED, X_RESET];

impl Headers {
    /// The names of the headers that responses carry with these settings, `Retry-After` among them.
    ///
    /// Browsers hide all of them from scripts of other origins, except those that the CORS layer exposes. A layer
    /// that [only reports](crate::policy::Enforcement::ReportOnly) adds `x-ratelimit-exceeded`.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_http::cors::{Any, CorsLayer};
    /// use tower_ratelimit::{Headers, response::Dialect};
    ///
    /// let names = Headers::new(Dialect::Ietf).names();
    /// assert_eq!(names, ["ratelimit", "ratelimit-policy", "retry-after"]);
    /// let legacy = Headers::new(Dialect::LegacyDelta).names();
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
        names
    }
}
