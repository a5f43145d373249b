//! The task that follows the signals of a policy.

use std::{
    future::{Future as _, pending, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tower_ratelimit::{Error, Policy, Quota};

#[cfg(feature = "redis")]
use super::shared::Shares;
use super::source::{Bounds, Source};
#[cfg(feature = "metrics")]
use crate::panics::caught;

pub(super) struct Follower {
    /// The policy at its full quota.
    pub(super) full: Policy,
    /// Where `full` comes from.
    pub(super) origin: watch::Receiver<Policy>,
    pub(super) is_shared: bool,
    pub(super) bounds: Bounds,
    pub(super) sources: Vec<Box<dyn Source>>,
    #[cfg(feature = "redis")]
    pub(super) shared: Option<Shares>,
    pub(super) policies: watch::Sender<Policy>,
    pub(super) shares: watch::Sender<f64>,
}

/// An event before the next interval.
enum Event {
    /// No handle and no source of the policy is left.
    Unused,
    /// The policy at its full quota changes.
    Replaced,
}

impl Follower {
    /// Follows the policy and the signals until no handle and no source of the policy is left.
    pub(super) async fn run(mut self) {
        self.join().await;
        let mut next = Instant::now() + self.bounds.interval;
        loop {
            match timeout_at(next, self.event()).await {
                Ok(Event::Unused) => break,
                Ok(Event::Replaced) => self.replace().await,
                Err(_) => {
                    let own = self.own_share();
                    let share = self.agreed(own).await;
                    self.set(share);
                    next = Instant::now() + self.bounds.interval;
                }
            }
        }
        self.leave().await;
    }

    async fn event(&mut self) -> Event {
        let (policies, origin) = (&self.policies, &mut self.origin);
        let mut unused = pin!(policies.closed());
        let mut replaced = pin!(async {
            if origin.changed().await.is_err() {
                // The last policy stays.
                pending::<()>().await;
            }
        });
        poll_fn(|cx| {
            if unused.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::Unused);
            }
            replaced.as_mut().poll(cx).map(|()| Event::Replaced)
        })
        .await
    }

    /// Uses the policy that the origin has now, at the share that is active.
    async fn replace(&mut self) {
        let full = self.origin.borrow_and_update().clone();
        let share = *self.shares.borrow();
        let interval = self.bounds.interval;
        match scaled(&full, self.bounds.floor, interval).and_then(|_| scaled(&full, share, interval)) {
            Ok(policy) => {
                self.bounds.most_in_flight = most_in_flight(&full, self.is_shared);
                self.full = full;
                log!(debug, policy = policy.name(), share, quota = %policy.quota(), "an adaptive policy changes");
                self.send(policy);
                self.rename().await;
            }
            Err(_error) => {
                log!(warn, policy = full.name(), error = %_error, "an adaptive policy stays as it is");
            }
        }
    }

    /// The smallest share of all signals.
    fn own_share(&mut self) -> f64 {
        let bounds = &self.bounds;
        // Each is queried, so that each goes on.
        self.sources.iter_mut().map(|source| source.next(bounds)).fold(1.0, f64::min)
    }

    fn set(&self, share: f64) {
        let floor = self.bounds.floor;
        let share = if share > floor { rounded(share).clamp(floor, 1.0) } else { floor };
        #[cfg(feature = "metrics")]
        {
            let policy = self.full.name().to_owned();
            caught(|| metrics::gauge!("ratelimit_adaptive_share", "policy" => policy).set(share));
        }
        let before = self.shares.send_replace(share);
        if share.to_bits() == before.to_bits() {
            return;
        }
        match scaled(&self.full, share, self.bounds.interval) {
            Ok(policy) => {
                log!(debug, policy = policy.name(), share, quota = %policy.quota(), "an adaptive quota changes");
                self.send(policy);
            }
            // An algorithm of the user's that counts the full quota and not a part of it.
            Err(_error) => {
                log!(warn, policy = self.full.name(), share, error = %_error, "an adaptive quota stays as it is");
            }
        }
    }

    fn send(&self, policy: Policy) {
        #[cfg(feature = "metrics")]
        crate::capacity::changes_to(&policy);
        self.policies.send_replace(policy);
    }

    #[cfg(feature = "redis")]
    async fn join(&mut self) {
        if let Some(shared) = &mut self.shared
            && let Some(share) = shared.join().await
        {
            let share = share.clamp(self.bounds.floor, 1.0);
            self.sources.iter_mut().for_each(|source| source.adopt(share));
            self.set(share);
        }
    }

    #[cfg(feature = "redis")]
    async fn agreed(&mut self, own: f64) -> f64 {
        match &mut self.shared {
            Some(shared) => shared.agree(own).await,
            None => own,
        }
    }

    #[cfg(feature = "redis")]
    async fn rename(&mut self) {
        if let Some(shared) = &mut self.shared {
            shared.rename(&self.full).await;
        }
    }

    #[cfg(feature = "redis")]
    async fn leave(self) {
        if let Some(shared) = self.shared {
            shared.leave().await;
        }
    }

    #[cfg(not(feature = "redis"))]
    async fn join(&mut self) {}

    #[cfg(not(feature = "redis"))]
    async fn agreed(&mut self, own: f64) -> f64 {
        own
    }

    #[cfg(not(feature = "redis"))]
    async fn rename(&mut self) {}

    #[cfg(not(feature = "redis"))]
    async fn leave(self) {}
}

