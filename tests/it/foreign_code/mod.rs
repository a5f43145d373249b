//! Code of others that the crate calls: what happens if it panics or blocks. The guide `your_code` has a row for each
//! place; the name of each test is about a row.

mod background;
mod deciders;
mod drains;
mod observers;
mod permits;
mod subscribers;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tower_ratelimit::{
    Answer, Charge, Decision, Error, Key, Policy,
    store::{Action, Store},
};

/// Panics at the given calls, the first of which is 1.
#[derive(Clone, Default)]
struct Calls(Arc<AtomicUsize>);

impl Calls {
    fn panic_up_to(&self, last: usize) {
        let number = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(number > last, "foreign code panics on purpose");
    }

    fn made(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A store whose first calls for an action panic: immediately, or when their answer is awaited.
#[derive(Clone)]
struct Panics {
    store: Arc<dyn Store>,
    action: Action,
    last: usize,
    is_late: bool,
    calls: Calls,
}

impl Panics {
    fn new(store: impl Store, action: Action, last: usize, is_late: bool) -> Self {
        Self { store: Arc::new(store), action, last, is_late, calls: Calls::default() }
    }
}

impl Store for Panics {
    fn decide(&self, action: Action, charges: &[Charge]) -> Answer<Decision> {
        if action != self.action {
            return self.store.decide(action, charges);
        }
        let (this, charges) = (self.clone(), charges.to_vec());
        if !self.is_late {
            self.calls.panic_up_to(self.last);
        }
        Answer::pending(async move {
            tokio::task::yield_now().await;
            if this.is_late {
                this.calls.panic_up_to(this.last);
            }
            this.store.decide(action, &charges).await
        })
    }
    fn reset(&self, policy: &Policy, key: &Key) -> Answer<()> {
        self.store.reset(policy, key)
    }
    fn drain(&self) -> Answer<()> {
        self.store.drain()
    }
    fn inner(&self) -> Option<&dyn Store> {
        Some(&*self.store)
    }
}

/// The units of `policy` that remain for `key`.
async fn left(limiter: &tower_ratelimit::Limiter, policy: &Policy, key: &Key) -> Result<u64, Error> {
    Ok(limiter.peek(policy, key, 0).await?.remaining().unwrap())
}
