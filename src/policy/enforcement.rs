use std::{
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use crate::base::{Error, ErrorKind};

/// Whether layers enforce their limits.
///
/// Reads from and prints as `on`, `soft` or `off`, with the feature `serde` in configuration files too. See
/// [`EnforcementSwitch`] for an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Enforcement {
    /// As each layer is built. The default.
    #[default]
    On,
    /// Every layer admits all requests and marks those over the limit, as a [soft](crate::RateLimitLayer::soft) layer does.
    /// So does what a handler asks of the [`Limiter`](crate::Limiter) of its request.
    Soft,
    /// Requests reach the service uncounted, as through a layer that is not [enabled](crate::RateLimitLayer::enabled). The
    /// limiter of a request admits and charges nothing.
    Off,
}

impl fmt::Display for Enforcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::Soft => "soft",
            Self::Off => "off",
        })
    }
}

/// Reads `on`, `soft` or `off`, in any case.
///
/// # Errors
///
/// [`InvalidConfig`](ErrorKind::InvalidConfig) for any other text.
impl FromStr for Enforcement {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match &*text.trim().to_ascii_lowercase() {
            "on" => Ok(Self::On),
            "soft" => Ok(Self::Soft),
            "off" => Ok(Self::Off),
            _ => {
                let message = format!("invalid enforcement `{text}`: write `on`, `soft` or `off`");
                Err(Error::new(ErrorKind::InvalidConfig, message))
            }
        }
    }
}

/// Turns enforcement off and on while the service runs, for all layers that share the switch.
///
/// Give it to layers with [`RateLimitLayer::enforcement`](crate::RateLimitLayer::enforcement). Clones are handles on one
/// switch. A layer reads it once for each request, so a request that has begun is treated as before.
///
/// # Example
///
/// ```
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{key::Constant, policy::{Enforcement, EnforcementSwitch}};
/// use tower_ratelimit::{MemoryStore, Policy, Quota, RateLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let switch = EnforcementSwitch::default();
/// let policy = Policy::new("all", Quota::per_hour(1));
/// let layer = RateLimitLayer::new(MemoryStore::new(), policy, Constant::new("all")).enforcement(&switch);
/// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
///     Ok::<_, std::convert::Infallible>(Response::new(String::new()))
/// }));
/// let status = async || service.clone().oneshot(Request::new(String::new())).await.unwrap().status();
///
/// assert_eq!(status().await, 200);
/// assert_eq!(status().await, 429);
/// switch.set(Enforcement::Off);
/// assert_eq!(status().await, 200);
/// switch.set(Enforcement::On);
/// assert_eq!(status().await, 429);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct EnforcementSwitch(Arc<Position>);

/// The position of a switch, counted by the metrics.
struct Position(AtomicU8);

impl Default for Position {
    fn default() -> Self {
        metric!(switch_moved(None, Some(ON)));
        Self(AtomicU8::new(ON))
    }
}

impl Drop for Position {
    fn drop(&mut self) {
        metric!(switch_moved(Some(*self.0.get_mut()), None));
    }
}

impl EnforcementSwitch {
    /// A switch in this position. The default one is [on](Enforcement::On).
    #[must_use]
    pub fn new(enforcement: Enforcement) -> Self {
        let switch = Self::default();
        switch.set(enforcement);
        switch
    }

    /// The position.
    #[must_use]
    pub fn get(&self) -> Enforcement {
        match self.0.0.load(Ordering::Relaxed) {
            SOFT => Enforcement::Soft,
            OFF => Enforcement::Off,
            _ => Enforcement::On,
        }
    }

    /// Moves the switch, for all layers that share it. Requests that arrive from now on follow it.
    pub fn set(&self, enforcement: Enforcement) {
        let position = match enforcement {
            Enforcement::On => ON,
            Enforcement::Soft => SOFT,
            Enforcement::Off => OFF,
        };
        let _before = self.0.0.swap(position, Ordering::Relaxed);
        metric!(switch_moved(Some(_before), Some(position)));
    }

    /// Whether there is another handle on the switch, such as that of a layer.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

const ON: u8 = 0;
const SOFT: u8 = 1;
const OFF: u8 = 2;

impl fmt::Debug for EnforcementSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EnforcementSwitch").field(&self.get()).finish()
    }
}