/// The limit of `policy`, if it limits the requests of this process that are in flight. It is not known which
/// part of a shared limit this process uses.
pub(super) fn most_in_flight(policy: &Policy, is_shared: bool) -> Option<f64> {
    (policy.has_permits() && !is_shared).then(|| policy.quota().limit() as f64)
}

/// The policy with a share of its quota, which may grow after the interval.
pub(super) fn scaled(policy: &Policy, share: f64, interval: Duration) -> Result<Policy, Error> {
    policy.with_reduced_quota(share_of(policy.quota(), share)?, interval)
}

/// A share of the limit and of the burst, from 0 to 1, and at least one unit of each.
fn share_of(quota: Quota, share: f64) -> Result<Quota, Error> {
    // Products such as 100 x 0.07 are a little above a whole number.
    const EXACT: f64 = 1.0 - 1e-14;
    // The limit is rounded up and the burst down, so the burst refills no later than before.
    let limit = ((quota.limit() as f64 * share * EXACT).ceil() as u64).clamp(1, quota.limit());
    let scaled = quota.with_limit(limit)?;
    if !quota.has_burst() {
        return Ok(scaled);
    }
    let burst = ((quota.capacity() as f64 * share) as u64).clamp(1, quota.capacity());
    scaled.try_burst(burst)
}

/// The share in steps of about 1 % of itself. All instances round alike, so they agree.
fn rounded(share: f64) -> f64 {
    let step = share.log2().floor().exp2() / 64.0;
    (share / step).round() * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_a_quota_is_rounded_to_whole_units_and_never_invalid() {
        let scaled = |quota, share| share_of(quota, share).unwrap();
        let quota = Quota::per_second(100).burst(30);
        for (share, limit, burst) in
            [(1.0, 100, 30), (0.07, 7, 2), (0.071, 8, 2), (0.5, 50, 15), (0.001, 1, 1), (0.0, 1, 1)]
        {
            assert_eq!(scaled(quota, share), Quota::per_second(limit).burst(burst), "{share}");
        }
        assert_eq!(scaled(Quota::per_day(10), 0.25), Quota::per_day(3));
        // A burst that refills in nearly 100 years.
        let slow = Quota::per_day(3).burst(109_000);
        for percent in 0..=100 {
            assert!(share_of(slow, f64::from(percent) / 100.0).is_ok(), "{percent}");
        }
        let most = 1_000_000_000_000;
        let largest = Quota::per_second(most).burst(most);
        assert_eq!((scaled(largest, 1.0), scaled(largest, 0.5).limit()), (largest, most / 2));
    }

    #[test]
    fn a_share_is_rounded_by_less_than_one_percent() {
        assert_eq!([rounded(1.0), rounded(0.5), rounded(0.25), rounded(0.001)][..3], [1.0, 0.5, 0.25]);
        let mut share = 1.0;
        let mut before = 1.0;
        while share > 1e-6 {
            let rounded = rounded(share);
            assert!((rounded / share - 1.0).abs() <= 1.0 / 128.0 + 1e-9, "{share}: {rounded}");
            assert!(rounded <= before);
            before = rounded;
            share *= 0.999;
        }
    }
}
