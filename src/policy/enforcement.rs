//! [`Enforcement`], and the switch that changes it while the service runs.

use std::{
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use crate::base::Error;

/// Whether a layer enforces its limits: see
/// [`RateLimitLayer::enforcement`](crate::RateLimitLayer::enforcement).
///
/// Parsed from and printed as `on`, `report-only` or `off`; with the feature `serde`, also in configuration
/// files. See [`EnforcementSwitch`] for a position that changes while the service runs.
///
/// # Which dry run
///
/// | | set for | a request over the limit | clients see | use it to |
/// |---|---|---|---|---|
/// | [`Policy::shadow`](crate::Policy::shadow) | one policy | is admitted, not charged | nothing | try a new limit in addition to the old ones |
/// | [`Policy::rollout`](crate::Policy::rollout) | one policy, a share of its keys | is denied for these keys, admitted for others | denials and headers, for enforced keys | enforce a limit step by step |
/// | [`ReportOnly`](Self::ReportOnly) | layers | is admitted, not charged | `X-RateLimit-Exceeded`, and the headers of a denial without `Retry-After` | mark responses, or answer with less |
/// | [`Off`](Self::Off) | layers | is admitted, nothing is counted | nothing | turn limits off in an emergency |
///
/// # Example
///
/// ```
/// use tower_ratelimit::policy::Enforcement;
///
/// assert_eq!(Enforcement::default(), Enforcement::On);
/// assert_eq!("report-only".parse::<Enforcement>()?, Enforcement::ReportOnly);
/// assert_eq!(Enforcement::Off.to_string(), "off");
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Enforcement {
    /// Requests over the limit are rejected. The default.
    #[default]
    On,
    /// Every request is admitted, except those that are [blocked](crate::RateLimitLayer::block_if) and those
    /// whose blocklist check fails. Requests over the limit are marked.
    ///
    /// A marked request has a denial as the [`Decision`](crate::Decision) in its extensions, and is not
    /// charged. The header `X-RateLimit-Exceeded`, on the request and on the response, lists the policies
    /// that denied. Checks, peeks and debits of a handler with the [`Limiter`](crate::Limiter) of its request
    /// admit too.
    ///
    /// Use it to try out a limit, or to serve reduced responses over the limit. Requests without an identity,
    /// and requests that the store could not decide, are admitted unmarked. To report on only one of several
    /// policies, use [`Policy::shadow`](crate::Policy::shadow), or give it its own layer.
    ReportOnly,
    /// Every request reaches the service and is not counted, even a
    /// [blocked](crate::RateLimitLayer::block_if) one. The limiter of a request admits and charges nothing.
    Off,
}

impl fmt::Display for Enforcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::ReportOnly => "report-only",
            Self::Off => "off",
        })
    }
}

/// Reads `on`, `report-only` or `off`, in upper or lower case.
///
/// # Errors
///
/// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for any other text.
impl FromStr for Enforcement {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let is_same = |one: &Self| one.to_string().eq_ignore_ascii_case(text.trim());
        let unknown = || invalid!("invalid enforcement `{text}`: write `on`, `report-only` or `off`");
        POSITIONS.into_iter().find(is_same).ok_or_else(unknown)
    }
}

#[cfg(feature = "serde")]
crate::base::from_text! { Enforcement => "\"on\", \"report-only\" or \"off\"" }
#[cfg(feature = "serde")]
crate::base::to_text!(Enforcement);

/// All positions, in the order of their numbers.
const POSITIONS: [Enforcement; 3] = [Enforcement::On, Enforcement::ReportOnly, Enforcement::Off];

/// Turns enforcement off and on while the service runs, for all layers that share the switch.
///
/// Pass it to layers with [`RateLimitLayer::enforcement`](crate::RateLimitLayer::enforcement). Clones are
/// handles on one switch. A layer reads it once for each request, so a move does not affect requests that
/// have begun.
///
/// # Example
///
/// ```
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{Key, policy::{Enforcement, EnforcementSwitch}};
/// use tower_ratelimit::{MemoryStore, Policy, Quota, RateLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let switch = EnforcementSwitch::default();
/// let policy = Policy::new("all", Quota::per_hour(1));
/// let layer = RateLimitLayer::new(MemoryStore::new(), policy, Key::new("all")).enforcement(&switch);
/// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
/// }));
/// let status = async || service.clone().oneshot(Request::new(String::new())).await.unwrap().status();
///
/// assert_eq!(status().await, 200);
/// assert_eq!(status().await, 429);
/// switch.set(Enforcement::Off);
/// assert_eq!(switch.get(), Enforcement::Off);
/// assert_eq!(status().await, 200);
/// switch.set(Enforcement::On);
/// assert_eq!(status().await, 429);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct EnforcementSwitch(Arc<Position>);

// Aligned as the settings of a layer are, because every request reads it.
#[repr(align(128))]
struct Position {
    position: AtomicU8,
    /// Whether the metrics count the switch: not if it is the fixed enforcement of one layer.
    is_counted: bool,
}

impl Position {
    fn moved(&self, from: Option<u8>, to: Option<u8>) {
        if self.is_counted {
            metric!(switch_moved(from, to));
        }
        let _ = (from, to);
    }
}

impl Drop for Position {
    fn drop(&mut self) {
        let position = *self.position.get_mut();
        self.moved(Some(position), None);
    }
}

impl EnforcementSwitch {
    /// A switch in this position. The default one is [on](Enforcement::On).
    #[must_use]
    pub fn new(enforcement: Enforcement) -> Self {
        Self::of(enforcement, true)
    }

    fn of(enforcement: Enforcement, is_counted: bool) -> Self {
        let position = Position { position: AtomicU8::new(enforcement as u8), is_counted };
        position.moved(None, Some(enforcement as u8));
        Self(Arc::new(position))
    }

    /// The current position.
    #[must_use]
    pub fn get(&self) -> Enforcement {
        POSITIONS[usize::from(self.0.position.load(Ordering::Relaxed))]
    }

    /// Moves the switch, for all layers that share it. Requests that arrive from now on follow it. This
    /// logs nothing: log why you move it. Live policies, and the router for operators, log their moves.
    pub fn set(&self, enforcement: Enforcement) {
        let before = self.0.position.swap(enforcement as u8, Ordering::Relaxed);
        self.0.moved(Some(before), Some(enforcement as u8));
    }

    /// Whether there is another handle on the switch, such as a layer's. A task that moves the switch can end
    /// once no other handle exists.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, policy::EnforcementSwitch};
    ///
    /// let switch = EnforcementSwitch::default();
    /// let policy = Policy::new("all", Quota::per_hour(1));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), policy, Key::new("all")).enforcement(&switch);
    /// assert!(switch.is_shared());
    /// drop(layer);
    /// assert!(!switch.is_shared());
    /// ```
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl Default for EnforcementSwitch {
    fn default() -> Self {
        Self::new(Enforcement::On)
    }
}

/// The fixed enforcement of a layer. The metrics do not count this switch.
impl From<Enforcement> for EnforcementSwitch {
    fn from(enforcement: Enforcement) -> Self {
        Self::of(enforcement, false)
    }
}

/// Another handle on the switch.
impl From<&Self> for EnforcementSwitch {
    fn from(switch: &Self) -> Self {
        switch.clone()
    }
}

impl fmt::Debug for EnforcementSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EnforcementSwitch").field(&self.get()).finish()
    }
}
