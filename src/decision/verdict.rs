use std::time::Duration;

/// Admitted now, admitted after a delay, or denied.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::Verdict;
///
/// assert!(Verdict::Allow.is_allowed());
/// assert!(Verdict::Delay(Duration::from_millis(20)).is_allowed());
/// assert!(!Verdict::Deny { retry_after: Some(Duration::from_secs(1)) }.is_allowed());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// Admitted now, and charged.
    Allow,
    /// Admitted and charged. The service is called after this delay.
    Delay(Duration),
    /// Denied, and nothing was charged.
    Deny {
        /// The shortest wait, to the microsecond, after which the same request is admitted if the key is not charged
        /// before. `None` if waiting cannot help, because the cost is above the capacity.
        retry_after: Option<Duration>,
    },
}

impl Verdict {
    /// Whether the request is admitted, now or after a delay.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        !matches!(self, Self::Deny { .. })
    }

    /// The wait of a denial. `None` if the request is admitted, and if waiting cannot help.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Deny { retry_after } => *retry_after,
            _ => None,
        }
    }
}
