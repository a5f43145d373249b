//! Code of a program around the crate's, which panics at times: a hook of `on_threshold`, and a store around the
//! instance's.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::task::yield_now;
use tower_ratelimit::{
    Answer, Charge, Decision, Key, Limiter, Policy, RedisStore,
    store::{Action, Store},
};

use super::{network::Network, usage::UNITS};

/// What such a panic says. Other panics fail the schedule.
pub(super) const ON_PURPOSE: &str = "foreign code panics on purpose";

/// How often the code of an instance panics: at each call with a multiple of this number. `None` if it never does.
pub(super) type Frequency = Option<u64>;

/// A store that panics in the background: when a permit is renewed or released, and when a reservation is settled.
struct Around {
    store: RedisStore,
    network: Arc<Network>,
    every: u64,
    calls: AtomicU64,
}

impl Around {
    /// Whether this call panics.
    fn panics(&self, action: Action, charges: &[Charge]) -> bool {
        let Some(policy) = charges.first().map(Charge::policy) else { return false };
        let is_settled = UNITS.contains(&policy.name());
        let is_permit = policy.has_permits();
        let is_background = match action {
            Action::Renew => true,
            Action::Refund => is_permit || is_settled,
            Action::Debit => is_settled,
            _ => false,
        };
        let panics = is_background
            && !self.network.is_healed()
            && self.calls.fetch_add(1, Ordering::Relaxed) % self.every == self.every - 1;
        if panics {
            self.network.log.note(format_args!("{action:?} of {} panics", policy.name()));
            self.network.count("panic of a store");
            if is_settled {
                // The units may be charged or not.
                self.network.trouble_settled(policy.name());
            }
        }
        panics
    }
}

impl Store for Around {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        if !self.panics(action, charges) {
            return self.store.decide(action, charges);
        }
        // Before anything is sent, or once there is an answer. The renewals of one permit could be the ones that panic
        // before, so that it expires.
        let is_late =
            action == Action::Renew || (self.calls.load(Ordering::Relaxed) / self.every).is_multiple_of(2);
        assert!(is_late, "{ON_PURPOSE}");
        let answer = self.store.decide(action, charges);
        Answer::pending(async move {
            let _ = answer.await;
            yield_now().await;
            panic!("{ON_PURPOSE}")
        })
    }
    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        self.store.reset(policy, key)
    }
    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.store)
    }
}

/// A limiter on `store`, with code that panics.
pub(super) fn limiter(store: &RedisStore, network: &Arc<Network>, frequency: Frequency) -> Limiter {
    let Some(every) = frequency else { return Limiter::new(store.clone()) };
    let (store, calls) = (store.clone(), AtomicU64::new(0));
    let limiter = Limiter::new(Around { store, network: network.clone(), every, calls });
    let (network, events) = (network.clone(), AtomicU64::new(0));
    limiter.on_threshold(move |_| {
        if !network.is_healed() && events.fetch_add(1, Ordering::Relaxed) % every == 0 {
            network.count("panic of a hook");
            panic!("{ON_PURPOSE}");
        }
    });
    limiter
}
