use std::time::Duration;

/// Admitted now, admitted after a delay, or denied.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::Verdict;
///
/// let wait = Duration::from_secs(1);
/// assert_eq!(Verdict::Delay(wait).delay(), Some(wait));
/// assert!(!Verdict::Delay(wait).is_denied());
/// assert_eq!(Verdict::Deny { retry_after: Some(wait) }.retry_after(), Some(wait));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// Admitted now, and charged.
    Allow,
    /// Admitted and charged. The request may go on after this delay; a layer waits for it.
    Delay(Duration),
    /// Denied, and nothing was charged.
    Deny {
        /// The shortest wait, to the microsecond, after which the same request is admitted if the key is not charged
        /// before. `None` if waiting cannot help, because the cost is above the capacity.
        retry_after: Option<Duration>,
    },
}

impl Verdict {
    /// Whether the request is denied.
    #[must_use]
    pub const fn is_denied(&self) -> bool {
        matches!(self, Self::Deny { .. })
    }

    /// The delay after which an admitted request may go on. `None` if it may go on now, and if it is denied.
    #[must_use]
    pub const fn delay(&self) -> Option<Duration> {
        match self {
            Self::Delay(delay) => Some(*delay),
            _ => None,
        }
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
