//! [`FailureMode`]: what happens to a request if the store makes no decision in time.

use std::{fmt, str::FromStr};

use crate::base::Error;

/// What happens to a request if the store makes no decision in time. See the guide
/// [failure modes](crate::guide::failure) for which to choose, and what an outage admits.
///
/// Parsed from and printed as `local`, `local/4`, `open` or `closed`; with the feature `serde`, also in
/// configuration files.
///
/// # Example
///
/// ```
/// # #[cfg(feature = "redis")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// use tower_ratelimit::{algorithm::SlidingLog, FailureMode, Key, Limiter, Policy, Quota, RedisStore};
///
/// // No Redis listens on this port.
/// let limiter = Limiter::new(RedisStore::builder().connect_lazy("redis://127.0.0.1:1")?);
/// let api = Policy::new("api", Quota::per_minute(1));
/// let assets = Policy::new("assets", Quota::per_second(10)).failure_mode(FailureMode::Open);
/// let login = Policy::new("login", Quota::per_minute(5))
///     .algorithm(SlidingLog::new())
///     .failure_mode("closed".parse()?);
///
/// // Counted in this process.
/// let alice = Key::new("alice");
/// let admitted = limiter.check(&api, &alice, 1).await?;
/// assert!(admitted.is_admitted() && admitted.failure().is_some());
/// assert!(!limiter.check(&api, &alice, 1).await?.is_admitted());
/// // Not counted.
/// let admitted = limiter.check(&assets, &alice, 1).await?;
/// assert!(admitted.is_admitted() && admitted.outcomes().is_empty());
/// assert!(limiter.check(&login, &Key::new("alice"), 1).await.is_err());
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "redis"))]
/// # fn main() {}
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureMode {
    /// Count in this process until the store is back, by the same algorithm, up to this instance's share of
    /// the limit. This is the default, with `instances: 0`.
    ///
    /// * **Share**: the limit divided by `instances` and rounded up. With 0, it is divided by the number of
    ///   running instances last seen in Redis, and a process that never saw Redis counts up to the whole
    ///   limit.
    /// * **Over-admission**: each process counts from zero against its share, once for all outages of a
    ///   period together. By default, the shares add up to one more limit, so a window admits up to about
    ///   twice its limit. With `instances: 1`, each process adds the whole limit. Algorithms with a burst
    ///   also admit what is replenished during the outage: with 5 per minute on one instance, 5 from Redis,
    ///   then 5 and 4 more in process within the same minute.
    /// * **Few connections**: a client whose requests all reach one instance, through a sticky load balancer
    ///   or one HTTP/2 connection, gets only that instance's share in an outage. Set `instances: 1` if that
    ///   is worse for you than over-admission.
    /// * **Afterwards**: what was admitted and still counts is charged to the store once it answers, up to
    ///   what remains there, where units on [lease](crate::Policy::max_lease) count as spent. The rest still
    ///   counts in the process, so the next outage does not grant a new quota. Decisions that were sent but
    ///   got no answer are left out, because the store [may have charged](crate::ErrorKind::may_have_charged)
    ///   them. For the same reason, the reconciling charge is repeated only if it was not sent.
    /// * **Refunds**: units that are refunded or settled are not charged afterwards. If they were charged
    ///   already, they are refunded to the store. A refund of units that the store charged before it failed
    ///   is sent once the store answers, unless it may have been carried out.
    /// * **Memory**: at most 100,000 keys; further ones evict those nearest to their reset.
    ///
    /// A custom algorithm without a [twin](crate::algorithm::Algorithm::twin) is counted by
    /// [`Gcra`](crate::algorithm::Gcra) during the outage. Permits of a
    /// [`Concurrency`](crate::algorithm::Concurrency) policy that were granted before the store failed do not
    /// count.
    Local {
        /// The number of instances that share the limit. 0, the default, stands for the number last seen in
        /// Redis ([`RedisStore::instances`](crate::RedisStore::instances)), or for 1 if Redis has not
        /// reported it yet or another store is used.
        instances: u32,
    },
    /// Admit the request, without `RateLimit` headers: for limits that only protect capacity. Nothing is
    /// limited while the store is unavailable.
    Open,
    /// Reject the request with 503: for limits that protect secrets, such as the limit on a login.
    Closed,
}

impl Default for FailureMode {
    /// [`Local`](Self::Local), with the limit divided by the number of running instances.
    fn default() -> Self {
        Self::Local { instances: 0 }
    }
}

impl fmt::Display for FailureMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local { instances: 0 } => f.write_str("local"),
            Self::Local { instances } => write!(f, "local/{instances}"),
            Self::Open => f.write_str("open"),
            Self::Closed => f.write_str("closed"),
        }
    }
}

/// Reads `local` (a share by the number of running instances), `local/4` (a quarter), `open` or `closed`, in
/// upper or lower case.
///
/// # Errors
///
/// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for any other text.
impl FromStr for FailureMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mode = text.trim().to_ascii_lowercase();
        let share = mode.strip_prefix("local/").and_then(|instances| instances.parse().ok());
        match (&*mode, share) {
            ("local", _) => Ok(Self::default()),
            ("open", _) => Ok(Self::Open),
            ("closed", _) => Ok(Self::Closed),
            (_, Some(instances)) if instances > 0 => Ok(Self::Local { instances }),
            _ => Err(invalid!(
                "invalid failure mode `{text}`: write `local`, `local/4` with the number of instances, `open` or `closed`"
            )),
        }
    }
}

#[cfg(feature = "serde")]
crate::base::from_text! { FailureMode => "\"local\", \"local/4\", \"open\" or \"closed\"" }
#[cfg(feature = "serde")]
crate::base::to_text!(FailureMode);
