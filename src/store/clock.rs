//! The clock of a store, and one that a test sets.

#[cfg(feature = "redis")]
use std::sync::atomic::AtomicI64;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::base::time::{micros, wall_micros};

/// A clock that moves only when you move it, for tests that must not sleep.
///
/// Pass a clone to [`MemoryStore::with_clock`](crate::MemoryStore::with_clock) or to
/// `RedisStoreBuilder::manual_clock`, and keep one: the store takes the time from it, so every decision is
/// repeatable. The clock starts at 2026-01-01T00:00:00Z and counts whole microseconds.
///
/// Move it after a [reset](crate::Operator::reset): a request in the same microsecond counts as one from before, so
/// its refund returns nothing.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, store::ManualClock};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let clock = ManualClock::new();
/// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
/// let policy = Policy::new("login", Quota::per_minute(1));
/// let key = Key::new("alice");
///
/// assert!(limiter.check(&policy, &key, 1).await?.is_admitted());
/// assert!(!limiter.check(&policy, &key, 1).await?.is_admitted());
/// clock.advance(Duration::from_secs(60));
/// assert!(limiter.check(&policy, &key, 1).await?.is_admitted());
/// clock.set(clock.now() + Duration::from_secs(60));
/// assert!(limiter.check(&policy, &key, 1).await?.is_admitted());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    micros: AtomicU64,
    /// How often the clock was set back.
    set_back: AtomicU64,
}

/// 2026-01-01T00:00:00Z.
const START: u64 = 1_767_225_600_000_000;

/// The earliest time. To a script, 0 is the mark of a server's clock, and to a state that of a time that is not set.
const FIRST: u64 = 1;

/// The largest time that a stored state can hold: 2^53 microseconds, in the year 2255.
const END: u64 = (1 << 53) - 1;

impl ManualClock {
    /// A clock that shows 2026-01-01T00:00:00Z.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Inner { micros: AtomicU64::new(START), set_back: AtomicU64::new(0) }))
    }

    /// Moves the clock forward by `by`, rounded down to whole microseconds. The clock stops in the year 2255.
    pub fn advance(&self, by: Duration) {
        self.change(|now| now.saturating_add(micros(by)));
    }

    /// Moves the clock back by `by`, as a correction of a real clock does. The clock stops at the first microsecond
    /// of 1970.
    pub fn step_back(&self, by: Duration) {
        self.change(|now| now.saturating_sub(micros(by)));
    }

    /// Sets the clock to `since_epoch` after 1970-01-01T00:00:00Z, or to 1 microsecond after it if that is zero.
    pub fn set(&self, since_epoch: Duration) {
        self.change(|_| micros(since_epoch));
    }

    /// The time of the clock, since 1970-01-01T00:00:00Z.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_micros(self.micros())
    }

    pub(crate) fn micros(&self) -> u64 {
        self.0.micros.load(Ordering::Relaxed)
    }

    /// How often the clock was set back.
    #[cfg(feature = "redis")]
    pub(crate) fn times_set_back(&self) -> u64 {
        self.0.set_back.load(Ordering::Relaxed)
    }

    fn change(&self, change: impl Fn(u64) -> u64) {
        let change = |now| change(now).clamp(FIRST, END);
        let changed =
            self.0.micros.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(change(now)));
        // `fetch_update` fails only if the closure returns `None`.
        if changed.is_ok_and(|before| change(before) < before) {
            self.0.set_back.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

/// The clock of a store.
#[derive(Clone)]
pub(super) enum StoreClock {
    /// A clock that follows no correction of the wall clock, and stops while the machine is suspended.
    Monotonic {
        started: Instant,
        /// The microseconds that the clock showed at `started`.
        start: u64,
    },
    Manual(ManualClock),
    /// The clock of a server, as it is known here.
    #[cfg(feature = "redis")]
    Server(Arc<ServerClock>),
}

/// An estimate of a server's clock: the last time that it reported, and what has passed since then on this
/// machine. Until it has reported one, the wall clock of this machine.
#[cfg(feature = "redis")]
#[derive(Debug)]
pub(crate) struct ServerClock {
    started: Instant,
    /// The wall clock at `started`.
    start: u64,
    /// How many microseconds the server is ahead of `start` and the time since `started`.
    ahead: AtomicI64,
}

#[cfg(feature = "redis")]
impl ServerClock {
    /// Microseconds since 1970.
    pub(crate) fn micros(&self) -> u64 {
        self.here().saturating_add_signed(self.ahead.load(Ordering::Relaxed))
    }

    /// Notes that the server's clock shows `micros` now.
    pub(crate) fn report(&self, micros: u64) {
        // Both are below 2^63.
        let ahead = micros.cast_signed().saturating_sub(self.here().cast_signed());
        self.ahead.store(ahead, Ordering::Relaxed);
    }

    fn here(&self) -> u64 {
        self.start + micros(self.started.elapsed())
    }
}

#[cfg(feature = "redis")]
impl Default for ServerClock {
    fn default() -> Self {
        Self { started: Instant::now(), start: wall_micros(), ahead: AtomicI64::new(0) }
    }
}

impl StoreClock {
    /// A monotonic clock that shows the wall clock's time now.
    pub(super) fn wall() -> Self {
        Self::new(None, wall_micros())
    }

    /// `manual`, or a monotonic clock that shows `start` now.
    pub(super) fn new(manual: Option<ManualClock>, start: u64) -> Self {
        manual.map_or_else(|| Self::Monotonic { started: Instant::now(), start }, Self::Manual)
    }

    pub(super) fn micros(&self) -> u64 {
        match self {
            Self::Monotonic { started, start } => {
                let elapsed = started.elapsed();
                start + elapsed.as_secs() * 1_000_000 + u64::from(elapsed.subsec_micros())
            }
            Self::Manual(clock) => clock.micros(),
            #[cfg(feature = "redis")]
            Self::Server(clock) => clock.micros(),
        }
    }

    /// The manual clock, or `None` for another one.
    pub(super) const fn manual(&self) -> Option<&ManualClock> {
        match self {
            Self::Manual(clock) => Some(clock),
            _ => None,
        }
    }
}
