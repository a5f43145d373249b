/// How rate limit headers are written: see [`Headers::new`](super::Headers::new).
///
/// | dialect | on the wire | spoken by |
/// |---|---|---|
/// | [`Ietf`](Self::Ietf) (default) | `RateLimit-Policy: "burst";q=100;w=60` and `RateLimit: "burst";r=50;t=30` | draft-ietf-httpapi-ratelimit-headers 08 to 11 |
/// | [`IetfDraft07`](Self::IetfDraft07) | `RateLimit: limit=100, remaining=50, reset=30` and `RateLimit-Policy: 100;w=60` | draft 07, clients of express-rate-limit's `draft-7` |
/// | [`IetfDraft06`](Self::IetfDraft06) | `RateLimit-Limit`, `-Remaining`, `-Reset`, and `RateLimit-Policy: 100;w=60` | drafts 04 to 06, clients of `draft-6` |
/// | [`LegacyEpoch`](Self::LegacyEpoch) | `X-RateLimit-Limit`, `-Remaining`, `-Used`, and `-Reset` in seconds since 1970 UTC | GitHub and most public APIs |
/// | [`LegacyDelta`](Self::LegacyDelta) | the same, with `-Reset` in seconds from now | Envoy, Reddit |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// The list headers, with every policy.
    Ietf,
    /// One dictionary, for the policy that binds.
    IetfDraft07,
    /// One header for each number, for the policy that binds.
    IetfDraft06,
    /// The `X-RateLimit-*` headers, for the policy that binds, with the time of the reset.
    LegacyEpoch,
    /// The `X-RateLimit-*` headers, for the policy that binds, with the wait until the reset.
    LegacyDelta,
}
