use std::{sync::OnceLock, time::Duration};

use http::HeaderValue;

use crate::{decision::Outcome, key::Secret, policy::Policy, util::random::random_time};

/// Which fields tell a client about its limits, and on which responses.
///
/// `Retry-After` is on every refusal that waiting helps against, whatever is chosen here.
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
/// # What the IETF fields say
///
/// `q` and `w` are the quota: so many units per so many seconds (`w` is left out for periods below a
/// second). `r` is what can be taken now. `t` is the seconds that `r` is to last: long enough that a
/// client which spends `r` evenly over `t` stays within the quota, and never more than `Retry-After`; where the
/// response's `Retry-After` is sooner, `t` is left out.
///
/// # Several policies
///
/// The list fields name each one, in the order of the layer. The others, which hold one number each,
/// speak of the policy that [binds](crate::Decision::binding). A field that an inner service set is
/// never replaced: list fields are appended to it, unless it is draft 07's dictionary; the others are then left
/// out.
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
/// let refused = service.clone().oneshot(request()?).await?;
/// assert_eq!(refused.headers()["ratelimit"], r#""api";r=0;t=30"#);
/// assert_eq!(refused.headers()["retry-after"], "30");
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
    pub(super) written: Written,
}

/// The `RateLimit-Policy` of the policies that were told first. Nearly always they are those of every response.
#[derive(Debug, Default)]
pub(super) struct Written(OnceLock<(Box<[Policy]>, Option<HeaderValue>)>);

impl Written {
    /// What `write` makes of the policies of `outcomes`, which is asked once for the same ones.
    pub(super) fn of(
        &self,
        outcomes: &[Outcome],
        write: impl Fn() -> Option<HeaderValue>,
    ) -> Option<HeaderValue> {
        let (policies, value) =
            self.0.get_or_init(|| (outcomes.iter().map(Outcome::policy).cloned().collect(), write()));
        let same = |(policy, outcome): (&Policy, &Outcome)| policy.is(outcome.policy());
        if policies.len() == outcomes.len() && policies.iter().zip(outcomes).all(same) {
            value.clone()
        } else {
            write()
        }
    }
}

/// A layer's own.
impl Clone for Written {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Written {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Written {}

/// Which of the drafts' fields, which share names and not their forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ietf {
    Off,
    Draft06,
    Draft07,
    List,
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
    pub fn ietf() -> Self {
        Self { ietf: Ietf::List, ..Self::off() }
    }

    /// The fields of draft 07: one dictionary for the policy that binds.
    #[must_use]
    pub fn ietf_draft_07() -> Self {
        Self { ietf: Ietf::Draft07, ..Self::off() }
    }

    /// The three fields of drafts 04 to 06, for the policy that binds.
    #[must_use]
    pub fn ietf_draft_06() -> Self {
        Self { ietf: Ietf::Draft06, ..Self::off() }
    }

    /// The `X-RateLimit-*` fields, with a reset in seconds since 1970 UTC.
    #[must_use]
    pub fn legacy_epoch() -> Self {
        Self::off().and_legacy_epoch()
    }

    /// The `X-RateLimit-*` fields, with a reset in seconds from now.
    #[must_use]
    pub fn legacy_delta() -> Self {
        Self::off().and_legacy_delta()
    }

    /// No fields but `Retry-After`.
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
            written: Written::default(),
        }
    }

    /// These, and the fields of [`legacy_epoch`](Self::legacy_epoch).
    #[must_use]
    pub fn and_legacy_epoch(mut self) -> Self {
        self.legacy = Some(LegacyReset::Epoch);
        self
    }

    /// These, and the fields of [`legacy_delta`](Self::legacy_delta).
    #[must_use]
    pub fn and_legacy_delta(mut self) -> Self {
        self.legacy = Some(LegacyReset::Delta);
        self
    }

    /// On refusals only. Defaults to every response.
    #[must_use]
    pub fn on_rejections_only(mut self) -> Self {
        self.successes = false;
        self
    }

    /// Not on redirections (3xx), where a client may take them for the target's. Defaults to every
    /// response.
    #[must_use]
    pub fn not_on_redirects(mut self) -> Self {
        self.redirects = false;
        self
    }

    /// Only the policy that [binds](crate::Decision::binding) in `RateLimit`. `RateLimit-Policy` names all
    /// of them still. Defaults to all.
    #[must_use]
    pub fn tightest_only(mut self) -> Self {
        self.tightest_only = true;
        self
    }
}

impl Headers {
    /// Has clients told to come back up to `up_to` later than need be, each at random, so that those refused
    /// together do not return together. `Retry-After`, the problem's text and gRPC's RetryInfo agree.
    /// Defaults to none.
    #[must_use]
    pub fn jitter(mut self, up_to: Duration) -> Self {
        self.jitter = up_to;
        self
    }

    /// Adds `pk` to the items of the list form's `RateLimit`: 96 bits of an HMAC-SHA256 of the key under
    /// `secret`, by which a client can tell that two of its requests count together. Defaults to none: it lets
    /// a client be recognised.
    ///
    /// # Panics
    ///
    /// If `secret` is shorter than 16 bytes.
    #[must_use]
    pub fn partition_key(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.partition_key = Some(Secret::new(secret.as_ref()));
        self
    }

    /// A random wait of up to the jitter.
    pub(crate) fn random_wait(&self) -> Duration {
        if self.jitter.is_zero() { Duration::ZERO } else { random_time(self.jitter) }
    }
}

impl Default for Headers {
    fn default() -> Self {
        Self::ietf()
    }
}
